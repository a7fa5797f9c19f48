"""The batches of algorithm "Poisson Batch Generator": every example in every batch with probability 1/T."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballsbins.samplers.base import Draw, index_dtype
from ballsbins.samplers.geometric import successes
from ballsbins.samplers.key import Key
from ballsbins.samplers.keystream import Keystream
from ballsbins.samplers.physical import IndexArray
from ballsbins.samplers.truncation import TruncatingSampler


@dataclass(frozen=True, repr=False)
class Poisson(TruncatingSampler, type_name="poisson"):
    """Put every example into every one of `steps` batches with probability 1/`steps`, independently.

    Formal guarantees, for a secret key and a keystream that cannot be told from random:

    * each example is in each batch with probability exactly 1/T, independently of all other examples, steps
      and epochs (no floating-point error: see `geometric`); so before truncation the sizes of the batches
      are independent and distributed as Bin(n, 1/T);
    * an example may be in several batches of an epoch, or in none;
    * a batch is a pure function of the key, the epoch, the step, `steps` and the number of examples, and
      costs work and memory proportional to its expected size.
    """

    partitions = False
    name = "Poisson"

    def _least_memory(self, num_examples: int) -> int:
        return 8 * (num_examples // self.steps)  # of one batch

    def _draw(self, num_examples: int, key: Key, epoch: int) -> Draw:
        keystream = Keystream(key, *self._domain("gaps", epoch))
        dtype = index_dtype(num_examples)

        def batch(step: int) -> IndexArray:
            pieces = list(successes(keystream, step, num_examples, self.steps))
            return np.concatenate(pieces).astype(dtype) if pieces else np.empty(0, dtype=dtype)

        return self._truncated(batch, key, epoch)
