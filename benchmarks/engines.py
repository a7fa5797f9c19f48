"""Batch files beside a plain read and write of the same Parquet files with the same compression, in the same run.

    python benchmarks/engines.py [--small] [--save [DIR]]

Every job runs in a process of its own. CPU time is that of the process, user and system; memory is the peak of its
resident set. Columns are like those of the Criteo data: a label, 13 numbers and 26 categories. Ratios of builds are
to the plain copy. That of two workers is to one, by the clock, and means something on an idle machine only. Beside it
is what the machine gives to two processes that have nothing in common: two plain copies of half of the files each,
side by side, against one copy of all files. Two cores share their caches, the memory and the disk, so it is below 2.

Batches are read beside two plain reads. One is of the batch files: what the reader adds to decoding. The other is of
the same rows in the same order and row groups, as pyarrow writes them by default: what batches cost whoever would
write shuffled rows without us. Batch files decode faster, because columns are required where no value is missing.

The plain copy, the builds and the reads run several times in turn, and the least time of each counts; of reads, which
take a second, the least time of each part.

DuckDB and polars put the same rows in a random order, DuckDB within the same memory limit. What they do not give:
batches that follow from a key and can be drawn again, where batches begin, truncation and padding, several epochs,
checksums, an epoch that is whole or not there, and, for polars, a memory limit.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from inspect import isgenerator
from itertools import islice
from pathlib import Path

import numpy as np

import record
import turns

SIZES = (5_000_000, 20_000_000)
SMALL = (100_000, 200_000)
FILE_ROWS = 1_000_000
BATCH_SIZE = 1_024
MEMORY = 10**9
BUILDS, READS = 3, 15


def make(folder, rows):
    """Write a table of so many rows; deterministic, some values repeated as in real data."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for part, begin in enumerate(range(0, rows, FILE_ROWS)):
        count = min(FILE_ROWS, rows - begin)
        random = np.random.default_rng(part)
        columns = {"label": (random.random(count) < 0.25).astype(np.float32)}
        for number in range(13):
            columns[f"I{number + 1}"] = np.log1p(random.geometric(0.05, count)).astype(np.float32)
        for number in range(26):
            top = 10 ** (2 + number % 5)
            columns[f"C{number + 1}"] = (top * random.random(count) ** 2).astype(np.int32)
        pq.write_table(pa.table(columns), folder / f"part-{part:04d}.parquet")


def plain_copy(source, target, share=slice(None)):
    """Read every file and write it again, with pyarrow and nothing else."""
    import pyarrow.parquet as pq

    target.mkdir(exist_ok=True)
    rows = 0
    for path in sorted(source.iterdir())[share]:
        table = pq.read_table(path, use_threads=False)
        pq.write_table(table, target / path.name, write_statistics=False)  # as the engine writes
        rows += table.num_rows
    return rows


def even_files(source, target):
    return plain_copy(source, target, slice(0, None, 2))


def odd_files(source, target):
    return plain_copy(source, target, slice(1, None, 2))


