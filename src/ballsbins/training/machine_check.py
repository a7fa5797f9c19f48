"""The result of testing a machine, in JAX or PyTorch, and facts of the machine that may change the bits of a sum."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ballsbins import __version__


@dataclass(frozen=True)
class MachineCheck:
    """The result of testing a machine."""

    device: str
    row_local: bool
    reproducible: bool
    precise: bool = True  # sums are within their error bound and leave out values that are not finite

    @property
    def on_cpu(self) -> bool:
        """Whether sums are computed on the CPU, where this was tested; other devices are outside the guarantee."""
        return self.device.startswith("cpu")

    @property
    def failures(self) -> tuple[str, ...]:
        """The reasons why floating point is not covered, in words."""
        found = []
        if not self.on_cpu:
            found.append(f"sums are computed on {self.device}, where they have not been tested")
        if not self.row_local:
            found.append("what one example adds to the sums depends on the other rows of the batch")
        if not self.precise:
            found.append("sums are less precise than their bound says, or hold what is not finite")
        return tuple(found)


def software(names: Iterable[str], flags: Iterable[str]) -> dict[str, str]:
    """Return the versions of the libraries that compute sums, and their flags in the environment.

    Each of them may change the order of the additions in a sum, and so its last bits.
    """
    versions = {name: metadata.version(name) for name in names if find_spec(name)}
    chosen = {name: os.environ[name] for name in flags if name in os.environ}
    return {"python": platform.python_version(), "ballsbins": __version__} | versions | chosen


@cache
def processor() -> str:
    """Identify the processor and its instruction sets, by which libraries choose their loops."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    flags = sorted(
        {line.partition(":")[2] for line in lines if line.startswith(("flags", "Features", "model name"))}
    )
    return f"{platform.machine()} {hashlib.sha256(repr(flags).encode()).hexdigest()[:16]}"
