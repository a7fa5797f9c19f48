"""`ballsbins build`: files in batch order, for data that does not fit in memory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ballsbins.cli import engine_options as shared
from ballsbins.cli import options, render
from ballsbins.cli.assign import assign
from ballsbins.cli.engine_progress import log, progress, show_plan
from ballsbins.cli.keys import KeyFileOption, key_from
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("build")(build)
    app.command("assign")(assign)


def build(
    context: typer.Context,
    inputs: shared.InputsArgument = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Directory of the batch files.")] = None,
    steps: options.StepsOption = None,
    batch_size: options.BatchSizeOption = None,
    epochs: options.EpochsOption = 1,
    epoch: shared.EpochOption = None,
    run: shared.RunOption = None,
    sampler: options.SamplerOption = options.SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    max_batch_size: shared.MaxBatchSizeOption = None,
    pad: Annotated[
        bool,
        typer.Option(
            "--pad", help="Fill all batches with rows of weight 0 to one size.", rich_help_panel=shared.RUN
        ),
    ] = False,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier",
            "-s",
            help="σ, to be recorded, if already decided.",
            rich_help_panel=shared.RUN,
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option("--examples", "-n", help="Rows that there must be.", rich_help_panel=shared.DATA),
    ] = None,
    identity: shared.IdentityOption = None,
    no_header: shared.NoHeaderOption = False,
    column_type: shared.TypeOption = None,
    key_file: KeyFileOption = None,
    memory: shared.MemoryOption = "1GB",
    compression: shared.CompressionOption = "snappy",
    engine: shared.EngineOption = shared.EngineName.EMBEDDED,
    master: shared.MasterOption = None,
    remove: Annotated[
        list[int] | None,
        typer.Option(
            "--remove", metavar="EPOCH", help="Remove an epoch after training, and do nothing else."
        ),
    ] = None,
    dry_run: shared.DryRunOption = False,
    json_log: shared.JsonLogOption = False,
) -> None:
    """Write a table of any size as files in batch order, which a trainer reads front to back.

    The files are the assignment: as secret as the key. They are made readable by you alone; remove them after
    training.

    For example: ballsbins build clicks/ --out batches/ --batch-size 1024 --key-file key
    """
    from ballsbins.batch_files.build_plan import plan_build
    from ballsbins.batch_files.format import stored_epoch
    from ballsbins.batch_files.row_order import check_row_order

    if out is None:
        raise InvalidInputError("--out", None, "given", "Name the directory of the batch files.")
    if remove:
        _refuse_beside_remove(context)
        return _remove(out, remove, json_log=json_log)
    shared.check_master(engine, master)
    wanted = shared.epochs_from(epochs, epoch)
    if noise_multiplier is not None and wanted[-1] >= epochs:
        advice = "--noise-multiplier records the mechanism: state all the epochs it has with --epochs."
        raise InvalidInputError("--epoch", wanted[-1], f"below --epochs, {epochs}", advice)
    table = shared.opened(inputs, no_header, column_type)
    chosen = shared.sampler_for(
        sampler, steps, batch_size, fixed_bins=fixed_bins, max_batch_size=max_batch_size, epochs=epochs
    )
    prepared = plan_build(
        table, chosen, identity_column=identity, pad=pad, memory=shared.memory_from(memory), compression=compression,
        num_examples=examples,
        mechanism=None if noise_multiplier is None else lambda drawn: Mechanism(drawn, noise_multiplier, epochs),
    )  # fmt: skip
    check_row_order(prepared.sampler, prepared.num_examples, prepared.identity)
    numbers = sorted({stored_epoch(prepared.sampler, number) for number in wanted})
    if dry_run:
        return show_plan(prepared, len(numbers), engine, json_log=json_log)
    key = key_from(key_file)
    if run is not None:
        key = key.for_run(run)
    with progress(json_log=json_log) as report, shared.engine_of(engine, master) as started:
        for number in numbers:
            manifest = started.build(prepared, out, key, number, report)
            # The next epoch is of this run, too, even if a trainer has removed this one by then.
            key = key.for_run(manifest.run)
            if json_log:
                log(
                    {"event": "built", "epoch": number, "directory": str(out), "manifest": manifest.to_dict()}
                )
    if json_log:
        return None
    which = f"epoch {numbers[0]}" if len(numbers) == 1 else f"epochs {numbers[0]} to {numbers[-1]}"
    console = render.console()
    console.print(
        f"[bold]{escape(str(out))}[/bold] has {which}: {prepared.num_examples:,} rows in "
        f"{prepared.sampler.steps:,} batches, {render.name_of(prepared.sampler)}.",
        soft_wrap=True,
    )
    console.print(
        f"The run id is {manifest.run}. To build more epochs of this run after all of these are removed, add "
        f"--run {manifest.run}.",
        soft_wrap=True,
    )
    command = f"ballsbins build --out {shlex.quote(str(out))} --remove {numbers[0]}"
    return console.print(
        f"It is as secret as the key. After training on an epoch, remove it: {escape(command)}",
        style="dim",
        soft_wrap=True,
    )


def _refuse_beside_remove(context: typer.Context) -> None:
    """`--remove` does nothing else: an option that asks for something else is an error, above all --dry-run."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name not in ("out", "remove", "json_log") and source is not None and source.name == "COMMANDLINE":
            shown = parameter.opts[0] if parameter.param_type_name == "option" else "the inputs"
            advice = "Removing needs --out alone, and is done at once."
            raise InvalidInputError(shown, context.params[name], "left out with --remove", advice)


def _remove(out: Path, epochs: list[int], *, json_log: bool) -> None:
    from ballsbins.batch_files.epoch_directory import remove_epoch

    for number in epochs:
        remove_epoch(out, number)
        if json_log:
            log({"event": "removed", "epoch": number, "directory": str(out)})
        else:
            typer.echo(f"Removed epoch {number} of {out}.")
