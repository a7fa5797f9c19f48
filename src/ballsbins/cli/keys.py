"""`ballsbins key`: make the secret from which all batches follow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ballsbins.samplers import KEY_FILE_VARIABLE, new_key


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("key")(key)


def key(
    file: Annotated[Path, typer.Argument(help="Where to write the key; must not exist yet.")],
) -> None:
    """Write a new secret key, readable by you alone.

    Whoever has it knows which example was in which batch, and the guarantee is gone: keep it as you keep a password,
    and use one key for one run.
    """
    made = new_key()
    made.save(file)
    typer.echo(f"Wrote {file} (mode 0600, commitment {made.commitment()}).")
    typer.echo(f"Point {KEY_FILE_VARIABLE} to it, or read it with Key.from_file.")
