"""The norms to clip to: a single norm, one for each parameter, or one for each step.

The noise of a step is σ times its clip norm, so ε does not depend on clip norms as long as they do not depend on the
data. A schedule is a function of the step number. It is computed for all steps before the first one, so nothing
learned during training can change it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ballsbins import _check
from ballsbins.errors import InvalidInputError

_ADVICE = "It is the norm to clip gradients to."


@dataclass(frozen=True)
class ClipNorms:
    """The clip norms of every step.

    Attributes:
        steps: C of each step; a single value if it does not change.
        limits: one norm per parameter, if each is clipped separately; C is the root of the sum of their squares.
    """

    steps: tuple[float, ...]
    limits: tuple[float, ...] | None = None

    @classmethod
    def of(cls, given: Any, parameters: int, mode: str, total_steps: int) -> ClipNorms:
        """Read `max_grad_norm` of make_private, for this number of trained parameters and steps."""
        if callable(given):
            return cls._scheduled(given, mode, total_steps)
        if not isinstance(given, Sequence):
            return cls((_norm("max_grad_norm", given),))
        limits = tuple(_norm("max_grad_norm", each) for each in given)
        if mode == "ghost":
            advice = "Ghost clipping has one factor for an example: give one norm, or use grad_sample_mode='hooks'."
            raise InvalidInputError(
                "max_grad_norm", list(limits), "one number for grad_sample_mode='ghost'", advice
            )
        if len(limits) != parameters:
            advice = "Give one norm for each parameter that the optimizer trains, in its order."
            raise InvalidInputError(
                "the number of norms in max_grad_norm", len(limits), f"{parameters}", advice
            )
        return cls((math.hypot(*limits),), limits)

    @classmethod
    def _scheduled(cls, schedule: Callable[[int], Any], mode: str, total_steps: int) -> ClipNorms:
        if mode == "ghost":
            advice = "Ghost clipping keeps one norm: give a number, or use grad_sample_mode='hooks'."
            raise InvalidInputError(
                "max_grad_norm", "a schedule", "one number for grad_sample_mode='ghost'", advice
            )
        found = tuple(_norm(f"max_grad_norm({step})", schedule(step)) for step in range(total_steps))
        return cls(found if len(set(found)) > 1 else found[:1])

    def at(self, step: int) -> float:
        """C of a step."""
        return self.steps[min(step, len(self.steps) - 1)]

    @property
    def single(self) -> float | None:
        """C, if it is the same for all steps."""
        return self.steps[0] if len(self.steps) == 1 else None

    @property
    def plan(self) -> float | list[float]:
        """The norms as plain data."""
        return list(self.limits) if self.limits is not None else self.single or list(self.steps)

    def in_words(self) -> str:
        """Describe the schedule in words, for the statement."""
        return (
            f"by a schedule fixed before the run, from {self.steps[0]:.6g} at the first step to {self.steps[-1]:.6g} "
            f"at the last ({min(self.steps):.6g} to {max(self.steps):.6g}); the noise follows it, and ε does not "
            "depend on it"
        )


def _norm(name: str, given: Any) -> float:
    return _check.real(name, given, 0.0, open_left=True, advice=_ADVICE)
