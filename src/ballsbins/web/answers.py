"""What a page shows about one run, as plain data: computed in a worker process, drawn by `page` and the browser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ballsbins.accounting.curve import Kind
from ballsbins.bound import Bound
from ballsbins.mechanism import Mechanism
from ballsbins.report import Card, Statement
from ballsbins.report.numbers import describe
from ballsbins.samplers import BallsAndBins, Sampler

POINTS = 48  # points of a curve; more would not be visible on a picture this wide
_STRETCH = 1.35  # draw a curve this many times as far as its ε at δ
_LARGEST_DRAWN = 60.0


@dataclass(frozen=True)
class Row:
    """ε of one run at one δ: lower ≤ truth ≤ upper."""

    name: str
    run: str
    delta: float
    lower: float
    upper: float
    kind: Kind
    method: str
    confidence: float = 1.0
    penalty: float = 0.0
    proof: str = ""  # what a certificate proves about this run at this δ, in words

    @property
    def bound(self) -> Bound:
        """The same as a Bound, for code that puts it into words."""
        numbers = self.lower, self.upper, self.upper
        return Bound("epsilon", *numbers, self.kind, self.method, self.confidence, self.penalty)


@dataclass(frozen=True)
class Points:
    """A privacy curve: δ is between `lower` and `upper` at each ε."""

    epsilon: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]


@dataclass(frozen=True)
class Calibrated:
    """The least noise for a target, and the resulting ε."""

    noise_multiplier: float
    target: float
    delta: float
    upper: float


def row_of(mechanism: Mechanism, delta: float, claim: Bound | None = None, name: str | None = None) -> Row:
    """ε at δ: computed, unless a claim is given, which is shown unchanged."""
    bound = mechanism.epsilon(delta) if claim is None else claim
    return Row(
        mechanism.sampler.name if name is None else name,
        describe(mechanism),
        delta,
        float(bound.lower),
        float(bound.upper),
        bound.kind,
        bound.method,
        bound.confidence,
        float(np.max(np.asarray(bound.penalty))),
    )


def points_of(mechanism: Mechanism, row: Row) -> Points:
    """The curve from ε = 0 to somewhat beyond the row's ε."""
    end = row.upper if math.isfinite(row.upper) else row.lower
    grid = np.linspace(0.0, min(_STRETCH * end, _LARGEST_DRAWN) if end > 0 else 1.0, POINTS)
    bound = mechanism.delta(grid)
    return Points(tuple(grid.tolist()), *(tuple(np.asarray(y).tolist()) for y in (bound.lower, bound.upper)))


def of_run(mechanism: Mechanism, delta: float) -> Iterator[Row | Points]:
    """First ε, then the curve, from one mechanism, so that the second question reuses work of the first."""
    row = row_of(mechanism, delta)
    yield row
    yield points_of(mechanism, row)


def calibrated(sampler: Sampler, epsilon: float, delta: float, epochs: int) -> Iterator[Calibrated]:
    """The noise that a target needs."""
    from ballsbins.calibration import calibrate

    mechanism = calibrate(sampler, epsilon=epsilon, delta=delta, epochs=epochs)
    yield Calibrated(mechanism.noise_multiplier, epsilon, delta, float(mechanism.epsilon(delta).upper))


def statement_of(mechanism: Mechanism, delta: float, num_examples: int | None) -> Iterator[Statement]:
    """The statement of a run that has not been made yet."""
    yield Card(mechanism, delta, num_examples=num_examples).statement()


def warm_up() -> None:
    """Import everything and ask one question, to fill the caches that all questions share before the first comes."""
    for _ in of_run(Mechanism(BallsAndBins(234), 0.6), 1e-6):
        pass
