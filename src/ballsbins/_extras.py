"""Optional parts are imported where they are used; a missing one answers with the pip command."""

from __future__ import annotations

import importlib
from types import ModuleType

from ballsbins.errors import MissingExtraError


def load(module: str, *, feature: str, extra: str) -> ModuleType:
    """Import `module`, which `feature` needs and the extra `extra` installs."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise MissingExtraError(feature, extra) from missing
