"""How far a run of a Mechanism has come: one count of steps, from which ε and what comes next follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballsbins import validate
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.mechanism import Mechanism
from ballsbins.training.steps_taken import mechanism_after

SCHEMA = 1  # of `state_dict`


class Progress:
    """The steps taken of a mechanism. Whoever must know where the run is asks here, so that nobody can disagree."""

    def __init__(self, mechanism: Mechanism) -> None:
        """Start before the first step."""
        self.mechanism = mechanism
        self.steps_taken = 0

    @property
    def total_steps(self) -> int:
        """The steps that the mechanism has in all."""
        return self.mechanism.total_steps

    @property
    def sample_rate(self) -> float:
        """1/T, which Opacus calls the sample rate."""
        return 1.0 / self.mechanism.sampler.steps

    def as_run(self) -> Mechanism | None:
        """The mechanism as far as it was run; None before the first step."""
        return mechanism_after(self.steps_taken, self.mechanism) if self.steps_taken else None

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

    def state_dict(self) -> dict[str, Any]:
        """Plain data to save; no secret."""
        return {"schema": SCHEMA, "mechanism": self.mechanism.to_dict(), "steps_taken": self.steps_taken}

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
        steps = validate.integer(
            "steps_taken of this checkpoint",
            state.get("steps_taken"),
            0,
            self.total_steps,
            advice="Load it into a mechanism with at least as many epochs as were run.",
        )
        if steps < self.steps_taken:
            raise RunError(
                f"This run has taken {self.steps_taken:,} steps, and the checkpoint is of step {steps:,}: what was "
                "learned since would be forgotten by the account, but not by whoever chose to go back. Go on, or "
                "make a new run with make_private and load it there, if nobody looked at what came after it."
            )
        self.steps_taken = steps


def mechanism_of(state: Mapping[str, Any]) -> Mechanism:
    """The mechanism that a saved state names."""
    schema = state.get("schema") if isinstance(state, Mapping) else None
    if schema != SCHEMA:
        raise InvalidInputError(
            "schema of this checkpoint",
            schema,
            f"{SCHEMA}",
            "Load what `state_dict` of ballsbins gave; update ballsbins if a later version saved it.",
        )
    return Mechanism.from_dict(state.get("mechanism", {}))
