"""The format of batch files: what an engine writes and a trainer reads, whatever the engine.

    DIR/                         mode 0700
      epoch-000000/              mode 0700; one directory for each epoch, whole by itself
        manifest.json            public facts (below); written last: without it the epoch does not exist
        offsets.npy              int64[steps + 1]: the row of the epoch at which each batch begins, then their number
        part-000000.parquet      rows in batch order; part p has the whole batches p·F … (p + 1)·F − 1, F being
        part-000001.parquet      `batches_per_file`; every part exists, also where its batches are all empty

So batch t is in part t // F, at its rows offsets[t] − offsets[F·(t // F)] up to offsets[t + 1] − offsets[F·(t // F)]:
found in constant time. Its row groups are as the writer likes. Rows of a batch stand in the order of the in-memory
sampler: ascending positions for balls-and-bins and deterministic batches, the shuffled order for shuffle; rows that
are named by the bytes of a column ascend by those bytes (unsigned, shorter first). A batch larger than the sampler's
`max_batch_size` is truncated as in memory: the rows with the smallest `truncation_words` stay. With `padded_to` = B
every batch has exactly B rows: the real ones first, then rows of weight 0 whose other columns mean nothing; the last
column is then `weight`, a 32-bit float that is 1 or 0.

The identity of a row is its position (inputs in the order given, files of a directory in order of their path, then
rows), or the bytes of a unique column: text as UTF-8, binary as it is, integers as decimal digits.

Where all epochs have the same batches (fixed bins, deterministic batches) only epoch 0 is stored: `stored_epoch`.

All epochs of a directory belong to one run: their batches follow from the run's own key, which `Key.for_run` derives
from the master key and `run`, the run's public id. Other runs of the same master key have unrelated batches.

manifest.json holds nothing that depends on the key but its commitment. The batches, their sizes, `offsets.npy` and
the sizes of the parts are the assignment, as secret as the key: show them to nobody, and remove them after training.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any

from ballsbins import _check
from ballsbins.errors import DataError, InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.samplers import Sampler
from ballsbins.samplers.base import MAX_EPOCH, MAX_EXAMPLES

FORMAT = "ballsbins batches"
FORMAT_VERSION = 2  # 2 added `run`
MANIFEST_NAME = "manifest.json"
OFFSETS_NAME = "offsets.npy"
WEIGHT_COLUMN = "weight"
DIRECTORY_MODE = 0o700
_EPOCH_DIRECTORY = re.compile(r"epoch-(\d{6,})")


@dataclass(frozen=True)
class Manifest:
    """The public facts of one epoch of batch files.

    `columns` are the names and Arrow types of the files' columns, in order. `mechanism` is what the batches were
    built for, where the noise was already decided; its sampler is `sampler`. `fingerprint` tells two inputs apart,
    `key_commitment` two master keys, and `run` two runs of one master key: epochs of one run agree in all three. The
    fingerprint is keyed: with a plain digest, somebody who knows all rows but one could guess the last and check.
    """

    sampler: Sampler
    epoch: int
    num_examples: int
    columns: tuple[tuple[str, str], ...]
    batches_per_file: int
    fingerprint: str
    key_commitment: str
    run: str
    version: str
    identity_column: str | None = None
    padded_to: int | None = None
    mechanism: Mechanism | None = None

    def __post_init__(self) -> None:
        """Validate, once."""
        advice = "Was this manifest changed by hand? Build the epoch again."
        _check.integer("epoch", self.epoch, 0, MAX_EPOCH, advice=advice)
        _check.integer("num_examples", self.num_examples, 0, MAX_EXAMPLES, advice=advice)
        _check.integer("batches_per_file", self.batches_per_file, 1, advice=advice)
        if not self.sampler.partitions:
            raise InvalidInputError(
                "sampler",
                self.sampler,
                "one that puts every row into one batch",
                "Poisson batches repeat rows: write them with `ballsbins assign` and join.",
            )
        self.sampler._check_num_examples(self.num_examples)
        texts = {name: getattr(self, name) for name in ("fingerprint", "key_commitment", "run", "version")}
        if self.identity_column is not None:
            texts["identity_column"] = self.identity_column
        for name, value in texts.items():
            if not isinstance(value, str):
                raise InvalidInputError(name, value, "text", advice)
        if self.padded_to is not None:
            _check.integer("padded_to", self.padded_to, 1, advice=advice)
        if self.mechanism is not None and self.mechanism.sampler != self.sampler:
            raise InvalidInputError(
                "the sampler of the mechanism", self.mechanism.sampler, repr(self.sampler), advice
            )

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
        """Raise unless `other` is of the same run: all facts but the epoch, and how it is cut into files, agree."""
        mine, theirs = self._of_the_run(), other._of_the_run()
        # Another key or run also has another fingerprint, so name the cause first.
        for name in dict.fromkeys(("key_commitment", "run", *mine)):
            if mine[name] != theirs[name]:
                raise DataError(
                    f"Epoch {self.epoch} has {name} {mine[name]!r}, but epoch {other.epoch} has {theirs[name]!r}: "
                    "they are not of one run. Build into another directory, or remove the old run's epochs first."
                )

    def _of_the_run(self) -> dict[str, Any]:
        plain = self.to_dict()
        for free in ("epoch", "batches_per_file", "version", "mechanism"):
            del plain[free]
        return plain

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["sampler"] = self.sampler.to_dict()
        plain["mechanism"] = None if self.mechanism is None else self.mechanism.to_dict()
        plain["columns"] = [{"name": name, "type": kind} for name, kind in self.columns]
        return {"format": FORMAT, "format_version": FORMAT_VERSION} | plain

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Manifest:
        """Build the manifest that `to_dict` wrote. All fields must be there, and no others."""
        found = (saved.get("format"), saved.get("format_version"))
        if found != (FORMAT, FORMAT_VERSION):
            advice = "Update ballsbins if this was written by a later version."
            if found == (FORMAT, 1):
                advice = (
                    "An earlier version of ballsbins wrote it, so its run has no id. Remove the epoch "
                    "(ballsbins build --out DIRECTORY --remove EPOCH), then build the epoch again."
                )
            raise InvalidInputError("the format of a manifest", found, f"{(FORMAT, FORMAT_VERSION)}", advice)
        plain = {name: value for name, value in saved.items() if name not in ("format", "format_version")}
        advice = "Nothing is guessed: build the epoch again."
        _check.fields("a manifest", plain, {field.name for field in fields(Manifest)}, advice=advice)
        plain["sampler"] = Sampler.from_dict(plain["sampler"])
        if plain["mechanism"] is not None:
            plain["mechanism"] = Mechanism.from_dict(plain["mechanism"])
        plain["columns"] = tuple((column["name"], column["type"]) for column in plain["columns"])
        return Manifest(**plain)

    def to_json(self) -> str:
        """The content of manifest.json."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str, path: object) -> Manifest:
        """Read the content of manifest.json; `path` is named in errors."""
        try:
            return Manifest.from_dict(json.loads(text))
        except InvalidInputError as error:
            raise DataError(f"The manifest {str(path)!r} is not valid: {error}") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(
                f"{str(path)!r} is not a manifest of batch files. Build the epoch again: ballsbins build --help"
            ) from None


def stored_epoch(sampler: Sampler, epoch: int) -> int:
    """The epoch whose files hold the batches of `epoch`: 0 for samplers that draw once for all epochs."""
    return 0 if sampler.draws_once else epoch


def epoch_name(epoch: int) -> str:
    """The directory of an epoch."""
    return f"epoch-{epoch:06d}"


def epoch_number(name: str) -> int | None:
    """The epoch of a directory's name, or None if it is not one of an epoch."""
    found = _EPOCH_DIRECTORY.fullmatch(PurePosixPath(name).name)
    return None if found is None else int(found[1])


def part_name(part: int) -> str:
    """The name of a Parquet file."""
    return f"part-{part:06d}.parquet"
