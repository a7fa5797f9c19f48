"""Results as JSON, with what made them: versions, interpreter, processor, and what else the machine was doing.

docs/benchmarks.md is written from them.
"""

import json
import os
import platform
import resource
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ballsbins

MEASURED = {"seconds", "cpu", "wall", "megabytes", "bytes", "ratio", "plain", "eta"}
RESULTS = Path(__file__).resolve().parent / "results"


def add_save(parser):
    """The option that every benchmark with results has."""
    help_text = (
        "write the results as JSON, to benchmarks/results/ unless told; the page is written from there"
    )
    parser.add_argument("--save", nargs="?", const=RESULTS, type=Path, metavar="DIR", help=help_text)


def processor():
    """The model of the processor, as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def used_seconds():
    """The clock, CPU seconds of the whole machine, and those of this process and the children it has waited for."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, interrupts, soft_interrupts = ticks[:7]
    machine = (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.monotonic(), machine, sum(times.ru_utime + times.ru_stime for times in own)


BEGIN = used_seconds()  # as good as the start of the benchmark, which imports this module


def others():
    """How many cores other programs kept busy since the benchmark began, on average.

    The load average would not do: it counts the benchmark itself, and the one before it.
    """
    clock, machine, own = (now - then for now, then in zip(used_seconds(), BEGIN, strict=True))
    return round(min(max(0.0, machine - own) / clock, os.cpu_count()), 2)


def made_by(versions, packages=()):
    """What made a result: our version, and those of the other packages that took part."""
    for name in packages:
        try:
            versions = versions | {name: version(name)}
        except PackageNotFoundError:
            continue
    return {
        "ballsbins": ballsbins.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "others": others(),
        "packages": dict(sorted(versions.items())),
    }


def save(folder, name, rows, versions=None, packages=()):
    """Write the rows of one benchmark; what is measured keeps four digits, an ε all of them."""

    def rounded(key, value):
        return float(f"{value:.4g}") if key in MEASURED and value is not None else value

    rows = [{key: rounded(key, value) for key, value in row.items()} for row in rows]
    folder.mkdir(exist_ok=True)
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    head = json.dumps(made_by(versions or {}, packages), ensure_ascii=False)
    (folder / f"{name}.json").write_text(f'{{"made_by": {head},\n "rows": [\n{lines}\n]}}\n')


def load(name):
    """The rows of a benchmark, and what made them."""
    data = json.loads((RESULTS / f"{name}.json").read_text())
    return data["rows"], data["made_by"]
