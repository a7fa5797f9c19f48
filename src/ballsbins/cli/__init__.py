"""The command line: `ballsbins --help`."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ballsbins import __version__
from ballsbins.cli.progress import INTERRUPTED, interruptions
from ballsbins.errors import BallsBinsError, InvalidInputError, UnreachableTargetError


def _show_no_type_of_flags(command: Any, ctx: Any) -> None:
    """Leave the column for types empty for options that take no value."""
    for parameter in command.get_params(ctx):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""


class Group(TyperGroup):
    """A command that has commands below it."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help."""
        _show_no_type_of_flags(self, ctx)
        super().format_help(ctx, formatter)


class Command(TyperCommand):
    """A command that drops nothing it was given, and whose errors name options, not arguments of Python."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help, its paragraphs wrapped for the terminal and not as they are in the source."""
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")
        _show_no_type_of_flags(self, ctx)
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option that is given twice but has one value: of the two, the first would be dropped."""
        values, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in given:
            once = not getattr(option, "multiple", True) and not getattr(option, "is_flag", True)
            if once and sum(other is option for other in given) > 1:
                raise BallsBinsError(
                    f"{option.opts[0]} is given more than once, but has one value in this command. Ask once for each."
                )
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            value = values.get(str(getattr(error.param, "name", "")))
            message = error.message.removeprefix("Value error, ")  # so pydantic, inside of typer, begins
            named = not isinstance(value, str) or repr(value) in message
            error.message = message if named else f"{value!r} is not allowed. {message}."
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; one that Ctrl-C cut short says so by its exit code, even if it has something to show."""
        try:
            with interruptions() as interrupted:
                answer = super().invoke(ctx)
            if interrupted():
                raise typer.Exit(INTERRUPTED)
            return answer
        except InvalidInputError as error:
            name = {"num_examples": "examples"}.get(error.name, error.name)
            option = next((one.opts[0] for one in self.params if one.name == name and one.opts), error.name)
            raise InvalidInputError(option, error.value, error.bound, error.advice) from None
        except UnreachableTargetError as error:
            message = str(error)
            for one in self.params:
                if one.param_type_name == "option":
                    message = re.sub(rf"\b{one.name}=", f"{one.opts[0]} ", message)
            raise UnreachableTargetError(message) from None


# Which module has which commands: a cold start for one command imports and builds no others.
PANELS: dict[str, dict[str, tuple[str, ...]]] = {
    "Privacy of a run": {
        "privacy": ("epsilon", "delta", "calibrate", "plan"),
        "compare": ("compare", "curve"),
        "plot": ("plot",),
    },
    "What to publish, and whether to believe it": {
        "report": ("statement", "total", "check", "citation"),
        "audit_run": ("audit-run",),
        "verify": ("verify", "audit", "audit-training"),
        "certify": ("certify",),
    },
    "Training": {"train": ("train",), "prepare": ("data", "key", "check-machine")},
    "Batches for data that does not fit": {"build": ("build", "assign")},
    "Pages and experiments": {"web": ("page", "serve"), "experiments": ("reproduce", "demo")},
}


@cache
def commands(wanted: str | None = None) -> typer.Typer:
    """The whole command line, or only the file that has the command `wanted`."""
    made = typer.Typer(
        cls=Group,
        help="Differentially private training with balls-and-bins batches: exact privacy, calibration, batches.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_root)
    files = {name: title for title, panel in PANELS.items() for name in panel}
    owner = {name for panel in PANELS.values() for name, has in panel.items() if wanted in has}
    for name in owner or files:
        before = len(made.registered_commands), len(made.registered_groups)
        import_module(f"ballsbins.cli.{name}").register(made)
        for command in made.registered_commands[before[0] :]:
            command.rich_help_panel, command.cls = files[name], Command
        for group in made.registered_groups[before[1] :]:
            group.rich_help_panel, group.cls = files[name], Group
            for command in getattr(group.typer_instance, "registered_commands", ()):
                command.cls = Command
    return made


def __getattr__(name: str) -> Any:
    if name == "app":
        return commands()
    raise AttributeError(f"module 'ballsbins.cli' has no attribute {name!r}")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ballsbins {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    del version


def main() -> None:
    """Run the command line; a BallsBinsError ends it with exit code 2 and one sentence, never a traceback."""
    try:
        commands(next(iter(sys.argv[1:]), None))()
    except BallsBinsError as error:
        typer.echo(f"ballsbins: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("ballsbins: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader, perhaps `head`, has closed the pipe
        sys.stderr.close()
        sys.exit(0)
