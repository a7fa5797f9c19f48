"""Options that several commands share, in groups: a command takes a group as one argument.

    @with_groups
    def epsilon(run: Run, delta: DeltaOption) -> None: ...

has the options of `Run` and of its own. A command that lacks some of a group says so:
`run: Annotated[Run, Without("max_batch_size")]`.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
import typer

from ballsbins import _check, ask
from ballsbins.ask import SamplerName
from ballsbins.bound import Adjacency
from ballsbins.errors import InvalidInputError, SecretError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import KEY_FILE_VARIABLE, Key, Sampler

if TYPE_CHECKING:
    from ballsbins.accounting.monte_carlo import MonteCarlo

RUN, DATA = "What is run", "The data"
MONTE_CARLO = "monte-carlo"  # its name in `--method`
_SIGMA = "σ: standard deviation of the noise divided by the clip norm."
_SAMPLED = "Monte Carlo"

DeltaOption = Annotated[float, typer.Option("--delta", "-d", help="δ, a probability in (0, 1).")]
DeltasOption = Annotated[
    list[float],
    typer.Option("--delta", "-d", help="δ, a probability in (0, 1); may be given several times."),
]
AdjacencyOption = Annotated[
    Adjacency,
    typer.Option(
        "--adjacency",
        metavar="NAME",
        help="Between which data sets: zero-out, add-or-remove (where it is the same), or replace-one (a bound).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
OptionalNoiseOption = Annotated[
    float | None, typer.Option("--noise-multiplier", "-s", help=_SIGMA, rich_help_panel=RUN)
]
MaxBatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--max-batch-size", "-B", help="Truncate larger batches; needs --examples.", rich_help_panel=DATA
    ),
]
LimitOption = Annotated[
    str | None,
    typer.Option(
        "--max-batch-size",
        "-B",
        help="Truncate larger batches: auto, a number, paper-pctr or paper-search.",
        rich_help_panel=RUN,
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        help=f"File with the secret key, mode 0600; by default the one that {KEY_FILE_VARIABLE} names.",
    ),
]


class Without:
    """The fields of a group that a command has no options for; they keep their defaults."""

    def __init__(self, *names: str) -> None:
        """Name them."""
        self.names = names


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of every group, a dataclass, among its parameters."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    for name, given in inspect.signature(command).parameters.items():
        kind, *notes = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        if not dataclasses.is_dataclass(kind):
            parameters.append(given.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        assert isinstance(kind, type)
        left_out = {word for note in notes if isinstance(note, Without) for word in note.names}
        wanted = [field for field in dataclasses.fields(kind) if field.name not in left_out]
        wanted.sort(key=lambda field: field.default is not dataclasses.MISSING)  # required ones first
        assert left_out <= {field.name for field in dataclasses.fields(kind)}
        groups[name] = kind, [field.name for field in wanted]
        types = get_type_hints(kind, include_extras=True)
        for field in wanted:
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[field.name]
                )
            )

    def run(**given: Any) -> None:
        for name, (kind, fields) in groups.items():
            given[name] = kind(**{field: given.pop(field) for field in fields})
        command(**given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """How batches are drawn, and how many: a sampler and its epochs."""

    steps: Annotated[
        int | None, typer.Option("--steps", "-T", help="Batches in one epoch.", rich_help_panel=RUN)
    ] = None
    epochs: Annotated[
        int, typer.Option("--epochs", "-E", help="Passes over the data.", rich_help_panel=RUN)
    ] = 1
    sampler: Annotated[
        SamplerName | None,
        typer.Option(
            "--sampler",
            metavar="NAME",
            help="How batches are drawn: balls-and-bins (default), poisson, shuffle for DataLoader(shuffle=True), "
            "deterministic for DataLoader(shuffle=False).",
            rich_help_panel=RUN,
        ),
    ] = None
    fixed_bins: Annotated[
        bool,
        typer.Option(
            "--fixed-bins", help="Keep the same bins in every epoch (far less private).", rich_help_panel=RUN
        ),
    ] = False
    examples: Annotated[
        int | None,
        typer.Option(
            "--examples",
            "-n",
            help="Number of examples; with --batch-size in place of --steps.",
            rich_help_panel=DATA,
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            "-b",
            help="Expected batch size; steps = ⌈examples / batch size⌉.",
            rich_help_panel=DATA,
        ),
    ] = None

    def count(self, examples: int | None = None) -> tuple[int, str | None]:
        """Steps per epoch, and how they were derived if they were; `examples` if they were counted."""
        return ask.steps_from(self.steps, self.examples if examples is None else examples, self.batch_size)

    def drawn(self, steps: int, max_batch_size: int | None = None) -> Sampler:
        """The sampler, with this many steps per epoch."""
        return ask.sampler_from(
            self.sampler or SamplerName.BALLS_AND_BINS,
            steps,
            fixed_bins=self.fixed_bins,
            max_batch_size=max_batch_size,
            examples=self.examples,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Batches):
    """A run: batches and their noise."""

    noise_multiplier: Annotated[
        float, typer.Option("--noise-multiplier", "-s", help=_SIGMA, rich_help_panel=RUN)
    ]
    max_batch_size: MaxBatchSizeOption = None

    def mechanism(self) -> tuple[Mechanism, str | None]:
        """The Mechanism, and how its steps were derived if they were."""
        steps, derived = self.count()
        return Mechanism(self.drawn(steps, self.max_batch_size), self.noise_multiplier, self.epochs), derived


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunUnlessCard(Batches):
    """A run whose options may all be left out because a card states it."""

    noise_multiplier: OptionalNoiseOption = None
    last_epoch_steps: Annotated[
        int | None,
        typer.Option(
            "--last-epoch-steps",
            help="Steps taken in the last epoch, if it stopped early.",
            rich_help_panel=RUN,
        ),
    ] = None
    max_batch_size: MaxBatchSizeOption = None

    def mechanism(self) -> Mechanism:
        """The Mechanism."""
        if self.noise_multiplier is None:
            advice = "State what is run: -s σ -T steps -E epochs, or name the card of a run."
            raise InvalidInputError("--noise-multiplier", None, "given, or --from card.json", advice)
        sampler = self.drawn(self.count()[0], self.max_batch_size)
        return Mechanism(sampler, self.noise_multiplier, self.epochs, self.last_epoch_steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How Monte Carlo draws."""

    samples: Annotated[
        int | None, typer.Option("--samples", "-m", help="Samples per direction.", rich_help_panel=_SAMPLED)
    ] = None
    error_prob: Annotated[
        float | None,
        typer.Option("--error-prob", help="Probability that the bounds fail.", rich_help_panel=_SAMPLED),
    ] = None
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid",
            help="ε values whose bounds hold together: from:to:points, or a list 6,8,10. Needed to find ε.",
            rich_help_panel=_SAMPLED,
        ),
    ] = None
    draw: Annotated[
        str | None,
        typer.Option(
            "--draw",
            help="tilted, or one of the paper's: plain, importance, order-statistics or combined.",
            rich_help_panel=_SAMPLED,
        ),
    ] = None
    confidence_bound: Annotated[
        str | None,
        typer.Option(
            "--confidence-bound", help="auto, kl (the paper's) or bernstein.", rich_help_panel=_SAMPLED
        ),
    ] = None
    orders: Annotated[
        str | None,
        typer.Option(
            "--orders",
            help='Order statistics to draw: auto, 1,2,3,10,…, or a list of the paper, such as "C, T=4517".',
            rich_help_panel=_SAMPLED,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="The same seed gives the same answer.", rich_help_panel=_SAMPLED),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", help="Processes; the answer does not depend on it.", rich_help_panel=_SAMPLED
        ),
    ] = None
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            help="File to save the samples in, and to continue from if it exists.",
            rich_help_panel=_SAMPLED,
        ),
    ] = None

    def monte_carlo(self) -> MonteCarlo:
        """The method that the options describe; it shows how far it is where somebody looks."""
        from ballsbins.accounting.monte_carlo import MonteCarlo
        from ballsbins.cli.progress import SamplesBar

        given: dict[str, Any] = {_FIELDS.get(name, name): value for name, value in self.given().items()}
        if self.orders is not None:
            given["orders"] = _orders(self.orders)
        if self.grid is not None:
            given["epsilons"] = _grid(self.grid)
        chosen = MonteCarlo(**given)
        return dataclasses.replace(chosen, progress=SamplesBar(chosen.error_probability))

    def given(self) -> dict[str, Any]:
        """What was not left out."""
        fields = [field.name for field in dataclasses.fields(Sampling)]
        return {name: value for name in fields if (value := getattr(self, name)) is not None}


