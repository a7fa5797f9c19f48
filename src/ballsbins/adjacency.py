"""Adjacency, or which two data sets an answer compares: zero-out, add-or-remove, or replace-one.

The accountant computes zero-out. Adding or removing an example costs the same if no other example's batch changes.
Replacing x by x′ is either two changes in a row, x → nothing → x′, or one change of twice the norm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from ballsbins import _check, accountant
from ballsbins.bound import Adjacency, Bound, Number
from ballsbins.errors import BallsBinsError, InvalidInputError
from ballsbins.mechanism import LEAST_NOISE, Mechanism
from ballsbins.samplers import Deterministic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ballsbins.accounting.monte_carlo import MonteCarlo

# Shares of δ to try for the first of two changes; the best one depends on the curve.
_SHARES = np.array([0.5, 0.9, 0.99])
_PARTS = np.linspace(0.0, 1.0, 65)  # shares of ε to try for the first of two changes
_LEAST_DELTA = 1e-300  # the search tries no δ below this
# relative: more than the rounding of a handful of sums, products and exponentials of doubles
_ROUNDING = 1e-12


def delta_bound(
    mechanism: Mechanism, epsilon: Number, method: str | MonteCarlo, adjacency: Adjacency
) -> Bound:
    """Return δ at ε for this notion of neighbouring data sets."""
    return _answer(mechanism, accountant.delta_bound(mechanism, epsilon, method), epsilon, method, adjacency)


def epsilon_bound(
    mechanism: Mechanism, delta: Number, method: str | MonteCarlo, adjacency: Adjacency
) -> Bound:
    """Return ε at δ for this notion of neighbouring data sets."""
    return _answer(mechanism, accountant.epsilon_bound(mechanism, delta, method), delta, method, adjacency)


def _answer(
    mechanism: Mechanism, zeroed: Bound, asked: Number, method: str | MonteCarlo, adjacency: Adjacency
) -> Bound:
    _check.one_of("adjacency", adjacency, get_args(Adjacency), advice="Leave it out for zero-out.")
    if adjacency == zeroed.adjacency:
        return zeroed
    if _same(mechanism, method, adjacency):
        return replace(zeroed, adjacency=adjacency)
    return _replaced(mechanism, zeroed, asked, adjacency)


def _same(mechanism: Mechanism, method: str | MonteCarlo, adjacency: Adjacency) -> bool:
    """Whether the numbers are the same as for zero-out; raise an error if nothing is known for this adjacency."""
    if adjacency == "add-or-remove" and not mechanism.sampler.random_sizes:
        advice = (
            "One example more or less would shift others between batches; ask for zero-out or replace-one."
        )
        bound = f"zero-out or replace-one for {mechanism.sampler.name} batches"
        raise InvalidInputError("adjacency", adjacency, bound, advice)
    if adjacency == "replace-one" and method != "auto":
        advice = "The other methods are there to compare with, and know zero-out only."
        raise InvalidInputError("method", method, 'left out for "replace-one"', advice)
    return adjacency != "replace-one"


def _replaced(mechanism: Mechanism, zeroed: Bound, asked: Number, adjacency: Adjacency) -> Bound:
    """Return bounds for replacing one example.

    Lower bound: x′ may be an example whose gradient is 0, so replacing is at least as bad as zeroing out.

    Upper bound: the smaller of two. First, if everyone knows the batch, the sums differ by at most twice the clip
    norm, which is the Gaussian mechanism with σ/2. A random batch is a mixture of such cases, and mixing cannot
    increase the hockey-stick divergence (it is jointly convex). Second, two changes in a row. With truncation, the
    batches of two data sets may differ in other ways, so the first bound does not hold.
    """
    points = np.ravel(np.asarray(asked, dtype=np.float64))
    sampler, half = mechanism.sampler, mechanism.noise_multiplier / 2.0
    upper = np.full(points.shape, np.inf)
    if sampler.max_batch_size is None and half >= LEAST_NOISE:
        twice = replace(mechanism.under(Deterministic), noise_multiplier=half)
        question = twice.epsilon if zeroed.quantity == "epsilon" else twice.delta
        known = question(points)
        if isinstance(sampler, Deterministic):
            ends = (known.lower, known.value, known.upper)
            lower, value, top = (_shaped(end, asked) for end in ends)
            return replace(
                known, lower=lower, value=value, upper=top, directions={}, adjacency=adjacency,
                mechanism=zeroed.mechanism,
            )  # fmt: skip
        upper = np.asarray(known.upper)
    in_a_row = _epsilon_in_a_row if zeroed.quantity == "epsilon" else _delta_in_a_row
    upper = np.minimum(upper, [in_a_row(mechanism, float(point)) for point in points])
    top = np.maximum(upper, np.ravel(np.asarray(zeroed.lower)))
    shown = _shaped(top, asked)
    return replace(
        zeroed, value=shown, upper=shown, kind="bounds", method="bounds for replacing one example",
        directions={}, adjacency=adjacency,
    )  # fmt: skip


def _epsilon_in_a_row(mechanism: Mechanism, delta: float) -> float:
    """Return an upper bound on ε at δ for two changes in a row, x → nothing → x′.

    P(E) ≤ e^{ε₁}·Q(E) + δ₁ and Q(E) ≤ e^{ε₂}·R(E) + δ₂ give P(E) ≤ e^{ε₁+ε₂}·R(E) + δ₁ + e^{ε₁}·δ₂. So δ₁ is a
    share of δ, and δ₂ = (δ − δ₁)·e^{−ε₁}.
    """
    try:
        first = np.asarray(mechanism.epsilon(delta * _SHARES).directions["remove"].upper)
        left = delta * (1.0 - _SHARES) * np.exp(-first) * (1.0 - _ROUNDING)
        if not (left > _LEAST_DELTA).any():
            return float("inf")
        second = np.asarray(mechanism.epsilon(left[left > _LEAST_DELTA]).directions["add"].upper)
    except BallsBinsError:  # truncation may leave no ε at so small a δ
        return float("inf")
    return float(np.min(first[left > _LEAST_DELTA] + second)) * (1.0 + _ROUNDING)


def _delta_in_a_row(mechanism: Mechanism, epsilon: float) -> float:
    """Return an upper bound on δ at ε for two changes, minimised over how they share ε; at most 1."""
    first = epsilon * _PARTS
    remove = np.asarray(mechanism.delta(first).directions["remove"].upper)
    add = np.asarray(mechanism.delta(epsilon - first).directions["add"].upper)
    return min(1.0, float(np.min(remove + np.exp(first) * add)) * (1.0 + _ROUNDING))


def _shaped(rows: Number, like: Number) -> float | NDArray[np.float64]:
    found = np.asarray(rows, dtype=np.float64)
    return float(found.ravel()[0]) if np.ndim(like) == 0 else found.reshape(np.shape(like))
