"""What the noise of a step in PyTorch is bound to, so that no two different sums ever share noise.

The adversary sees the models of all continuations of a run. If two sums got the same noise, their difference would
reveal the difference of the sums without any noise. And if continuations shared noise *while* their sums agree, the
first step at which they differ would reveal the batch of the example in which their data differ, which is secret.
There are two ways to rule this out:

* **By default** every call of `make_private` draws a public random nonce, and all noise of the process is drawn
  under it. No two processes share noise, so a resumed run is not bit for bit the one that was stopped.
* **With a fingerprint** of the data, which the user computes and vouches for, the noise repeats if everything
  repeats. It is bound to the run, the fingerprint (hashed under the key), the plan, the machine, the parameters
  before the step, all frozen parameters and buffers, and the sums themselves. With other data, the noise of all
  steps is independent. So is the noise of a step whose sums do not repeat for any reason: dropout, changed code, or a
  library that adds in another order. What follows the noisy gradient, such as the learning rate, is post-processing,
  and the noise is not bound to it.

A plain seed has a fixed nonce, so that others can repeat an experiment.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable
from typing import Any

import torch

from ballsbins.noise import Domain
from ballsbins.samplers import Key
from ballsbins.training.machine_check import processor, software

_PURPOSE = "opacus noise"
_FLAGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ATEN_CPU_CAPABILITY",
          "CUBLAS_WORKSPACE_CONFIG", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")  # fmt: skip
_PIECE = 1 << 20


def fresh_nonce(key: Key) -> str:
    """A public random number for this process; a fixed one under a plain seed."""
    return secrets.token_hex(16) if key.is_secret else "seed"


def machine_facts(device: str) -> dict[str, str]:
    """Public facts that may change the bits of a sum even if data and plan are the same."""
    return software(("numba", "numpy", "opacus", "torch"), _FLAGS) | {
        "device": f"{device} {torch.cuda.get_device_name()}" if device == "cuda" else device,
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": f"{torch.get_num_threads()} {torch.get_num_interop_threads()}",
        "deterministic": f"{torch.are_deterministic_algorithms_enabled()} {torch.backends.cudnn.deterministic} "
        f"{torch.backends.cudnn.benchmark} {torch.backends.mkldnn.enabled}",
        "precision": f"{torch.get_float32_matmul_precision()} {torch.backends.cudnn.allow_tf32}",
    }  # fmt: skip


def digest_of(tensors: Iterable[torch.Tensor], kind: torch.dtype | None = None) -> bytes:
    """Hash the bits of tensors, after converting them to `kind` if it is given."""
    found = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        for begin in range(0, flat.numel(), _PIECE):
            piece = flat[begin : begin + _PIECE].to("cpu", kind).contiguous()
            found.update(piece.view(torch.uint8).numpy().data)
    return found.digest()


class Replay:
    """The second way: everything besides the key that the noise is bound to."""

    def __init__(self, fingerprint: str, plan: dict[str, Any], fixed: list[torch.Tensor]) -> None:
        """Take the user's fingerprint, which is never stored, public facts of the plan, and frozen values."""
        self._fingerprint, self._plan, self._fixed = fingerprint, plan, fixed
        self._frozen: bytes | None = None

    def begin(self) -> None:
        """Forget the hash of the frozen values, because a loaded checkpoint may have changed them."""
        self._frozen = None

    def domain(
        self, key: Key, step: int, parameters: list[Any], sums: list[torch.Tensor], device: str
    ) -> Domain:
        """The domain of a step's noise, from the parameters before the step and the integer sums it is added to."""
        if self._frozen is None:
            self._frozen = digest_of(self._fixed)
        public = json.dumps({"plan": self._plan, "machine": machine_facts(device)}, sort_keys=True)
        return (
            _PURPOSE,
            "replay",
            hashlib.sha256(public.encode()).digest(),
            key.derive("data fingerprint", self._fingerprint),
            self._frozen,
            digest_of(parameters),
            digest_of(sums, torch.int64),
            step,
        )


def nonce_domain(nonce: str, step: int) -> Domain:
    """The domain of a step's noise under the nonce of a process."""
    return (_PURPOSE, nonce, step)


def mark_of(key: Key, domain: Domain) -> str:
    """A public code that distinguishes replayed noise and reveals nothing else."""
    return key.derive("mark of noise", *domain)[:16].hex()
