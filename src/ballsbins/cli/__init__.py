"""The command line: `ballsbins --help`."""

from __future__ import annotations

import sys

import typer

from ballsbins import __version__
from ballsbins.cli import (
    audit,
    build,
    compare,
    data,
    demo,
    keys,
    monte_carlo,
    privacy,
    report,
    reproduce,
    train,
    web,
)
from ballsbins.errors import BallsBinsError

app = typer.Typer(
    help="Differentially private training with balls-and-bins batches: exact privacy, calibration, batches.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
privacy.register(app)
compare.register(app)
keys.register(app)
demo.register(app)
monte_carlo.register(app)
report.register(app)
data.register(app)
audit.register(app)
build.register(app)
train.register(app)
reproduce.register(app)
web.register(app)


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
    """Run the command line; errors of ours end it with exit code 2 and one sentence, never a traceback."""
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
