"""Which libraries a result was obtained with."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

_ALWAYS = ("numpy", "scipy")
_IF_USED = {
    "dp_accounting": "dp-accounting",
    "duckdb": "duckdb",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "jax_privacy": "jax-privacy",
    "numba": "numba",
    "opacus": "opacus",
    "optax": "optax",
    "pyarrow": "pyarrow",
    "pyspark": "pyspark",
    "torch": "torch",
}


def library_versions() -> dict[str, str]:
    """Versions of Python, of this library, of what the accounting needs, and of what else has been imported."""
    import ballsbins

    used = [name for module, name in _IF_USED.items() if module in sys.modules]
    found = {"python": platform.python_version(), "ballsbins": ballsbins.__version__}
    for name in (*_ALWAYS, *used):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a source tree on the path: it has no version to state
            continue
    return found
