"""From the number of steps taken to the Mechanism that answers for them."""

from __future__ import annotations

from dataclasses import replace

from ballsbins import validate
from ballsbins.mechanism import Mechanism


def mechanism_after(steps_taken: int, planned: Mechanism) -> Mechanism:
    """The mechanism as run after so many steps in all, whatever number was planned.

    An unfinished epoch is a Mechanism with `last_epoch_steps`, whose privacy is exact.
    """
    advice = "Before the first step nothing was run, and nothing is to be accounted for."
    taken = validate.integer("steps_taken", steps_taken, 1, advice=advice)
    whole, rest = divmod(taken, planned.sampler.steps)
    return replace(planned, epochs=whole + (rest > 0), last_epoch_steps=rest or None)
