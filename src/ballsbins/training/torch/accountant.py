"""The count of a run's steps, and an Opacus accountant that computes their ε."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opacus.accountants import IAccountant, register_accountant

from ballsbins import _check
from ballsbins.errors import InvalidInputError, RunError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import pooled_noise

SCHEMA = 2  # version of `state_dict`
_UNSAFE = 1


class StepCount:
    """Counts the steps taken of a mechanism. This is the only place that knows the position of the run.

    `repeats` is the largest number of times that a step was taken again on the same batch after an earlier attempt
    that also counts; `repeated_to` is the step up to which this happened. The releases of one step are equivalent to
    one release with √(1 + repeats) times the sensitivity, because the example is in the same batch each time. So the
    run is accounted for with σ/√(1 + repeats).
    """

    def __init__(self, mechanism: Mechanism) -> None:
        """Start before the first step."""
        self.mechanism = mechanism
        self.steps_taken = 0
        self.repeats = 0
        self.repeated_to = 0

    @property
    def total_steps(self) -> int:
        """The total number of steps of the mechanism."""
        return self.mechanism.total_steps

    @property
    def sample_rate(self) -> float:
        """1/T, which Opacus calls the sample rate."""
        return 1.0 / self.mechanism.sampler.steps

    @property
    def accounted(self) -> Mechanism:
        """The mechanism as planned, but with the noise multiplier used for accounting."""
        if not self.repeats:
            return self.mechanism
        # Rounded down, so that ε is not too small.
        noise = math.nextafter(pooled_noise(self.mechanism.noise_multiplier, 1 + self.repeats), 0.0)
        return replace(self.mechanism, noise_multiplier=noise)

    def as_run(self) -> Mechanism | None:
        """The mechanism as far as it was run, including lost steps that count; None before the first step."""
        steps = max(self.steps_taken, self.repeated_to)
        return self.accounted.after(steps) if steps else None

    def require_steps_left(self) -> None:
        """Refuse a step beyond the last one of the mechanism."""
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
        """Count steps that were taken again; the counts never decrease."""
        self.repeats = max(self.repeats, repeats)
        self.repeated_to = max(self.repeated_to, repeated_to)

    def state_dict(self) -> dict[str, Any]:
        """Plain data to save, without secrets. `mechanism` is the one used for accounting."""
        return {
            "schema": SCHEMA,
            "mechanism": self.accounted.to_dict(),
            "planned": self.mechanism.to_dict(),
            "steps_taken": self.steps_taken,
            "repeats": self.repeats,
            "repeated_to": self.repeated_to,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved position. Refuse another sampler or noise; more epochs are allowed."""
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


NAME = "ballsbins"
_CONFIGURE = (
    "Opacus passes on only σ and a sample rate, from which the sampler cannot be guessed: use "
    "ballsbins.training.torch.make_private(..., engine=engine), or accountant.configure(mechanism)."
)


class BallsBinsAccountant(IAccountant):  # type: ignore[misc]
    """Gives the ε of a Mechanism at any step, and refuses a history that the mechanism does not cover.

    `PrivacyEngine(accountant="ballsbins")` makes one; `make_private` tells it the mechanism.
    """

    def __init__(self) -> None:
        """Make an accountant without a mechanism; `configure` sets it."""
        self._progress: StepCount | None = None
        super().__init__()

    def configure(self, mechanism: Mechanism | StepCount) -> None:
        """Set the mechanism before the first step. A given StepCount is shared with its other users."""
        if self._progress is not None and self._progress.steps_taken:
            raise RunError(
                f"This accountant has counted {self._progress.steps_taken:,} steps of "
                f"{self._progress.mechanism!r} and cannot change to another run. Use a new PrivacyEngine for it."
            )
        self._progress = mechanism if isinstance(mechanism, StepCount) else StepCount(mechanism)

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """The steps in Opacus' form: (noise multiplier used for accounting, sample rate, steps)."""
        progress = self._progress
        run = None if progress is None else progress.as_run()
        if progress is None or run is None:
            return []
        return [(run.noise_multiplier, progress.sample_rate, run.total_steps)]

    @history.setter
    def history(self, entries: Sequence[tuple[float, float, int]]) -> None:
        """Accept a history that the mechanism covers: its noise, its sample rate, and at most its steps."""
        if not entries and (self._progress is None or not self._progress.steps_taken):
            return
        progress = self._known()
        covered = (progress.accounted.noise_multiplier, progress.sample_rate)
        for noise, rate, _ in entries:
            self._check(noise, rate, covered)
        steps = sum(count for *_, count in entries)
        if steps > progress.total_steps:
            raise InvalidInputError(
                "the number of steps in this history",
                steps,
                f"at most {progress.total_steps:,}, as {progress.mechanism!r} has",
                "Configure the accountant with the mechanism that was run.",
            )
        if steps < progress.steps_taken:
            raise RunError(
                f"This accountant has counted {progress.steps_taken:,} steps, and this history has {steps:,}: what "
                "was released would be forgotten, and its noise drawn again. Begin a new run with make_private."
            )
        progress.steps_taken = steps

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step; refuse one that does not belong to the mechanism."""
        progress = self._known()
        self._check(
            noise_multiplier, sample_rate, (progress.mechanism.noise_multiplier, progress.sample_rate)
        )
        progress.advance()

    def get_epsilon(self, delta: float) -> float:
        """The ε of the run so far: an upper bound, exact for one epoch, even an unfinished one."""
        run = self._known().as_run()
        return 0.0 if run is None else float(run.epsilon(delta).upper)

    def as_run(self) -> Mechanism | None:
        """The mechanism as far as it was run; None before the first step."""
        return self._known().as_run()

    def __len__(self) -> int:
        """Count the steps taken."""
        return 0 if self._progress is None else self._progress.steps_taken

    @classmethod
    def mechanism(cls) -> str:
        """Return the name under which Opacus finds this accountant."""
        return NAME

    def state_dict(self, destination: Any = None) -> Any:
        """What Opacus saves with a checkpoint: the history, and the mechanism that covers it."""
        saved = super().state_dict(destination)
        saved[NAME] = self._known().state_dict()
        return saved

    def load_state_dict(self, state_dict: Any) -> None:
        """Continue from the saved position. An accountant without a mechanism takes the saved one."""
        if not state_dict or NAME not in state_dict:
            named = state_dict.get("mechanism") if state_dict else None
            raise InvalidInputError(
                "the accountant of this checkpoint",
                named,
                f"{NAME!r}",
                "Poisson accounting cannot be continued as another: `ballsbins audit-run --opacus-checkpoint "
                "FILE` says what is known of such a run.",
            )
        saved: Mapping[str, Any] = state_dict[NAME]
        if self._progress is None:
            self._progress = StepCount(mechanism_of(saved))
        self._progress.load_state_dict(saved)

    def _known(self) -> StepCount:
        if self._progress is None:
            raise RunError(f"This accountant was not told which mechanism is run. {_CONFIGURE}")
        return self._progress

    def _check(self, noise: float, rate: float, covered: tuple[float, float]) -> None:
        if (noise, rate) != covered:
            raise RunError(
                f"A step with noise multiplier {noise!r} and sample rate {rate!r} is not one of "
                f"{self._known().mechanism!r}, whose steps have {covered[0]!r} and 1/steps = {covered[1]!r}. "
                "Keep the noise constant and the batches those of the mechanism."
            )


register_accountant(NAME, BallsBinsAccountant, force=True)
