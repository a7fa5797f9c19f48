"""Results as JSON, with what made them: versions, interpreter, processor. docs/benchmarks.md is written from them."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ballsbins

MEASURED = {"seconds", "cpu", "wall", "megabytes", "bytes", "ratio"}
RESULTS = Path(__file__).resolve().parent / "results"


def processor():
    """The model of the processor, as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


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
        "packages": dict(sorted(versions.items())),
    }


def save(name, rows, versions=None, packages=()):
    """Write the rows of one benchmark; what is measured keeps four digits, an ε all of them."""

    def rounded(key, value):
        return float(f"{value:.4g}") if key in MEASURED and value is not None else value

    rows = [{key: rounded(key, value) for key, value in row.items()} for row in rows]
    data = {"made_by": made_by(versions or {}, packages), "rows": rows}
    RESULTS.mkdir(exist_ok=True)
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    head = json.dumps(data["made_by"], ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(f'{{"made_by": {head},\n "rows": [\n{lines}\n]}}\n')


def load(name):
    """The rows of a benchmark, and what made them."""
    data = json.loads((RESULTS / f"{name}.json").read_text())
    return data["rows"], data["made_by"]
