"""`ballsbins check-machine`: does floating point do here what the guarantee assumes of it?"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import typer

from ballsbins.cli import options, render

if TYPE_CHECKING:
    from ballsbins.training.machine_check import MachineCheck

# A batch of several chunks of rows that do not come out even, on a network of the paper's widths.
_ROWS, _BUCKETS, _CATEGORIES, _INTEGERS = 1000, 200, 26, 13


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check-machine")(check_machine)


def check_machine(json: options.JsonOption = False) -> None:
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
        render.print_json({"covered": passed, "checks": checks})
    else:
        shown = [(f"{what} {said}", "yes" if right else "NO") for what, said, right in rows]
        out = render.console()
        out.print(render.plain_table(("Property of this machine", "holds"), shown))
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

    with warnings.catch_warnings():  # of Opacus' own hooks, in every training loop there is
        warnings.simplefilter("ignore")
        return check_torch()
