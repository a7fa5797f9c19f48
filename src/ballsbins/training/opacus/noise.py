"""Gaussian noise for the optimizer, from the key: nothing of a generator needs to be saved to resume exactly.

torch's generators will not do: the one for the CPU takes 32 bits of a seed, so that all its noise can be tried out,
and none is made to withstand somebody who sees its output. The words come from the same AES-256 keystream as the
batches, under another purpose, and Box and Muller's transform makes them normal.

**Precision.** Uniform values are multiples of 2⁻⁶⁴, rounded to 53 bits; normal ones are computed and added in float64
and reach 9.4 standard deviations (`training.tail` says why that matters). The noisy sum is then rounded to the type
of the gradient. So the low bits of a float32 gradient carry no more than the sum does, unlike float32 noise, whose
gaps show. It remains an approximation of the continuous Gaussian for which privacy is proved.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ballsbins.samplers import Key
from ballsbins.samplers.keystream import Keystream

SOURCE = "Gaussian, from AES-256 in counter mode under the run's key, added in 64-bit floating point"
_PIECE = 1 << 20  # values at a time, so that noise in float64 does not double the memory of a large layer


class StepNoise:
    """The noise of one step of one run: a pure function of key, identity of the run, step and parameter."""

    def __init__(self, key: Key, identity: str, step: int) -> None:
        """Derive the keystream of this step."""
        self._words = Keystream(key, "opacus noise", identity, step)

    def normals(self, parameter: int, start: int, count: int) -> torch.Tensor:
        """Give the standard normal values start … start + count − 1 of a parameter, in float64; `start` is even."""
        pairs = -(-count // 2)
        words = self._words.words64(parameter, start, 2 * pairs).reshape(2, pairs)
        uniform = torch.from_numpy((words.astype(np.float64) + 0.5) * 2.0**-64)  # in (0, 1]
        radius = torch.sqrt(-2.0 * torch.log(uniform[0]))
        angle = 2.0 * math.pi * uniform[1]
        return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])[:count]

    def added_to(self, total: torch.Tensor, parameter: int, scale: float) -> torch.Tensor:
        """Return a sum of gradients plus normal noise of standard deviation `scale`, of the sum's type and device."""
        flat = total.detach().reshape(-1)
        noisy = torch.empty_like(flat)
        for begin in range(0, flat.numel(), _PIECE):
            piece = flat[begin : begin + _PIECE].to("cpu", torch.float64)
            noisy[begin : begin + _PIECE] = piece + scale * self.normals(parameter, begin, piece.numel())
        return noisy.view_as(total)
