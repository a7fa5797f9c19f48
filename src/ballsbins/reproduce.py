"""Find and run the experiments behind the paper's figures and tables, and offer helpers to write them.

An experiment is a file `experiments/NAME.py`. The first line of its docstring says what it shows, and it defines

    def run(scale: Scale, out: Path, console: Console) -> None

It uses the public API, writes `out/NAME.json` (small), draws `out/NAME.png` and `.svg` from that data alone, prints
the paper's numbers beside ours, and states its results with `claim`. The scale `small` takes seconds; `quick` takes
less than three minutes on two cores (`utility`, which trains on two data sets, less than half an hour); `full` uses
the sample sizes of the paper. The files are in the source tree, and in the wheel as `ballsbins/experiments/`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ballsbins.errors import BallsBinsError, InvalidInputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

    from ballsbins.accounting.monte_carlo.run import Outcome

Scale = Literal["small", "quick", "full"]
Run = Callable[[Scale, Path, "Console"], None]


class FalseClaimError(BallsBinsError):
    """An experiment has found that one of its claims does not hold."""


def claim(console: Console, text: str, holds: Any) -> None:
    """State a result of an experiment; raise an error if it does not hold."""
    if not bool(holds):
        raise FalseClaimError(f"this does not hold: {text}")
    console.print(f"[green]holds[/green]  {text}", highlight=False)


class Samples:
    """Count Monte Carlo samples (`MonteCarlo(progress=…)`), and tell whether the user stopped the sampling early.

    After Ctrl-C the bounds come from fewer samples. They still hold, but the output must say so.
    """

    def __init__(self, planned: int) -> None:
        """Start at zero samples; `planned` is the number planned for each job."""
        self.planned, self.drawn = planned, 0

    def __call__(self, outcomes: Sequence[Outcome], over: bool) -> None:
        """Record the sample count of the job that is farthest behind."""
        del over
        self.drawn = min(each.tally.count for each in outcomes)

    @property
    def stopped(self) -> bool:
        """Whether fewer samples were drawn than planned."""
        return self.drawn < self.planned


def samples_drawn(count: int, planned: int) -> str:
    """Return the number of samples as text, with the planned number if fewer were drawn."""
    return f"{count:,} samples" if count >= planned else f"{count:,} of {planned:,} samples"


def write(out: Path, name: str, data: Any) -> Any:
    """Write the results as `name`.json and return them as read back, because pictures are drawn from that data."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(text, encoding="utf-8")
    return json.loads(text)


def draw(out: Path, name: str, axes: Axes) -> None:
    """Write the figure of these axes as `name`.png and `name`.svg."""
    from ballsbins.plots import save

    for ending in ("png", "svg"):
        save(axes, out / f"{name}.{ending}")


def workers(scale: Scale) -> int:
    """Return the number of processes to use: all cores if joblib is installed, but one at scale "small"."""
    return 1 if scale == "small" or importlib.util.find_spec("joblib") is None else os.cpu_count() or 1


def directory() -> Path:
    """Return the directory of the experiments: beside this file in a wheel, at the top of a source tree."""
    here = Path(__file__).resolve()
    for place in (here.parent / "experiments", here.parents[2] / "experiments"):
        if place.is_dir():
            return place
    raise InvalidInputError(
        "experiments", None, "part of the installation", "Install ballsbins from a wheel or a source tree."
    )


def names() -> dict[str, str]:
    """Return the experiments by name, each with the first line of its docstring."""
    import ast

    found = {}
    for path in sorted(directory().glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem.replace("_", "-")] = docstring.split("\n", 1)[0]
    return found


def load(name: str) -> Run:
    """Return the function `run` of the named experiment."""
    known = names()
    if name not in known:
        raise InvalidInputError("experiment", name, f"one of {', '.join(known)}", "Name one of these.")
    path = directory() / f"{name.replace('-', '_')}.py"
    spec = importlib.util.spec_from_file_location(f"ballsbins_experiment_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look for it there
    spec.loader.exec_module(module)
    return cast(Run, module.run)
