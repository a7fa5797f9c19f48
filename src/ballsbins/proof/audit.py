"""`make audit`: is the error that the double-precision accountant states large enough? Proved enclosures decide."""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from ballsbins.errors import AccuracyError, InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.proof.certificate import DIRECTIONS
from ballsbins.proof.certify import bins_of, certify, exact_fraction, fraction
from ballsbins.proof.one_epoch import Bins, enclose
from ballsbins.samplers import BallsAndBins, Poisson

CONTAINED = "the stated interval contains the proved one"
MEETS = "the two intervals meet, the proved one being wider"
BROKEN = "THE STATED INTERVAL IS WRONG"
REFUSED = "no proof in reasonable time"
_LEAST_LOG_DELTA, _LEAST_COMPOSED = math.log(1e-50), math.log(1e-11)  # of the questions that are asked
_TIGHT = 1e-14  # relative width of proofs of one epoch: about what doubles can state


def random_questions(seed: int, epochs: bool) -> Iterator[tuple[Mechanism, float]]:
    """Runs and ε, log-uniform over the domain of `certify`, whose δ is not too small to be of interest."""
    draw = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    while True:
        if epochs:
            steps, count = int(between(2, 1000)), draw.randint(2, 10)
            sampler = draw.choice([BallsAndBins, Poisson])(steps)
            mechanism = Mechanism(sampler, between(0.6, 5), count)
        else:
            mechanism = Mechanism(BallsAndBins(int(between(1, 1e9))), between(0.2, 10))
        epsilon = between(1e-3, 20)
        least = _LEAST_COMPOSED if epochs else _LEAST_LOG_DELTA
        if float(mechanism.log_delta(epsilon).value) > least:
            yield mechanism, epsilon


def verdict(mechanism: Mechanism, epsilon: float) -> str:
    """How the accountant's interval for δ, in both directions, stands to the proved one."""
    try:
        proved = _enclosures(mechanism, epsilon)
    except (AccuracyError, InvalidInputError):
        return REFUSED
    stated = mechanism.delta(epsilon)
    found = CONTAINED
    for direction, (lower, upper) in proved.items():
        known = stated.directions[direction]
        low, high = Fraction(float(known.lower)), Fraction(float(known.upper))
        if not low <= upper or not lower <= high:
            return BROKEN
        if not low <= lower or not upper <= high:
            found = MEETS
    return found


def _enclosures(mechanism: Mechanism, epsilon: float) -> dict[str, tuple[Fraction, Fraction]]:
    """The proved ends of δ in each direction; those of one epoch far closer than a certificate states them."""
    bins = bins_of(mechanism)
    if isinstance(bins, Bins):
        balls = {name: enclose(bins, exact_fraction(epsilon), name, _TIGHT) for name in DIRECTIONS}
        return {name: (fraction(ball.lower), fraction(ball.upper)) for name, ball in balls.items()}
    made = certify(mechanism, epsilon)
    return {name: (Fraction(part.lower), Fraction(part.upper)) for name, part in made.directions.items()}


def audit(one_epoch: int, several: int, seed: int = 1) -> Counter[str]:
    """Ask so many questions of each kind, print what is wrong, and count the verdicts."""
    counts: Counter[str] = Counter()
    for epochs, number in ((False, one_epoch), (True, several)):
        kind = "several epochs" if epochs else "one epoch"
        for (mechanism, epsilon), _ in zip(random_questions(seed, epochs), range(number), strict=False):
            found = verdict(mechanism, epsilon)
            counts[f"{kind}: {found}"] += 1
            if found == BROKEN:
                print(f"{found}: {mechanism} at ε = {epsilon!r}")
    return counts


def main() -> None:
    """Audit as many mechanisms as are asked for: one epoch, and several."""
    numbers = [int(text) for text in sys.argv[1:3]] or [200, 20]
    begin = time.process_time()
    counts = audit(*numbers)
    for line, number in sorted(counts.items()):
        print(f"{number:5d}  {line}")
    print(f"{time.process_time() - begin:.0f} CPU seconds")
    sys.exit(any(BROKEN in line for line in counts))


if __name__ == "__main__":
    main()
