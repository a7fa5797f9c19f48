"""`ballsbins assign`: only who goes where, for those who join it with their data elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ballsbins.cli import engine_options as shared
from ballsbins.cli import options, render
from ballsbins.cli.engine_progress import log, progress, show_plan
from ballsbins.cli.keys import KeyFileOption, key_from
from ballsbins.errors import InvalidInputError


def assign(
    inputs: shared.InputsArgument = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Parquet file to write.")] = None,
    steps: options.StepsOption = None,
    batch_size: options.BatchSizeOption = None,
    epochs: options.EpochsOption = 1,
    epoch: shared.EpochOption = None,
    run: shared.RunOption = None,
    sampler: options.SamplerOption = options.SamplerName.BALLS_AND_BINS,
    fixed_bins: options.FixedBinsOption = False,
    max_batch_size: shared.MaxBatchSizeOption = None,
    examples: Annotated[
        int | None,
        typer.Option(
            "--examples",
            "-n",
            help="Number of rows, in place of inputs, to name rows by position.",
            rich_help_panel=shared.DATA,
        ),
    ] = None,
    identity: shared.IdentityOption = None,
    no_header: shared.NoHeaderOption = False,
    column_type: shared.TypeOption = None,
    key_file: KeyFileOption = None,
    memory: shared.MemoryOption = "1GB",
    compression: shared.CompressionOption = "snappy",
    engine: shared.EngineOption = shared.EngineName.EMBEDDED,
    master: shared.MasterOption = None,
    dry_run: shared.DryRunOption = False,
    json_log: shared.JsonLogOption = False,
) -> None:
    """Write only (row identity, epoch, batch), to be joined with the data elsewhere.

    The file is the assignment: as secret as the key. Poisson batches repeat rows: about one line a row and epoch, but
    37 % of the rows in no batch and the others in one or more; a join with it copies them as often.

    For example: ballsbins assign clicks/ --identity user --out bins.parquet --steps 1000 --key-file key
    """
    from ballsbins.batch_files.assignments import plan_assignment

    if out is None:
        raise InvalidInputError("--out", None, "given", "Name the Parquet file to write.")
    if inputs and examples is not None:
        raise InvalidInputError("--examples", examples, "left out with inputs", "Their rows are counted.")
    if not inputs and examples is None:
        raise InvalidInputError("the inputs", None, "given", "Name files, or their rows with --examples.")
    if not inputs and (no_header or column_type):
        option, value = ("--type", column_type) if column_type else ("--no-header", True)
        raise InvalidInputError(option, value, "left out without inputs", "There is no text to read.")
    shared.check_master(engine, master)
    chosen = shared.sampler_for(
        sampler, steps, batch_size, fixed_bins=fixed_bins, max_batch_size=max_batch_size, epochs=epochs
    )
    numbers = shared.epochs_from(epochs, epoch)
    source: Any = examples if examples is not None else shared.opened(inputs, no_header, column_type)
    prepared = plan_assignment(
        source, chosen, identity_column=identity, memory=shared.memory_from(memory), compression=compression
    )
    if dry_run:
        return show_plan(prepared, len(numbers), engine, json_log=json_log)
    key = key_from(key_file).for_run(run)
    with progress(json_log=json_log) as report, shared.engine_of(engine, master) as started:
        assigned = started.assign(prepared, out, key, numbers, report)
    if json_log:
        return log({"event": "assigned", "epochs": numbers, "file": str(out), "run": assigned})
    console = render.console()
    console.print(
        f"[bold]{escape(str(out))}[/bold] says for {prepared.num_examples:,} rows in which of "
        f"{prepared.sampler.steps:,} batches they are, {render.name_of(prepared.sampler)}.",
        soft_wrap=True,
    )
    console.print(
        f"The run id is {assigned}. To assign more epochs of this run, add --run {assigned}.", soft_wrap=True
    )
    return console.print("It is as secret as the key: remove it after training.", style="dim")
