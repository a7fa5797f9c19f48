"""The format of batch files: what any engine writes and a trainer reads.

    DIR/                         mode 0700
      epoch-000000/              mode 0700; one directory per epoch, complete in itself
        manifest.json            facts (below) and the names of the other files; written last: without it the epoch
                                 does not exist
        offsets-….npy            int64[steps + 1]: the row of the epoch at which each batch begins, then the row count
        part-000000-….parquet    rows in batch order; part p has the whole batches p·F … (p + 1)·F − 1, where F is
        part-000001-….parquet    `batches_per_file`; every part exists, even if all its batches are empty
        dictionaries-….arrow     if there are dictionary columns: an Arrow stream of no rows with the dictionaries

Batch t is in part t // F, from row offsets[t] − offsets[F·(t // F)] up to row offsets[t + 1] − offsets[F·(t // F)],
so it is found in constant time. A row group holds whole batches. With `world_size` = R (1 by default), R row groups
together hold a run of batches: the first has the rows 0, R, 2R, … of each batch, the next the rows 1, R + 1, …, so
that each of R ranks reads only its own rows. Rows of a batch are in the order of the in-memory sampler: ascending
positions for balls-and-bins and deterministic batches, the shuffled order for shuffle. Rows identified by the bytes
of a column ascend by those bytes (unsigned, shorter first). A batch larger than the sampler's `max_batch_size` is
truncated as in memory: the rows with the smallest `truncation_words` stay. With `padded_to` = B every batch has
exactly B rows: the real ones first, then rows of weight 0 whose other columns mean nothing. The last column is then
`weight`, a 32-bit float that is 1 or 0.

`columns` states which arrays a column becomes, the same in every batch (`batch_files.columns`), and whether a value
may be missing (`nullable`). A part may declare a nullable column as required if none of its values in this part is
missing: readers follow the manifest. Dictionary columns are stored as their 32-bit codes.

Checksums are 64-bit xxh3 hashes, as 16 hexadecimal digits. The bytes of a row group are all from the end of the
previous row group (or the beginning of the file) to its own end. Each block of 256 KiB of them has a checksum; the
last block may be shorter. They are stored in the Parquet footer under `ballsbins.row_groups` as a JSON list of [end,
the checksums of the blocks, joined]. The manifest's checksum of a part covers only the rest of the part, its footer;
the checksum of any other file covers the whole file. So every byte that is read is checked before it is decoded. A
block is checked while it is in the processor's cache for decoding, and whoever reads one column checks little more.

The identity of a row is its position (inputs in the order given, files of a directory in order of their path, then
rows), or the bytes of a unique column: text as UTF-8, binary as it is, integers as decimal digits.

If all epochs have the same batches (fixed bins, deterministic batches), only epoch 0 is stored: see `stored_epoch`.

All epochs of a directory belong to one run. Their batches follow from the run's own key, which `Key.for_run` derives
from the master key and `run`, the run's public id. Other runs of the same master key have unrelated batches.

Only the commitment and the keyed digests of the inputs in `Manifest.public` depend on the key. The rest of
manifest.json (`files`: sizes and checksums of the parts), the batches, their sizes and the offsets reveal the
assignment and are as secret as the key: show them to nobody, and remove them after training. The dictionaries are as
secret as the data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any

from ballsbins import _check
from ballsbins.batch_files.columns import Column
from ballsbins.errors import DataError, InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Sampler
from ballsbins.samplers.base import MAX_EPOCH, MAX_EXAMPLES

FORMAT = "ballsbins batches"
# 2 added `run`; 3 added the types of columns, checksums, names of files and ranks; 4 lets parts require columns that
# the manifest calls nullable; 5 divides row groups into blocks, and before a row group had one checksum
FORMAT_VERSION = 5
_READ_VERSIONS = (3, 4, FORMAT_VERSION)
MANIFEST_NAME = "manifest.json"
ROW_GROUPS_KEY = "ballsbins.row_groups"  # metadata key in the footer of a part
BLOCK_BYTES = (
    1 << 18
)  # bytes of a row group that have a checksum of their own: they fit in the cache of a core
WEIGHT_COLUMN = "weight"
_OF_AN_EPOCH = ("epoch", "batches_per_file", "world_size", "version", "mechanism")  # may differ within a run
_EPOCH_DIRECTORY = re.compile(r"epoch-(\d{6,})")
_REBUILD = "Was this manifest changed by hand? Build the epoch again."


@dataclass(frozen=True)
class StoredFile:
    """A file of an epoch: its name, its size in bytes, and its checksum as defined by the format."""

    name: str
    bytes: int
    checksum: str

    def __post_init__(self) -> None:
        """Validate the fields: a name must not lead out of the directory."""
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w-][\w.-]*", self.name):
            raise InvalidInputError("the name of a file", self.name, "one within the epoch", _REBUILD)
        _check.integer("the size of a file", self.bytes, 0, advice=_REBUILD)
        if not isinstance(self.checksum, str):
            raise InvalidInputError("a checksum", self.checksum, "text", _REBUILD)


@dataclass(frozen=True)
class Files:
    """The files of an epoch other than its manifest."""

    offsets: StoredFile
    parts: tuple[StoredFile, ...]
    dictionaries: StoredFile | None = None

    @property
    def all(self) -> list[StoredFile]:
        """All of them."""
        return [self.offsets, *([self.dictionaries] if self.dictionaries else []), *self.parts]

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Files:
        """Build the object that `dataclasses.asdict` turned into plain data."""
        plain = _check.fields("files", saved, {field.name for field in fields(Files)}, advice=_REBUILD)
        words = plain["dictionaries"]
        return Files(
            StoredFile(**plain["offsets"]),
            tuple(StoredFile(**part) for part in plain["parts"]),
            None if words is None else StoredFile(**words),
        )


@dataclass(frozen=True)
class InputFile:
    """A file that an epoch was built from: its name, its size in bytes, and a keyed digest of its content."""

    name: str
    bytes: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """The facts of one epoch of batch files.

    `columns` are the files' columns, in order. `mechanism` is the mechanism that the batches were built for, if the
    noise was already decided; its sampler is `sampler`. `inputs` identifies the inputs, `key_commitment` the master
    key, and `run` one of its runs: epochs of a run agree in all three. Digests of inputs are keyed, because somebody
    who knows all rows but one could check guesses of the last row against a plain digest. Only `files` is secret.
    """

    sampler: Sampler
    epoch: int
    num_examples: int
    columns: tuple[Column, ...]
    batches_per_file: int
    key_commitment: str
    run: str
    version: str
    inputs: tuple[InputFile, ...] = ()
    world_size: int = 1
    identity_column: str | None = None
    padded_to: int | None = None
    mechanism: Mechanism | None = None
    files: Files | None = None

    def __post_init__(self) -> None:
        """Validate the fields."""
        _check.integer("epoch", self.epoch, 0, MAX_EPOCH, advice=_REBUILD)
        _check.integer("num_examples", self.num_examples, 0, MAX_EXAMPLES, advice=_REBUILD)
        _check.integer("batches_per_file", self.batches_per_file, 1, advice=_REBUILD)
        _check.integer("world_size", self.world_size, 1, advice=_REBUILD)
        if not self.sampler.partitions:
            raise InvalidInputError(
                "sampler",
                self.sampler,
                "one that puts every row into one batch",
                "Poisson batches repeat rows: write them with `ballsbins assign` and join.",
            )
        self.sampler._check_num_examples(self.num_examples)
        texts = {name: getattr(self, name) for name in ("key_commitment", "run", "version")}
        if self.identity_column is not None:
            texts["identity_column"] = self.identity_column
        for name, value in texts.items():
            if not isinstance(value, str):
                raise InvalidInputError(name, value, "text", _REBUILD)
        if self.padded_to is not None:
            _check.integer("padded_to", self.padded_to, 1, advice=_REBUILD)
        if self.mechanism is not None and self.mechanism.sampler != self.sampler:
            raise InvalidInputError(
                "the sampler of the mechanism", self.mechanism.sampler, repr(self.sampler), _REBUILD
            )
        if self.files is not None and len(self.files.parts) != self.num_parts:
            parts = len(self.files.parts)
            raise InvalidInputError("the number of parts", parts, f"{self.num_parts}", _REBUILD)

    @property
    def steps(self) -> int:
        """The number of batches."""
        return self.sampler.steps

    @property
    def num_parts(self) -> int:
        """The number of Parquet files."""
        return -(-self.steps // self.batches_per_file)

    def part_of(self, step: int) -> int:
        """Return the number of the Parquet file that holds a batch."""
        return step // self.batches_per_file

    def require_same_run(self, other: Manifest) -> None:
        """Raise unless `other` belongs to the same run: they differ only in the epoch and its division into files."""
        run = [field.name for field in fields(self) if field.name not in (*_OF_AN_EPOCH, "files")]
        if all(getattr(self, name) == getattr(other, name) for name in run):
            return  # each rank asks this of each epoch, and plain data take a millisecond to make
        mine, theirs = self._of_the_run(), other._of_the_run()
        # A different key or run also changes the digests, so name the cause first.
        for name in dict.fromkeys(("key_commitment", "run", *mine)):
            if mine[name] != theirs[name]:
                what, here, there = name, mine[name], theirs[name]
                if name == "inputs":
                    what, here, there = _first_difference(self.inputs, other.inputs)
                advice = "Build into another directory, or remove the old run's epochs first."
                if name == "key_commitment":
                    what, advice = "the key", f"Use the key file of the epochs that are there. Or: {advice}"
                one = "the one that is there" if other.epoch == self.epoch else f"epoch {other.epoch}"
                raise DataError(
                    f"Epoch {self.epoch} has {what} {here!r}, but {one} has {there!r}: they are not of one run. "
                    f"{advice}"
                )

    def _of_the_run(self) -> dict[str, Any]:
        plain = self.public()
        for free in _OF_AN_EPOCH:
            del plain[free]
        return plain

    def public(self) -> dict[str, Any]:
        """Plain data for logs: everything except `files`, which is secret."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "files"}
        plain["sampler"] = self.sampler.to_dict()
        plain["mechanism"] = None if self.mechanism is None else self.mechanism.to_dict()
        plain["columns"] = [column.to_dict() for column in self.columns]
        plain["inputs"] = [asdict(file) for file in self.inputs]
        return {"format": FORMAT, "format_version": FORMAT_VERSION} | plain

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Manifest:
        """Build the manifest from plain data. All fields must be present, and no others."""
        found = (saved.get("format"), saved.get("format_version"))
        if found not in [(FORMAT, version) for version in _READ_VERSIONS]:
            advice = "Update ballsbins if this was written by a later version."
            if found in ((FORMAT, 1), (FORMAT, 2)):
                advice = (
                    "An earlier version of ballsbins wrote it, without types and checksums. Remove the epoch "
                    "(ballsbins build --out DIRECTORY --remove EPOCH), then build the epoch again."
                )
            raise InvalidInputError("the format of a manifest", found, f"{(FORMAT, FORMAT_VERSION)}", advice)
        plain = {name: value for name, value in saved.items() if name not in ("format", "format_version")}
        advice = "Nothing is guessed: build the epoch again."
        _check.fields("a manifest", plain, {field.name for field in fields(Manifest)}, advice=advice)
        plain["sampler"] = Sampler.from_dict(plain["sampler"])
        if plain["mechanism"] is not None:
            plain["mechanism"] = Mechanism.from_dict(plain["mechanism"])
        plain["columns"] = tuple(Column.from_dict(column) for column in plain["columns"])
        plain["inputs"] = tuple(InputFile(**file) for file in plain["inputs"])
        if plain["files"] is not None:
            plain["files"] = Files.from_dict(plain["files"])
        return Manifest(**plain)

    def to_json(self) -> str:
        """The content of manifest.json, including its secret part."""
        plain = self.public() | {"files": None if self.files is None else asdict(self.files)}
        return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str, path: object) -> Manifest:
        """Parse the content of manifest.json; errors name `path`."""
        try:
            return Manifest.from_dict(json.loads(text))
        except InvalidInputError as error:
            raise DataError(f"The manifest {str(path)!r} is not valid: {error}") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(
                f"{str(path)!r} is not a manifest of batch files. Build the epoch again: ballsbins build --help"
            ) from None


def stored_epoch(sampler: Sampler, epoch: int) -> int:
    """The epoch whose files hold the batches of `epoch`: 0 if the sampler draws once for all epochs."""
    return 0 if sampler.draws_once else epoch


def epoch_name(epoch: int) -> str:
    """The directory name of an epoch."""
    return f"epoch-{epoch:06d}"


def epoch_number(name: str) -> int | None:
    """The epoch that a directory name stands for, or None if it is not the name of an epoch directory."""
    found = _EPOCH_DIRECTORY.fullmatch(PurePosixPath(name).name)
    return None if found is None else int(found[1])


def _first_difference(mine: tuple[InputFile, ...], theirs: tuple[InputFile, ...]) -> tuple[str, Any, Any]:
    """Name the first input file in which two epochs differ."""
    for number, (here, there) in enumerate(zip_longest(mine, theirs)):
        if here is None or there is None:
            break
        if here.name != there.name:
            return f"input file {number}", here.name, there.name
        if here != there:
            return f"the input file {here.name!r} as", (here.bytes, here.digest), (there.bytes, there.digest)
    return "a number of input files of", len(mine), len(theirs)
