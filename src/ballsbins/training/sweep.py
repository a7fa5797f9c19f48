"""A sweep of many runs that can be killed at any time and continued: its results, one JSON line each.

A line is appended by one write and is on disk before the next run begins. What a kill may leave is half a line at the
end, which is dropped on reading; that run is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ballsbins.errors import InvalidInputError


class SweepLog:
    """The results so far, by setting. The first line says what the sweep is about: another one is refused."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Read what is there, or begin."""
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
        """Count the runs that are done."""
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
