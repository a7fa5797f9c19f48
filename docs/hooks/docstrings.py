"""Docstrings as they are written here, for the API reference: a section "Example" holds doctests."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Let the reference show a section "Example" as code, as it does one called "Examples"."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rename the section of one docstring."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
