"""Bound ε from one training run with many canaries: guess which of them were in it, and count the right guesses.

For each of m canaries a fair coin decides whether it is in the training data or is replaced by ⊥, as in zero-out
adjacency. An auditor sees everything that the run releases and guesses for some of the canaries whether they are in.
The coins are independent of each other, so one run is as good as m runs (Steinke, Nasr, Jagielski, "Privacy auditing
with one (1) training run", 2023).

**The bound.** Let the run be (ε, 0)-DP, and let T be the auditor's guesses, a function of the release. For any values
of the first i − 1 coins, the two values of the i-th coin give each release with probabilities that differ by at most
a factor e^ε, also when averaged over the later coins. The coin is fair. So by Bayes' rule, given the release and the
earlier coins, it has either value with probability at most q = e^ε/(1 + e^ε). Thus each guess is right with
probability at most q, whatever happened before, and the number W of right guesses among r satisfies

    P[W ≥ v] ≤ P[B ≥ v],   B ~ Binomial(r, q).

For (ε, δ)-DP let f(k) = P[B ≥ k] and b(k) = P[B = k]. Then, as docs/audit.md derives,

    P[W ≥ v] ≤ f(v)·(1 + (mδ/v)·(1 − f(v))/b(v)) .

The right side is the p-value of v right guesses (`p_value`), and some (ε, δ)-DP mechanism attains it. Bisection finds
the ε up to which it is at most the allowed error (`least_epsilon`). This is valid whether or not the p-value grows
with ε, because a run that is (ε, δ)-DP is also (ε′, δ)-DP for ε′ > ε. The numbers of guesses are fixed beforehand:
a few of them are tried, and share the error.

**The score** of a canary is the likelihood ratio of `attacks`, computed from the observations x_t: the release of
step t, projected on the direction of the canary's clipped gradient, in units of the clip norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ballsbins import _check
from ballsbins.audit.attacks import game_of
from ballsbins.bound import Bound
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism

Array = NDArray[np.float64]
LEAST_CANARIES = 20
# Shares of the canaries that are guessed to be in (highest scores) and out (lowest scores), fixed before the run.
# Guessing nearly all shows the most if all guesses are right; guessing few does if most canaries are uncertain.
SHARES = ((0.45, 0.45), (0.3, 0.3), (0.1, 0.1), (0.1, 0.0))
# The score assumes noise with this fraction of the claimed σ; below 1 it suits runs with less noise than they claim.
SUPPOSED = (1.0, 0.3)
_LARGEST = 30.0  # the largest ε searched: no number of canaries shows more
_HALVINGS = 40


def p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Bound the probability that at least `right` of the guesses about an (ε, δ)-DP run are right.

    Args:
        right: v, the number of right guesses.
        guesses: r, at most the number of canaries; fixed beforehand.
        canaries: m, each in the run with probability ½.
        epsilon: ε.
        delta: δ.

    Returns:
        The bound.

    Example:
        >>> p_value(right=10, guesses=10, canaries=10, epsilon=0.0, delta=0.0)
        0.0009765625
    """
    q = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, q))
    if delta == 0.0 or right == 0:
        return tail
    given = guesses, q
    more = math.log(canaries * delta / right) + float(
        stats.binom.logsf(right - 1, *given)
        + stats.binom.logcdf(right - 1, *given)
        - stats.binom.logpmf(right, *given)
    )
    return min(1.0, tail + math.exp(min(more, 0.0)))


