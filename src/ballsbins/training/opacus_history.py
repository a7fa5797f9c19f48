"""Read the history of a run from an Opacus checkpoint, without running any code that the file may hold."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ballsbins import _check, _extras
from ballsbins.errors import DataError, InvalidInputError
from ballsbins.mechanism import Mechanism

SECTION = "privacy_accountant_state_dict"  # where PrivacyEngine.save_checkpoint puts the accountant
OURS = "ballsbins"
_OTHERWISE = "Or state the run yourself: --noise-multiplier, --steps and --epochs."


@dataclass(frozen=True)
class History:
    """σ, sample rate and number of steps, as counted by an Opacus accountant, and the mechanism if it is known."""

    accountant: str
    noise_multiplier: float
    sample_rate: float
    steps: int
    mechanism: Mechanism | None = None


def read_history(path: Path) -> History:
    """Read the accountant's history from a file of `PrivacyEngine.save_checkpoint` or of torch.save(its state)."""
    state = _accountant_state(_load(path), path)
    name = str(state.get("mechanism"))
    entries = state.get("history")
    if not isinstance(entries, list) or not entries:
        raise DataError(f"The accountant in {str(path)!r} has counted no step. {_OTHERWISE}")
    try:
        noise = [float(sigma) for sigma, _, _ in entries]
        rates = [float(rate) for _, rate, _ in entries]
        steps = [operator.index(count) for _, _, count in entries]
        if min(steps) < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise DataError(
            f"The history in {str(path)!r} is not a list of (noise multiplier, sample rate, steps). {_OTHERWISE}"
        ) from None
    if len(set(noise)) > 1 or len(set(rates)) > 1:
        raise InvalidInputError(
            "the history of this checkpoint",
            sorted(set(zip(noise, rates, strict=True))),
            "of one noise multiplier and one sample rate",
            "State the part that is to be judged: --noise-multiplier (the smallest is safe), --steps and --epochs.",
        )
    return History(name, noise[0], rates[0], sum(steps), _mechanism_as_run(state, sum(steps), path))


def _load(path: Path) -> Any:
    torch = _extras.load("torch", feature="Reading an Opacus checkpoint", extra="torch")
    try:
        # weights_only: plain data and tensors. Anything else in a pickle could run code.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about files that cause an error below
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"There is no file {str(path)!r}. Check the path. {_OTHERWISE}") from None
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read ({error.strerror or error}). {_OTHERWISE}") from None
    except Exception as error:  # torch passes on errors of pickle and zipfile, and raises its own
        raise DataError(
            f"{str(path)!r} is not a checkpoint of plain data ({type(error).__name__}), and is not loaded otherwise: "
            "a pickle can run any code. Save the accountant alone where the file is trusted, with "
            f"torch.save(privacy_engine.accountant.state_dict(), FILE), and give that. {_OTHERWISE}"
        ) from None


def _accountant_state(loaded: Any, path: Path) -> Mapping[str, Any]:
    if isinstance(loaded, Mapping):
        state = loaded.get(SECTION, loaded)
        if isinstance(state, Mapping) and "history" in state and "mechanism" in state:
            return state
    raise DataError(
        f"{str(path)!r} holds no accountant: no {SECTION!r}, and no 'history' with 'mechanism'. Give a file of "
        f"PrivacyEngine.save_checkpoint, or of torch.save(privacy_engine.accountant.state_dict(), FILE). {_OTHERWISE}"
    )


def _mechanism_as_run(state: Mapping[str, Any], steps: int, path: Path) -> Mechanism | None:
    if OURS not in state:
        return None
    saved = state[OURS]
    mechanism = saved.get("mechanism") if isinstance(saved, Mapping) else None
    if not isinstance(mechanism, Mapping):
        raise DataError(f"The accountant of ballsbins in {str(path)!r} names no mechanism. {_OTHERWISE}")
    return Mechanism.from_dict(mechanism).after(steps)


def steps_an_epoch(sample_rate: float) -> int:
    """T, from Opacus' sample rate 1/T; a rate that is not of the form 1/T is refused, not rounded."""
    rate = _check.real(
        "the sample rate of this checkpoint", sample_rate, 0.0, 1.0, open_left=True, advice=_OTHERWISE
    )
    steps = round(1.0 / rate)
    if abs(rate * steps - 1.0) > 1e-9:
        raise InvalidInputError(
            "the sample rate of this checkpoint",
            rate,
            "1 / (number of batches in an epoch)",
            "State the number of batches in one epoch with --steps.",
        )
    return steps
