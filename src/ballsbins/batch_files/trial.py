"""A trial on some rows: estimate what a build costs, and how its columns are best encoded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ballsbins._extras import Later
from ballsbins.batch_files.inputs import Inputs
from ballsbins.batch_files.row_files import RowLayout
from ballsbins.batch_files.row_order import IdentityColumn
from ballsbins.samplers import BallsAndBins, new_key

if TYPE_CHECKING:
    import pyarrow as pa

arrow = Later("pyarrow", feature="Batching tables", extra="data")
parquet = Later("pyarrow.parquet", feature="Batching tables", extra="data")

_ROWS, _BYTES = 1 << 16, 1 << 23  # size limits of a sample
# Rows per read: rows may be far wider than the footers say, which count repeated words only once.
_READ_ROWS = 1 << 10
_PLACES = 8  # number of places in the table from which a sample is taken
KEPT_BYTES = 12  # a position and a place, which every row carries while it is sorted


@dataclass(frozen=True)
class Trial:
    """Bytes and seconds per row, measured by processing some rows as a build processes all of them.

    Attributes:
        row_bytes: bytes per row in memory.
        spilled_row_bytes: bytes per row in a temporary file.
        compressed_row_bytes: bytes per row in a part.
        row_seconds: seconds per row on one core.
        dictionary_encoded: the columns, by path, that Parquet stores smaller with a dictionary than without.
    """

    row_bytes: float
    spilled_row_bytes: float
    compressed_row_bytes: float
    row_seconds: float
    dictionary_encoded: tuple[str, ...]

    @staticmethod
    def run(inputs: Inputs, compression: str, identity: IdentityColumn | None) -> Trial:
        """Read some rows, hash their identities, shuffle them, and write them as a bucket and as Parquet."""

        def sizes(table: Any, dictionary: bool | list[str]) -> dict[str, int]:
            part = arrow.BufferOutputStream()
            parquet.write_table(
                table, part, compression=compression, write_statistics=False, use_dictionary=dictionary
            )
            groups = parquet.read_metadata(arrow.BufferReader(part.getvalue()))
            found: dict[str, int] = {}
            for group in map(groups.row_group, range(groups.num_row_groups)):
                for chunk in map(group.column, range(group.num_columns)):
                    path = chunk.path_in_schema
                    found[path] = found.get(path, 0) + chunk.total_compressed_size
            return found

        def mixed(table: Any) -> Any:
            return table.take(arrow.array(np.random.default_rng(0).permutation(table.num_rows)))

        table = sample(inputs)
        with_one, without = (sizes(mixed(table), dictionary) for dictionary in (True, False))
        better = tuple(path for path, size in with_one.items() if size <= without[path])
        begin = time.perf_counter()
        table = sample(inputs)
        if identity is not None:
            BallsAndBins(1).bins_of(new_key(), 0, identity.of(table, 0).as_list())
        layout = RowLayout(table.schema)
        spilled = sum(layout.bytes_of(batch) for batch in mixed(table).combine_chunks().to_batches())
        compressed = sum(sizes(mixed(table), list(better)).values())
        seconds = time.perf_counter() - begin
        arrow.default_memory_pool().release_unused()
        rows = max(table.num_rows, 1)
        return Trial(
            table.nbytes / rows, spilled / rows + KEPT_BYTES, compressed / rows, seconds / rows, better
        )


def sample(inputs: Inputs) -> pa.Table:
    """A sample of rows for estimating size and cost: tens of thousands of rows, fewer if they are wide.

    They come from several places in the table, with the same share of rows from each, because a table may begin with
    rows that are unlike the others.
    """
    at_once = int(max(1, min(_READ_ROWS, _BYTES // (8 * inputs.stored_row_bytes + 1))))
    pieces = [piece for piece in inputs.pieces() if piece.rows]
    total = sum(piece.rows for piece in pieces)
    middles = [(piece.first + piece.rows / 2) / max(total, 1) for piece in pieces]
    places = [
        [piece for piece, middle in zip(pieces, middles, strict=True) if int(middle * _PLACES) == place]
        for place in range(_PLACES)
    ]
    places = [some for some in places if some]
    found = []
    for some in places:
        taken, rows, held = [], 0, 0
        for _, batch in inputs.read(at_once, some):
            taken.append(batch)
            rows, held = rows + batch.num_rows, held + batch.nbytes
            if rows >= _ROWS // len(places) or held >= _BYTES // len(places):
                break
        found.append(
            (arrow.Table.from_batches(taken, schema=inputs.schema), sum(piece.rows for piece in some))
        )
    share = min((table.num_rows / rows for table, rows in found), default=0.0)
    return arrow.concat_tables(
        [
            arrow.Table.from_batches([], schema=inputs.schema),
            *(table.slice(0, max(1, round(share * rows))) for table, rows in found),
        ]
    )
