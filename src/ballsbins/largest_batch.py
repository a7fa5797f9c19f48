"""Choose the maximum batch size of samplers with random sizes: by its cost in privacy, or from the paper's tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from ballsbins import _check
from ballsbins.accounting.truncated import least_max_batch_size
from ballsbins.errors import InvalidInputError
from ballsbins.samplers import Sampler
from ballsbins.samplers.base import MAX_EXAMPLES

PENALTY_SHARE = 0.01  # fraction of δ that truncation may use up with max_batch_size="auto"
# The paper's maximum batch sizes (appendix C), by data set and expected batch size.
_EXPECTED = tuple(2**power for power in range(10, 19))
PAPER_MAX_BATCH_SIZES: Mapping[str, Mapping[int, int]] = {
    "paper-pctr": dict(
        zip(_EXPECTED, (1328, 2469, 4681, 9007, 17520, 34355, 67754, 134172, 266475), strict=True)
    ),
    "paper-search": dict(
        zip(_EXPECTED, (1320, 2458, 4665, 8984, 17488, 34309, 67687, 134071, 266317), strict=True)
    ),
}
# The paper's rule if no target is given: truncation adds at most 10⁻¹⁰ to δ, even at ε = 10.
_PAPER_EPSILON, _PAPER_DELTA = 10.0, 1e-10

MaxBatchSize = int | Literal["auto", "paper-pctr", "paper-search"]


def with_max_batch_size(
    sampler: Sampler,
    max_batch_size: str,
    num_examples: int | None,
    epsilon: float,
    delta: float,
    epochs: int,
    penalty_share: float,
) -> Sampler:
    """Truncate batches to the least size whose penalty at `epsilon` is at most a given share of `delta`.

    Args:
        sampler: how batches are drawn.
        max_batch_size: must be "auto"; pass a number directly to the sampler instead.
        num_examples: n, the number of examples in the data set.
        epsilon: the ε of the target.
        delta: the δ of the target.
        epochs: the number of passes over the data.
        penalty_share: the share of δ that truncation may take, strictly between 0 and 1.

    Returns:
        The sampler with that maximum batch size.

    Raises:
        InvalidInputError: an argument is out of its range, or the sampler's batches already have a fixed size.
    """
    if not isinstance(max_batch_size, str) or max_batch_size != "auto":
        advice = (
            "Give a number of your own to the sampler: BallsAndBins(…, max_batch_size=…, num_examples=…)."
        )
        raise InvalidInputError("max_batch_size", max_batch_size, '"auto" or None', advice)
    if not sampler.random_sizes:
        advice = "Batches of Shuffle and Deterministic have one size already."
        raise InvalidInputError("max_batch_size", max_batch_size, f"None for {sampler!r}", advice)
    examples = _check.integer(
        "num_examples",
        num_examples,
        1,
        MAX_EXAMPLES,
        advice='max_batch_size="auto" needs the number of examples.',
    )
    share = _check.real(
        "penalty_share",
        penalty_share,
        0.0,
        1.0,
        open_left=True,
        open_right=True,
        advice="A hundredth is usual.",
    )
    batches = sampler.steps * (1 if sampler.draws_once else epochs)
    log_p = math.log(share * delta) - float(np.logaddexp(0.0, epsilon))
    size = least_max_batch_size(examples, sampler.steps, batches, log_p)
    return sampler.truncated_to(size, examples)


def limited(
    sampler: Sampler,
    num_examples: int,
    max_batch_size: MaxBatchSize = "auto",
    *,
    epochs: int = 1,
    epsilon: float | None = None,
    delta: float | None = None,
    batch_size: int | None = None,
) -> Sampler:
    """Return the sampler with a maximum batch size.

    Shuffle and Deterministic are returned unchanged, because their batches have a fixed size.

    Args:
        sampler: how batches are drawn.
        num_examples: n, the number of examples in the data set.
        max_batch_size: a number; or "auto", the least size whose penalty at `epsilon` is at most a hundredth of
            `delta` (without a target the paper's rule applies: at most 10⁻¹⁰ at ε = 10); or "paper-pctr" or
            "paper-search", the paper's tables.
        epochs: the number of passes over the data.
        epsilon: the ε of the target, for "auto".
        delta: the δ of the target, for "auto".
        batch_size: the expected batch size, used to look up the paper's tables.

    Returns:
        The sampler with `max_batch_size` and `num_examples`.

    Raises:
        InvalidInputError: the size is none of these, or the paper's tables do not list the batch size.

    Example:
        >>> from ballsbins import BallsAndBins
        >>> limited(BallsAndBins(steps=100), num_examples=100_000).max_batch_size
        1273
    """
    if not sampler.random_sizes:
        if max_batch_size != "auto":
            advice = "Batches of Shuffle and Deterministic have one size already."
            raise InvalidInputError("max_batch_size", max_batch_size, '"auto" for this sampler', advice)
        return sampler
    if max_batch_size == "auto":
        at, share = (epsilon, PENALTY_SHARE) if epsilon is not None else (_PAPER_EPSILON, 0.5)
        target = delta if epsilon is not None and delta is not None else _PAPER_DELTA / share
        return with_max_batch_size(sampler, "auto", num_examples, at, target, epochs, share)
    if isinstance(max_batch_size, str):
        max_batch_size = _of_the_paper(max_batch_size, batch_size)
    return sampler.truncated_to(max_batch_size, num_examples)


def _of_the_paper(name: str, batch_size: int | None) -> int:
    if name not in PAPER_MAX_BATCH_SIZES:
        bound = f"a number, auto, {' or '.join(PAPER_MAX_BATCH_SIZES)}"
        raise InvalidInputError("max_batch_size", name, bound, "auto costs next to nothing in privacy.")
    table = PAPER_MAX_BATCH_SIZES[name]
    if batch_size is None or batch_size not in table:
        bound = f"one of {', '.join(map(str, table))} for the table {name}"
        raise InvalidInputError("batch_size", batch_size, bound, "Use max_batch_size auto for any other.")
    return table[batch_size]