def least_epsilon(right: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """The lower bound on ε that follows from the right guesses; it exceeds the true ε with probability ≤ `error`.

    Example:
        >>> least_epsilon(right=1000, guesses=1000, canaries=1000, delta=0.0, error=0.05) > 5.7
        True
        >>> least_epsilon(right=500, guesses=1000, canaries=1000, delta=0.0, error=0.05)
        0.0
    """
    refuted, open_from = 0.0, _LARGEST
    if p_value(right, guesses, canaries, refuted, delta) > error:
        return 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (refuted + open_from)
        if p_value(right, guesses, canaries, middle, delta) <= error:
            refuted = middle
        else:
            open_from = middle
    return refuted


@dataclass(frozen=True)
class OneRunAudit:
    """What one run with many canaries shows, and what was claimed for it.

    Attributes:
        mechanism: the claimed mechanism.
        delta: δ of the claim.
        claimed: ε of the claim.
        shown: the lower bound on ε from the guesses; it holds except with a probability of 1 − `confidence`.
        right: the number of right guesses, in the set of guesses that shows the most.
        guesses: the number of guesses in that set.
        canaries: m.
        confidence: the probability that `shown` is a lower bound.
        height: the mean of an observation at the canary's step, averaged over canaries. The largest possible value
            is 1, the clip norm.
        norm: the median norm of the canaries' gradients before clipping, in units of the clip norm. If it is below
            about 5, the audit can hardly notice a run that forgets to clip.
    """

    mechanism: Mechanism
    delta: float
    claimed: Bound
    shown: float
    right: int
    guesses: int
    canaries: int
    confidence: float
    height: float
    norm: float

    @property
    def consistent(self) -> bool:
        """Whether the claim may be true."""
        return self.shown <= float(self.claimed.upper)

    @property
    def share(self) -> float:
        """The fraction of the claimed ε that the run shows."""
        return self.shown / float(self.claimed.upper)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "mechanism": self.mechanism.to_dict(),
            "delta": self.delta,
            "claimed_epsilon": self.claimed.to_dict(),
            "epsilon_at_least": self.shown,
            "share": self.share,
            "consistent": self.consistent,
            "right": self.right,
            "guesses": self.guesses,
            "canaries": self.canaries,
            "confidence": self.confidence,
            "height": self.height,
            "norm": self.norm,
        }


@dataclass(frozen=True)
class Seen:
    """What the auditor sees of a run, for every canary, epoch and step.

    Attributes:
        projected: the release, projected on the canary's gradient, in units of the clip norm.
        heights: norms of the canary's clipped gradient, in the same units.
        norms: norms of the gradient before clipping, in the same units.
    """

    projected: Array
    heights: Array
    norms: Array


def toss(canaries: int, seed: int) -> NDArray[np.bool_]:
    """Toss fair coins that decide which canaries are in."""
    return np.random.default_rng([seed, canaries]).random(canaries) < 0.5


def check_settings(canaries: int, confidence: float, delta: float) -> None:
    """Refuse settings that do not allow an audit."""
    advice = "With 1,000 canaries an audit can show an ε of up to about 5."
    _check.integer("canaries", canaries, LEAST_CANARIES, 10**7, advice=advice)
    advice = "It is the probability that the shown ε is a lower bound."
    _check.real("confidence", confidence, 0.0, 1.0, open_left=True, open_right=True, advice=advice)
    if not 0.0 < delta <= 0.5 / canaries:
        advice = "Releases of probability δ may give a canary away each: take fewer canaries, or a smaller δ."
        raise InvalidInputError(
            "delta", delta, f"above 0 and at most 1/(2·canaries) = {0.5 / canaries:g}", advice
        )


def judge(
    mechanism: Mechanism, delta: float, seen: Seen, present: NDArray[np.bool_], confidence: float
) -> OneRunAudit:
    """Score the canaries, guess, count, and bound ε.

    Args:
        mechanism: the claimed mechanism, with whole epochs only.
        delta: δ of the claim.
        seen: what the auditor sees.
        present: whether each canary was in.
        confidence: the probability that the bound holds.
    """
    claimed = mechanism.epsilon(delta)
    found = []
    for part in SUPPOSED:
        order = np.argsort(_scores(mechanism, seen, part), kind="stable")
        for top, bottom in SHARES:
            count_in, count_out = int(top * len(order)), int(bottom * len(order))
            right = int(present[order[len(order) - count_in :]].sum() + (~present[order[:count_out]]).sum())
            guesses = count_in + count_out
            error = (1.0 - confidence) / (len(SHARES) * len(SUPPOSED))
            found.append((least_epsilon(right, guesses, len(order), float(delta), error), right, guesses))
    shown, right, guesses = max(found)
    return OneRunAudit(
        mechanism, float(delta), claimed, shown, right, guesses, len(present), confidence,
        float(seen.heights.mean()), float(np.median(seen.norms)),
    )  # fmt: skip


def _scores(mechanism: Mechanism, seen: Seen, part: float) -> Array:
    """Compute the log likelihood ratio of every canary; a mean below 1 is equivalent to more noise."""
    heights = np.maximum(seen.heights, 1e-9)
    noise = part * mechanism.noise_multiplier / float(np.median(heights))
    plain = Mechanism(mechanism.sampler.untruncated(), noise, mechanism.epochs)
    return game_of(plain).log_ratio(seen.projected / heights)
