"""What the noise of a trainer that owns its data is bound to, so that no two sums ever share noise.

The adversary sees all models of all continuations of a run. If two sums got the same noise, their difference would
be revealed without any noise. So the noise of a step follows from the run's key *and* from everything that determines
the sums:

* a keyed hash of the training data of the epoch;
* the model and the optimizer's state at the beginning of the epoch, which are public and reflect all earlier changes;
* the plan, the features and the number of examples;
* the versions of the libraries, the processor, the number of threads and the compiler's flags;
* a branch: empty, or a fresh random number if somebody chose to continue after a change.

If any of these changes, all noise is independent of the earlier noise. If nothing changes, a killed run repeats its
steps bit for bit, which releases nothing new. This requires bit-reproducible sums, which are tested at every start;
if the test fails, the run takes a fresh branch.

A checkpoint carries two seals, which are codes under the run's key: one of its own content, one of data and machine.
They show whether the run wrote this state and whether it would continue unchanged. The seals contain a random nonce,
so the seals of two checkpoints do not reveal whether their data are the same. The keyed hash of the data is never
stored.

A plain seed binds noise only to the plan, so that others can repeat an experiment.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ballsbins.noise import Domain
from ballsbins.samplers import Key
from ballsbins.training.machine_check import processor, software
from ballsbins.training.training_plan import digest

_FLAGS = ("XLA_FLAGS", "NPROC")
# These are read from JAX itself, because they can be set in the environment or in Python.
_SETTINGS = (
    "jax_disable_jit", "jax_enable_x64", "jax_default_matmul_precision", "jax_disable_most_optimizations",
    "jax_numpy_dtype_promotion",
)  # fmt: skip


def data_tag(key: Key, parts: Iterable[Any]) -> bytes:
    """Hash data under the key: HMAC-SHA256 over buffers, each with its length. As secret as the data."""
    found = hmac.new(key.derive("data hash"), digestmod="sha256")
    for part in parts:
        view = memoryview(part)
        found.update(view.nbytes.to_bytes(8, "little"))
        if view.nbytes:  # a data set may have no categories, and an empty view cannot be cast
            found.update(view.cast("B"))
    return found.digest()


def machine_facts() -> Mapping[str, str]:
    """Public facts that may change the bits of a sum even if data and plan are the same."""
    device = jax.devices()[0]
    settings = {name: str(getattr(jax.config, name)) for name in _SETTINGS if hasattr(jax.config, name)}
    return software(("jax", "jaxlib", "numpy", "optax"), _FLAGS) | settings | {
        "device": f"{device.platform} {device.device_kind}",
        "devices": str(jax.device_count()),
        "threads": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "processor": processor(),
    }  # fmt: skip


@dataclass(frozen=True)
class Binding:
    """Everything that one epoch of a run is bound to; makes the domain of its noise and the seals of its checkpoints.

    Attributes:
        key: the key of the run.
        facts: the public facts of the plan.
        data: `data_tag` of the epoch's training data; secret.
        begin: `state_digest` at the beginning of the epoch.
        machine: `machine_facts()`.
        branch: "" or a public random number.
    """

    key: Key
    facts: Mapping[str, Any]
    data: bytes
    begin: str
    machine: Mapping[str, str]
    branch: str = ""

    def noise_domain(self) -> Domain:
        """The domain of the epoch's noise; the step number is appended to it."""
        if not self.key.is_secret:
            return ("training noise", digest(self.facts))
        public = {"plan": self.facts, "machine": self.machine, "begin": self.begin, "branch": self.branch}
        return ("training noise", digest(public), self.data)

    def seals(self, header: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> dict[str, str]:
        """The codes to store with a checkpoint."""
        nonce = secrets.token_hex(16)
        return {"nonce": nonce, "state": self._state(nonce, header, arrays), "data": self._data(nonce)}

    def changes(
        self,
        seals: Mapping[str, str],
        header: Mapping[str, Any],
        arrays: Sequence[NDArray[Any]],
        *,
        over: bool,
    ) -> list[str]:
        """List in words what changed since the checkpoint was written; empty if the run continues bit for bit.

        If the run is `over`, only the checkpoint itself is compared, because no step is left that a change could
        affect.
        """
        found = []
        if not hmac.compare_digest(seals["state"], self._state(seals["nonce"], header, arrays)):
            found.append("the checkpoint itself")
        if over:
            return found
        if self.key.is_secret and not hmac.compare_digest(seals["data"], self._data(seals["nonce"])):
            found.append("the training data")
        before = header["machine"]
        if self.key.is_secret:
            found += [
                f"{name} ({before.get(name)} → {self.machine.get(name)})"
                for name in sorted(set(before) | set(self.machine))
                if before.get(name) != self.machine.get(name)
            ]
        return found

    def _state(self, nonce: str, header: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> str:
        return self.key.derive("seal of the state", nonce, digest(header), state_digest(arrays))[:16].hex()

    def _data(self, nonce: str) -> str:
        return self.key.derive("seal of the data", nonce, self.data)[:16].hex()


def state_digest(arrays: Iterable[NDArray[Any]]) -> str:
    """Hash a public state, to distinguish states."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def new_branch() -> str:
    """A fresh public random number; its noise is independent of the noise of every other branch."""
    return secrets.token_hex(16)
