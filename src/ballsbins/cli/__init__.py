"""The command line: `ballsbins --help`."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand

from ballsbins import __version__
from ballsbins.cli import (
    audit_run,
    build,
    certify,
    compare,
    experiments,
    plot,
    prepare,
    privacy,
    report,
    train,
    verify,
    web,
)
from ballsbins.cli.progress import INTERRUPTED, interruptions
from ballsbins.errors import BallsBinsError, InvalidInputError


class Command(TyperCommand):
    """A command that drops nothing it was given, and whose errors name options, not arguments of Python."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option that is given twice but has one value: of the two, the first would be dropped."""
        given = self.make_parser(ctx).parse_args(args=list(args))[2]
        for option in given:
            once = not getattr(option, "multiple", True) and not getattr(option, "is_flag", True)
            if once and sum(other is option for other in given) > 1:
                raise BallsBinsError(
                    f"{option.opts[0]} is given more than once, but has one value in this command. Ask once for each."
                )
        return super().parse_args(ctx, args)

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


app = typer.Typer(
    help="Differentially private training with balls-and-bins batches: exact privacy, calibration, batches.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS = {
    "Privacy of a run": (privacy, compare, plot),
    "What to publish, and whether to believe it": (report, audit_run, verify, certify),
    "Training": (train, prepare),
    "Batches for data that does not fit": (build,),
    "Pages and experiments": (web, experiments),
}
for _title, _modules in PANELS.items():
    _before = len(app.registered_commands), len(app.registered_groups)
    for _module in _modules:
        _module.register(app)
    for _command in app.registered_commands[_before[0] :]:
        _command.rich_help_panel, _command.cls = _title, Command
    for _group in app.registered_groups[_before[1] :]:
        _group.rich_help_panel = _title
        for _command in getattr(_group.typer_instance, "registered_commands", ()):
            _command.cls = Command


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ballsbins {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    del version


def main() -> None:
    """Run the command line; a BallsBinsError ends it with exit code 2 and one sentence, never a traceback."""
    try:
        app()
    except BallsBinsError as error:
        typer.echo(f"ballsbins: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("ballsbins: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        sys.stderr.close()
        sys.exit(0)
