"""What a build will do, before it does it: counts, sizes, disk and time, by a trial on some rows."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ballsbins import __version__, _check
from ballsbins._extras import Later
from ballsbins.batch_files.columns import columns_of
from ballsbins.batch_files.dictionaries import Dictionaries, shown_schema, stored_schema
from ballsbins.batch_files.format import WEIGHT_COLUMN, InputFile, Manifest
from ballsbins.batch_files.inputs import Inputs
from ballsbins.batch_files.row_order import IdentityColumn
from ballsbins.batch_files.sort import Memory
from ballsbins.batch_files.writer import written_schema
from ballsbins.errors import DataError, InvalidInputError, SecretError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import BallsAndBins, Key, Sampler, new_key

arrow = Later("pyarrow", feature="Batching tables", extra="data")
parquet = Later("pyarrow.parquet", feature="Batching tables", extra="data")

COMPRESSIONS = ("snappy", "zstd", "lz4", "none")
_PART_BYTES = 256 * 2**20
_KEPT_BYTES = 12  # a position and a place, which every row carries while it is sorted


@dataclass(frozen=True)
class BuildPlan:
    """One build, ready to be run for any epoch and key; validated as a whole by `plan_build`."""

    inputs: Inputs
    sampler: Sampler
    num_examples: int
    mechanism: Mechanism | None = None
    identity: IdentityColumn | None = None
    padded_to: int | None = None
    memory: Memory = field(default_factory=Memory)
    compression: str = "snappy"
    world_size: int = 1

    @cached_property
    def trial(self) -> Trial:
        """What the first rows cost."""
        return Trial.run(self.inputs, self.compression, self.identity)

    @cached_property
    def row_bytes(self) -> float:
        """Bytes of a row in memory, with what it carries while sorted: of the first rows, or as footers say."""
        return max(self.trial.row_bytes, self.inputs.stored_row_bytes) + _KEPT_BYTES

    @property
    def scratch_bytes(self) -> int:
        """Disk for temporary files; Poisson batches are drawn without any."""
        return int(self.num_examples * self.row_bytes) if self.sampler.partitions else 0

    @property
    def written_rows(self) -> int:
        """Rows of an epoch's files: all of the input, or as many as padding makes."""
        return self.num_examples if self.padded_to is None else self.padded_to * self.sampler.steps

    @property
    def output_bytes(self) -> int:
        """Disk for the files of one epoch."""
        # blank rows compress to next to nothing, but their weights are there
        return int(self.num_examples * self.trial.compressed_row_bytes) + 8 * self.sampler.steps

    @property
    def disk_bytes(self) -> int:
        """Free disk that building one epoch needs: temporary files and the epoch beside each other."""
        return self.scratch_bytes + self.output_bytes

    @property
    def seconds(self) -> float:
        """About how long an epoch takes."""
        return self.num_examples * self.trial.row_seconds

    @property
    def buckets(self) -> int:
        """Files that the rows are scattered into at first."""
        wanted = -(-self.scratch_bytes // self.memory.bucket_bytes)
        return max(1, min(wanted, self.memory.max_files, self.sampler.steps))

    @property
    def batches_per_file(self) -> int:
        """Batches in one part: as many as make a file of a good size."""
        expected = max(1.0, self.row_bytes * self.written_rows / self.sampler.steps)
        return int(max(1, min(self.sampler.steps, _PART_BYTES // expected)))

    @property
    def rows_per_group(self) -> int:
        """Rows in one row group of a part."""
        return int(max(1, self.memory.row_group_bytes // self.row_bytes))

    @property
    def rows_per_read(self) -> int:
        """Rows that are read at a time, to be joined to chunks: some of a chunk, as rows may be wider further on."""
        return int(max(1, min(self.memory.most_rows, self.memory.chunk_bytes // (8 * self.row_bytes))))

    @property
    def _coded(self) -> list[str]:
        """The columns that are stored as codes; what names the rows stays as it is."""
        named = None if self.identity is None else self.identity.name
        return [
            name
            for name in self.inputs.dictionary_types
            if name in self.inputs.schema.names and name != named
        ]

    @cached_property
    def dictionaries(self) -> Dictionaries:
        """The values of dictionary columns, collected once."""
        return Dictionaries.of(self.inputs, self._coded)

    @property
    def row_schema(self) -> Any:
        """The schema of rows while they are sorted and written: with codes for the values of dictionaries."""
        return stored_schema(self.inputs.schema, self._coded)

    def manifest(self, key: Key, epoch: int) -> Manifest:
        """Return the manifest of an epoch.

        Args:
            key: the key of the run, from `Key.for_run`.
            epoch: the number of the epoch, from 0.

        Raises:
            SecretError: `key` is a master key. A run id drawn here would not be that of the batches.
        """
        if key.run is None:
            raise SecretError(
                "This is a master key, but a manifest belongs to one run. Give the key of the run: key.for_run()."
            )
        shown = shown_schema(
            self.inputs.schema, {name: self.inputs.dictionary_types[name] for name in self._coded}
        )
        schema = written_schema(shown, padded=self.padded_to is not None)
        return Manifest(
            sampler=self.sampler,
            epoch=epoch,
            num_examples=self.num_examples,
            columns=columns_of(schema),
            batches_per_file=self.batches_per_file,
            inputs=(InputFile("all", self.inputs.bytes, key.derive("inputs", self.fingerprint)[:16].hex()),),
            world_size=self.world_size,
            key_commitment=key.commitment(),
            run=key.run,
            version=__version__,
            identity_column=None if self.identity is None else self.identity.name,
            padded_to=self.padded_to,
            mechanism=self.mechanism,
        )

    @cached_property
    def fingerprint(self) -> str:
        """The digest of the inputs, taken once."""
        return self.inputs.fingerprint()

    def require_disk(self, directory: Path) -> None:
        """Raise before anything is written where the disk is clearly too small."""
        place = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        free = shutil.disk_usage(place).free
        if free < self.disk_bytes:
            raise DataError(
                f"Building one epoch needs about {self.disk_bytes:,} bytes below {str(directory)!r}, "
                f"but {free:,} are "
                "free. Make room, or name a directory on another disk."
            )

    def require_memory(self) -> None:
        """Raise where one batch, of the size that is expected, does not fit within the limit."""
        batch_bytes = int(-(-self.num_examples // self.sampler.steps) * self.row_bytes)
        if batch_bytes > self.memory.largest_bucket:
            steps = int(2 * self.num_examples * self.row_bytes // self.memory.largest_bucket)
            larger = self.memory.limit_for(batch_bytes)
            raise InvalidInputError(
                "the memory limit",
                self.memory.limit,
                f"enough for batches of {batch_bytes:,} bytes, as expected",
                f"Take at least {steps} steps" + (f", or --memory {larger}." if larger is not None else "."),
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: public facts only."""
        return {
            "event": "plan",
            "input_bytes": self.inputs.bytes,
            "rows": self.num_examples,
            "columns": len(self.inputs.schema),
            "sampler": self.sampler.to_dict(),
            "identity_column": None if self.identity is None else self.identity.name,
            "padded_to": self.padded_to,
            "memory_limit": self.memory.limit,
            "buckets": self.buckets,
            "part_files": -(-self.sampler.steps // self.batches_per_file),
            "scratch_bytes": self.scratch_bytes,
            "output_bytes_per_epoch": self.output_bytes,
            "disk_bytes": self.disk_bytes,
            "seconds_per_epoch": round(self.seconds, 1),
        }


@dataclass(frozen=True)
class Trial:
    """Bytes and seconds of a row, from doing with the first rows what a build does with all."""

    row_bytes: float
    compressed_row_bytes: float
    row_seconds: float

    @staticmethod
    def run(inputs: Inputs, compression: str, identity: IdentityColumn | None) -> Trial:
        """Read the first rows, hash their names, take them in a random order, write a bucket and Parquet."""

        def write(table: Any) -> int:
            order = arrow.array(np.random.default_rng(0).permutation(table.num_rows))
            bucket, part = arrow.BufferOutputStream(), arrow.BufferOutputStream()
            with arrow.ipc.new_stream(bucket, table.schema) as writer:
                writer.write_table(table.take(order))
            parquet.write_table(table.take(order), part, compression=compression, write_statistics=False)
            return int(part.tell())

        write(inputs.sample().slice(0, 1))  # the first time takes longer
        begin = time.perf_counter()
        table = inputs.sample()
        if identity is not None:
            BallsAndBins(1).bins_of(new_key(), 0, identity.of(table, 0).as_list())
        compressed = write(table)
        seconds = time.perf_counter() - begin
        rows = max(table.num_rows, 1)
        return Trial(table.nbytes / rows, compressed / rows, seconds / rows)


def plan_build(
    inputs: Inputs,
    sampler: Sampler | Callable[[int], Sampler],
    *,
    mechanism: Mechanism | Callable[[Sampler], Mechanism] | None = None,
    identity_column: str | None = None,
    pad: bool = False,
    memory: Memory | None = None,
    compression: str = "snappy",
    num_examples: int | None = None,
    world_size: int = 1,
) -> BuildPlan:
    """Count the rows, and decide how to build batch files.

    Args:
        inputs: the table, from `open_inputs`.
        sampler: how batches are drawn; or a function from the number of rows to that.
        mechanism: what the batches are built for, if the noise is decided; or a function from the sampler to that.
        identity_column: the unique column that names the rows; by default they are named by their position.
        pad: whether every batch is filled up to the largest size, with rows of weight 0.
        memory: the limit on resident memory; 1 GB by default.
        compression: of the Parquet files: snappy, zstd, lz4 or none.
        num_examples: if stated, it is compared with the rows that there are.
        world_size: the number of ranks that will train, each of which then reads its own rows only.

    Returns:
        The plan: what it will need, and what `build` takes.

    Raises:
        InvalidInputError: an argument is out of its range, or the rows are not as many as stated.
        DataError: the inputs cannot be read, or do not have the identity column.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"x": range(100)}), "table.parquet")
        >>> from ballsbins import BallsAndBins
        >>> from ballsbins.batch_files.inputs import open_inputs
        >>> made = plan_build(open_inputs(["table.parquet"]), lambda rows: BallsAndBins(steps=rows // 25))
        >>> made.num_examples, made.sampler.steps
        (100, 4)
    """
    counted = inputs.count()
    if num_examples is not None and counted != num_examples:
        raise InvalidInputError(
            "the number of examples", num_examples, f"{counted:,}, the rows of the inputs", "Count again."
        )
    chosen = sampler if isinstance(sampler, Sampler) else sampler(counted)
    chosen._check_num_examples(counted)
    identity = None
    if identity_column is not None:
        identity = IdentityColumn(identity_column)
        identity.check_type(inputs.schema)
    if compression not in COMPRESSIONS:
        raise InvalidInputError(
            "compression", compression, f"one of {', '.join(COMPRESSIONS)}", "snappy is the default."
        )
    size = _padded_size(chosen, counted) if pad else None
    if size is not None and WEIGHT_COLUMN in inputs.schema.names:
        raise InvalidInputError(
            "a column of the inputs",
            WEIGHT_COLUMN,
            "of another name where batches are padded",
            "Padding adds a column of that name: rename yours.",
        )
    columns_of(inputs.schema)  # refuses what becomes no array
    smallest = counted // chosen.steps
    advice = (
        f"Batches have about {smallest} rows, and each rank needs some: take fewer ranks, or fewer steps."
    )
    _check.integer("the world size", world_size, 1, max(smallest, 1), advice=advice)
    limit = memory or Memory()
    if 16 * chosen.steps > limit.limit // 4:
        raise InvalidInputError(
            "steps",
            chosen.steps,
            f"at most {limit.limit // 64:,} for this memory limit",
            "Take larger batches, or a larger limit: --memory.",
        )
    planned_for = mechanism(chosen) if callable(mechanism) else mechanism
    return BuildPlan(inputs, chosen, counted, planned_for, identity, size, limit, compression, world_size)


def _padded_size(sampler: Sampler, num_examples: int) -> int:
    size = sampler.largest_batch(num_examples)
    if size is None:
        raise InvalidInputError(
            "max_batch_size",
            None,
            "given where batches are padded",
            "Give the size to truncate and to pad to.",
        )
    return size
