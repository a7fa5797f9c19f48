"""`ballsbins data generate | prepare`: the Criteo files of the paper's experiment, or others in their format."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ballsbins.cli import options, render

if TYPE_CHECKING:
    from ballsbins.data.criteo.encode import DataProgress


class FormatName(StrEnum):
    """What `--format` may be."""

    DISPLAY_ADS = "display-ads"
    SPONSORED_SEARCH = "sponsored-search"


class CategoriesName(StrEnum):
    """What `--categories` may be."""

    HASH = "hash"
    VOCABULARY = "vocabulary"


class OnBadLine(StrEnum):
    """What `--on-bad-line` may be."""

    SKIP = "skip"
    FAIL = "fail"


FormatOption = Annotated[
    FormatName,
    typer.Option(
        "--format", help="Criteo Display Ads pCTR, or Criteo Sponsored Search Conversion Log; tab-separated."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Prepare the Criteo files of the paper's experiment for training, or generate similar ones.",
        no_args_is_help=True,
    )
    group.command("generate")(generate)
    group.command("prepare")(prepare)
    app.add_typer(group, name="data")


def generate(
    out: Annotated[Path, typer.Argument(help="The file to write; gzip if its name ends in .gz.")],
    examples: Annotated[int, typer.Option("--examples", "-n", help="How many lines.")],
    form: FormatOption = FormatName.DISPLAY_ADS,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same file.")] = 0,
    json: options.JsonOption = False,
) -> None:
    """Write a file with a planted signal. For example: ballsbins data generate ads.tsv -n 100000"""
    from ballsbins.data import criteo

    with _progress() as progress:
        made = criteo.generate(out, criteo.FORMATS[form], examples, seed=seed, progress=progress)
    if json:
        facts = {"path": str(made.path), "examples": made.num_examples, "positives": made.positives}
        auc = made.best_auc if made.best_auc == made.best_auc else None  # NaN where all labels are alike
        return render.print_json(facts | {"best_auc": auc})
    screen = render.console()
    screen.print(f"[bold]{made.num_examples:,} examples[/bold] in {made.path}, format {form}, seed {seed}")
    share = made.positives / made.num_examples
    return screen.print(f"{share:.1%} positive; the true log-odds have an AUC of {made.best_auc:.4f}")


def prepare(
    file: Annotated[Path, typer.Argument(help="The file as downloaded and unpacked; plain or gzip.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The directory to make.")],
    form: FormatOption = FormatName.DISPLAY_ADS,
    categories: Annotated[
        CategoriesName,
        typer.Option(
            "--categories",
            help="hash: does not look at the data. vocabulary: of the training part; no privacy statement covers it.",
        ),
    ] = CategoriesName.HASH,
    max_buckets: Annotated[
        int | None,
        typer.Option(
            "--max-buckets", help="At most so many buckets a category; else about the paper's model sizes."
        ),
    ] = None,
    salt: Annotated[str, typer.Option("--salt", help="Public text that the hash depends on.")] = "ballsbins",
    seed: Annotated[int, typer.Option("--seed", help="Decides the random split of sponsored-search.")] = 0,
    on_bad_line: Annotated[
        OnBadLine, typer.Option("--on-bad-line", help="What a malformed line does.")
    ] = OnBadLine.SKIP,
    json: options.JsonOption = False,
) -> None:
    """Make a data set for training. For example: ballsbins data prepare train.txt --out ads"""
    from ballsbins.data import criteo

    with _progress() as progress:
        done = criteo.prepare(
            file,
            out,
            criteo.FORMATS[form],
            categories=categories.value,
            max_buckets=max_buckets,
            salt=salt,
            seed=seed,
            on_bad_line=on_bad_line.value,
            progress=progress,
        )
    data, bad = done.dataset, done.bad_lines
    if json:
        return render.print_json(_plain(done))
    screen = render.console()
    total = sum(data.sizes.values())
    screen.print(f"[bold]{total:,} examples[/bold] of {data.public_facts['source']} in {data.path}")
    screen.print(
        ", ".join(f"{split} {size:,}" for split, size in data.sizes.items())
        + f" ({data.public_facts['split']})",
        style="dim",
    )
    tables = sum(buckets for _, buckets in data.features.categories)
    screen.print(
        f"{len(data.features.integers)} integers, {len(data.features.categories)} categories in {tables:,} buckets "
        f"({data.public_facts['categories']})",
        style="dim",
    )
    if bad.count:
        screen.print(f"[yellow]{bad.count:,} malformed line{'s' * (bad.count > 1)} left out[/yellow]")
        for line in bad.described:
            screen.print(f"  line {line.number:,}: {line.reason}", markup=False)
        if bad.count > len(bad.described):
            screen.print(f"  … and {bad.count - len(bad.described):,} more")
    for note in data.not_covered:
        screen.print(f"[yellow]Not covered:[/yellow] {note}")
    return None


def _plain(done: Any) -> dict[str, Any]:
    data, bad = done.dataset, done.bad_lines
    return {
        "path": str(data.path),
        "splits": dict(data.sizes),
        "integers": list(data.features.integers),
        "categories": dict(data.features.categories),
        "facts": dict(data.public_facts),
        "not_covered": list(data.not_covered),
        "malformed_lines": {
            "count": bad.count,
            "first": [{"line": line.number, "reason": line.reason} for line in bad.described],
        },
    }


@contextmanager
def _progress() -> Iterator[DataProgress | None]:
    """A bar on standard error, where there is somebody to see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

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
