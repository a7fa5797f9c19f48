"""`ballsbins data prepare`: stream a downloaded file into a prepared data set, which appears whole or not at all.

Categories may get ids from a vocabulary of the training part. It depends on the data; no privacy statement covers it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check, _extras
from ballsbins.data.criteo.encode import (
    BLOCK_BYTES,
    INTEGER_RULE,
    BadLines,
    Block,
    DataProgress,
    Encoder,
    count_lines,
    read_blocks,
)
from ballsbins.data.criteo.formats import FORMATS, MISSING_ID, Format
from ballsbins.data.dataset import DESCRIPTION, Dataset, Features, describe
from ballsbins.errors import InvalidInputError

UNKNOWN_ID = 1  # id of rare values, and of values that the training part does not have
RESERVED = 2
NOT_COVERED = (
    "The vocabularies of the categories, and so the sizes of the embedding tables, were computed from the training "
    "examples without noise. The privacy statement does not cover them; prepare the data with hashing if it should."
)


class Vocabulary:
    """The values of one category that have an id of their own, the most frequent first."""

    def __init__(self, values: Any) -> None:
        """Take a pyarrow array of distinct binary values."""
        self._values = values
        self._compute = _extras.load("pyarrow.compute", feature="Preparing data", extra="data")

    @property
    def buckets(self) -> int:
        """The number of ids in use: one per value, one for missing and one for unknown."""
        return len(self._values) + RESERVED

    def ids(self, column: Any) -> NDArray[np.int32]:
        """The ids of a column, where null means missing."""
        places = self._compute.index_in(column, self._values)
        found = (
            places.fill_null(UNKNOWN_ID - RESERVED).to_numpy(zero_copy_only=False).astype(np.int32) + RESERVED
        )
        return np.where(column.is_null().to_numpy(zero_copy_only=False), MISSING_ID, found).astype(np.int32)


def build_vocabulary(files: list[Path], name: str, max_buckets: int, scratch: Path) -> Vocabulary:
    """The vocabulary of a column; ties in frequency are broken by value, so that it does not depend on the machine.

    DuckDB groups on disk if memory is too small.
    """
    duckdb = _extras.load("duckdb", feature="A vocabulary", extra="data")
    arrow = _extras.load("pyarrow", feature="A vocabulary", extra="data")
    with duckdb.connect(config={"temp_directory": str(scratch), "preserve_insertion_order": False}) as engine:
        rows = engine.sql(
            f'SELECT "{name}" FROM read_parquet(?) WHERE "{name}" IS NOT NULL GROUP BY 1 ORDER BY count(*) DESC, 1 '
            "LIMIT ?",
            params=[[str(file) for file in files], max_buckets - RESERVED],
        ).to_arrow_table()
    return Vocabulary(rows.column(0).combine_chunks().cast(arrow.binary()))


Categories = Literal["hash", "vocabulary"]
BadLinePolicy = Literal["skip", "fail"]
SALT = "ballsbins"
_ROWS_A_FILE = 2**20
_PEEK_BYTES = 2**16
SplitOf = Callable[[Block], NDArray[np.int64]]  # the split of every line of a block, including malformed ones


@dataclass(frozen=True)
class Prepared:
    """The prepared data set, and the malformed lines that were left out."""

    dataset: Dataset
    bad_lines: BadLines


def prepare(
    source: str | Path,
    out: str | Path,
    form: Format,
    *,
    categories: Categories = "hash",
    max_buckets: int | None = None,
    salt: str = SALT,
    seed: int = 0,
    on_bad_line: BadLinePolicy = "skip",
    progress: DataProgress | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Prepared:
    """Write the data set `out` from the file `source` in the format `form`.

    Categories are hashed with a public `salt`, or get ids from a vocabulary of the training part. `max_buckets`
    lowers the format's own limit for every category. The split is by line number: chronological for display ads (as
    the file is), random from `seed` for sponsored search. Memory use depends on `block_bytes`, not on the size of the
    file.
    """
    path, target = Path(source), Path(out)
    _check_choice("categories", categories, get_args(Categories))
    _check_choice("on_bad_line", on_bad_line, get_args(BadLinePolicy))
    buckets = _buckets(form, max_buckets)
    _check.integer("seed", seed, 0, 2**64 - 1, advice="It decides the random split, and is public.")
    if target.exists():
        raise InvalidInputError(
            "the output directory", str(out), "one that does not exist",
            "Nothing is overwritten: choose another, or remove it.",
        )  # fmt: skip
    header = _check_looks(path, form)
    if not target.parent.is_dir():
        raise InvalidInputError(
            "the output directory", str(out), "in a directory that exists", f"Create {target.parent} first."
        )
    scratch: Path | None = None
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
        bad = BadLines(path, on_bad_line)
        lines, split_of = _split(path, form, header, seed, progress)
        encoder = Encoder(form, buckets, salt if categories == "hash" else None, bad)
        writers = _Writers(scratch, list(form.fractions))
        for block in read_blocks(path, len(form.columns), bad, block_bytes=block_bytes, progress=progress):
            splits = split_of(block)
            if header and block.first == 1:
                block = _without_first(block)  # noqa: PLW2901
            table, numbers = encoder.encode(block)
            writers.write(table, splits[numbers - block.first])
        writers.close()
        sizes = writers.sizes
        for split, size in sizes.items():
            if size == 0:
                raise InvalidInputError(
                    f"the number of examples for {split}",
                    0,
                    "at least 1",
                    f"{path} has {lines:,} lines, of which {bad.count:,} are malformed.",
                )
        not_covered: tuple[str, ...] = ()
        if categories == "vocabulary":
            buckets, not_covered = (
                _apply_vocabularies(scratch, form, buckets, progress),
                (NOT_COVERED,),
            )
        features = Features(form.integers, tuple(buckets.items()))
        facts = _facts(form, path, lines, bad, categories, salt, seed)
        _write_description(scratch, describe(features, sizes, facts, not_covered))
        os.chmod(scratch, 0o755)  # a temporary directory starts without access for others
        os.rename(scratch, target)
    except BaseException as error:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, OSError):
            raise InvalidInputError(
                "the output directory", str(out), f"one that can be written ({error.strerror})",
                "Free some space or choose another place; what was begun has been removed.",
            ) from None  # fmt: skip
        raise
    return Prepared(Dataset.open(target), bad)


class _Writers:
    """Writes the Parquet files of each split, about a million rows each so that engines can divide the work."""

    def __init__(self, directory: Path, splits: list[str]) -> None:
        self._arrow = _extras.load("pyarrow", feature="Preparing data", extra="data")
        self._parquet = _extras.load("pyarrow.parquet", feature="Preparing data", extra="data")
        self._directory = directory
        self._open_files: dict[str, Any] = {}
        self.sizes = dict.fromkeys(splits, 0)
        for split in splits:
            (directory / split).mkdir()

    def write(self, table: Any, codes: NDArray[np.int64]) -> None:
        for code, split in enumerate(self.sizes):
            rows = codes == code
            part = table if rows.all() else table.filter(self._arrow.array(rows))
            if part.num_rows:
                self._writer(split, part.schema).write_table(part)
                self.sizes[split] += part.num_rows

    def _writer(self, split: str, schema: Any) -> Any:
        number = self.sizes[split] // _ROWS_A_FILE
        file = self._directory / split / f"part-{number:05d}.parquet"
        current = self._open_files.get(split)
        if current is None or current[0] != file:
            if current is not None:
                current[1].close()
            current = self._open_files[split] = (file, self._parquet.ParquetWriter(file, schema))
        return current[1]

    def close(self) -> None:
        for _, writer in self._open_files.values():
            writer.close()


def _split(
    path: Path, form: Format, header: bool, seed: int, progress: DataProgress | None
) -> tuple[int, SplitOf]:
    """The number of lines, and a function that gives the split of each, as an index into `form.fractions`."""
    lines = count_lines(path, progress) - header
    shares = np.cumsum(list(form.fractions.values()))[:-1]
    if form.chronological:
        cuts = np.floor(np.round(shares * lines, 6)).astype(np.int64) + 1 + header
        return lines, lambda block: np.searchsorted(
            cuts, np.arange(block.first, block.first + block.lines), side="right"
        )
    # The generator's raw words never change between versions of NumPy. Each line uses one word, so a line's split
    # does not depend on which other lines are malformed.
    words = np.random.Philox(key=seed)
    limits = np.array([int(share * 2.0**53) << 11 for share in shares], np.uint64)

    def split_of(block: Block) -> NDArray[np.int64]:
        return np.searchsorted(limits, words.random_raw(block.lines), side="right")

    return lines, split_of


def _apply_vocabularies(
    scratch: Path, form: Format, buckets: Mapping[str, int], progress: DataProgress | None
) -> dict[str, int]:
    """Rewrite the staged texts as ids; returns the sizes of the tables."""
    arrow = _extras.load("pyarrow", feature="Preparing data", extra="data")
    parquet = _extras.load("pyarrow.parquet", feature="Preparing data", extra="data")
    train = sorted((scratch / "train").glob("*.parquet"))
    spill = scratch / "spill"
    vocabularies = {}
    for done, (name, limit) in enumerate(buckets.items()):
        if progress is not None:
            progress("building vocabularies", done, len(buckets))
        vocabularies[name] = build_vocabulary(train, name, limit, spill)
    shutil.rmtree(spill, ignore_errors=True)
    files = [file for split in form.fractions for file in sorted((scratch / split).glob("*.parquet"))]
    for done, file in enumerate(files):
        if progress is not None:
            progress("writing ids", done, len(files))
        staged, writer = parquet.ParquetFile(file), None
        for batch in staged.iter_batches():
            table = arrow.table(
                {
                    name: vocabularies[name].ids(column) if name in vocabularies else column
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }
            )
            if writer is None:
                writer = parquet.ParquetWriter(file.with_suffix(".ids"), table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
            file.with_suffix(".ids").replace(file)
    return {name: words.buckets for name, words in vocabularies.items()}


def _check_looks(path: Path, form: Format) -> bool:
    """Refuse a wrong file before any work; True if the first line is a header with the format's own names."""
    bad = BadLines(path)
    block = next(read_blocks(path, len(form.columns), bad, block_bytes=_PEEK_BYTES), None)
    if block is None:
        raise InvalidInputError("the input file", str(path), "not empty", f"Give the file of {form.title}.")
    if 2 * len(block.numbers) < block.lines:
        fields = Counter(line.reason for line in bad.described).most_common(1)[0][0]
        likely = [
            f"It looks like --format {other.name}."
            for other in FORMATS.values()
            if fields.startswith(f"{len(other.columns)} fields")
        ]
        raise InvalidInputError(
            "the input file", str(path), f"that of {form.title} (its lines have {fields})",
            " ".join(likely) or "Give the labelled file as it was downloaded, tab-separated and without a header.",
        )  # fmt: skip
    names = block.text.partition(b"\n")[0].decode("utf-8", "replace").split("\t")
    if names[0].strip().lower() != form.label.lower():
        return False
    for found, wanted in zip(names, form.columns, strict=True):
        if found.strip().lower() != wanted.lower():
            raise InvalidInputError(
                f"the column {form.columns.index(wanted) + 1} in the header of {path}", found, repr(wanted),
                f"The columns of {form.title} are, in order: {', '.join(form.columns)}.",
            )  # fmt: skip
    return True


