"""Import optional dependencies on first use; if one is missing, the error states the pip command."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from ballsbins.errors import MissingExtraError


def load(module: str, *, feature: str, extra: str) -> ModuleType:
    """Import `module`, which `feature` needs and the extra `extra` installs."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise MissingExtraError(feature, extra) from missing


class Later:
    """A module of an optional dependency, imported when one of its attributes is first used."""

    def __init__(self, module: str, *, feature: str, extra: str) -> None:
        """Name the module, what needs it, and the extra that installs it."""
        self._module, self._feature, self._extra = module, feature, extra
        # import_module takes microseconds even if the module is loaded
        self._loaded: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle and copy ask for these, and must not trigger the import
            raise AttributeError(name)
        if self._loaded is None:
            self._loaded = load(self._module, feature=self._feature, extra=self._extra)
        return getattr(self._loaded, name)
