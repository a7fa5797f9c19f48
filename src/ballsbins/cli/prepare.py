"""`ballsbins key | data | check-machine`: what training needs first: a secret key, data, a machine that passes."""

from __future__ import annotations

import warnings
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ballsbins.cli import output
from ballsbins.cli.options import JsonOption
from ballsbins.cli.progress import lines_bar
from ballsbins.samplers import KEY_FILE_VARIABLE, new_key

if TYPE_CHECKING:
    from ballsbins.training.machine_check import MachineCheck

# A batch of several chunks that its rows do not fill evenly, on a network of the paper's widths.
_ROWS, _BUCKETS, _CATEGORIES, _INTEGERS = 1000, 200, 26, 13


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Prepare the Criteo files of the paper's experiment for training, or generate similar ones.",
        no_args_is_help=True,
    )
    group.command("generate")(generate)
    group.command("prepare")(prepare)
    app.add_typer(group, name="data")
    app.command("key")(key)
    app.command("check-machine")(check_machine)


def key(
    file: Annotated[Path, typer.Argument(help="Where to write the key; must not exist yet.")],
) -> None:
    """Write a new secret key, readable by you alone.

    Whoever has it knows which example was in which batch, and the guarantee is gone: keep it as you keep a password.
    One key serves any number of runs: every run has a public random id, and derives a key of its own from both.
    """
    made = new_key()
    made.save(file)
    typer.echo(f"Wrote {file} (mode 0600, commitment {made.commitment()}).")
    typer.echo(f"Point {KEY_FILE_VARIABLE} to it, or read it with Key.from_file.")


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


def generate(
    out: Annotated[Path, typer.Argument(help="The file to write; gzip if its name ends in .gz.")],
    examples: Annotated[int, typer.Option("--examples", "-n", help="How many lines.")],
    form: FormatOption = FormatName.DISPLAY_ADS,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same file.")] = 0,
    json: JsonOption = False,
) -> None:
    """Write a file with a planted signal.

    For example: ballsbins data generate ads.tsv -n 100000
    """
    from ballsbins.data import criteo

    with lines_bar() as progress:
        made = criteo.generate(out, criteo.FORMATS[form], examples, seed=seed, progress=progress)
    if json:
        facts = {"path": str(made.path), "examples": made.num_examples, "positives": made.positives}
        auc = made.best_auc if made.best_auc == made.best_auc else None  # NaN if all labels are equal
        return output.print_json(facts | {"best_auc": auc})
    screen = output.console()
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
            help="hash: independent of the data. vocabulary: of the training part, which no statement covers.",
        ),
    ] = CategoriesName.HASH,
    max_buckets: Annotated[
        int | None,
        typer.Option(
            "--max-buckets",
            help="At most this many buckets per category; by default about the paper's model sizes.",
        ),
    ] = None,
    salt: Annotated[str, typer.Option("--salt", help="Public text that the hash depends on.")] = "ballsbins",
    seed: Annotated[int, typer.Option("--seed", help="Decides the random split of sponsored-search.")] = 0,
    on_bad_line: Annotated[
        OnBadLine, typer.Option("--on-bad-line", help="What to do with a malformed line.")
    ] = OnBadLine.SKIP,
    json: JsonOption = False,
) -> None:
    """Make a data set for training.

    For example: ballsbins data prepare train.txt --out ads
    """
    from ballsbins.data import criteo

    with lines_bar() as progress:
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
        return output.print_json(_plain(done))
    screen = output.console()
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


def check_machine(json: JsonOption = False) -> None:
    """Test what the guarantee for floating point assumes of this machine. Takes some seconds.

    Noise: every installed way to compute it gives the integers that are known. Sums, in JAX and PyTorch where they
    are installed: what one example adds does not depend on the other rows of the batch, and the same step taken
    twice gives the same bits. Ends with exit code 1 if anything fails: floating point is then not covered here.
    """
    from ballsbins.noise import draw as known_answers

    rows: list[tuple[str, str, bool]] = []
    for executor in known_answers.installed():
        rows.append((f"noise by {executor}", "gives the known integers", known_answers.right(executor)))
    for name, check in (("JAX", _jax), ("PyTorch", _torch)):
        found = check()
        if found is None:
            continue
        rows.append((f"{name} on {found.device}", "is a processor that was tested", found.on_cpu))
        rows.append((f"{name} on {found.device}", "keeps examples apart", found.row_local))
        rows.append((f"{name} on {found.device}", "repeats its sums bit for bit", found.reproducible))
        rows.append((f"{name} on {found.device}", "keeps sums within their error bound", found.precise))
    passed = all(right for *_, right in rows)
    if json:
        checks: list[dict[str, Any]] = [
            {"what": what, "property": said, "passed": right} for what, said, right in rows
        ]
        output.print_json({"covered": passed, "checks": checks})
    else:
        shown = [(f"{what} {said}", "yes" if right else "NO") for what, said, right in rows]
        out = output.console()
        out.print(output.plain_table(("Property of this machine", "holds"), shown))
        out.print()
        if passed:
            out.print("[bold]Floating point is covered on this machine.[/bold]")
    if not passed:
        failed = "; ".join(f"not true is that {what} {said}" for what, said, right in rows if not right)
        typer.echo(
            f"ballsbins: FLOATING POINT IS NOT COVERED on this machine: {failed}. Train on another machine, or with "
            "--allow-uncovered; the card then says so.",
            err=True,
        )
        raise typer.Exit(1)


def _jax() -> MachineCheck | None:
    if not find_spec("jax") or not find_spec("optax"):
        return None
    from ballsbins.samplers import Key
    from ballsbins.training.jax.machine_check import check_step
    from ballsbins.training.jax.model import Model

    model = Model(_INTEGERS, (_BUCKETS,) * _CATEGORIES)
    return check_step(model, model.initial(Key.from_seed(0)), _ROWS)


def _torch() -> MachineCheck | None:
    if not find_spec("opacus"):
        return None
    from ballsbins.training.torch.machine_check import check_torch

    with warnings.catch_warnings():  # Opacus' own hooks warn in every training loop
        warnings.simplefilter("ignore")
        return check_torch()
