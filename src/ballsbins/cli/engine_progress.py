"""What an engine tells: its plan before it works, and how far it is, as text, a bar or lines of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from ballsbins.cli import render
from ballsbins.cli.engine_options import EngineName

if TYPE_CHECKING:
    from ballsbins.batch_files.build import BuildProgress, Report
    from ballsbins.batch_files.build_plan import BuildPlan


def log(line: Any) -> None:
    """Print one line of JSON."""
    typer.echo(json.dumps(line, ensure_ascii=False, allow_nan=False))


def show_plan(prepared: BuildPlan, epochs: int, engine: EngineName, *, json_log: bool) -> None:
    """Say what would be done, and what it needs; refuse what the engine would refuse."""
    if engine is EngineName.EMBEDDED:
        prepared.require_memory()
    facts = prepared.to_dict() | {"epochs": epochs, "engine": str(engine)}
    if json_log:
        return log(facts)
    rows, scratch, output = (facts[name] for name in ("rows", "scratch_bytes", "output_bytes_per_epoch"))
    shape = f"{_count(rows, 'row')} of {_count(facts['columns'], 'column')}"
    drawn = f"{prepared.sampler.steps:,} an epoch, {render.name_of(prepared.sampler)}"
    lines = [
        ("input", f"{shape}, {_bytes(facts['input_bytes'])}"),
        ("batches", f"{drawn}, {_count(epochs, 'epoch')}"),
    ]
    if engine is EngineName.SPARK:
        moved = f"every row once an epoch, {_bytes(scratch)} before compression" if scratch else "no rows"
        lines += [
            ("shuffle", moved),
            ("parts", f"one file for each core, and at least {facts['part_files']:,}"),
            ("free disk needed", f"{_bytes(epochs * output)} for the output"),
        ]
    else:
        lines.append(("memory limit", _bytes(facts["memory_limit"])))
        if scratch:
            buckets = _count(facts["buckets"], "bucket")
            lines += [
                ("pass one", f"scatters rows into {buckets}, {_bytes(scratch)} on disk"),
                ("pass two", f"sorts each and writes, {_bytes(output)} an epoch"),
            ]
        else:
            lines.append(("one pass", f"draws and writes batch by batch, {_bytes(output)} an epoch"))
        seconds = _seconds(epochs * facts["seconds_per_epoch"])
        lines += [
            ("free disk needed", _bytes(scratch + epochs * output)),
            ("time", f"about {seconds} in all, from a trial on the first rows"),
        ]
    console = render.console()
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        console.print(f"[bold]{name:{width}}[/bold]  {value}", soft_wrap=True)
    return console.print("Nothing was written.", style="dim")


@contextmanager
def progress(*, json_log: bool) -> Iterator[Report | None]:
    """What is told while an engine works: lines of JSON, a bar on a terminal, or nothing."""
    if json_log:
        yield lambda at: log(at.to_dict())
        return
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("epoch {task.fields[epoch]} {task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]} rows, {task.fields[bytes]}, {task.fields[left]} left"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("reading", total=1.0, epoch=0, rows="0", bytes="0 B", left="some time")

        def report(at: BuildProgress) -> None:
            bar.update(
                task,
                description=at.stage,
                completed=at.rows / max(at.total_rows, 1),
                epoch=at.epoch,
                rows=f"{at.rows:,} of {at.total_rows:,}",
                bytes=_bytes(at.bytes),
                left="some time" if at.seconds_left is None else _seconds(at.seconds_left),
            )

        yield report


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _seconds(count: float) -> str:
    if count < 100:
        return f"{max(1, round(count))} s"
    minutes = round(count / 60)
    return f"{minutes} min" if minutes < 100 else f"{count / 3600:.1f} h"
