"""Sizes of the terms of a product of runs at real c, roughly: from them saddles, splits and periods are chosen.

Π_f (M_body + zJ)^{n_f} is expanded in z, and the power of z counts the jumps. At every c, the size of a term bounds
what it contributes (Chernoff).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from scipy.special import gammaln

from ballsbins.accounting.curve import Array
from ballsbins.accounting.epochs.fourier import TINY
from ballsbins.accounting.epochs.lines import ANY, NoLine, Term
from ballsbins.accounting.epochs.moments import Moments
from ballsbins.accounting.epochs.survey import Split

_SADDLES = 120  # candidates for c: with fewer, the estimates are poor
# Range of the search for saddles, in units of the inverse deviation: least distance from 1 (or 0), and largest
# distance left of 0 and right of 1. The left is longer, because δ of `add` may fall faster than any exponential.
_NEAREST, _FARTHEST = 1e-3, (1e6, 200.0)
_HALF = 34.0  # images at half the period must be this far below the value, in logs
# the longest period, in deviations and in losses, and how many are tried
_MOST_PERIODS, _LEAST_PERIOD, _PERIODS_TRIED = 400.0, 4000.0, 100
_ROUNDED = 1e-12  # more than the relative rounding of a sum of losses
_LARGEST_LOG = 300.0  # largest logarithm of a number that must fit into a double


class TermSizes:
    """Logarithms of terms at candidates for c, right of 1 or left of 0."""

    def __init__(self, factors: Sequence[tuple[Moments, int]], deviation: float, *, right: bool) -> None:
        """Take the runs, how often each is run, and the deviation of the summed loss; `right` is where lines lie."""
        self._factors, self._deviation, self._right = factors, deviation, right
        self._count = sum(count for _, count in factors)
        self._known: dict[tuple[bool, Split | None], list[Array]] = {}
        self._bases: dict[tuple[bool, Split | None], Array] = {}
        self._ratios: dict[tuple[bool, Split], Array] = {}

    @property
    def least(self) -> float:
        """A lower bound on every summed loss, up to rounding; −∞ if none is known."""
        return (1.0 + _ROUNDED) * sum(count * run.least for run, count in self._factors)

    def forget(self) -> None:
        """Drop what was computed from earlier surveys of the runs."""
        for known in (self._known, self._bases, self._ratios):
            known.clear()

    @cached_property
    def away(self) -> Array:
        """Distances of candidates from 1 (right) or 0 (left)."""
        per_deviation = 1.0 / self._deviation
        least = _NEAREST * min(per_deviation, 1.0)
        return np.geomspace(least, _FARTHEST[self._right] * max(per_deviation, 1.0), _SADDLES)

    @cached_property
    def candidates(self) -> Array:
        """Candidates for c, on the side of the lines."""
        return self._at(self._right)

    def _at(self, right: bool) -> Array:
        return 1.0 + self.away if right else -self.away

    @cached_property
    def _log_u(self) -> Array:
        """Log u(u−1) at the candidates, the same on both sides."""
        return np.asarray(np.log(self.away) + np.log1p(self.away))

    @cached_property
    def peak(self) -> Array:
        """Log max_x e^{−cx}(e^x − 1), or its counterpart on the left: it replaces 1/(u(u−1)) in Chernoff's bound."""
        return np.asarray(self.away * np.log(self.away) - (1.0 + self.away) * np.log1p(self.away))

    def _bodies(self, right: bool, split: Split | None) -> list[Array]:
        """Log M_body of every kind of run."""
        if (right, split) not in self._known:
            self._known[right, split] = [run.rough(self._at(right), split) for run, _ in self._factors]
        return self._known[right, split]

    def body(self, right: bool, split: Split | None) -> Array:
        """Log M_body of the product."""
        if (right, split) not in self._bases:
            bodies = zip(self._bodies(right, split), self._factors, strict=True)
            self._bases[right, split] = np.asarray(sum(count * body for body, (_, count) in bodies))
        return self._bases[right, split]

    def _ratio(self, right: bool, split: Split) -> Array:
        """Log of Σ n·J/M_body; if v is split, with J/(u(u−1)) in place of J."""
        if (right, split) not in self._ratios:
            bodies = zip(self._bodies(right, split), self._factors, strict=True)
            c = self._at(right)
            parts = [math.log(count) + run.rough_jump(c, split) - body for body, (run, count) in bodies]
            self._ratios[right, split] = np.logaddexp.reduce(parts)
        return self._ratios[right, split]

    def terms(self, right: bool, split: Split | None, jumps: Sequence[int]) -> Array:
        """Log of the terms with each number of jumps, without K, divided by u(u−1): a row for each.

        If v is split, J/(u(u−1)) is largest at real u, but u(u−1) grows along the line until J falls off, at about
        3/width.
        """
        base = self.body(right, split) - self._log_u
        if split is None or list(jumps) == [0]:
            return np.asarray(base[None, :])
        ratio = self._ratio(right, split)
        if list(jumps) == [ANY]:
            more = self._count * np.log1p(np.exp(np.minimum(ratio, _LARGEST_LOG)) / self._count)
            return np.asarray(base + np.log(np.maximum(-np.expm1(-more), TINY)) + more)[None, :]
        n, j = float(self._count), np.asarray(jumps, dtype=np.float64)
        choose = gammaln(n + 1) - gammaln(n - j + 1) - gammaln(j + 1) - j * math.log(n)
        lift = np.logaddexp(self._log_u, 2.0 * math.log(3 / split.width))
        powers = np.multiply.outer(j, ratio) + np.multiply.outer(np.maximum(j - 1.0, 0.0), lift)
        return np.asarray(
            base + choose[:, None] + powers + np.multiply.outer(np.minimum(j, 1.0), self._log_u)
        )

    def envelope(self, split: Split | None, jumps: int) -> Callable[[Array], Array]:
        """Log of a bound on a term at any k, out of the money: the least over c of Chernoff's bound."""
        left, right = (
            (self._at(side), self.terms(side, split, [jumps])[0] + self._log_u + self.peak)
            for side in (False, True)
        )

        def bound(k: Array) -> Array:
            found = np.empty(k.shape)
            for rows, side in ((k < 0.0, left), (k >= 0.0, right)):
                found[rows] = lowest(k[rows], *side)
            return found

        return bound

    def period(self, term: Term, k: float, reach: float, split: Split | None, together: float) -> float:
        """Twice the least period of a line for a term whose images are small; beyond the least loss there is nothing.

        Args:
            term: the term.
            k: log K of the value.
            reach: how far around k the line serves.
            split: how runs are split.
            together: log of the value.
        """
        narrow = self._deviation if self._right else min(self._deviation, k - self.least)
        most = _MOST_PERIODS * self._deviation + _LEAST_PERIOD
        candidates = np.geomspace(4 * narrow, most, _PERIODS_TRIED)
        worst = np.full(candidates.shape, -np.inf)
        envelope = self.envelope(split, term.jumps)
        for end in (k - reach, k + reach):
            for side in (1.0, -1.0):
                away = side * candidates
                worst = np.maximum(worst, (term.c - 1.0) * away + envelope(end + away))
        bad = np.flatnonzero(worst > together - _HALF)
        if bad.size and bad[-1] + 1 == candidates.size:
            raise NoLine("images")
        return 2.0 * float(candidates[bad[-1] + 1 if bad.size else 0])

    def bound(self, c: float) -> float:
        """Log of how much larger Chernoff's bound at c is than the size of a term, if it is."""
        return max(float(np.interp(c, self.candidates, self._log_u + self.peak)), 0.0)


def lowest(k: Array, c: Array, height: Array) -> Array:
    """The least of height + (1−c)·k over c, at each k."""
    return np.asarray((height + (1.0 - c) * k[:, None]).min(axis=1))
