"""The results of a sweep of many runs, one JSON line each; a sweep can be killed at any time and continued.

Each line is appended in one write and is on disk before the next run begins. A kill may leave a partial line at the
end. Reading drops it, and that run is repeated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ballsbins.errors import InvalidInputError


class SweepLog:
    """The results so far, by setting. The first line describes the sweep; a file of another sweep is refused."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Read an existing file, or begin a new one."""
        self._path, self._found = path, dict[str, dict[str, Any]]()
        lines = self._whole_lines()
        if not lines:
            self._append({"about": dict(about)})
        elif lines[0].get("about") != json.loads(json.dumps(about)):
            raise InvalidInputError(
                f"what {path} is about", lines[0].get("about"), f"{dict(about)}",
                "It holds the results of another sweep: choose another directory, or remove the file.",
            )  # fmt: skip
        for line in lines[1:]:
            self._found[_name(line["setting"])] = line["result"]

    def __len__(self) -> int:
        """Count the finished runs."""
        return len(self._found)

    def get(self, setting: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result of a setting, or None if it has not been run."""
        return self._found.get(_name(setting))

    def add(self, setting: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Save a result."""
        self._append({"setting": dict(setting), "result": dict(result)})
        self._found[_name(setting)] = dict(result)

    def _whole_lines(self) -> list[dict[str, Any]]:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from None
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            os.truncate(self._path, len(whole))
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise InvalidInputError(
                "the file of results", str(self._path), f"one JSON object a line ({error})",
                "Move it away to begin anew.",
            ) from None  # fmt: skip

    def _append(self, line: Mapping[str, Any]) -> None:
        raw = (json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n").encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, raw)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> InvalidInputError:
        return InvalidInputError(
            "the file of results", str(self._path), f"one that can be read and written ({error.strerror})",
            "Free some space or choose another directory; the results so far are kept.",
        )  # fmt: skip


def _name(setting: Mapping[str, Any]) -> str:
    return json.dumps(setting, sort_keys=True)
