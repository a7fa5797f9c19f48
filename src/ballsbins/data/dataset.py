"""Prepared data: labels, log-transformed integers and category ids, in a directory of Parquet files.

On disk, `path/dataset.json` describes the data, and every split is a directory of Parquet files with one column for
the label, one for each integer feature and one for each category. `ballsbins data prepare` writes this format, and so
can any program that writes Parquet:

    {"schema": 1, "label": "label", "integers": ["I1", …], "categories": {"C1": 2048, …},
     "splits": {"train": 800000, "test": 200000}, "facts": {…}, "not_covered": ["…"]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check, _extras
from ballsbins.errors import InvalidInputError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SCHEMA = 1
DESCRIPTION = "dataset.json"
LABEL = "label"
_PREPARE = "Write it with: ballsbins data prepare FILE --out DIRECTORY"
_FIELDS = {"schema", "label", "integers", "categories", "splits", "facts", "not_covered"}


@dataclass(frozen=True)
class Features:
    """The names of the integer features, and of the categories with their numbers of buckets; ids are below those."""

    integers: tuple[str, ...]
    categories: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        """Validate the fields."""
        names = self.names
        if not names or len(set(names)) != len(names) or LABEL in names:
            raise InvalidInputError(
                "the feature names",
                list(names),
                f"at least one, all different, and none of them {LABEL!r}",
                _PREPARE,
            )
        for name, buckets in self.categories:
            _check.integer(
                f"the number of buckets of {name!r}",
                buckets,
                2,
                2**31 - 1,
                advice="One bucket is for missing values, so a category has at least two; ids are 32 bits wide.",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in column order."""
        return (*self.integers, *(name for name, _ in self.categories))


@dataclass(frozen=True)
class Examples:
    """Examples in memory: `labels` 0 or 1, `integers` already log-transformed, `categories` as ids."""

    labels: NDArray[np.float32]
    integers: NDArray[np.float32]
    categories: NDArray[np.int32]

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.labels)

    def take(self, indices: NDArray[Any]) -> Examples:
        """The examples at these places, in this order; −1 means the last one, as padding needs it."""
        return Examples(self.labels[indices], self.integers[indices], self.categories[indices])

    def __repr__(self) -> str:
        """Show only the shape: no example belongs in a log."""
        return (
            f"Examples({len(self)}, integers={self.integers.shape[1]}, categories={self.categories.shape[1]})"
        )


@dataclass(frozen=True)
class Dataset:
    """A prepared data set on disk: `Dataset.open(path)`.

    `public_facts` says how it was made. `not_covered` lists what was computed from the training data without noise,
    so that the privacy statement of a model trained on it can say what it does not cover.
    """

    path: Path
    features: Features
    sizes: Mapping[str, int]
    public_facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    not_covered: tuple[str, ...] = ()

    @staticmethod
    def open(path: str | Path) -> Dataset:
        """Read the description of the data set in this directory; the examples are read only on request."""
        directory = Path(path)
        try:
            saved = json.loads((directory / DESCRIPTION).read_text(encoding="utf-8"))
        except FileNotFoundError:
            bound = f"a directory with a file {DESCRIPTION!r}"
            raise InvalidInputError("the data set", str(path), bound, _PREPARE) from None
        except (OSError, ValueError) as error:
            bound = f"a directory with a readable {DESCRIPTION!r} ({error})"
            raise InvalidInputError("the data set", str(path), bound, _PREPARE) from None
        return _from_description(directory, saved)

    def num_examples(self, split: Split) -> int:
        """Count the examples of a split, which is public under zero-out adjacency."""
        return self.sizes[self._check(split)]

    def files(self, split: Split) -> list[Path]:
        """The Parquet files of a split, in order."""
        return sorted((self.path / self._check(split)).glob("*.parquet"))

    def examples(self, split: Split) -> Examples:
        """Read a whole split into memory: 4 bytes per value."""
        parquet = _extras.load("pyarrow.parquet", feature="Reading a data set", extra="data")
        size = self.num_examples(split)
        columns = [LABEL, *self.features.names]
        labels = np.empty(size, np.float32)
        integers = np.empty((size, len(self.features.integers)), np.float32)
        categories = np.empty((size, len(self.features.categories)), np.int32)
        begin = 0
        for file in self.files(split):
            stored = parquet.ParquetFile(file)
            absent = [name for name in columns if name not in stored.schema_arrow.names]
            if absent:
                raise self._broken(file, f"a file with the column {absent[0]!r}")
            for batch in stored.iter_batches(columns=columns):
                empty = [name for name in columns if batch.column(name).null_count]
                if empty:
                    raise self._broken(file, f"without missing values in the column {empty[0]!r}")
                rows = slice(begin, begin + batch.num_rows)
                if rows.stop > size:
                    raise self._broken(file, f"within the {size:,} examples that {DESCRIPTION} states")
                labels[rows] = batch.column(LABEL).to_numpy(zero_copy_only=False)
                for position, name in enumerate(self.features.integers):
                    integers[rows, position] = batch.column(name).to_numpy(zero_copy_only=False)
                for position, (name, _) in enumerate(self.features.categories):
                    categories[rows, position] = batch.column(name).to_numpy(zero_copy_only=False)
                begin = rows.stop
        if begin != size:
            raise self._broken(
                self.path / split, f"whole: it has {begin:,} examples and should have {size:,}"
            )
        read = Examples(labels, integers, categories)
        check_examples(self.features, read, str(self.path / split))
        return read

    def _check(self, split: str) -> Split:
        if split not in self.sizes:
            raise InvalidInputError(
                "split", split, f"one of {', '.join(self.sizes)}", f"These are the splits of {self.path}."
            )
        return cast(Split, split)

    @staticmethod
    def _broken(file: Path, bound: str) -> InvalidInputError:
        return InvalidInputError("the data set", str(file), bound, _PREPARE)