def engine(source, target, workers=1):
    from ballsbins import BallsAndBins, Key
    from ballsbins.batch_files.build import build
    from ballsbins.batch_files.build_plan import plan_build
    from ballsbins.batch_files.inputs import open_inputs
    from ballsbins.batch_files.sort import Memory

    made = plan_build(
        open_inputs([source]),
        lambda n: BallsAndBins(-(-n // BATCH_SIZE)),
        memory=Memory(MEMORY),
        workers=workers,
    )
    return build(made, target, Key.from_seed(1)).num_examples


def two_workers(source, target):
    return engine(source, target, 2)


def duckdb_sort(source, target):
    """ORDER BY a hash of the position: one order, without a key, batches, offsets, checksums or padding."""
    import duckdb

    target.mkdir()
    with duckdb.connect(config={"memory_limit": f"{MEMORY // 10**6}MB", "threads": 1}) as database:
        database.execute(f"SET temp_directory = '{target / 'temporary'}'")
        database.execute(
            f"COPY (SELECT * EXCLUDE (file_row_number, filename) FROM read_parquet('{source}/*.parquet', "
            "file_row_number = true, filename = true) ORDER BY hash(filename, file_row_number)) "
            f"TO '{target / 'all.parquet'}' (FORMAT parquet, COMPRESSION snappy)"
        )
        found = database.execute(f"SELECT count(*) FROM '{target / 'all.parquet'}'").fetchone()
    return found[0]


def polars_sort(source, target):
    """Sort by a hash of the position and sink: it has no memory limit, and gives what DuckDB gives."""
    import polars

    target.mkdir()
    rows = polars.scan_parquet(source / "*.parquet").with_row_index("position")
    mixed = rows.with_columns(polars.col("position").hash(1)).sort("position").drop("position")
    mixed.sink_parquet(target / "all.parquet", compression="snappy", statistics=False)
    return polars.scan_parquet(target / "all.parquet").select(polars.len()).collect().item()


def written_plainly(source, target):
    """Write the rows of batch files again, in the same row groups, as pyarrow does by default."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    target.mkdir()
    rows = 0
    for path in sorted(source.rglob("*.parquet")):
        file = pq.ParquetFile(path)
        fields = [field.with_nullable(True) for field in file.schema_arrow]
        with pq.ParquetWriter(target / path.name, pa.schema(fields)) as writer:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group).cast(writer.schema)
                writer.write_table(table, row_group_size=table.num_rows)
                rows += table.num_rows
    return rows


def plain_read(source, _):
    """Read all row groups of all files in order, the best that pyarrow offers to who wants to see every row once."""
    import pyarrow.parquet as pq

    rows = 0
    for path in sorted(source.rglob("*.parquet")):
        file = pq.ParquetFile(path, memory_map=True)
        for group in range(file.num_row_groups):
            rows += file.read_row_group(group, use_threads=False).num_rows
        yield rows


def batch_read(source, _, rank=0, ranks=1):
    from ballsbins.batch_files import BatchFiles

    files, rows = BatchFiles.open(source), 0
    batches = files.batches(0, rank=rank, ranks=ranks)
    for _ in range(files.manifest.num_parts):
        rows += sum(batch.num_rows for batch in islice(batches, files.manifest.batches_per_file))
        yield rows


PEERS, HALVES = (duckdb_sort, polars_sort), (even_files, odd_files)
JOBS = {
    job.__name__: job for job in (plain_copy, *HALVES, engine, two_workers, *PEERS, plain_read, batch_read)
}


OURS = ("pyarrow.compute", "pyarrow.fs", "pyarrow.parquet", "xxhash", "ballsbins.batch_files.build")
MODULES = {"duckdb_sort": ("duckdb",), "polars_sort": ("polars",)}


def peak_bytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell the peak memory of a process")


def run_here(name, source, target):
    """Do a job and print what it took, without the time that it takes to import what it needs."""
    for module in MODULES.get(name, OURS):
        import_module(module)
    rows, (cpu, wall) = turns.in_stages(
        stages(JOBS[name], source, target), (time.process_time, time.perf_counter)
    )
    print(json.dumps({"rows": rows, "cpu": cpu, "wall": wall, "peak": peak_bytes()}))


def stages(job, *arguments):
    """The job, as one that yields at the end of each stage; most have one stage."""
    result = job(*arguments)
    if isgenerator(result):
        yield from result
    else:
        yield result


def run(name, source, target):
    return side_by_side([name], source, target)


def side_by_side(names, source, target):
    """Start some jobs at once: the rows of all, the longest time, the largest memory."""
    commands = [[sys.executable, __file__, "--job", name, str(source), str(target)] for name in names]
    env = turns.one_thread_of_blas()
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for command in commands]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"{' and '.join(names)} failed")
    found = [json.loads(text) for text in said]
    if len(found) == 1:
        return found[0]
    together = {
        "cpu": [sum(sum(each["cpu"]) for each in found)],
        "wall": [max(sum(each["wall"]) for each in found)],
    }
    return together | {
        "rows": sum(each["rows"] for each in found),
        "peak": max(each["peak"] for each in found),
    }


def tree_bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def best(runs):
    """The least times and the largest memory."""
    times = {name: turns.least([each[name] for each in runs]) for name in ("cpu", "wall")}
    return times | {"peak": max(each["peak"] for each in runs)}


def measure(rows, folder, builds, reads):
    source, copy, out = folder / "in", folder / "copy", folder / "out"
    make(source, rows)
    found = {}
    turns = [["plain_copy"], [half.__name__ for half in HALVES], ["two_workers"], ["engine"]]
    for turn in range(builds):
        for names in turns:
            last = turn == builds - 1 and names == ["engine"]  # what is read afterwards
            took = side_by_side(names, source, out if last else copy)
            found.setdefault(names[-1], []).append(took)
            if not last:
                shutil.rmtree(copy)
    for job in PEERS:
        found[job.__name__] = [run(job.__name__, source, copy)]
        shutil.rmtree(copy)
    written_plainly(out, copy)
    for _ in range(reads):
        for name, job, place in (
            ("plain_read", plain_read, out),
            ("pyarrow_read", plain_read, copy),
            ("batch_read", batch_read, out),
        ):
            found.setdefault(name, []).append(run(job.__name__, place, out))
    shutil.rmtree(copy)
    assert all(took["rows"] == rows for runs in found.values() for took in runs)
    sizes = tree_bytes(source), tree_bytes(out)
    shutil.rmtree(source)
    shutil.rmtree(out)
    return {name: best(runs) for name, runs in found.items()} | {"sizes": sizes}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a quick look; the bounds are for the full size")
    parser.add_argument("--rows", type=int, help="one size only")
    record.add_save(parser)
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return run_here(options.job[0], Path(options.job[1]), Path(options.job[2]))
    saved = []
    sizes = (options.rows,) if options.rows else SMALL if options.small else SIZES
    print(f"{'rows':>11}{'job':>34}{'CPU s':>9}{'wall s':>9}{'peak MB':>9}{'ratio':>8}{'bound':>10}")
    growth = []
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="ballsbins-bench-") as folder:
            found = measure(rows, Path(folder), *(1, 1) if options.small else (BUILDS, READS))
        plain, built, two, halves = (
            found[job.__name__] for job in (plain_copy, engine, two_workers, HALVES[-1])
        )
        read, theirs, batches = (found[name] for name in ("plain_read", "pyarrow_read", "batch_read"))
        growth.append((rows, built))
        table = [
            ("plain read and write", plain, None, ""),
            ("ballsbins build, CPU", built, built["cpu"] / plain["cpu"], "≤ 1.5"),
            ("  peak memory / limit", built, built["peak"] / MEMORY, "< 1"),
            ("  two workers, wall", two, built["wall"] / two["wall"], "≥ 1.6"),
            ("  two plain copies at once, wall", halves, plain["wall"] / halves["wall"], ""),
            ("DuckDB, ORDER BY hash", found["duckdb_sort"], found["duckdb_sort"]["cpu"] / plain["cpu"], ""),
            ("polars, sort and sink", found["polars_sort"], found["polars_sort"]["cpu"] / plain["cpu"], ""),
            ("plain read, written by pyarrow", theirs, None, ""),
            ("plain read of the batch files", read, None, ""),
            ("batches, rows per CPU second", batches, read["cpu"] / batches["cpu"], "≥ 0.95"),
            ("  the same, to pyarrow's files", batches, theirs["cpu"] / batches["cpu"], ""),
            ("batches, rows per second", batches, read["wall"] / batches["wall"], "≥ 0.95"),
            ("  the same, to pyarrow's files", batches, theirs["wall"] / batches["wall"], ""),
        ]
        for name, took, ratio, bound in table:
            shown = "" if ratio is None else f"{ratio:.2f}"
            print(
                f"{rows:11,}{name:>34}{took['cpu']:9.2f}{took['wall']:9.2f}{took['peak'] / 1e6:9.0f}"
                f"{shown:>8}{'' if options.small else bound:>10}"
            )
            row = {"job": name.strip(), "rows": rows, "cpu": took["cpu"], "wall": took["wall"]}
            saved.append(row | {"megabytes": took["peak"] / 1e6, "ratio": ratio, "aim": bound})
        megabytes = [size / 1e6 for size in found["sizes"]]
        print(f"{rows:11,}{'input, output (MB)':>34}{megabytes[0]:9.0f}{megabytes[1]:9.0f}")
    if len(growth) == 2:
        (few, small), (many, large) = growth
        more = many / few
        print(
            f"{more:.3g} times the rows: {large['cpu'] / small['cpu']:.2f} times the CPU time, "
            f"{large['peak'] / small['peak']:.2f} times the memory"
        )
    if options.save:
        record.save(options.save, "engines", saved, packages=("pyarrow", "duckdb", "polars", "numpy"))
    return None


if __name__ == "__main__":
    main()
