"""Plan a build before running it: counts, sizes, disk space and time, estimated by a trial on some rows."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ballsbins import __version__, _check
from ballsbins.batch_files.columns import columns_of
from ballsbins.batch_files.dictionaries import Dictionaries, shown_schema, stored_schema
from ballsbins.batch_files.format import WEIGHT_COLUMN, InputFile, Manifest
from ballsbins.batch_files.gather import fixed_width
from ballsbins.batch_files.inputs import Inputs
from ballsbins.batch_files.row_groups import batches_per_part, buckets_per_part, longest
from ballsbins.batch_files.row_order import IdentityColumn
from ballsbins.batch_files.sort import Memory, Ranges
from ballsbins.batch_files.store import Location
from ballsbins.batch_files.trial import KEPT_BYTES, Trial
from ballsbins.batch_files.writer import written_schema
from ballsbins.errors import DataError, InvalidInputError, SecretError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Key, Sampler

COMPRESSIONS = ("snappy", "zstd", "lz4", "none")
_PART_BYTES, _LEAST_PART_BYTES = 256 * 2**20, 16 * 2**20
_PARTS_PER_WORKER = 4  # minimum, unless parts get too small: with fewer, workers would wait for the last one
_MOST_WORKERS = 256
_OPEN_FILES = 900  # below the limit of 1,024 open files per process on most systems
_MORE_DISK = 0.02  # extra disk space that file systems need beyond the content of files


@dataclass(frozen=True)
class BuildPlan:
    """One build, ready to run for any epoch and key; `plan_build` makes it and validates all of it."""

    inputs: Inputs
    sampler: Sampler
    num_examples: int
    mechanism: Mechanism | None = None
    identity: IdentityColumn | None = None
    padded_to: int | None = None
    memory: Memory = field(default_factory=Memory)
    compression: str = "snappy"
    world_size: int = 1
    wanted_workers: int | None = None

    @cached_property
    def trial(self) -> Trial:
        """The measured cost of a sample of rows."""
        return Trial.run(self.inputs, self.compression, self.identity)

    @cached_property
    def row_bytes(self) -> float:
        """Bytes of a row in memory, including its sort data: the larger of the sample's and the footers' figures."""
        return max(self.trial.row_bytes, self.inputs.stored_row_bytes) + KEPT_BYTES

    @cached_property
    def workers(self) -> int:
        """Number of parallel threads: as requested, or one per core if there is enough memory for them."""
        if self.wanted_workers is not None:
            return self.wanted_workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores, self.memory.most_workers(self._batch_bytes))

    @cached_property
    def share(self) -> Memory:
        """The memory limit as divided among the workers."""
        return replace(self.memory, workers=self.workers)

    @property
    def _batch_bytes(self) -> int:
        return int(-(-self.num_examples // self.sampler.steps) * self.row_bytes)

    @property
    def scratch_bytes(self) -> int:
        """Disk space for the temporary files of one epoch; Poisson batches need none."""
        return int(self.num_examples * self.trial.spilled_row_bytes) if self.sampler.partitions else 0

    @property
    def written_rows(self) -> int:
        """Number of rows in an epoch's files: as many as the input has, or the padded number."""
        return self.num_examples if self.padded_to is None else self.padded_to * self.sampler.steps

    @property
    def output_bytes(self) -> int:
        """Disk space for the files of one epoch."""
        # Blank rows compress to almost nothing, but their weights still take space.
        return int(self.num_examples * self.trial.compressed_row_bytes) + 8 * self.sampler.steps

    def disk_bytes(self, epochs: int = 1, together: int = 1) -> int:
        """The most disk space used at any time: a temporary file is removed once the files made from it exist.

        Args:
            epochs: how many epochs are built and kept.
            together: how many of them one pass over the input builds.
        """
        at_once = min(epochs, together)
        # a temporary file stays until the files made from it are written
        in_work = int(self.output_bytes * min(1.0, self.workers / len(self.ranges())))
        most = 0
        for first in range(0, epochs, at_once):
            built = min(at_once, epochs - first)
            scattered = built * self.scratch_bytes + in_work
            most = max(most, first * self.output_bytes + scattered, (first + built) * self.output_bytes)
        return int(most * (1 + _MORE_DISK))

    def together(self, epochs: int, free: int | None = None) -> int:
        """How many epochs one pass over the input builds: as many as the open files and the disk allow.

        Args:
            epochs: how many epochs are wanted.
            free: the free disk space; unlimited by default.
        """
        most = max(1, min(epochs, _OPEN_FILES // (len(self.ranges()) * self.workers)))
        while free is not None and most > 1 and self.disk_bytes(epochs, most) > free:
            most -= 1
        return most

    @property
    def seconds(self) -> float:
        """The approximate time for one epoch, in seconds."""
        return self.num_examples * self.trial.row_seconds / self.workers

    @cached_property
    def batches_per_file(self) -> int:
        """Batches in one part: enough for a file of reasonable size, but with several equal parts per worker."""
        steps, total = self.sampler.steps, max(1.0, self.row_bytes * self.written_rows)
        wanted = min(_PART_BYTES, max(_LEAST_PART_BYTES, total / (_PARTS_PER_WORKER * self.workers)))
        parts = -(-steps // int(max(1, min(steps, wanted * steps // total))))
        of_a_rank = self.written_rows / steps / self.world_size
        return batches_per_part(steps, parts, of_a_rank, self.rows_per_group)

    def ranges(self, num_places: int | None = None) -> Ranges:
        """How places are divided into files for sorting. One worker sorts and writes a group: some whole parts.

        Args:
            num_places: the number of places, if they are not batches; all ranges then form one group.
        """
        spilled = int(self.num_examples * self.row_bytes)
        wanted = max(1, min(-(-spilled // self.share.bucket_bytes), self.share.max_files))
        if num_places is not None and num_places != self.sampler.steps:
            return Ranges.even(0, num_places, wanted)
        steps, group = self.sampler.steps, self.batches_per_file
        width = max(1, steps // wanted)
        if width >= group:
            group = width = group * (width // group)
        else:  # equal ranges, a quarter longer at most: a short one would have short row groups, one for each rank
            few = self.share.fewest_buckets(spilled * group / steps, self.world_size * self.same_width)
            few = min(few, max(1, -(-(4 * group - width) // (4 * width))))
            of_a_rank = self.written_rows * group / steps / self.world_size
            width = -(-group // buckets_per_part(few, of_a_rank, self.rows_per_group))
        # too many files: use wider ranges, which are scattered again later
        while len(ranges := Ranges(0, steps, group, width)) > self.share.max_files:
            group = width = self.batches_per_file * max(1, 2 * group // self.batches_per_file)
        return ranges

    @property
    def dictionary_encoded(self) -> list[str]:
        """The columns, by path, that Parquet encodes with a dictionary."""
        weight = [] if self.padded_to is None else [WEIGHT_COLUMN]
        return [*self.trial.dictionary_encoded, *weight]

    @property
    def rows_per_group(self) -> int:
        """The most rows in a row group of a part."""
        return longest(self.share.row_group_bytes / self.row_bytes)

    @property
    def same_width(self) -> bool:
        """Whether all rows of the inputs have the same width in memory."""
        return all(fixed_width(kind) for kind in self.inputs.schema.types)

    def rows_per_read(self, chunk_bytes: int) -> int:
        """Rows to read at a time: a whole chunk, or a part of one if later rows may be wider; reads are joined."""
        if self.same_width:  # and a bit for each value, in whole bytes, that says whether it is there
            widths = [fixed_width(kind) for kind in self.inputs.schema.types]
            return max(1, (chunk_bytes - len(widths)) * 8 // (8 * sum(widths) + len(widths)))
        return int(max(1, min(self.share.most_rows, self.share.chunk_bytes // (8 * self.row_bytes))))

    @property
    def _coded(self) -> list[str]:
        """The columns that are stored as codes; the identity column is stored unchanged."""
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
        """The schema of rows while they are sorted and written, with codes instead of dictionary values."""
        return stored_schema(self.inputs.schema, self._coded)

    def manifest(self, key: Key, epoch: int, digests: Sequence[str] | None = None) -> Manifest:
        """Return the manifest of an epoch.

        Args:
            key: the key of the run, from `Key.for_run`.
            epoch: the number of the epoch, from 0.
            digests: the hash of every input file, if they have been read; this method keys it.

        Raises:
            SecretError: `key` is a master key. A run id drawn here would not match that of the batches.
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
            inputs=tuple(
                InputFile(
                    file.location.name,
                    file.size,
                    "" if digests is None else key.derive("input", number, digests[number])[:16].hex(),
                )
                for number, file in enumerate(self.inputs.files)
            ),
            world_size=self.world_size,
            key_commitment=key.commitment(),
            run=key.run,
            version=__version__,
            identity_column=None if self.identity is None else self.identity.name,
            padded_to=self.padded_to,
            mechanism=self.mechanism,
        )

    def require_disk(self, directory: Location, scratch: Path | None = None, epochs: int = 1) -> int:
        """Raise before anything is written if the disk is clearly too small; return how many epochs fit in one pass.

        Args:
            directory: where the epochs go. Free space in an object store is not checked.
            scratch: where temporary files go, if not beside the epochs.
            epochs: how many epochs are built.
        """
        place = scratch or directory.local or Path(tempfile.gettempdir())
        found = next(path for path in (place, *place.absolute().parents) if path.exists())
        free = shutil.disk_usage(found).free
        together = self.together(epochs, free)
        needed = self.disk_bytes(epochs, together)
        if free < needed:
            raise DataError(
                f"Building {'one epoch' if epochs == 1 else f'{epochs} epochs'} needs about {needed:,} bytes below "
                f"{str(place)!r}, but {free:,} are free. Make room, or name a directory on another disk "
                "(for temporary files: --scratch)."
            )
        return together

    def require_memory(self) -> None:
        """Raise if one batch of the expected size does not fit within the memory limit."""
        batch_bytes = self._batch_bytes
        if batch_bytes > self.share.largest_bucket:
            steps = int(2 * self.num_examples * self.row_bytes // self.share.largest_bucket)
            larger = self.share.limit_for(batch_bytes)
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
            "workers": self.workers,
            "buckets": len(self.ranges()),
            "part_files": -(-self.sampler.steps // self.batches_per_file),
            "scratch_bytes": self.scratch_bytes,
            "output_bytes_per_epoch": self.output_bytes,
            "disk_bytes": self.disk_bytes(),
            "seconds_per_epoch": round(self.seconds, 1),
        }


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
    workers: int | None = None,
) -> BuildPlan:
    """Count the rows and decide how to build batch files.

    Args:
        inputs: the table, from `open_inputs`.
        sampler: how batches are drawn; or a function that maps the number of rows to a sampler.
        mechanism: the mechanism the batches are built for, if the noise is decided; or a function that maps the
            sampler to a mechanism.
        identity_column: the unique column that identifies the rows; by default their position does.
        pad: whether to fill every batch up to the largest size with rows of weight 0.
        memory: the limit on resident memory; 1 GB by default.
        compression: codec of the Parquet files: snappy, zstd, lz4 or none.
        num_examples: the expected number of rows; if given, it is compared with the actual number.
        world_size: the number of ranks that will train; each of them then reads only its own rows.
        workers: the number of threads; by default one per core, if there is enough memory for them.

    Returns:
        The plan: it states what the build needs, and `build` takes it.

    Raises:
        InvalidInputError: an argument is out of range, or the number of rows is not as stated.
        DataError: the inputs cannot be read, or lack the identity column.

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
    columns_of(inputs.schema)  # refuses types that cannot become arrays
    smallest = counted // chosen.steps
    advice = f"Batches have about {smallest} rows; each rank needs some: take fewer ranks, or fewer steps."
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
    if workers is not None:
        _check.integer("workers", workers, 1, _MOST_WORKERS, advice="One for each core is the default.")
    return BuildPlan(
        inputs, chosen, counted, planned_for, identity, size, limit, compression, world_size, workers
    )


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
