"""Gaussian noise for the optimizer, from the key: nothing of a generator needs to be saved to resume exactly.

torch's generators will not do: the one for the CPU takes 32 bits of a seed, so that all its noise can be tried out,
and none is made to withstand somebody who sees its output. The words come from the same AES-256 keystream as the
batches, under another purpose, and Box and Muller's transform makes them normal.

**Precision.** Uniform values are multiples of 2⁻⁶⁴, rounded to 53 bits; normal ones are computed and added in float64
and reach 9.4 standard deviations (`training.tail` says why that matters). The noisy sum is then rounded to the type
of the gradient. So the low bits of a float32 gradient carry no more than the sum does, unlike float32 noise, whose
gaps show. It remains an approximation of the continuous Gaussian for which privacy is proved.

**One noise, one sum.** If two sums ever got the same noise, their difference would show both without any: somebody
continues from one checkpoint twice, with two learning rates, or with data in which an example was corrected. So the
noise also depends on the very sums it is added to, by a hash under the key, as the nonce of some signatures does on
their message. The same sums get the same noise, which tells nothing new and lets runs repeat; any others get
independent noise. A key that is only a seed, for experiments, does without: there noise is to be the same however
additions are ordered.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import numpy as np
import torch

from ballsbins.samplers import Key
from ballsbins.samplers.keystream import Keystream

SOURCE = "Gaussian, from AES-256 in counter mode under the run's key, added in 64-bit floating point"
_PIECE = 1 << 20  # values at a time, so that noise in float64 does not double the memory of a large layer


def digest(sums: Iterable[torch.Tensor]) -> bytes:
    """Tell sums of gradients apart. As secret as they are: it is only hashed again, with the key."""
    found = hashlib.sha256()
    for total in sums:
        found.update(total.detach().to("cpu").contiguous().numpy().data)
    return found.digest()


class StepNoise:
    """The noise of one step of one run: a pure function of key, identity of the run, step, sums and parameter."""

    def __init__(self, key: Key, identity: str, step: int, sums: bytes, scale: float) -> None:
        """Derive the keystream of this step; `sums` tells what the noise is for, `scale` its standard deviation."""
        self._words = Keystream(key, "opacus noise", identity, step, sums, scale.hex())
        self._scale = scale

    def normals(self, parameter: int, start: int, count: int) -> torch.Tensor:
        """Give the standard normal values start … start + count − 1 of a parameter, in float64; `start` is even."""
        pairs = -(-count // 2)
        words = self._words.words64(parameter, start, 2 * pairs).reshape(2, pairs)
        uniform = torch.from_numpy((words.astype(np.float64) + 0.5) * 2.0**-64)  # in (0, 1]
        radius = torch.sqrt(-2.0 * torch.log(uniform[0]))
        angle = 2.0 * math.pi * uniform[1]
        return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])[:count]

    def added_to(self, total: torch.Tensor, parameter: int) -> torch.Tensor:
        """Return a sum of gradients plus its noise, of the sum's type and device."""
        flat = total.detach().reshape(-1)
        noisy = torch.empty_like(flat)
        for begin in range(0, flat.numel(), _PIECE):
            piece = flat[begin : begin + _PIECE].to("cpu", torch.float64)
            noisy[begin : begin + _PIECE] = piece + self._scale * self.normals(
                parameter, begin, piece.numel()
            )
        return noisy.view_as(total)
