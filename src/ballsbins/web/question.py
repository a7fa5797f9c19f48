"""A question to the page: the text of its fields, parsed by the functions that parse the command line's options.

Errors name an input by the label of its field: `worded` translates the library's own sentences.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ballsbins import _check
from ballsbins.ask import SamplerName, sampler_from, steps_from, under_each_sampler
from ballsbins.errors import InvalidInputError
from ballsbins.largest_batch import limited
from ballsbins.mechanism import Mechanism

UNKNOWN = "unknown"  # the answer of a user who does not know how batches are drawn
# Example runs under their common names. An empty page shows the first.
PRESETS: Mapping[str, Mapping[str, str]] = {
    "MNIST, as in Opacus' example": {
        "noise-multiplier": "1",
        "examples": "60000",
        "batch-size": "64",
        "epochs": "10",
        "delta": "1e-5",
        "epsilon": "2",
    },
    "CIFAR-10, as in Opacus' example": {
        "noise-multiplier": "1.5",
        "examples": "50000",
        "batch-size": "2000",
        "epochs": "90",
        "delta": "1e-5",
        "epsilon": "8",
    },
    "Criteo ads, as in the paper": {
        "noise-multiplier": "0.4",
        "examples": "37000000",
        "batch-size": "8192",
        "epochs": "1",
        "delta": "1e-8",
        "epsilon": "4",
    },
    "LoRA fine-tuning on 67,349 sentences (SST-2)": {
        "noise-multiplier": "0.7",
        "examples": "67349",
        "batch-size": "1024",
        "epochs": "3",
        "delta": "1e-6",
        "epsilon": "8",
    },
}
# Fields by the name of their option, with their values on an empty page
DEFAULTS: Mapping[str, str] = {
    "sampler": "shuffle",
    **next(iter(PRESETS.values())),
    "steps": "",
    "fixed-bins": "",
    "max-batch-size": "",
}
LABELS: Mapping[str, str] = {
    "sampler": "“How are batches drawn?”",
    "noise-multiplier": "Noise multiplier σ",
    "examples": "Examples n",
    "batch-size": "Batch size",
    "steps": "Steps per epoch",
    "epochs": "Epochs",
    "delta": "δ",
    "fixed-bins": "“fixed bins”",
    "max-batch-size": "Largest batch",
    "epsilon": "Target ε",
}
_WHOLE = ("examples", "batch-size", "steps", "epochs", "max-batch-size")
_REAL = ("noise-multiplier", "delta", "epsilon")
_ALIASES = {"num-examples": "examples"}
_LONGEST = 40  # maximum length of a field in characters; no number needs more
_LARGEST_EPSILON = 700.0  # so that e^ε fits into a double


@dataclass(frozen=True)
class Question:
    """A run under each sampler, the sampler in question, the δ of the answer, and the target to calibrate for.

    `asked` is None if the user does not know how batches are drawn.
    """

    mechanisms: Mapping[str, Mechanism]
    asked: SamplerName | None
    delta: float
    target: float | None
    examples: int | None
    fields: tuple[tuple[str, str], ...]

    @property
    def main(self) -> Mechanism:
        """The run in question. If the sampler is unknown, the noise for a target is found for shuffled batches."""
        return self.mechanisms[self.asked or SamplerName.SHUFFLE]

    @property
    def command(self) -> str:
        """The same question as a shell command."""
        words = ["ballsbins", "epsilon" if self.asked else "compare"]
        for name, text in self.fields:
            if name != "epsilon":
                words += [f"--{name}"] if name == "fixed-bins" else [f"--{name}", text]
        return shlex.join(words)


def question_from(query: Mapping[str, str]) -> Question:
    """Parse the fields; any mistake raises an InvalidInputError that names one of them."""
    for name in query:
        if name not in DEFAULTS:
            raise InvalidInputError(
                name, query[name], f"one of {', '.join(DEFAULTS)}", "Take it off the address."
            )
    given = {name: query[name].strip() for name in DEFAULTS if query.get(name, "").strip()}
    read = {name: _read(name, text) for name, text in given.items()}
    for name in ("examples", "batch-size", "epochs", "max-batch-size"):
        if isinstance(read.get(name), str) and (name, read[name]) != ("max-batch-size", "auto"):
            advice = "Write it with digits only, such as 60000."
            raise InvalidInputError(f"--{name}", read[name], "an integer of at least 1", advice)
    if "noise-multiplier" not in read:
        raise InvalidInputError(
            "noise_multiplier", None, "given", "State σ, or take the one that a target needs."
        )
    if "delta" not in read:
        raise InvalidInputError("delta", None, "given", "An ε means nothing without its δ.")
    asked = _asked(given.get("sampler", DEFAULTS["sampler"]))
    examples = read.get("examples")
    steps, _ = steps_from(read.get("steps"), examples, read.get("batch-size"))
    delta = _check.delta(
        read["delta"], advice="It is a probability; common choices are below 1 / number of examples."
    )
    fixed = _flag(given.get("fixed-bins", ""))
    limit = read.get("max-batch-size")
    sampler = sampler_from(
        asked or SamplerName.BALLS_AND_BINS,
        steps,
        fixed_bins=fixed,
        max_batch_size=None if limit == "auto" else limit,
        examples=examples,
    )
    run = Mechanism(sampler, read["noise-multiplier"], read.get("epochs", 1))
    if limit == "auto":
        run = _limited(run, delta, examples)
        given["max-batch-size"] = str(run.sampler.max_batch_size)
    dropped = set() if fixed else {"fixed-bins"}
    if asked is None:
        dropped.add("sampler")
    else:
        given["sampler"] = asked
    return Question(
        {str(name): each for name, each in under_each_sampler(run).items()},
        asked,
        delta,
        cast("float | None", read.get("epsilon")),
        examples,
        tuple((name, given[name]) for name in DEFAULTS if name in given and name not in dropped),
    )


def _limited(run: Mechanism, delta: float, examples: int | None) -> Mechanism:
    """The run with a batch size limit that costs at most a hundredth of δ, at any ε that the run can have.

    ε of a Gaussian mechanism that every example joins once per epoch is below μ²/2 + μ√(2 log(1/δ)), μ = √epochs/σ.
    Drawing batches at random only lowers it. So the page never suggests a limit that its own accountant refuses.
    """
    if examples is None:
        advice = "What truncation costs depends on the number of examples."
        raise InvalidInputError("--examples", None, "given with --max-batch-size", advice)
    mu = math.sqrt(run.epochs) / run.noise_multiplier
    epsilon = min(mu * mu / 2.0 + mu * math.sqrt(-2.0 * math.log(delta)), _LARGEST_EPSILON)
    if not run.sampler.random_sizes:
        advice = "Only the batches of balls-and-bins and Poisson vary in size."
        raise InvalidInputError("--max-batch-size", "auto", f"left out for {run.sampler.name}", advice)
    sampler = limited(run.sampler, examples, epochs=run.epochs, epsilon=epsilon, delta=delta)
    return Mechanism(sampler, run.noise_multiplier, run.epochs)


def field_of(error: Exception) -> str | None:
    """The field that an error is about, if any."""
    if isinstance(error, InvalidInputError):
        name = error.name.removeprefix("--").replace("_", "-")
        name = _ALIASES.get(name, name)
        return name if name in DEFAULTS else None
    return "max-batch-size" if str(error).startswith("max_batch_size") else None


def worded(error: Exception) -> str:
    """The sentence of an error, with the page's field names instead of options and arguments."""
    text = str(error)
    if isinstance(error, InvalidInputError) and (field := field_of(error)):
        shown = "empty" if error.value is None else "" if error.value is True else repr(error.value)
        head = f"{LABELS[field]} is {shown}".removesuffix(" is ")
        text = f"{head}, but must be {error.bound}. {error.advice}"
    text = _NAMES.sub(lambda found: _label(found[1]) + (" = " if found[2] else ""), text)
    return re.sub(r"e-0(\d)", r"e-\1", text)  # 1e-6, as everywhere on the page


