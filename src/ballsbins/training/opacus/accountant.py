"""An Opacus accountant that knows how the batches were drawn, because it was told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opacus.accountants import IAccountant, register_accountant

from ballsbins.errors import InvalidInputError, RunError
from ballsbins.mechanism import Mechanism
from ballsbins.training.opacus.progress import Progress, mechanism_of

NAME = "ballsbins"
_CONFIGURE = (
    "Opacus passes on only σ and a sample rate, from which the sampler cannot be guessed: use "
    "ballsbins.training.opacus.make_private(..., engine=engine), or accountant.configure(mechanism)."
)


class BallsBinsAccountant(IAccountant):  # type: ignore[misc]
    """Answers for a Mechanism at any step, and refuses a history that the mechanism does not cover.

    `PrivacyEngine(accountant="ballsbins")` makes one; `make_private` tells it the mechanism.
    """

    def __init__(self) -> None:
        """Make an accountant that knows no mechanism yet."""
        self._progress: Progress | None = None
        super().__init__()

    def configure(self, mechanism: Mechanism | Progress) -> None:
        """State what will be run, before the first step. A Progress is shared with whoever else counts by it."""
        if self._progress is not None and self._progress.steps_taken:
            raise RunError(
                f"This accountant has counted {self._progress.steps_taken:,} steps of "
                f"{self._progress.mechanism!r} and cannot change to another run. Use a new PrivacyEngine for it."
            )
        self._progress = mechanism if isinstance(mechanism, Progress) else Progress(mechanism)

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """The steps in Opacus' form: (noise multiplier, sample rate, steps), with the noise that is accounted for."""
        progress = self._progress
        run = None if progress is None else progress.as_run()
        if progress is None or run is None:
            return []
        return [(run.noise_multiplier, progress.sample_rate, run.total_steps)]

    @history.setter
    def history(self, entries: Sequence[tuple[float, float, int]]) -> None:
        """Take a history that the mechanism covers: its noise, its sample rate, not more than its steps."""
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
        """Count one step, if it is one of the mechanism's."""
        progress = self._known()
        self._check(
            noise_multiplier, sample_rate, (progress.mechanism.noise_multiplier, progress.sample_rate)
        )
        progress.advance()

    def get_epsilon(self, delta: float) -> float:
        """The ε of what was run so far: an upper bound, exact for one epoch, also an unfinished one."""
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
        """Go to where the saved run was. Without a mechanism of its own this accountant takes the saved one."""
        if not state_dict or NAME not in state_dict:
            named = state_dict.get("mechanism") if state_dict else None
            raise InvalidInputError(
                "the accountant of this checkpoint",
                named,
                f"{NAME!r}",
                "Poisson accounting cannot be continued as another: `ballsbins audit-run --opacus-checkpoint FILE` "
                "says what is known of such a run.",
            )
        saved: Mapping[str, Any] = state_dict[NAME]
        if self._progress is None:
            self._progress = Progress(mechanism_of(saved))
        self._progress.load_state_dict(saved)

    def _known(self) -> Progress:
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