def _without_first(block: Block) -> Block:
    return block._replace(text=block.text.partition(b"\n")[2], numbers=block.numbers[1:])


def _buckets(form: Format, max_buckets: int | None) -> dict[str, int]:
    if max_buckets is None:
        return dict(form.buckets)
    advice = "It limits the rows of every embedding table; leave it out for the sizes of the paper."
    limit = _check.integer("max_buckets", max_buckets, 3, 2**31 - 1, advice=advice)
    return {name: min(limit, size) for name, size in form.buckets.items()}


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidInputError(name, value, f"one of {', '.join(choices)}", "Leave it out for the first.")


def _facts(
    form: Format, path: Path, lines: int, bad: BadLines, categories: str, salt: str, seed: int
) -> dict[str, Any]:
    order = "chronological, by line" if form.chronological else f"random by line, seed {seed}"
    shares = "/".join(f"{100 * share:g}" for share in form.fractions.values())
    return {
        "source": form.title,
        "format": form.name,
        "file": path.name,
        "lines": lines,
        "malformed_lines": bad.count,
        "split": f"{order}, {shares} %",
        "target": form.label,
        "left_out": [name for name in form.columns if name not in form.used],
        "integers": INTEGER_RULE,
        "categories": f"hashed, public salt {salt!r}"
        if categories == "hash"
        else "vocabulary of the training part",
    }


def _write_description(directory: Path, description: Mapping[str, Any]) -> None:
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    (directory / DESCRIPTION).write_text(text, encoding="utf-8")