# names of options in `MonteCarlo`, if they differ
_FIELDS = {
    "error_prob": "error_probability",
    "grid": "epsilons",
    "draw": "sampler",
    "confidence_bound": "bound",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(Sampling):
    """By which method; the options of Monte Carlo belong to that one."""

    method_name: Annotated[
        str,
        typer.Option(
            "--method",
            help="auto; to compare with, for balls-and-bins: renyi, lower-bound or monte-carlo.",
        ),
    ] = "auto"

    def chosen(self) -> str | MonteCarlo:
        """The method; options of Monte Carlo without it are an error."""
        from ballsbins.curves import METHODS

        if self.method_name == MONTE_CARLO:
            return self.monte_carlo()
        known = *METHODS, MONTE_CARLO
        _check.one_of("--method", self.method_name, known, advice="Leave it out for the best one.")
        for name, value in self.given().items():
            advice = f"Add --method {MONTE_CARLO}, or leave it out."
            option = "--" + name.replace("_", "-")
            raise InvalidInputError(option, value, f"left out for --method {self.method_name}", advice)
        return self.method_name


def _orders(text: str) -> str | tuple[int, ...]:
    """A name, or the integers of a list."""
    parts = text.split(",")
    return tuple(int(part) for part in parts) if all(part.strip().isdecimal() for part in parts) else text


def _grid(text: str) -> tuple[float, ...]:
    """from:to:points, or a list."""
    try:
        if ":" in text:
            first, last, points = text.split(":")
            return tuple(np.linspace(float(first), float(last), int(points)).tolist())
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        advice = "Write for example 0:12:25, or 6,8,10."
        raise InvalidInputError("--grid", text, "from:to:points, or numbers with commas", advice) from None


def key_from(file: Path | None) -> Key:
    """The key of `--key-file` or, without it, of the environment."""
    if file is not None:
        return Key.from_file(file)
    if not os.environ.get(KEY_FILE_VARIABLE):
        raise SecretError(
            f"This needs a secret key, but neither --key-file nor {KEY_FILE_VARIABLE} names one. "
            "Make a key with `ballsbins key FILE`, then add --key-file FILE."
        )
    return Key.from_environment()


def refuse_others(context: typer.Context, *allowed: str, beside: str, advice: str) -> None:
    """Refuse whatever else was given beside an option that rules it out."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            shown = parameter.opts[0] if parameter.param_type_name == "option" else f"the {name}"
            raise InvalidInputError(shown, context.params[name], f"left out with {beside}", advice)
