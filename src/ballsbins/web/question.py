"""What somebody asks of the page: the text of its fields, which is the text of the command line's options.

The same functions read both, so the same mistake gets the same sentence.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ballsbins import _check
from ballsbins.ask import SamplerName, sampler_from, steps_from, under_each_sampler
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism

# Fields by the name of their option; the defaults are what an empty page shows
DEFAULTS: Mapping[str, str] = {
    "noise-multiplier": "0.6",
    "examples": "60000",
    "batch-size": "256",
    "steps": "",
    "epochs": "1",
    "delta": "1e-6",
    "fixed-bins": "",
    "max-batch-size": "",
    "epsilon": "2",
}
_WHOLE = ("examples", "batch-size", "steps", "epochs", "max-batch-size")
_REAL = ("noise-multiplier", "delta", "epsilon")
_ALIASES = {"num-examples": "examples"}
_LONGEST = 40  # characters of a field; no number needs more


@dataclass(frozen=True)
class Question:
    """A run under each sampler, the δ at which ε is asked, and the target to calibrate for, if there is one."""

    mechanisms: Mapping[str, Mechanism]
    delta: float
    target: float | None
    examples: int | None
    derived: str | None
    fields: tuple[tuple[str, str], ...]

    @property
    def main(self) -> Mechanism:
        """The run that is asked about; the others are there to compare with."""
        return self.mechanisms[SamplerName.BALLS_AND_BINS]

    @property
    def command(self) -> str:
        """The same question in a shell."""
        words = ["ballsbins", "epsilon"]
        for name, text in self.fields:
            if name != "epsilon":
                words += [f"--{name}"] if name == "fixed-bins" else [f"--{name}", text]
        return shlex.join(words)


def question_from(query: Mapping[str, str]) -> Question:
    """Read the fields; whatever is wrong is an InvalidInputError that names one of them."""
    for name in query:
        if name not in DEFAULTS:
            raise InvalidInputError(
                name, query[name], f"one of {', '.join(DEFAULTS)}", "Take it off the address."
            )
    given = {name: query[name].strip() for name in DEFAULTS if query.get(name, "").strip()}
    read = {name: _read(name, text) for name, text in given.items()}
    for name in ("examples", "batch-size", "epochs", "max-batch-size"):
        if isinstance(read.get(name), str):
            advice = "Write it with digits only, such as 60000."
            raise InvalidInputError(f"--{name}", read[name], "an integer of at least 1", advice)
    if "noise-multiplier" not in read:
        raise InvalidInputError(
            "noise_multiplier", None, "given", "State σ, or take the one that a target needs."
        )
    if "delta" not in read:
        raise InvalidInputError("delta", None, "given", "An ε means nothing without its δ.")
    fixed = _flag(given.get("fixed-bins", ""))
    examples = read.get("examples")
    steps, derived = steps_from(read.get("steps"), examples, read.get("batch-size"))
    sampler = sampler_from(
        SamplerName.BALLS_AND_BINS,
        steps,
        fixed_bins=fixed,
        max_batch_size=read.get("max-batch-size"),
        examples=examples,
    )
    run = Mechanism(sampler, read["noise-multiplier"], read.get("epochs", 1))
    fields = tuple((name, text) for name, text in given.items() if name != "fixed-bins" or fixed)
    delta = _check.delta(
        read["delta"], advice="It is a probability; common choices are below 1 / number of examples."
    )
    target = cast("float | None", read.get("epsilon"))
    return Question(
        {str(name): each for name, each in under_each_sampler(run).items()},
        delta,
        target,
        examples,
        derived,
        fields,
    )


def field_of(error: Exception) -> str | None:
    """The field that an error is about, if it is about one."""
    if isinstance(error, InvalidInputError):
        name = error.name.removeprefix("--").replace("_", "-")
        name = _ALIASES.get(name, name)
        return name if name in DEFAULTS else None
    return "max-batch-size" if str(error).startswith("max_batch_size") else None


def _read(name: str, text: str) -> Any:
    """A number where the text is one; other text as it is, for the checks that know what should be there."""
    if len(text) > _LONGEST:
        raise InvalidInputError(
            f"--{name}", f"{text[:12]}…", f"at most {_LONGEST} characters", "Write a number."
        )
    kind = int if name in _WHOLE else float if name in _REAL else str
    try:
        return kind(text)
    except ValueError:
        return text


def _flag(text: str) -> bool:
    if text not in ("", "0", "1"):
        raise InvalidInputError("--fixed-bins", text, "1, 0 or empty", "1 keeps the bins of the first epoch.")
    return text == "1"