def _label(name: str) -> str:
    if name == "epsilon":
        return "ε"  # the ε of the run, not the target
    name = name.removeprefix("--").replace("_", "-")
    return LABELS[_ALIASES.get(name, name)]


# --batch-size and batch_size are names; in sentences of the accountant, the words delta and epsilon are names too
_WRITTEN = sorted({*DEFAULTS, *_ALIASES}, key=len, reverse=True)
_SPELLED = [
    *(f"--{name}" for name in _WRITTEN),
    *(rf"\b{name.replace('-', '_')}" for name in _WRITTEN if "-" in name),
    r"\bdelta",
    r"\bepsilon",
]
_NAMES = re.compile(rf"({'|'.join(_SPELLED)})\b(=?)")


def _read(name: str, text: str) -> Any:
    """A number if the text is one; otherwise the text unchanged, for the checks that know what to expect."""
    if len(text) > _LONGEST:
        raise InvalidInputError(
            f"--{name}", f"{text[:12]}…", f"at most {_LONGEST} characters", "Write a number."
        )
    kind = int if name in _WHOLE else float if name in _REAL else str
    try:
        return kind(text)
    except ValueError:
        return text


def _asked(text: str) -> SamplerName | None:
    if text == UNKNOWN:
        return None
    try:
        return SamplerName(text)
    except ValueError:
        ways = f"{', '.join(SamplerName)} or {UNKNOWN}"
        raise InvalidInputError("--sampler", text, ways, "Choose one of them on the page.") from None


def _flag(text: str) -> bool:
    if text not in ("", "0", "1"):
        raise InvalidInputError("--fixed-bins", text, "1, 0 or empty", "1 keeps the bins of the first epoch.")
    return text == "1"