def check_examples(features: Features, examples: Examples, where: str) -> None:
    """Raise unless labels are 0 or 1, integers are finite, and ids are below their numbers of buckets."""
    labels, integers, categories = examples.labels, examples.integers, examples.categories
    shapes = (integers.shape[1:], categories.shape[1:])
    if shapes != ((len(features.integers),), (len(features.categories),)):
        bound = f"{len(features.integers)} integers and {len(features.categories)} categories wide"
        raise InvalidInputError(f"the shape of {where}", shapes, bound, _PREPARE)
    right = (labels == 0) | (labels == 1)
    if not np.all(right):
        raise InvalidInputError(f"a label in {where}", float(labels[~right][0]), "0 or 1", _PREPARE)
    if not np.all(np.isfinite(integers)):
        bound = "without NaN or infinity among its integer features"
        raise InvalidInputError("the data set", where, bound, _PREPARE)
    for position, (name, buckets) in enumerate(features.categories):
        ids = categories[:, position]
        if len(ids) and (ids.min() < 0 or ids.max() >= buckets):
            worst = int(ids.min() if ids.min() < 0 else ids.max())
            bound = f"from 0 to {buckets - 1:,}"
            raise InvalidInputError(f"an id of the category {name!r} in {where}", worst, bound, _PREPARE)


def describe(
    features: Features, sizes: Mapping[str, int], facts: Mapping[str, Any], not_covered: tuple[str, ...]
) -> dict[str, Any]:
    """The content of `dataset.json`."""
    return {
        "schema": SCHEMA,
        "label": LABEL,
        "integers": list(features.integers),
        "categories": dict(features.categories),
        "splits": dict(sizes),
        "facts": dict(facts),
        "not_covered": list(not_covered),
    }


def _from_description(directory: Path, saved: Any) -> Dataset:
    file = directory / DESCRIPTION
    if not isinstance(saved, dict) or set(saved) != _FIELDS:
        bound = f"an object with exactly the fields {', '.join(sorted(_FIELDS))}"
        found = sorted(map(str, saved)) if isinstance(saved, dict) else type(saved).__name__
        raise InvalidInputError(f"the content of {file}", found, bound, _PREPARE)
    if saved["schema"] != SCHEMA or saved["label"] != LABEL:
        advice = "Prepare the data again, or update ballsbins if a later version wrote it."
        raise InvalidInputError(
            f"the schema and label of {file}",
            (saved["schema"], saved["label"]),
            f"({SCHEMA}, {LABEL!r})",
            advice,
        )
    unknown = [split for split in saved["splits"] if split not in SPLITS]
    if unknown or "train" not in saved["splits"]:
        bound = f"among {', '.join(SPLITS)}, with train"
        raise InvalidInputError(f"the splits of {file}", sorted(saved["splits"]), bound, _PREPARE)
    for split, size in saved["splits"].items():
        _check.integer(f"the size of {split} in {file}", size, 0, advice=_PREPARE)
    return Dataset(
        directory,
        Features(tuple(saved["integers"]), tuple(saved["categories"].items())),
        MappingProxyType(dict(saved["splits"])),
        MappingProxyType(dict(saved["facts"])),
        tuple(saved["not_covered"]),
    )


def area_under_curve(labels: NDArray[Any], scores: NDArray[Any]) -> float:
    """The AUC by ranks (the Mann–Whitney statistic), exact even with ties."""
    positive = np.asarray(labels) == 1
    count = int(positive.sum())
    if not 0 < count < len(positive):
        bound = "of both classes"
        advice = "AUC compares positive with negative examples: evaluate on a split that has some of each."
        raise InvalidInputError("the set of labels", "all the same", bound, advice)
    _, inverse, counts = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - 0.5 * (counts - 1)  # the mean rank of each group of ties, counted from 1
    total = float(ranks[inverse][positive].sum())
    return (total - 0.5 * count * (count + 1)) / (count * (len(positive) - count))
