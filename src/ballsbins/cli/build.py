"""`ballsbins build | assign`: batches of data that does not fit in memory, as files or as who goes where."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer
from rich.markup import escape

from ballsbins.cli import output
from ballsbins.cli.build_options import Epochs, InputsArgument, Table, Work, show_plan
from ballsbins.cli.options import DATA, RUN, KeyFileOption, Without, key_from, refuse_others, with_groups
from ballsbins.cli.progress import build_bar, log, stopped_by_sigterm
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("build")(build)
    app.command("assign")(assign)


@with_groups
def build(
    context: typer.Context,
    drawn: Annotated[Epochs, Without("examples")],
    table: Table,
    work: Work,
    inputs: InputsArgument = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Directory of the batch files, or an address as s3://…")
    ] = None,
    pad: Annotated[
        bool,
        typer.Option(
            "--pad", help="Fill all batches with rows of weight 0 to one size.", rich_help_panel=RUN
        ),
    ] = False,
    world_size: Annotated[
        int,
        typer.Option(
            "--world-size",
            help="Number of ranks that will train: each then reads only its own rows.",
            rich_help_panel=RUN,
        ),
    ] = 1,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier",
            "-s",
            help="σ, to be recorded, if already decided.",
            rich_help_panel=RUN,
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            "--examples", "-n", help="Number of rows to expect; any other is an error.", rich_help_panel=DATA
        ),
    ] = None,
    key_file: KeyFileOption = None,
    remove: Annotated[
        list[int] | None,
        typer.Option(
            "--remove", metavar="EPOCH", help="Remove an epoch after training, and do nothing else."
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Compare all files of all epochs with their checksums, and do nothing else."
        ),
    ] = False,
) -> None:
    """Write a table of any size as files in batch order, which a trainer reads front to back.

    The files are the assignment: as secret as the key. They are made readable by you alone; remove them after
    training.

    For example: ballsbins build clicks/ --out batches/ --batch-size 1024 --key-file run.key
    """
    from ballsbins.batch_files.build_plan import plan_build
    from ballsbins.batch_files.format import stored_epoch
    from ballsbins.batch_files.row_order import check_row_order

    if out is None:
        raise InvalidInputError("--out", None, "given", "Name the directory of the batch files.")
    if remove:
        advice = "Removing needs --out alone, and is done at once."
        refuse_others(context, "out", "remove", "json_log", beside="--remove", advice=advice)
        return _remove(out, remove, json_log=work.json_log)
    if verify:
        advice = "Verifying needs --out alone."
        refuse_others(
            context, "out", "verify", "json_log", "group_readable", beside="--verify", advice=advice
        )
        return _verify(out, json_log=work.json_log, group_readable=work.group_readable)
    work.check_master()
    wanted, epochs = drawn.numbers(), drawn.epochs
    if noise_multiplier is not None and wanted[-1] >= epochs:
        advice = "--noise-multiplier records the mechanism: state all the epochs it has with --epochs."
        raise InvalidInputError("--epoch", wanted[-1], f"below --epochs, {epochs}", advice)
    prepared = plan_build(
        table.opened(inputs), drawn.sampler_for(), identity_column=table.identity, pad=pad, memory=work.limit(),
        compression=work.compression, num_examples=examples, world_size=world_size, workers=work.workers,
        mechanism=None if noise_multiplier is None else lambda sampler: Mechanism(sampler, noise_multiplier, epochs),
    )  # fmt: skip
    check_row_order(prepared.sampler, prepared.num_examples, prepared.identity)
    numbers = sorted({stored_epoch(prepared.sampler, number) for number in wanted})
    if work.dry_run:
        return show_plan(prepared, len(numbers), work)
    key = key_from(key_file)
    if drawn.run is not None:
        key = key.for_run(drawn.run)
    with stopped_by_sigterm(), build_bar(json_log=work.json_log) as report, work.started() as started:
        manifests = started.build(prepared, out, key, numbers, report)
    if work.json_log:
        for manifest in manifests:
            log({"event": "built", "epoch": manifest.epoch, "directory": out, "manifest": manifest.public()})
    if work.json_log:
        return None
    manifest = manifests[-1]
    which = f"epoch {numbers[0]}" if len(numbers) == 1 else f"epochs {numbers[0]} to {numbers[-1]}"
    console = output.console()
    console.print(
        f"[bold]{escape(out)}[/bold] has {which}: {prepared.num_examples:,} rows in "
        f"{prepared.sampler.steps:,} batches, {prepared.sampler.name}.",
        soft_wrap=True,
    )
    console.print(
        f"The run id is {manifest.run}. To build more epochs of this run after all of these are removed, add "
        f"--run {manifest.run}.",
        soft_wrap=True,
    )
    command = f"ballsbins build --out {shlex.quote(out)} --remove {numbers[0]}"
    return console.print(
        f"It is as secret as the key. After training on an epoch, remove it: {escape(command)}",
        style="dim",
        soft_wrap=True,
    )


@with_groups
def assign(
    drawn: Annotated[Epochs, Without("examples")],
    table: Table,
    work: Work,
    inputs: InputsArgument = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Parquet file to write, or an address as s3://…")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            "--examples",
            "-n",
            help="Number of rows, in place of inputs, to name rows by position.",
            rich_help_panel=DATA,
        ),
    ] = None,
    key_file: KeyFileOption = None,
) -> None:
    """Write only (row identity, epoch, batch), to be joined with the data elsewhere.

    The file is the assignment: as secret as the key. Poisson batches repeat rows: about one line per row and epoch,
    but 37 % of the rows in no batch and the others in one or more; a join with it copies them as often.

    For example: ballsbins assign clicks/ --identity user --out bins.parquet --steps 1000 --key-file run.key
    """
    from ballsbins.batch_files.assignments import plan_assignment

    if out is None:
        raise InvalidInputError("--out", None, "given", "Name the Parquet file to write.")
    if inputs and examples is not None:
        raise InvalidInputError("--examples", examples, "left out with inputs", "Their rows are counted.")
    if not inputs and examples is None:
        raise InvalidInputError("the inputs", None, "given", "Name files, or their rows with --examples.")
    if not inputs and (table.no_header or table.column_type):
        option, value = ("--type", table.column_type) if table.column_type else ("--no-header", True)
        raise InvalidInputError(option, value, "left out without inputs", "There is no text to read.")
    work.check_master()
    chosen, numbers = drawn.sampler_for(), drawn.numbers()
    source: Any = examples if examples is not None else table.opened(inputs)
    prepared = plan_assignment(
        source, chosen, identity_column=table.identity, memory=work.limit(), compression=work.compression,
        workers=work.workers,
    )  # fmt: skip
    if work.dry_run:
        return show_plan(prepared, len(numbers), work)
    key = key_from(key_file).for_run(drawn.run)
    with stopped_by_sigterm(), build_bar(json_log=work.json_log) as report, work.started() as started:
        assigned = started.assign(prepared, out, key, numbers, report)
    if work.json_log:
        return log({"event": "assigned", "epochs": numbers, "file": out, "run": assigned})
    console = output.console()
    console.print(
        f"[bold]{escape(out)}[/bold] says for {prepared.num_examples:,} rows in which of "
        f"{prepared.sampler.steps:,} batches they are, {prepared.sampler.name}.",
        soft_wrap=True,
    )
    console.print(
        f"The run id is {assigned}. To assign more epochs of this run, add --run {assigned}.", soft_wrap=True
    )
    return console.print("It is as secret as the key: remove it after training.", style="dim")


def _remove(out: str, epochs: list[int], *, json_log: bool) -> None:
    from ballsbins.batch_files.epoch_directory import remove_epoch

    for number in epochs:
        remove_epoch(out, number)
        if json_log:
            log({"event": "removed", "epoch": number, "directory": out})
        else:
            typer.echo(f"Removed epoch {number} of {out}.")


def _verify(out: str, *, json_log: bool, group_readable: bool) -> None:
    from ballsbins.batch_files import BatchFiles

    files = BatchFiles.open(out, group_readable=group_readable)
    for number in files.epochs:
        files.verify(number)
        if json_log:
            log({"event": "verified", "epoch": number, "directory": out})
        else:
            typer.echo(f"Epoch {number} of {out} is as it was written.")
