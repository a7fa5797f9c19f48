"""A trial on some rows: what a build costs, and how its columns are best encoded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ballsbins._extras import Later
from ballsbins.batch_files.inputs import Inputs
from ballsbins.batch_files.row_order import IdentityColumn
from ballsbins.samplers import BallsAndBins, new_key

arrow = Later("pyarrow", feature="Batching tables", extra="data")
parquet = Later("pyarrow.parquet", feature="Batching tables", extra="data")

KEPT_BYTES = 12  # a position and a place, which every row carries while it is sorted


@dataclass(frozen=True)
class Trial:
    """Bytes and seconds of a row, from doing with some rows what a build does with all.

    Attributes:
        row_bytes: in memory.
        spilled_row_bytes: in a temporary file.
        compressed_row_bytes: in a part.
        row_seconds: of one core.
        dictionary_encoded: the columns, by their paths, that Parquet stores smaller with a dictionary than without.
    """

    row_bytes: float
    spilled_row_bytes: float
    compressed_row_bytes: float
    row_seconds: float
    dictionary_encoded: tuple[str, ...]

    @staticmethod
    def run(inputs: Inputs, compression: str, identity: IdentityColumn | None) -> Trial:
        """Read some rows, hash their names, take them in a random order, write a bucket and Parquet."""

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

        table = inputs.sample()
        with_one, without = (sizes(mixed(table), dictionary) for dictionary in (True, False))
        better = tuple(path for path, size in with_one.items() if size <= without[path])
        begin = time.perf_counter()
        table = inputs.sample()
        if identity is not None:
            BallsAndBins(1).bins_of(new_key(), 0, identity.of(table, 0).as_list())
        bucket = arrow.BufferOutputStream()
        with arrow.ipc.new_stream(bucket, table.schema) as writer:
            writer.write_table(mixed(table).combine_chunks())
        compressed = sum(sizes(mixed(table), list(better)).values())
        seconds = time.perf_counter() - begin
        rows = max(table.num_rows, 1)
        spilled = bucket.tell() / rows + KEPT_BYTES
        return Trial(table.nbytes / rows, spilled, compressed / rows, seconds / rows, better)
