"""What the statistical tests of the samplers share.

Every test has a fixed seed, so it cannot fail by chance tomorrow; FALSE_ALARM is the probability with which
it would have failed for a right sampler when the seed was chosen. Each has a negative control: a slightly
wrong sampler, which the same test must reject at the same level.
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

FALSE_ALARM = 1e-6


@pytest.fixture(scope="session")
def fits() -> Callable[..., bool]:
    """Tell whether counts fit their expectation by a two-sided chi-square test: too good is wrong too."""

    def test(counts, probabilities=None) -> bool:
        counts = np.asarray(counts, dtype=np.float64).ravel()
        cells = len(counts)
        share = np.full(cells, 1 / cells) if probabilities is None else np.asarray(probabilities).ravel()
        expected = counts.sum() * share
        assert expected.min() > 5, "the test is not valid with so few counts in a cell"
        statistic = np.sum((counts - expected) ** 2 / expected)
        tail = min(stats.chi2.sf(statistic, cells - 1), stats.chi2.cdf(statistic, cells - 1))
        return bool(tail > FALSE_ALARM / 2)

    return test


@pytest.fixture(scope="session")
def fits_binomial(fits) -> Callable[..., bool]:
    """Tell whether integers fit Bin(trials, probability), by a chi-square test on large enough cells."""

    def test(values, trials: int, probability: float) -> bool:
        values = np.asarray(values).ravel()
        law = stats.binom(trials, probability)
        edges = np.unique(law.ppf(np.linspace(0, 1, 21)[1:-1]))
        shares = np.diff(np.concatenate(([0], law.cdf(edges), [1])))
        cells = np.searchsorted(edges, values, side="left")
        return fits(np.bincount(cells, minlength=len(edges) + 1), shares)

    return test


@pytest.fixture(scope="session")
def fits_binomials() -> Callable[..., bool]:
    """Tell whether large independent counts are all Bin(trials, probability), by squared deviations."""

    def test(counts, trials: int, probability: float) -> bool:
        counts = np.asarray(counts, dtype=np.float64).ravel()
        variance = trials * probability * (1 - probability)
        assert variance > 100, "the normal approximation is not good enough"
        statistic = np.sum((counts - trials * probability) ** 2) / variance
        tail = min(stats.chi2.sf(statistic, len(counts)), stats.chi2.cdf(statistic, len(counts)))
        return bool(tail > FALSE_ALARM / 2)

    return test
