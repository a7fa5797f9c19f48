"""Reading batch files beside plain scans of the same rows, in one run: ratios of CPU time.

    python benchmarks/reading.py [--small] [--rows 20000000] [--save [DIR]]

Every job runs in a process of its own. The jobs take turns, and each figure is the least of several runs, since what
others do on the machine only adds to it: scans, batches and ranks are timed part by part, and the least time of each
part counts. The table is that of benchmarks/engines.py. A plain scan reads all row groups in order with pyarrow and
checks nothing; the reader compares every byte with its checksum and gives one batch after the other. A batch is a
view, whose columns are cut out when they are asked for; the line "as record batches" cuts out all columns of every
batch.

Two scans are two questions. That of the batch files tells what the reader adds to decoding; ratios are to this one,
unless their line names another. That of the same rows in the same order and row groups, as pyarrow writes them by
default, tells what batches cost whoever would write shuffled rows without us. Batch files decode faster, because
columns are required where no value is missing. The ratio of num_workers=1 is to the loader without a worker.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import warnings
from itertools import islice
from pathlib import Path

import record
import turns
from engines import BATCH_SIZE, batch_read, make, plain_read, stages, written_plainly

ROWS, SMALL = 20_000_000, 100_000
RANKS = 8
REPEATS = 15


def build_for(source, target, ranks):
    from ballsbins import BallsAndBins, Key
    from ballsbins.batch_files.build import build
    from ballsbins.batch_files.build_plan import plan_build
    from ballsbins.batch_files.inputs import open_inputs

    made = plan_build(open_inputs([source]), lambda n: BallsAndBins(-(-n // BATCH_SIZE)), world_size=ranks)
    build(made, target, Key.from_seed(1))


def record_batches(source, _):
    from ballsbins.batch_files import BatchFiles

    files, rows = BatchFiles.open(source), 0
    batches = files.batches(0)
    for _ in range(files.manifest.num_parts):
        some = islice(batches, files.manifest.batches_per_file)
        rows += sum(batch.record_batch.num_rows for batch in some)
        yield rows


def one_of_ranks(source, _):
    yield from batch_read(source, None, rank=3, ranks=RANKS)


def one_column(source, _):
    from ballsbins.batch_files import BatchFiles

    return sum(batch.num_rows for batch in BatchFiles.open(source).batches(0, columns=["label"]))


def numpy_arrays(source, _):
    from ballsbins.batch_files import BatchFiles
    from ballsbins.batch_files.reader import arrays

    return sum(rows for _, rows in arrays(BatchFiles.open(source), 0))


def loader(source, _, workers=0):
    from torch.utils.data import DataLoader

    from ballsbins.batch_files import BatchFiles
    from ballsbins.batch_files.torch_dataset import BatchDataset

    dataset = BatchDataset(BatchFiles.open(source), 0)
    return sum(len(batch["label"]) for batch in DataLoader(dataset, batch_size=None, num_workers=workers))


def loader_with_a_worker(source, _):
    return loader(source, None, 1)


JOBS = {
    job.__name__: job
    for job in (
        plain_read,
        batch_read,
        record_batches,
        one_of_ranks,
        one_column,
        numpy_arrays,
        loader,
        loader_with_a_worker,
    )
}


def cpu_seconds():
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(times.ru_utime + times.ru_stime for times in used)


def run_here(name, source):
    import pyarrow.fs
    import pyarrow.parquet  # noqa: F401
    import xxhash  # noqa: F401

    import ballsbins.batch_files  # noqa: F401

    if name.startswith("loader"):
        import torch  # noqa: F401

    warnings.simplefilter("ignore")
    rows, (cpu,) = turns.in_stages(stages(JOBS[name], source, None), (cpu_seconds,))
    print(json.dumps({"rows": rows, "cpu": cpu}))


def cpu_of(name, source):
    command = [sys.executable, __file__, "--job", name, str(source)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=turns.one_thread_of_blas())
    return json.loads(done.stdout)["cpu"]


def least_cpu(jobs, repeats):
    """The least CPU time of each job; they take turns, so that a busy minute of the machine meets all of them."""
    rounds = [{name: cpu_of(*job) for name, job in jobs.items()} for _ in range(repeats)]
    return {name: turns.least([took[name] for took in rounds]) for name in jobs}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--small", action="store_true", help="a quick look; the bounds are for the full size")
    record.add_save(parser)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return run_here(options.job[0], Path(options.job[1]))
    rows = options.rows or (SMALL if options.small else ROWS)
    with tempfile.TemporaryDirectory(prefix="ballsbins-bench-") as folder:
        place = Path(folder)
        make(place / "in", rows)
        for ranks in (1, RANKS):
            build_for(place / "in", place / f"for-{ranks}", ranks)
        written_plainly(place / "for-1", place / "plain")
        one, eight = place / "for-1", place / f"for-{RANKS}"
        aimed_at = {
            "theirs": ("plain_read", place / "plain"),
            "plain": ("plain_read", one),
            "batches": ("batch_read", one),
            "cut": ("record_batches", one),
            "rank": ("one_of_ranks", eight),
        }
        others = {
            "other layout": ("one_of_ranks", one),
            "all rows": ("batch_read", eight),
            "column": ("one_column", one),
            "arrays": ("numpy_arrays", one),
            "loader": ("loader", one),
            "worker": ("loader_with_a_worker", one),
        }
        cpu = least_cpu(aimed_at, 1 if options.small else REPEATS)
        cpu |= least_cpu(others, 1 if options.small else 2)
    plain, theirs, ranks = cpu["plain"], cpu["theirs"], RANKS * cpu["rank"]
    table = [
        ("plain scan, written by pyarrow", theirs, None, ""),
        ("plain scan of the batch files", plain, None, ""),
        ("batches, rows per CPU second", cpu["batches"], plain / cpu["batches"], "≥ 0.95"),
        ("batches, to pyarrow's files", cpu["batches"], theirs / cpu["batches"], ""),
        ("as record batches", cpu["cut"], plain / cpu["cut"], ""),
        (f"{RANKS} ranks together", ranks, ranks / plain, "≤ 1.5"),
        (f"{RANKS} ranks, to pyarrow's files", ranks, ranks / theirs, ""),
        (f"one rank of {RANKS}, other layout", cpu["other layout"], cpu["other layout"] / plain, ""),
        (f"all rows of the layout for {RANKS}", cpu["all rows"], cpu["all rows"] / plain, ""),
        ("one column of forty", cpu["column"], cpu["column"] / plain, ""),
        ("NumPy arrays", cpu["arrays"], cpu["arrays"] / plain, ""),
        ("DataLoader", cpu["loader"], cpu["loader"] / plain, ""),
        ("DataLoader, num_workers=1", cpu["worker"], cpu["worker"] / cpu["loader"], "≤ 4"),
    ]
    print(f"{rows:,} rows of 40 columns, batches of {BATCH_SIZE}")
    for name, cpu, ratio, bound in table:
        shown = "" if ratio is None else f"{ratio:.2f}"
        print(f"{name:>34}{cpu:9.2f} s{shown:>8}{'' if options.small else bound:>8}")
    if options.save:
        saved = [
            {"job": name, "rows": rows, "cpu": cpu, "ratio": ratio, "aim": aim}
            for name, cpu, ratio, aim in table
        ]
        record.save(options.save, "reading", saved, packages=("pyarrow", "xxhash", "torch", "numpy"))
    return None


if __name__ == "__main__":
    main()
