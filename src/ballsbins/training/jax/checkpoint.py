"""Arrays with a header of public facts in one file, written so that a crash leaves either the old or the new file.

A checkpoint holds the parameters, Adam's moments and the number of steps. All of these follow from noisy gradients,
so anybody may see them. It holds the commitment of the key, but not the key, and no generator state, because batches
and noise follow from the key and the step.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins._files import replacing
from ballsbins.errors import DataError, InvalidInputError

SCHEMA = 2
_UNSAFE = 1  # the schema of checkpoints whose run cannot be continued
_HEADER = "header"


def save(path: Path, header: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> None:
    """Write the whole file or nothing, even if the machine stops in between."""
    text = json.dumps({"schema": SCHEMA} | dict(header), allow_nan=False)
    named: dict[str, Any] = {f"array_{number:03d}": array for number, array in enumerate(arrays)}
    named[_HEADER] = np.frombuffer(text.encode(), np.uint8)
    try:
        with replacing(path) as file:
            np.savez(file, **named)
    except OSError as error:
        raise DataError(
            f"{str(path)!r} cannot be written ({error.strerror}); what was there before is whole. "
            "Free some space, then resume; or choose another place."
        ) from None


def load(path: Path) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """Read the header and the arrays."""

    def both(stored: Any) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        arrays = [stored[f"array_{number:03d}"] for number in range(len(stored.files) - 1)]
        return json.loads(stored[_HEADER].tobytes()), arrays

    header, arrays = _read(path, both)
    _require_schema(header, path)
    return header, arrays


def load_header(path: Path) -> dict[str, Any]:
    """Read only the header, without loading the arrays."""
    header: dict[str, Any] = _read(path, lambda stored: json.loads(stored[_HEADER].tobytes()))
    _require_schema(header, path)
    return header


def _read(path: Path, part: Callable[[Any], Any]) -> Any:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return part(stored)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{str(path)!r} is not a file that training wrote ({error}). Restore it, or remove it to begin anew."
        ) from None


def _require_schema(header: Mapping[str, Any], path: Path) -> None:
    schema = header.get("schema")
    if schema == SCHEMA:
        return
    advice = "Update ballsbins if a later version wrote it."
    if schema == _UNSAFE:
        advice = (
            "It is of a version whose noise is not safe: float32 values that show which rows a batch looked up, "
            "and the same in all continuations. Train anew in another directory."
        )
    raise InvalidInputError(f"the schema of {str(path)!r}", schema, f"{SCHEMA}", advice)


def require_same(saved: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Raise an error unless a checkpoint belongs to the run to be continued; name the first fact that differs."""
    for name in sorted(set(saved) | set(wanted)):
        before, now = saved.get(name), wanted.get(name)
        if before == now:
            continue
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            require_same(before, now, path)
        advice = f"{str(path)!r} is of another run: continue that one as it was begun, or choose another directory."
        raise InvalidInputError(name, now, f"{before!r}, as this run began", advice)


def clean(directory: Path) -> None:
    """Remove partial files that a killed process left."""
    for leftover in directory.glob(".*.npz.*"):
        leftover.unlink(missing_ok=True)
