"""`ballsbins reproduce`: the paper's figures and tables, from the files in `experiments/`."""

from __future__ import annotations

import functools
import inspect
import time
from pathlib import Path
from typing import Annotated

import typer

from ballsbins.cli import render
from ballsbins.errors import InvalidInputError
from ballsbins.reproduce import FalseClaimError, Scale, load, names


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("reproduce")(reproduce)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which one; without it they are listed.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The paper's sample sizes: minutes to hours.")] = False,
    small: Annotated[bool, typer.Option("--small", help="Seconds, to see that it works.")] = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Directory for the results: JSON, PNG, SVG.")
    ] = Path("reproduced"),
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="For utility: a directory of `ballsbins data prepare`, not generated data."
        ),
    ] = None,
) -> None:
    """Reproduce a figure or table of the paper. For example: ballsbins reproduce order-statistics"""
    console = render.console()
    if full and small:
        raise InvalidInputError("--small", True, "left out with --full", "Choose one of the two.")
    if name is None:
        for known, shows in names().items():
            console.print(f"[bold]{known:18}[/bold] {shows}", soft_wrap=True)
        return
    run = load(name)
    if data is not None:
        if "data" not in inspect.signature(run).parameters:
            raise InvalidInputError("--data", str(data), f"left out for {name}", "Only utility takes data.")
        run = functools.partial(run, data=data)  # type: ignore[call-arg]  # looked up above
    try:
        out.mkdir(parents=True, exist_ok=True)  # before any work whose results would have no place
    except OSError as error:
        raise InvalidInputError(
            "--out", str(out), f"a directory that can be made ({error.strerror})", "Name another one."
        ) from None
    scale: Scale = "full" if full else "small" if small else "quick"
    begun = time.monotonic()
    try:
        run(scale, out, console)
    except FalseClaimError as error:
        typer.echo(f"ballsbins: CLAIM FAILED in {name}: {error}", err=True)
        raise typer.Exit(1) from None
    console.print(f"{name}, {scale}: {time.monotonic() - begun:.0f} s; results are in {out}", style="dim")
