"""The batches of algorithm "Deterministic Batch Generator": the examples in the given order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballsbins.samplers.base import Draw, Sampler, even_cuts, index_dtype
from ballsbins.samplers.key import Key
from ballsbins.samplers.physical import IndexArray


@dataclass(frozen=True, repr=False)
class Deterministic(Sampler, type_name="deterministic"):
    """Cut the examples, in the given order, into `steps` batches: the same in every epoch, whatever the key.

    Formal guarantees:

    * each example is in exactly one batch;
    * the batches are consecutive ranges, and their sizes differ by at most one (the paper asks for n = b·T,
      where they are equal);
    * nothing is random: the order of the data is taken to be known to everybody.
    """

    is_random = False
    random_sizes = False
    amplifies = False
    name = "deterministic"
    draws_once = True

    def _least_memory(self, num_examples: int) -> int:
        return 4 * (num_examples // self.steps)  # of one batch

    def _draw(self, num_examples: int, key: Key, epoch: int) -> Draw:
        cut, dtype = even_cuts(num_examples, self.steps), index_dtype(num_examples)

        def batch(step: int) -> IndexArray:
            part = cut(step)
            return np.arange(part.start, part.stop, dtype=dtype)

        return batch
