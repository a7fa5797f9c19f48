"""`ballsbins key`: make the secret from which all batches and all noise follow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ballsbins.samplers import KEY_FILE_VARIABLE, Key, new_key

KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        help=f"File with the secret key, mode 0600; by default the one that {KEY_FILE_VARIABLE} names.",
    ),
]


def key_from(file: Path | None) -> Key:
    """The key of `--key-file` or, without it, of the environment."""
    return Key.from_environment() if file is None else Key.from_file(file)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("key")(key)


def key(
    file: Annotated[Path, typer.Argument(help="Where to write the key; must not exist yet.")],
) -> None:
    """Write a new secret key, readable by you alone.

    Whoever has it knows which example was in which batch, and the guarantee is gone: keep it as you keep a password.
    One key serves any number of runs: every run has a public random id, and derives a key of its own from both.
    """
    made = new_key()
    made.save(file)
    typer.echo(f"Wrote {file} (mode 0600, commitment {made.commitment()}).")
    typer.echo(f"Point {KEY_FILE_VARIABLE} to it, or read it with Key.from_file.")
