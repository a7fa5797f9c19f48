"""The privacy curve of a product of runs by Mellin inversion: exact, for any number of them.

X is the product of the likelihood ratios of all runs, n_f of each kind f, E X = 1. With M(u) = Π_f M_f(u)^{n_f}

    E(X − K)₊ = (1/2πi) ∫ M(u) K^{1−u} / (u(u−1)) du       on Re u = c > 1: the call, direction `remove`,

and the same integral with c < 0 is the put, direction `add`. The line goes through the real saddle of the integrand,
where nothing cancels. This module chooses saddles, splits and periods from a first look at the curves of single runs.
The stated errors hold however good or bad these choices are. `lines` has the integrals and their errors.

**Far jumps** change nothing: with all other runs fixed E(X − K)₊ = f(1) + ∫ f″(κ) v(κ) dκ, and f″ is the density with
which the other runs lead from κ to K. Where they cannot lead back to K, v is cut off.

**Jumps.** If a bump of rare jumps still keeps every tilt from isolating the body, each run is split into a body and
jumps (`survey`, `term_sizes`). Each number of jumps has its own saddle and line. If no jump at all is likely, M
hardly falls off along a line, but Π M_f^{n_f} − Π M_body^{n_f} does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np

from ballsbins.accounting.curve import REMOVE, Direction
from ballsbins.accounting.epochs.fourier import Grid, TooFine
from ballsbins.accounting.epochs.lines import ANY, Line, Lines, NoLine, Term, Way, assemble, in_sight
from ballsbins.accounting.epochs.moments import FIRST_FLOOR, Moments
from ballsbins.accounting.epochs.survey import Split
from ballsbins.accounting.epochs.term_sizes import TermSizes, lowest

_NEGLIGIBLE = 44.0  # leave out jumps whose effect is this far below the value, in logs
_DROPPED = 35.0  # leave out powers of jumps this far below the value, in logs
_MISJUDGED = 2.0  # largest difference between a saddle's height and its estimate, in logs
_WORTH = 6.0  # splitting begins where the saddle exceeds the value by this much, in logs
_COARSE = 1.25  # ratio of the losses at which v may be cut off
_MOST_JUMPS = 12  # most jumps of one term: an expansion that needs more is not used
_MOST_SPLITS = 12  # most splits of single runs, one after the other
_MOST_TRIES = 3  # ways of splitting that are tried, the best first
_END = 1e-13  # part of the value beyond the end of a line: no more than the error of the best single curves
_MARGIN = 1e-9  # more than the rounding of a Chernoff bound
_DEEPER, _BELOW_VALUE, _FURTHER = (
    1.2,
    60.0,
    1.35,
)  # survey deeper than 1.2 times the value and 60, by this factor
_SPARE = 20.0  # how far a saddle may lie below a Gaussian's, in logs
_SAME_VALLEY = 0.95  # a valley at more than this fraction of the last one's place is the same valley
_LEAST_VALUE = (
    -750.0
)  # no jump is followed below this log of a value, and no line is laid for a log δ below it
_MOST_DEVIATIONS, _MOST_LOSS, _JUMPS_TRIED = 100.0, 100.0, 60  # how far above K to look for a jump; how often
# A line becomes very long if log K is this many deviations and jumps make up less than this many e-folds of M^n.
_MANY_DEVIATIONS, _SLOW = 5000.0, 20.0
_SOME_DEVIATIONS = 50.0  # from this many deviations on, all jumps together are tried last
_SMALL_LOSSES = (0.2, 0.1, 0.05, 0.025, 0.0125)  # fractions of log K at which jumps may be split off
_MOST_WIDTHS, _MOST_TURNS, _ENDS_TRIED = (
    8e3,
    300.0,
    40,
)  # how far to look for the end of a line, at how many y
_TOO_SHORT = 2.0  # moments that are only rough end most lines too soon, by less than this factor
_END_OF_JUMPS = 14.0  # e^{−14²/4} is less than 10⁻²⁰
_PER_HEIGHT = 0.1  # a saddle may be misjudged by more the larger its height: this much per unit, relative
_LARGEST_LOG = 300.0  # largest logarithm of a number that must fit into a double
# Lines left of a saddle are tried if its period is this many times log K: at these shares of its distance from 1, up
# to this much more height, in logs, and taken at this ratio of periods.
_LONG, _LEFT_OF_SADDLE, _LIFTED, _SHORTER = 10.0, (0.85, 0.7, 0.55), 3.0, 0.75
_SHORT = 1e-7  # part of the value accepted beyond the end of a longest line: it is in the stated error
# most points of a line; the least number to which one is halved; those of the first line on the left
_LONGEST, _SHORTEST, _FIRST_LENGTH = 2**17, 2**10, 2**9
_RESOLVED, _TO_SPARE = (
    1e-3,
    3.0,
)  # for such a bound: error of M − 1, relative, and how far below what is enough
_DEEPEST = -1300.0  # do not survey log v of a single run below this


class Product:
    """The product of all runs in one direction; it lays lines through the saddles that each question needs."""

    def __init__(self, factors: Sequence[tuple[Moments, int]], direction: Direction) -> None:
        self.factors = [(moments, count) for moments, count in factors if count > 0]
        self._right = direction == REMOVE
        self.count = sum(count for _, count in self.factors)
        self._floor = FIRST_FLOOR
        self._looks: dict[float, tuple[float, float]] = {}
        self._known: dict[float, list[Split | None]] = {}

    @cached_property
    def _sizes(self) -> TermSizes:
        return TermSizes(self.factors, self.deviation, right=self._right)

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of the summed loss, without jumps."""
        return math.sqrt(sum(count * moments.spread**2 for moments, count in self.factors))

    @property
    def least(self) -> float:
        """A lower bound on every summed loss, up to rounding; −∞ if none is known."""
        return self._sizes.least

    def look(self, epsilon: float, end: float) -> tuple[float, float]:
        """Log δ at one ε ≥ 0, roughly, and its slope: K only enters as K^{1−c}. Split as for a sheet up to `end`."""
        if epsilon not in self._looks:
            # the lower a saddle, the less a bump of jumps disturbs it
            ways = self._ways(epsilon, end) if self._right else self._ways(-epsilon, -epsilon)
            terms = min(ways, key=lambda way: way.height).terms
            log = float(np.logaddexp.reduce([term.estimate for term in terms]))
            c = max(terms, key=lambda term: term.estimate).c
            log, slope = (log, 1.0 - c) if self._right else (log + epsilon, c)
            self._looks[epsilon] = min(log, 0.0), slope
        return self._looks[epsilon]

    def log_bound(self, k: float, enough: float) -> float:
        """Log of Chernoff's bound on the value at k: M(c)·K^{1−c} times max_x of the payoff's share, at some good c.

        It uses the least tilt whose bound is below `enough`, because a large tilt needs the curves of single runs far
        out. No bound is sought that is below every double.
        """
        c, peak = self._sizes.candidates, self._sizes.peak
        height = self._sizes.body(self._right, None) + (1.0 - c) * k + peak
        # left of 0, k = −ε, and δ is e^ε times the value
        low = np.flatnonzero(height < max(enough, _LEAST_VALUE + min(k, 0.0)) - _TO_SPARE)
        at = int(low[0] if low.size else np.argmin(height))
        while not all(moments.covers(float(c[at]), None) for moments, _ in self.factors):
            if self._floor <= _DEEPEST:
                return math.inf
            self._look_out(max(_FURTHER * self._floor, _DEEPEST))
        grid = Grid.covering(4 * self.deviation, 1.0)
        try:
            parts = [
                (moments.transform(float(c[at]), grid, None, moments.spacing, kink=True), count)
                for moments, count in self.factors
            ]
        except TooFine:
            return math.inf
        log_m = 0.0
        for part, count in parts:
            excess = float(part.value[0].real)
            if float(part.error[0]) > _RESOLVED * abs(excess):
                return math.inf
            log_m += count * math.log1p(
                excess + abs(excess) * (part.relative + _MARGIN) + 2.0 * float(part.error[0])
            )
        return log_m + float((1.0 - c[at]) * k + peak[at]) + _MARGIN

    def sheet(self, k: float, reach: float) -> Lines:
        """Lines for log K within `reach` of k: one through the saddle, or one for every number of jumps."""
        while True:
            end = k + reach if self._right else k
            ways = self._ways(end, end)
            # losses beyond the survey must not matter
            deep = self._floor < _DEEPER * ways[0].together - _BELOW_VALUE - math.log(self.count)
            covered = all(moments.covers(ways[0].terms[0].c, ways[0].split) for moments, _ in self.factors)
            if covered and (deep or not self._right):
                break
            if self._floor <= _DEEPEST:
                raise NoLine("too deep")
            self._look_out(max(_FURTHER * self._floor, _DEEPEST))
        failure = NoLine("no way")
        for way in ways[:_MOST_TRIES]:
            try:
                return self._lay(way, k, reach)
            except NoLine as error:
                failure = error
        if self._right and k > _SOME_DEVIATIONS * self.deviation:
            for way in self._any_jumps(k + reach, self._until(k + reach)):
                with suppress(NoLine):
                    return self._lay(replace(way, together=min(way.together, ways[0].together)), k, reach)
        sharper = [moments.sharpen() for moments, _ in self.factors]
        if any(sharper):
            self._forget()
            return self.sheet(k, reach)
        raise failure

    def _until(self, k: float) -> float:
        """The loss beyond which a single jump changes nothing."""
        if not self._right:
            return math.inf
        # All other runs have mean 1, so the value is at least that of a single run (Jensen's inequality).
        single = max(float(moments.log_value(np.array([k]))[0]) for moments, _ in self.factors)
        until = k + self._farthest(k, max(-0.5 * (k / self.deviation) ** 2 - _SPARE, single))
        # take only a few different values, because moments are kept for each
        return _COARSE ** math.ceil(math.log(until) / math.log(_COARSE)) if until < math.inf else until

    def _splits(self, k: float) -> list[Split | None]:
        """How single runs may be split: none but for far jumps, then at one valley after the other.

        Jumps to far above K change nothing and are always left out. If a bump still holds the saddle down,
        splitting the bump off moves the saddle out. Under its larger tilt another bump may appear, so this is
        repeated until the body has no bump or does not matter.
        """
        if k in self._known:
            return self._known[k]
        until = self._until(k)
        splits: list[Split | None] = [Split.beyond(until) if until < math.inf else None]
        way = self._way(k, splits[0], 0)
        while way is not None and self._right and len(splits) <= _MOST_SPLITS and way.terms[0].jumps == 0:
            found = [m.valley(way.terms[0].c, way.split) for m, _ in self.factors]
            valleys = [valley for valley in found if valley is not None]
            if not valleys or (way.split is not None and min(valleys) > _SAME_VALLEY * way.split.at):
                break
            at = min(valleys)
            ends = np.max([moments.log_value(np.array([0.0, at])) for moments, _ in self.factors], axis=0)
            split = Split.at_valley(at, until, max(float(ends[0] - ends[1]), 0.0))
            way = self._way(k, split, _MOST_JUMPS)
            if way is not None:
                splits.append(split)
        self._known[k] = splits
        return splits

    def _way(self, k: float, split: Split | None, most: int) -> Way | None:
        """The terms of a split that matter, with up to `most` jumps; None if that is not enough."""
        terms = self._terms(k, split, min(most, self.count))
        together = float(np.logaddexp.reduce([term.estimate for term in terms]))
        kept = [term for term in terms if term.height > together - _DROPPED]
        if kept[-1].jumps == _MOST_JUMPS:
            return None
        left_out = [term.height + self._sizes.bound(term.c) for term in terms if term not in kept]
        return Way(split, kept, together, float(np.logaddexp.reduce(left_out, initial=-np.inf)))

    def _ways(self, k: float, end: float) -> list[Way]:
        """The terms at k in every way to split, the best way first; `end` is the K for which splits are chosen."""
        splits = self._splits(end)
        found = [self._way(k, split, _MOST_JUMPS if at else 0) for at, split in enumerate(splits)]
        ways = [way for way in found if way is not None]
        if self._right and k > _MANY_DEVIATIONS * self.deviation:
            ways = self._any_jumps(k, math.inf if splits[0] is None else splits[0].until) + ways
        value = min(way.together for way in ways)
        if ways[0].height > value + _WORTH:
            # lower saddles mean less cancellation; fewer terms mean less work
            ways.sort(key=lambda way: way.height + 0.5 * len(way.terms))
        return [replace(way, together=value) for way in ways]

    def _any_jumps(self, k: float, until: float) -> list[Way]:
        """If M^n falls off slowly: all terms with jumps together, split so low that the rest does not matter."""
        if not all(moments.faithful for moments, _ in self.factors):
            return []
        for share in _SMALL_LOSSES:
            split = Split.among_losses(share * k, until)
            [none] = self._terms(k, split, 0)
            height = self._sizes.terms(True, split, [ANY]) + (1.0 - self._sizes.candidates) * k
            [term] = Term.lowest([ANY], k, self._sizes.away, height, right=True)
            dropped = none.height + self._sizes.bound(none.c)
            if dropped < term.estimate - _DROPPED:
                # far along the line only the body is left, and it decides how long the line would be otherwise
                left = self._sizes.body(True, split) - self._sizes.body(True, Split.beyond(until))
                slow = np.interp(term.c, self._sizes.candidates, left) > -_SLOW
                return [Way(split, [term], term.estimate, dropped)] if slow else []
        return []

    def _farthest(self, k: float, value: float) -> float:
        """How far above k a single jump matters: from farther up all other runs would have to lead back to K.

        Per run E(X − K)₊ is ∫ f″ v, f″ = E[X′²·δ(κX′ − K)]: at κ = e^{k+a} the product X′ of the others is e^{−a}.
        """
        left, value = -self._sizes.away, max(value, _LEAST_VALUE)
        others = self._sizes.body(False, None)
        away = np.geomspace(
            0.5 * self.deviation, _MOST_DEVIATIONS * self.deviation + _MOST_LOSS, _JUMPS_TRIED
        )
        log_v = np.max([moments.log_value(k + away) for moments, _ in self.factors], axis=0)
        small = math.log(self.count) + log_v + lowest(-away, left, others) < value - _NEGLIGIBLE
        return float(away[int(np.argmax(small))]) if small.any() else math.inf

    def _forget(self) -> None:
        """Drop what was computed from earlier surveys of the runs."""
        self._sizes.forget()
        self._known.clear()

    def _look_out(self, floor: float) -> None:
        """Survey the losses of single runs down to log v = `floor`."""
        self._floor = floor
        self._forget()
        for moments, _ in self.factors:
            moments.reach(floor)

    def _terms(self, k: float, split: Split | None, most: int) -> list[Term]:
        """The saddles of all terms with up to `most` jumps."""
        jumps = range(most + 1)
        heights = self._sizes.terms(self._right, split, jumps) + (1.0 - self._sizes.candidates) * k
        return Term.lowest(jumps, k, self._sizes.away, heights, right=self._right)

    def _placed(self, term: Term, k: float, reach: float, way: Way) -> tuple[Term, float]:
        """The term and the period of its line. A line left of the saddle may need a much shorter period.

        Repeated jumps fall off like an exponential. If the saddle's tilt is nearly as steep, images fall off slowly.
        """
        found = term, self._sizes.period(term, k, reach, way.split, way.together)
        if term.jumps == 0 and self._right and found[1] > _LONG * (k + reach):
            [sizes] = self._sizes.terms(True, way.split, [0])
            heights = sizes + (1.0 - self._sizes.candidates) * term.k
            for share in _LEFT_OF_SADDLE:
                c = 1.0 + share * (term.c - 1.0)
                height = float(np.interp(c, self._sizes.candidates, heights))
                moved = replace(term, c=c, height=height)
                if height > term.height + _LIFTED:
                    break
                period = self._sizes.period(moved, k, reach, way.split, way.together)
                if period < _SHORTER * found[1]:
                    found = moved, period
        return found

    def _lay(self, way: Way, k: float, reach: float) -> Lines:
        lines, relative = [], 0.0
        for at_saddle in way.terms:
            term, period = self._placed(at_saddle, k, reach, way)
            line, off = self._line(term, k, period, way.split, way.together)
            lines.append(line)
            relative = max(relative, off)
        rest = float(np.logaddexp(way.together - _NEGLIGIBLE, way.dropped) + 3)
        return Lines(lines, self.count, relative, rest)

    def _end(self, term: Term, split: Split | None, together: float) -> float:
        """About how far a line must go, as far as rough moments can tell: small ones are not known well enough."""
        most = max(_MOST_WIDTHS * term.width, _MOST_TURNS / self.deviation)
        ends = np.geomspace(8 * term.width, most, _ENDS_TRIED)
        y = np.append(0.0, ends)
        u = term.c + 1j * y
        with np.errstate(all="ignore"):
            log, known = -np.log(np.abs(u * (u - 1.0))), np.ones(y.shape, dtype=bool)
            for moments, count in self.factors:
                size = np.log(np.abs(moments.rough_along(term.c, y, split)))
                log += count * size
                sure = size > size[0] - 1.0
                known &= sure if moments.faithful else np.logical_and.accumulate(sure)
            left = log[1:] + np.log(ends) - log[0] + term.height - together - math.log(_END) + 1.0
            # On the right it may dip and rise again, where jumps turn against each other: the last place counts.
            matters = left > 0.0 if self._right else np.logical_and.accumulate(left > 0.0)
            matters = np.flatnonzero(matters & known[1:])
            at = min(int(matters[-1]) + 1 if matters.size else 0, ends.size - 1)
            end, fallen = float(ends[at]), float(log[0] - log[at + 1])
            # where moments become too small to be known, the integrand goes on falling at least like a Gaussian
            if left[at] > 0.0 and 0.0 < fallen < left[at]:
                end *= math.sqrt(1.0 + float(left[at]) / fallen)
        if not all(moments.faithful for moments, _ in self.factors):
            end *= _TOO_SHORT
        if term.jumps != 0 and split is not None:  # where jumps set in like Φ, their transform ends like φ
            end = min(end, max(float(ends[0]), _END_OF_JUMPS / split.width))
        return end

    def _line(
        self, term: Term, k: float, period: float, split: Split | None, together: float
    ) -> tuple[Line, float]:
        """Lay one line, doubling its length until its end is negligible, or halving it until it can be laid."""
        grid = Grid.covering(period, self._end(term, split, together))
        if not self._right and together - k < _LEAST_VALUE:
            raise NoLine("too small")
        # on the left, estimates are too long wherever the integrand turns faster than the nodes can follow
        from_nodes = not self._right and all(moments.faithful for moments, _ in self.factors)
        grid = grid.shortened(_FIRST_LENGTH if from_nodes else _LONGEST)
        short: tuple[Line, float] | None = None  # a line whose end shows, but only a little
        ends, halved = list[float](), False  # log of what lies beyond, line by line
        while grid.highest <= _LONGEST:
            try:
                parts = [
                    (moments.line(term.c, grid, count, split, jumps=term.jumps != 0), count)
                    for moments, count in self.factors
                ]
                line, off, beyond = assemble(term, grid, parts)
            except NoLine:
                break
            except TooFine:
                halved = not ends and grid.highest > _SHORTEST
                if not halved:
                    break
                grid = grid.shortened(grid.highest // 2)
                continue
            off_height = abs(line.scale + (1.0 - term.c) * term.k - term.height)
            if term.jumps < 2 and off_height > _MISJUDGED * (1.0 + _PER_HEIGHT * abs(term.height)):
                raise NoLine("misjudged")
            share = math.exp(min(line.scale + (1.0 - term.c) * k - together, _LARGEST_LOG))
            if beyond * share < _END:
                return line, off
            if beyond * share < _SHORT:
                short = line, off
            ends.append(math.log(beyond * share))
            if halved or (from_nodes and not in_sight(ends, math.log(_SHORT), _LONGEST // grid.highest)):
                break
            grid = grid.farther()
        if short is None:
            raise NoLine("too far")
        return short
