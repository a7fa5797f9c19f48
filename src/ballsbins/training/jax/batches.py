"""Batches of a fixed shape for the steps of a run, from memory or from files that an engine wrote."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ballsbins.batch_files import BatchFiles
from ballsbins.batch_files.columns import VALID
from ballsbins.batch_files.format import WEIGHT_COLUMN
from ballsbins.batch_files.reader import arrays
from ballsbins.data.dataset import LABEL, Examples, Features, check_examples
from ballsbins.errors import DataError, InvalidInputError
from ballsbins.samplers import Key, Sampler
from ballsbins.samplers.physical import filled, weights_of
from ballsbins.training.jax.model import Batch
from ballsbins.training.jax.noise_binding import data_tag


class Feed(Protocol):
    """The data interface of training: the batches of an epoch from any step on, and a tag to detect changed data."""

    same_in_all_epochs: bool  # whether every epoch reads the same data, not separate files

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Iterate over the batches of steps start, start + 1, …, each padded to the fixed shape."""

    def data_tag(self, epoch: int) -> bytes:
        """A hash, under the run's key, of all data that the epoch reads; as secret as the data."""


class FromMemory:
    """Batches drawn by the sampler from examples in memory."""

    same_in_all_epochs = True

    def __init__(self, examples: Examples, sampler: Sampler, key: Key, shape: int) -> None:
        """Take checked examples; `shape` is the number of rows of every batch."""
        self._examples, self._sampler, self._key, self._shape = examples, sampler, key, shape

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Draw the batches of an epoch."""
        for indices in self._sampler.batches(len(self._examples), self._key, epoch, start):
            yield padded(self._examples.take(indices), self._shape)

    def data_tag(self, epoch: int) -> bytes:
        """The tag of all examples, which is the same in every epoch."""
        return self._data_tag

    @cached_property
    def _data_tag(self) -> bytes:
        arrays = (self._examples.labels, self._examples.integers, self._examples.categories)
        return data_tag(self._key, map(np.ascontiguousarray, arrays))


class FromFiles:
    """Batches that an engine wrote to files, in the order of the sampler."""

    same_in_all_epochs = False

    def __init__(
        self, files: BatchFiles, features: Features, num_examples: int, sampler: Sampler, key: Key, shape: int
    ) -> None:
        """Refuse files that were not built for this run."""
        manifest = files.manifest
        if manifest.sampler != sampler:
            advice = "Train as the batches were built, or build them for this run with: ballsbins build"
            raise InvalidInputError("the sampler of the batch files", manifest.sampler, repr(sampler), advice)
        if manifest.num_examples != num_examples:
            advice = "The batches were built from other data: build them again."
            raise InvalidInputError(
                "the number of examples in the batch files", manifest.num_examples, f"{num_examples}", advice
            )
        key.require(manifest.key_commitment)
        key.for_run(manifest.run)  # refuses the key of another run
        there = {column.name for column in manifest.columns}
        for name in (LABEL, *features.names):
            if name not in there:
                advice = "Build the batches from the prepared data set: its train directory."
                raise InvalidInputError(
                    "the set of columns of the batch files", sorted(there), f"with {name}", advice
                )
        self._columns = [LABEL, *features.names] + [WEIGHT_COLUMN] * (manifest.padded_to is not None)
        self._files, self._features, self._shape, self._key = files, features, shape, key

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Read the batches of an epoch."""
        for batch, rows in arrays(self._files, epoch, start, columns=self._columns):
            yield padded(self._examples(batch, rows), self._shape)

    def data_tag(self, epoch: int) -> bytes:
        """The tag of the bytes of the epoch's files."""
        return data_tag(self._key, (path.read_bytes() for path in self._files.paths(epoch)))

    def _examples(self, batch: dict[str, NDArray[Any]], rows: int) -> Examples:
        """Return the real rows of a batch as checked arrays, without padding."""
        if WEIGHT_COLUMN in self._columns:
            real = batch[WEIGHT_COLUMN] > 0
            batch, rows = {name: values[real] for name, values in batch.items()}, int(real.sum())
        for name in (LABEL, *self._features.names):
            if not batch.get(name + VALID, np.True_).all():
                raise DataError(
                    f"The column {name!r} of the batch files has missing values. Fill them before you build."
                )
        columns = {name: batch[name] for name in (LABEL, *self._features.names)}
        integers = _stacked([columns[name] for name in self._features.integers], np.float32, rows)
        ids = _stacked([columns[name] for name, _ in self._features.categories], np.int32, rows)
        examples = Examples(columns[LABEL].astype(np.float32), integers, ids)
        check_examples(self._features, examples, "the batch files")
        return examples


def padded(examples: Examples, rows: int) -> Batch:
    """Pad examples to `rows` rows with zeros of weight 0."""
    if len(examples) > rows:
        raise DataError(
            "A batch of the batch files is larger than the sampler's largest batch. Build them again."
        )
    return Batch(
        filled(examples.labels, rows),
        filled(examples.integers, rows),
        filled(examples.categories, rows),
        weights_of(len(examples), rows),
    )


def _stacked(columns: list[Any], dtype: type, rows: int) -> Any:
    return np.stack(columns, axis=1).astype(dtype) if columns else np.empty((rows, 0), dtype)
