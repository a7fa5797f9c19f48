"""How far a long command is: bars on a terminal, lines of JSON where asked for, and a way to stop."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ballsbins._progress import telling
from ballsbins.report.numbers import stated, up

if TYPE_CHECKING:
    from ballsbins.accounting.monte_carlo.run import Outcome
    from ballsbins.batch_files.build import BuildProgress, Report
    from ballsbins.data.criteo.encode import DataProgress
    from ballsbins.training.jax.trainer import StepProgress

_SMOOTHING = 0.95  # weight of earlier losses in the displayed loss

INTERRUPTED = 130  # exit code after Ctrl-C, whether or not the command had results to show


def log(line: Any) -> None:
    """Print one line of JSON."""
    typer.echo(json.dumps(line, ensure_ascii=False, allow_nan=False))


def bytes_shown(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def seconds_shown(count: float) -> str:
    """Seconds, minutes or hours."""
    if count < 100:
        return f"{max(1, round(count))} s"
    minutes = round(count / 60)
    return f"{minutes} min" if minutes < 100 else f"{count / 3600:.1f} h"


@contextmanager
def _lines(first: str, words: Callable[..., str]) -> Iterator[Callable[..., None]]:
    """A line now and then: `first`, then the words for the latest report."""
    said = first

    def note(*at: Any) -> None:
        nonlocal said
        said = words(*at)

    with telling(lambda: said):
        yield note


@contextmanager
def build_bar(*, json_log: bool) -> Iterator[Report | None]:
    """What is told while batch files are written: lines of JSON, a bar on a terminal, or a line now and then."""
    if json_log:
        yield lambda at: log(at.to_dict())
        return
    if not sys.stderr.isatty():

        def words(at: BuildProgress) -> str:
            return f"build: epoch {at.epoch} {at.stage}, {at.rows:,} of {at.total_rows:,} rows"

        with _lines("build: reading", words) as note:
            yield note
        return
    bar = Progress(
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
                bytes=bytes_shown(at.bytes),
                left="some time" if at.seconds_left is None else seconds_shown(at.seconds_left),
            )

        yield report


@contextmanager
def lines_bar() -> Iterator[DataProgress | None]:
    """A bar on standard error while lines are read or written, or a line now and then where it is no terminal."""
    if not sys.stderr.isatty():
        with _lines("reading", lambda task, done, total: f"{task}: {done:,} of {total:,}") as note:
            yield note
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = bar.add_task(task, total=total)
            bar.update(tasks[task], completed=done, total=total)

        yield show


@contextmanager
def training_bar(out: Console, title: str = "training") -> Iterator[Callable[[StepProgress], None] | None]:
    """A bar while a model is trained, or a line now and then. Its loss is not private and says so."""
    if not out.is_terminal:

        def words(at: StepProgress) -> str:
            return f"{title}: {at.steps:,} of {at.total_steps:,} steps"

        with _lines(f"{title}: starting", words) as note:
            yield note
        return
    columns: list[Any] = [
        TextColumn(title),
        BarColumn(),
        TextColumn("{task.fields[at]}"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[loss]}[/dim]"),
    ]
    with Progress(*columns, console=out, transient=True) as bars:
        task = bars.add_task(title, total=None, at="starting", loss="")
        begin: tuple[float, int] | None = None
        smooth: float | None = None

        def show(at: StepProgress) -> None:
            nonlocal begin, smooth
            now = time.monotonic()
            if begin is None:
                begin = (now, at.steps)  # the first step compiles, so rates count from here
            text = f"{at.steps:,}/{at.total_steps:,} steps"
            if at.steps > begin[1]:  # use the expected batch size: actual sizes are secret
                rate = (at.steps - begin[1]) * at.expected_batch_size / (now - begin[0])
                text += f", {rate:,.0f} examples/s"
            if at.loss == at.loss:  # an empty batch has no loss
                smooth = at.loss if smooth is None else _SMOOTHING * smooth + (1 - _SMOOTHING) * at.loss
            loss = "" if smooth is None else f"loss {smooth:.4f} (not private)"
            bars.update(task, total=at.total_steps, completed=at.steps, at=text, loss=loss)

        yield show


class SamplesBar:
    """A bar on standard error with the time left and the bound so far, which holds whenever one looks at it.

    Where standard error is not a terminal, a line now and then says how many samples there are.
    """

    def __init__(self, error_probability: float) -> None:
        """As in the answer, each side of each direction may fail with a quarter of that."""
        self._beta = error_probability / 4.0
        self._shown: ExitStack | None = None
        self._done = self._total = 0
        self._looks: tuple[int, ...] = ()

    def __call__(self, outcomes: Sequence[Outcome], over: bool) -> None:
        """Show what there is; remove the bar when it is over."""
        self._done = sum(outcome.tally.count for outcome in outcomes)
        self._total = sum(outcome.wanted for outcome in outcomes)
        if self._shown is None:
            self._shown = ExitStack()
            columns = (
                BarColumn(24),
                TextColumn("{task.completed:,.0f} of {task.total:,.0f} samples"),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.description}"),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=self._total)
            if sys.stderr.isatty():
                self._shown.enter_context(self._bar)
            else:
                self._shown.enter_context(telling(lambda: f"{self._done:,} of {self._total:,} samples"))
        self._bar.update(self._task, completed=self._done)
        looks = tuple(len(outcome.looks) for outcome in outcomes)
        if looks != self._looks and sys.stderr.isatty():  # the bound changes only after a new look
            self._looks = looks
            self._bar.update(self._task, description=self._bound(outcomes))
        if over:
            self._shown.close()
            self._shown = None

    def _bound(self, outcomes: Sequence[Outcome]) -> str:
        """The larger of the two directions, at the least ε asked for."""
        epsilon = min(outcome.epsilon for outcome in outcomes)
        here = [outcome for outcome in outcomes if outcome.epsilon == epsilon]
        upper = max(float(outcome.log_delta(epsilon, self._beta).upper[0]) for outcome in here)
        return f"δ ≤ {up(math.exp(upper), 3)} so far, at ε = {stated(epsilon)}"


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Remember whether Ctrl-C came, and let it interrupt as always. Monte Carlo answers with what it has by then."""
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.default_int_handler(number, frame)

    main = threading.current_thread() is threading.main_thread()  # handlers can be set only there
    usual = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C, or SIGTERM, into a wish to stop after the step at hand; a second one ends at once."""
    asked = False

    def ask(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, which batch systems send, end a command as Ctrl-C does: it cleans up and leaves nothing."""

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
