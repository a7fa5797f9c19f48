"""How far a run of a Mechanism has come: one count of steps, from which ε and what comes next follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ballsbins import _check
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.mechanism import Mechanism

SCHEMA = 2  # of `state_dict`
_UNSAFE = 1


class Progress:
    """The steps taken of a mechanism. Everything that must know where the run is asks here.

    `repeats` says how often, at most, a step was taken again on the same batch after a step that counts as well, and
    `repeated_to` up to which step. The releases of one step are one release with √(1 + repeats) times the
    sensitivity, because the example is in the same batch each time. So the run is accounted for with σ/√(1 +
    repeats).
    """

    def __init__(self, mechanism: Mechanism) -> None:
        """Start before the first step."""
        self.mechanism = mechanism
        self.steps_taken = 0
        self.repeats = 0
        self.repeated_to = 0

    @property
    def total_steps(self) -> int:
        """The steps that the mechanism has in all."""
        return self.mechanism.total_steps

    @property
    def sample_rate(self) -> float:
        """1/T, which Opacus calls the sample rate."""
        return 1.0 / self.mechanism.sampler.steps

    @property
    def accounted(self) -> Mechanism:
        """The mechanism as planned, with the noise that it is accounted for with."""
        if not self.repeats:
            return self.mechanism
        # rounded down, so that ε is not too small
        noise = math.nextafter(self.mechanism.noise_multiplier / math.sqrt(1.0 + self.repeats), 0.0)
        return replace(self.mechanism, noise_multiplier=noise)

    def as_run(self) -> Mechanism | None:
        """The mechanism as far as it was run, lost steps that count included; None before the first step."""
        steps = max(self.steps_taken, self.repeated_to)
        return self.accounted.after(steps) if steps else None

    def require_steps_left(self) -> None:
        """Refuse a step that the mechanism does not have."""
        if self.steps_taken >= self.total_steps:
            raise RunError(
                f"All {self.total_steps:,} steps of {self.mechanism!r} were taken; no further one is accounted for. "
                "Stop here, or begin with a Mechanism of more epochs: a longer run costs more privacy."
            )

    def advance(self) -> None:
        """Count one step."""
        self.require_steps_left()
        self.steps_taken += 1

    def count_repeats(self, repeats: int, repeated_to: int) -> None:
        """Count steps that were taken again; what is known already is never taken back."""
        self.repeats = max(self.repeats, repeats)
        self.repeated_to = max(self.repeated_to, repeated_to)

    def state_dict(self) -> dict[str, Any]:
        """Plain data to save; no secret. `mechanism` is what the steps are accounted for with."""
        return {
            "schema": SCHEMA,
            "mechanism": self.accounted.to_dict(),
            "planned": self.mechanism.to_dict(),
            "steps_taken": self.steps_taken,
            "repeats": self.repeats,
            "repeated_to": self.repeated_to,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where the saved run was. A run of another sampler or noise is refused; more epochs are allowed."""
        saved = mechanism_of(state)
        mine = self.mechanism
        if (saved.sampler, saved.noise_multiplier) != (mine.sampler, mine.noise_multiplier):
            raise InvalidInputError(
                "the mechanism of this checkpoint",
                saved,
                f"a run of {mine!r}",
                "Load it into the mechanism it was saved from; privacy follows from that one.",
            )
        advice = "Load it into a mechanism with at least as many epochs as were run."
        found = {
            name: _check.integer(f"{name} of this checkpoint", state.get(name), 0, most, advice=advice)
            for name, most in (
                ("steps_taken", self.total_steps),
                ("repeats", None),
                ("repeated_to", self.total_steps),
            )
        }
        steps = found["steps_taken"]
        if steps < self.steps_taken:
            raise RunError(
                f"This run has taken {self.steps_taken:,} steps, and the checkpoint is of step {steps:,}: what was "
                "learned since would be forgotten by the account, but not by whoever chose to go back. Go on, or "
                "make a new run with make_private and load it there, if nobody looked at what came after it."
            )
        self.steps_taken = steps
        self.count_repeats(found["repeats"], found["repeated_to"])


def mechanism_of(state: Mapping[str, Any]) -> Mechanism:
    """The mechanism that a saved state was planned with."""
    schema = state.get("schema") if isinstance(state, Mapping) else None
    if schema != SCHEMA:
        advice = "Load what `state_dict` of ballsbins gave; update ballsbins if a later version saved it."
        if schema == _UNSAFE:
            advice = (
                "It was saved by a version before 0.2, whose noise is not safe: two continuations of one checkpoint "
                "could share noise, and float32 gradients showed what was added to them. Train anew."
            )
        raise InvalidInputError("schema of this checkpoint", schema, f"{SCHEMA}", advice)
    return Mechanism.from_dict(state.get("planned", {}))
