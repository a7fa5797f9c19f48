"""The paper's algorithm "Balls-and-Bins Sampler": every example goes to one uniformly random batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.errors import InvalidInputError
from ballsbins.samplers.base import MAX_EXAMPLES, Draw, check_epoch
from ballsbins.samplers.identities import KeyedHash, check_identities
from ballsbins.samplers.key import Key, as_key
from ballsbins.samplers.keystream import Keystream
from ballsbins.samplers.partition import group_by_bin
from ballsbins.samplers.physical import IndexArray
from ballsbins.samplers.truncation import TruncatingSampler
from ballsbins.samplers.uniform import uniform_below


@dataclass(frozen=True, repr=False)
class BallsAndBins(TruncatingSampler, type_name="balls_and_bins"):
    """Put every example into one of `steps` batches, independently and uniformly.

    With `redraw` every epoch draws new bins (the paper); without, all epochs use the same bins and so the
    same batches, which costs far more privacy: at σ = 1, T = 1000, 10 epochs and δ = 10⁻⁶ it is ε ≈ 12.5 in
    place of 0.54.

    Formal guarantees, for a secret key and a keystream that cannot be told from random:

    * in every epoch each example is in exactly one batch (at most one with `max_batch_size`);
    * each example's bin is exactly uniform on the steps, and independent of the bins of all other examples
      and, with `redraw`, of all other epochs;
    * so the size of each batch before truncation is distributed as Bin(n, 1/T), and given the sizes the
      batches are a uniformly random partition;
    * the bin of an example is a pure function of the key, the epoch, `steps`, `redraw` and the example's
      identity: not of the number of examples, of what was drawn before, or of the machine.
    """

    redraw: bool = True

    @property
    def name(self) -> str:
        """What people call it; fixed bins are told apart."""
        return "balls-and-bins" if self.redraw else "balls-and-bins (fixed bins)"

    @property
    def draws_once(self) -> bool:
        """Whether the bins are fixed."""
        return not self.redraw

    def __post_init__(self) -> None:
        """Validate the fields, once."""
        super().__post_init__()
        if not isinstance(self.redraw, bool):
            advice = "True draws new bins each epoch, False keeps them."
            raise InvalidInputError("redraw", self.redraw, "True or False", advice)

    def bins(self, key: Key | bytes | int, epoch: int, start: int, stop: int) -> NDArray[np.uint32]:
        """Return the bins of the examples start … stop − 1, in time proportional to their number."""
        advice = "Give the range of examples as 0 <= start <= stop."
        last = _check.integer("stop", stop, 0, MAX_EXAMPLES, advice=advice)
        first = _check.integer("start", start, 0, last, advice=advice)
        return self._bins(self._keystream(key, epoch), first, last)

    def bins_of(
        self, key: Key | bytes | int, epoch: int, identities: NDArray[np.integer] | Sequence[bytes]
    ) -> NDArray[np.uint32]:
        """Return the bins of any examples, named by an array of indices or by a sequence of unique bytes.

        An index and bytes name different examples, whatever the bytes are: use one kind for one data set.
        """
        checked = check_identities(identities, MAX_EXAMPLES)
        if isinstance(checked, np.ndarray):
            return self._bins_at(self._keystream(key, epoch), checked)
        return self._bins_of_bytes(key, epoch, checked)

    def bin_of(self, key: Key | bytes | int, epoch: int, identity: int | bytes) -> int:
        """Return the bin of one example, in constant time."""
        if isinstance(identity, bytes):
            return int(self._bins_of_bytes(key, epoch, [identity])[0])
        advice = "Name the example by its index, or by bytes that no other example has."
        index = _check.integer("identity", identity, 0, MAX_EXAMPLES - 1, advice=advice)
        return int(self.bins(key, epoch, index, index + 1)[0])

    def _epoch_domain(self, epoch: int) -> int | str:
        self._check_drawn_steps()
        number = check_epoch(epoch)
        return "every" if self.draws_once else number

    def _keystream(self, key: Key | bytes | int, epoch: int) -> Keystream:
        return Keystream(as_key(key), *self._domain("bins", epoch))

    def _bins(self, keystream: Keystream, start: int, stop: int) -> NDArray[np.uint32]:
        words = keystream.words32(0, start, stop - start)
        return uniform_below(
            self.steps, words, lambda attempt, places: keystream.words32_at(attempt, start + places)
        )

    def _bins_at(self, keystream: Keystream, indices: NDArray[np.integer]) -> NDArray[np.uint32]:
        words = keystream.words32_at(0, indices)
        return uniform_below(
            self.steps, words, lambda attempt, places: keystream.words32_at(attempt, indices[places])
        )

    def _bins_of_bytes(
        self, key: Key | bytes | int, epoch: int, identities: Sequence[bytes]
    ) -> NDArray[np.uint32]:
        hashed = KeyedHash(as_key(key), *self._domain("bins of bytes", epoch))
        words = hashed.words(identities)

        def redraw(attempt: int, places: NDArray[np.int64]) -> NDArray[np.uint32]:
            salt, column = divmod(attempt, 4)
            more = hashed.words([identities[place] for place in places], salt) if salt else words[places]
            return more[:, column]

        return uniform_below(self.steps, words[:, 0], redraw)

    def _least_memory(self, num_examples: int) -> int:
        return 6 * num_examples + 8 * self.steps  # an index and a bin; where each batch begins

    def _draw(self, num_examples: int, key: Key, epoch: int) -> Draw:
        keystream = self._keystream(key, epoch)
        grouped = group_by_bin(
            lambda start, stop: self._bins(keystream, start, stop), num_examples, self.steps
        )
        order, offsets = grouped.order, grouped.offsets

        def batch(step: int) -> IndexArray:
            return order[offsets[step] : offsets[step + 1]]

        return self._truncated(batch, key, epoch)
