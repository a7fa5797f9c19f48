"""Samplers whose batches vary in size and may have a maximum size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.errors import InvalidInputError
from ballsbins.samplers.base import MAX_EXAMPLES, Draw, Sampler, check_epoch
from ballsbins.samplers.key import Key, as_key
from ballsbins.samplers.keystream import KeyedHash, Keystream, check_identities
from ballsbins.samplers.physical import IndexArray, truncate


@dataclass(frozen=True, repr=False)
class TruncatingSampler(Sampler):
    """A sampler that can cut every batch to at most `max_batch_size` examples, uniformly without replacement.

    Truncation costs privacy, and how much depends on the number of examples. So `max_batch_size` requires
    `num_examples`, and `batches` checks it.
    """

    _: KW_ONLY
    max_batch_size: int | None = None
    num_examples: int | None = None

    random_sizes = True
    amplifies = True

    def __post_init__(self) -> None:
        """Validate the fields."""
        super().__post_init__()
        if self.max_batch_size is not None:
            advice = "Give the largest batch that fits, or None for no limit."
            size = _check.integer("max_batch_size", self.max_batch_size, 1, MAX_EXAMPLES, advice=advice)
            object.__setattr__(self, "max_batch_size", size)
            if self.num_examples is None:
                raise InvalidInputError(
                    "num_examples",
                    None,
                    f"stated together with max_batch_size={size}",
                    "What truncation costs in privacy depends on the number of examples: add num_examples=…",
                )
        if self.num_examples is not None:
            advice = "Give the number of examples in the data set, or None where max_batch_size is None."
            number = _check.integer("num_examples", self.num_examples, 0, MAX_EXAMPLES, advice=advice)
            object.__setattr__(self, "num_examples", number)

    def truncated_to(self, max_batch_size: int, num_examples: int) -> Sampler:
        """Give the same sampler with truncated batches.

        Args:
            max_batch_size: the size to which larger batches are truncated.
            num_examples: the number of examples in the data set, on which the cost in privacy depends.

        Returns:
            The sampler whose batches have at most `max_batch_size` examples.
        """
        return replace(self, max_batch_size=max_batch_size, num_examples=num_examples)

    def untruncated(self) -> Sampler:
        """Give the same sampler without truncation.

        Returns:
            The sampler with `max_batch_size` None.
        """
        return replace(self, max_batch_size=None, num_examples=None)

    def largest_batch(self, num_examples: int) -> int | None:
        """Give the size that no batch exceeds.

        Args:
            num_examples: n; the limit does not depend on it.

        Returns:
            `max_batch_size`, which is None if batches are not truncated.
        """
        return self.max_batch_size

    def _check_num_examples(self, num_examples: int) -> int:
        examples = super()._check_num_examples(num_examples)
        if self.num_examples is not None and examples != self.num_examples:
            raise InvalidInputError(
                "num_examples",
                examples,
                f"{self.num_examples}, as the sampler states",
                "The accounting used the sampler's number: state the sampler for the data set at hand.",
            )
        return examples

    def _epoch_domain(self, epoch: int) -> int | str:
        """Return what represents the epoch in the key's domain."""
        return check_epoch(epoch)

    def _domain(self, purpose: str, epoch: int) -> tuple[str | int, ...]:
        """Return the domain of the words for one purpose in one epoch; no two samplers share one."""
        return (self.type_name, self.steps, purpose, self._epoch_domain(epoch))

    def truncation_words(
        self, key: Key | bytes | int, epoch: int, step: int, identities: NDArray[np.integer] | Sequence[bytes]
    ) -> NDArray[np.uint64]:
        """Give the 64-bit word of each example for truncating the batch of a step: the smallest are kept.

        Every engine that keeps the `max_batch_size` smallest words, ties by identity, keeps the same examples.

        Args:
            key: the secret key, as a `Key` or 32 bytes. An integer is a seed for experiments, and not secret.
            epoch: the number of the epoch, from 0.
            step: the number of the step, from 0.
            identities: an array of indices, or a sequence of bytes that are unique in the data set.

        Returns:
            One word for each identity.
        """
        secret, number = as_key(key), self._check_step(step)
        checked = check_identities(identities, MAX_EXAMPLES)
        if isinstance(checked, np.ndarray):
            return Keystream(secret, *self._domain("truncate", epoch)).words64_at(number, checked)
        words = KeyedHash(secret, *self._domain("truncate bytes", epoch)).words(checked, salt=number)
        return words[:, 0] | words[:, 1].astype(np.uint64) << np.uint64(32)

    def _truncated(self, draw: Draw, key: Key, epoch: int) -> Draw:
        """Wrap the function from a step to its batch so that no batch exceeds the limit."""
        limit = self.max_batch_size
        if limit is None:
            return draw
        keystream = Keystream(key, *self._domain("truncate", epoch))

        def truncated(step: int) -> IndexArray:
            batch = draw(step)
            if len(batch) <= limit:
                return batch
            return truncate(batch, keystream.words64_at(step, batch), limit)

        return truncated
