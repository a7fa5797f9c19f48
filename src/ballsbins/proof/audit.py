"""`make audit`: is the error that the double-precision accountant states large enough? Proved enclosures decide.

    python -m ballsbins.proof.audit [KIND FIRST LAST]

asks the questions FIRST to LAST − 1 of a kind, or a few hundred of all kinds. A question depends only on its number,
so a long audit can be run in pieces.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from ballsbins.errors import AccuracyError, InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.proof.certificate import DIRECTIONS
from ballsbins.proof.certify import bins_of, certify, exact_fraction, fraction
from ballsbins.proof.one_epoch import Bins, enclose
from ballsbins.samplers import BallsAndBins, Poisson

ONE, SEVERAL, STEPS = "one-epoch", "several-epochs", "poisson"
QUESTIONS = {ONE: 200, SEVERAL: 30, STEPS: 30}  # of each kind; those about one epoch are quick
CONTAINED = "the stated interval contains the proved one"
MEETS = "the two intervals meet, the proved one being wider"
BROKEN = "THE STATED INTERVAL IS WRONG"
REFUSED = "no proof"
_LEAST_LOG_DELTA = math.log(1e-50)  # of the questions about one epoch
_LEAST_EPSILON = 1e-3  # of all questions
_TIGHT = 1e-14  # relative width of proofs of one epoch: about what doubles can state


@dataclass(frozen=True)
class Verdict:
    """How the accountant's interval compares with the proved one (of relative width `width`); or why none exists."""

    words: str
    width: float = math.nan
    reason: str = ""


def question(kind: str, number: int) -> tuple[Mechanism, float]:
    """A run and an ε, log-uniform over the domain of `certify`."""
    draw = random.Random(f"{kind} {number}")

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    while True:
        if kind == ONE:
            mechanism = Mechanism(BallsAndBins(int(between(1, 1e9))), between(0.2, 10))
            epsilon = between(_LEAST_EPSILON, 20)
            if float(mechanism.log_delta(epsilon).value) > _LEAST_LOG_DELTA:
                return mechanism, epsilon
            continue
        sampler = (BallsAndBins if kind == SEVERAL else Poisson)(int(between(2, 1e6)))
        mechanism = Mechanism(sampler, between(0.4, 10), int(between(2, 101)))
        epsilon = float(mechanism.epsilon(between(1e-12, 1e-3)).value)
        if epsilon > _LEAST_EPSILON:
            return mechanism, epsilon


def verdict(mechanism: Mechanism, epsilon: float) -> Verdict:
    """Compare the accountant's interval for δ with the proved one, in both directions."""
    try:
        proved = _enclosures(mechanism, epsilon)
    except (AccuracyError, InvalidInputError) as error:
        return Verdict(REFUSED, reason=str(error))
    stated = mechanism.delta(epsilon)
    least, most = (max(ends[i] for ends in proved.values()) for i in (0, 1))
    words = CONTAINED
    for direction, (lower, upper) in proved.items():
        known = stated.directions[direction]
        low, high = Fraction(float(known.lower)), Fraction(float(known.upper))
        if not low <= upper or not lower <= high:
            words = BROKEN
        elif words == CONTAINED and (not low <= lower or not upper <= high):
            words = MEETS
    return Verdict(words, float(1 - least / most))


def _enclosures(mechanism: Mechanism, epsilon: float) -> dict[str, tuple[Fraction, Fraction]]:
    """The proved bounds on δ in each direction; for one epoch, far tighter than those of a certificate."""
    bins = bins_of(mechanism)
    if isinstance(bins, Bins):
        balls = {name: enclose(bins, exact_fraction(epsilon), name, _TIGHT) for name in DIRECTIONS}
        return {name: (fraction(ball.lower), fraction(ball.upper)) for name, ball in balls.items()}
    made = certify(mechanism, epsilon)
    return {name: (Fraction(part.lower), Fraction(part.upper)) for name, part in made.directions.items()}


def open_share(mechanism: Mechanism, epsilon: float, width: float) -> float:
    """Convert a relative width of δ to a fraction of ε, by the slope of the curve."""
    ahead = epsilon * 1.001
    fall = float(mechanism.log_delta(epsilon).value) - float(mechanism.log_delta(ahead).value)
    return -math.log1p(-width) / fall * 0.001 if fall > 0 and width < 1 else math.nan


def audit(kind: str, first: int, last: int) -> Counter[str]:
    """Ask the questions of a kind, print a line for each, and count the verdicts."""
    counts: Counter[str] = Counter()
    for number in range(first, last):
        mechanism, epsilon = question(kind, number)
        begin = time.process_time()
        found = verdict(mechanism, epsilon)
        seconds = time.process_time() - begin
        counts[f"{kind}: {found.words}"] += 1
        share = open_share(mechanism, epsilon, found.width)
        print(
            f"{kind} {number}: {found.words}; {mechanism} at ε = {epsilon!r}; width {found.width:.1e} of δ, "
            f"{share:.1e} of ε; {seconds:.1f} CPU s. {found.reason}".rstrip(),
            flush=True,
        )
    return counts


def main() -> None:
    """Run the audit that the command line asks for."""
    pieces = [(kind, 0, number) for kind, number in QUESTIONS.items()]
    if len(sys.argv) > 1:
        pieces = [(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))]
    begin = time.process_time()
    counts: Counter[str] = Counter()
    for piece in pieces:
        counts += audit(*piece)
    for line, number in sorted(counts.items()):
        print(f"{number:5d}  {line}")
    print(f"{time.process_time() - begin:.0f} CPU seconds")
    sys.exit(any(BROKEN in line for line in counts))


if __name__ == "__main__":
    main()
