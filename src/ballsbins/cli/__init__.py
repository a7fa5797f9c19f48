"""The command line: `ballsbins --help`."""

from __future__ import annotations

import sys

import typer

from ballsbins import __version__
from ballsbins.cli import build, compare, experiments, plot, prepare, privacy, report, train, verify, web
from ballsbins.errors import BallsBinsError

app = typer.Typer(
    help="Differentially private training with balls-and-bins batches: exact privacy, calibration, batches.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS = {
    "Privacy of a run": (privacy, compare, plot),
    "What to publish, and whether to believe it": (report, verify),
    "Training": (train, prepare),
    "Batches for data that does not fit": (build,),
    "Pages and experiments": (web, experiments),
}
for _title, _modules in PANELS.items():
    _before = len(app.registered_commands), len(app.registered_groups)
    for _module in _modules:
        _module.register(app)
    for _command in app.registered_commands[_before[0] :]:
        _command.rich_help_panel = _title
    for _group in app.registered_groups[_before[1] :]:
        _group.rich_help_panel = _title


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
        sys.exit(130)
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        sys.stderr.close()
        sys.exit(0)
