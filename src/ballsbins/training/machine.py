"""What the test of a machine found; `machine_check` tests JAX, `opacus.machine_check` tests PyTorch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MachineCheck:
    """What the test of a machine found."""

    device: str
    row_local: bool
    reproducible: bool

    @property
    def on_cpu(self) -> bool:
        """Whether sums are computed where this was designed and tested; other devices are outside the guarantee."""
        return self.device.startswith("cpu")

    @property
    def failures(self) -> tuple[str, ...]:
        """What keeps floating point from being covered, in words."""
        found = []
        if not self.on_cpu:
            found.append(f"sums are computed on {self.device}, where they have not been tested")
        if not self.row_local:
            found.append("what one example adds to the sums depends on the other rows of the batch")
        return tuple(found)
