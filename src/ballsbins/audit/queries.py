"""The paper's algorithm "ABLQ_G" (adaptive batch linear queries), unchanged: exactly what DP-SGD releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.noise import Domain, rounded_normals
from ballsbins.samplers.key import Key, as_key
from ballsbins.training.grid import Grid, excess_of

Array = NDArray[np.float64]


def released(
    sums: Array, noise_multiplier: float, key: Key, domain: Domain, *, rows: int = 1, dense: int = 1
) -> NDArray[np.float32]:
    """Release float64 sums of at most `rows` vectors of norm 1 and length `dense`, as a training step does.

    Any number of such sums may be stacked; `domain` is used once.
    """
    grid = Grid(noise_multiplier, 1.0, rows, excess_of(rows), dense)
    integers = np.rint(sums / grid.unit)
    integers += rounded_normals(key, domain, sums.size).reshape(sums.shape)
    return (integers * grid.unit).astype(np.float32)


# the responses so far → ψ_t of every example, one per row; ⊥ has a row of zeros
Query = Callable[[Array], Array]
_SLACK = 1e-9


def answer_queries(
    mechanism: Mechanism,
    query: Query,
    *,
    key: Key | bytes | int,
    noise_multiplier: float | None = None,
) -> Array:
    """Run every step: g_t = Σ_(i ∈ S_t) ψ_t(x_i) + N(0, σ²I), with ψ_t chosen from g_1 … g_(t−1).

    The batches come from the mechanism's own sampler, and the releases use the arithmetic of training: sums on the
    grid, with exact noise from the key, in float32.

    Args:
        mechanism: sampler, noise multiplier and epochs.
        query: a function from the responses so far, [steps, d], to ψ_t of every example, [n, d], each of norm at
            most 1.
        key: the secret key, also as 32 bytes. An integer is a seed for experiments, and not secret.
        noise_multiplier: the noise to use instead of the claimed one, only for the negative control of an audit.

    Returns:
        The responses, [total steps, d].

    Raises:
        InvalidInputError: a vector of the query is longer than 1.

    Example:
        >>> import numpy as np
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> mechanism = Mechanism(BallsAndBins(steps=4), noise_multiplier=1.0)
        >>> answer_queries(mechanism, lambda responses: np.ones((10, 1)), key=1).shape
        (4, 1)
    """
    sigma = mechanism.noise_multiplier if noise_multiplier is None else noise_multiplier
    chosen: Key = as_key(key)
    responses: list[Any] = []
    batches = None
    for step in range(mechanism.total_steps):
        epoch, position = divmod(step, mechanism.sampler.steps)
        values = np.asarray(query(np.asarray(responses, np.float64)), np.float64)
        norms = np.linalg.norm(values, axis=1)
        if norms.max(initial=0.0) > 1.0 + _SLACK:
            raise InvalidInputError(
                f"the largest norm of a query in step {step}", float(norms.max()), "at most 1",
                "Clip what the query gives for each example: the claim is about vectors in the unit ball.",
            )  # fmt: skip
        if batches is None or position == 0:
            batches = mechanism.batches(len(values), chosen, epoch)
        chosen_rows = values[batches.at(position)]
        responses.append(
            released(
                chosen_rows.sum(axis=0),
                sigma,
                chosen,
                ("queries", step),
                rows=len(values),
                dense=values.shape[1],
            )
        )
    return np.array(responses)
