"""Answer a call written for Opacus' `make_private` with the call to write instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from torch import nn

from ballsbins.errors import InvalidInputError

_KEY = "Noise and batches follow from the key: leave it out."
# Options of Opacus' make_private that ours does not have, and what to do instead.
_INSTEAD = {
    "clipping": "For clipping per layer give max_grad_norm as a list, one norm for each parameter; a norm that "
    "adapts to the data costs privacy of its own, which is not accounted for.",
    "poisson_sampling": "The mechanism names the sampler: Mechanism(Poisson(steps=…), …) samples so.",
    "noise_multiplier": "It is the mechanism's: Mechanism(sampler, noise_multiplier=…).",
    "target_epsilon": "make_private(sampler, …, epsilon=…, delta=…, epochs=…) finds the noise for it.",
    "target_delta": "make_private(sampler, …, epsilon=…, delta=…, epochs=…) finds the noise for it.",
    "module": "Here it is called model.",
    "data_loader": "Give dataset=data_loader.dataset: the mechanism draws the batches.",
    "noise_generator": _KEY,
    "secure_mode": _KEY,
}
# Advice for a missing argument that has no default.
_MISSING = {
    "mechanism": "Give Mechanism(sampler, noise_multiplier=…), or a sampler with epsilon, delta and epochs.",
    "model": "Give the model whose parameters the optimizer trains.",
    "optimizer": "Give the optimizer of the model's parameters.",
    "dataset": "Give the data set, not a loader of it: the mechanism draws the batches.",
    "max_grad_norm": "Give the norm to clip each example's gradient to, such as 1.0.",
    "key": "Give Key.from_file(…) of a file that `ballsbins key` wrote, or a number as a seed for experiments.",
}
P = ParamSpec("P")
R = TypeVar("R")


def answers_opacus_calls(make_private: Callable[P, R]) -> Callable[P, R]:
    """Explain Opacus arguments and missing arguments; Python's own error would only name or count them."""
    ours = inspect.signature(make_private)

    @functools.wraps(make_private)
    def answered(*given: P.args, **named: P.kwargs) -> R:
        if given and isinstance(given[0], nn.Module):  # Opacus' order: module, optimizer, data loader
            theirs = dict(zip(("module", "optimizer", "data_loader"), given, strict=False)) | named
            raise InvalidInputError(
                "mechanism", type(given[0]).__name__, "a Mechanism or a sampler", _call(theirs)
            )
        if "mechanism" not in named and not given:
            raise InvalidInputError(
                "mechanism", None, "given", _call(named) if named else _MISSING["mechanism"]
            )
        for name in sorted(set(_INSTEAD) & set(named)):
            value = named[name]
            shown = value if isinstance(value, (bool, int, float, str)) else type(value).__name__
            raise InvalidInputError(name, shown, "left out", _INSTEAD[name])
        there = {*list(ours.parameters)[: len(given)], *named}
        for name, advice in _MISSING.items():
            if name not in there:
                raise InvalidInputError(name, None, "given", advice)
        return make_private(*given, **named)

    return answered


def _call(theirs: Mapping[str, Any]) -> str:
    """Translate an Opacus call into ours, with the numbers that the user gave."""
    loader = theirs.get("data_loader")
    size = getattr(loader, "batch_size", None) or "batch_size"
    noise, norm = theirs.get("noise_multiplier", "…"), theirs.get("max_grad_norm", "…")
    first, target = f"Mechanism(sampler, noise_multiplier={noise}, epochs={theirs.get('epochs', '…')})", ""
    if "target_epsilon" in theirs or "target_delta" in theirs:
        epsilon, delta = (theirs.get(name, "…") for name in ("target_epsilon", "target_delta"))
        first, target = "sampler", f"epsilon={epsilon}, delta={delta}, epochs={theirs.get('epochs', '…')}, "
    return (
        "In place of Opacus' call write sampler = "
        f"BallsAndBins.for_batch_size(len(data_loader.dataset), {size}) and make_private({first}, model, optimizer, "
        f"data_loader.dataset, {target}max_grad_norm={norm}, key=Key.from_file(…))."
    )
