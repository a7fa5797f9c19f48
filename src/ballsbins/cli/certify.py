"""`ballsbins certify`: a proved enclosure of δ, as a certificate that others can check."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from ballsbins._extras import load
from ballsbins._files import write_text
from ballsbins._progress import telling
from ballsbins.cli import output
from ballsbins.cli.options import RunUnlessCard, refuse_others, with_groups
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.proof.certificate import Certificate
from ballsbins.report.numbers import batches_of, stated, too_large_delta, up

_QUESTION = "What is proved"
_MINUTES = 10.0  # default limit on the CPU time for a proof


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("certify")(certify)


@with_groups
def certify(
    context: typer.Context,
    run: RunUnlessCard,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", "-e", help="ε at which δ is enclosed.", rich_help_panel=_QUESTION),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option("--delta", "-d", help="δ for which an ε is proved, instead.", rich_help_panel=_QUESTION),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance", help="Relative width of the enclosure, at most 1e-6.", rich_help_panel=_QUESTION
        ),
    ] = 1e-6,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes", help="CPU time after which the prover gives up.", rich_help_panel=_QUESTION
        ),
    ] = _MINUTES,
    json: Annotated[
        Path | None, typer.Option("--json", help="File for the certificate.", rich_help_panel=_QUESTION)
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="A certificate to check, in place of the options of the run."),
    ] = None,
) -> None:
    """Prove a bound on δ, or check a proof.

    For example: ballsbins certify --sampler balls-and-bins -s 0.35 -T 1000 -e 10 --json proof.json
    """
    load("flint", feature="Proving bounds", extra="certify")
    from ballsbins.proof.certify import certify as prove

    if check is not None:
        refuse_others(
            context, "check", "minutes", beside="--check", advice="The certificate states what was run."
        )
        return _check_file(check, minutes)
    if (epsilon is None) == (delta is None):
        advice = "Give the ε at which δ is to be proved, or the δ for which an ε is."
        raise InvalidInputError("--epsilon and --delta", (epsilon, delta), "one of the two", advice)
    if json is not None:
        output.check_place(json)
    with telling(lambda: "proving"):
        made = prove(run.mechanism(), epsilon, delta=delta, tolerance=tolerance, minutes=minutes)
    out = output.console()
    _show(made, too_large_delta(float(made.upper) if delta is None else delta, run.examples))
    output.tell_if_shuffled(run.sampler, made.mechanism, epsilon=[float(made.epsilon)])
    if json is not None:
        write_text(json, json_module.dumps(made.to_dict(), indent=1, ensure_ascii=True) + "\n")
        out.print(f"Wrote {json}. Check it with: ballsbins certify --check {json}")
    return None


def _show(made: Certificate, warning: str | None = None) -> None:
    out = output.console()
    out.print(f"[bold]{sentence(made)}[/bold] for {batches_of(made.mechanism)}")
    output.print_run(out, made.mechanism, None, [warning])
    out.print()
    parts = [(f"  {name}", part.lower, part.upper) for name, part in made.directions.items()]
    rows = [("both directions", made.lower, made.upper), *parts]
    out.print(output.plain_table([f"δ at ε = {made.epsilon!r}", "at least", "at most"], rows))
    out.print()


def sentence(made: Certificate) -> str:
    """What a certificate proves, in one line."""
    if made.target_delta is not None:
        return f"ε ≤ {made.epsilon!r} is proved at δ = {stated(made.target_delta)}"
    return f"{made.lower} ≤ δ ≤ {made.upper} is proved at ε = {made.epsilon!r}"


def _check_file(file: Path, minutes: float) -> None:
    made, how = _confirmed("--check", file, minutes)
    _show(made)
    output.console().print(f"Confirmed: {how}.")


def _confirmed(option: str, file: Path, minutes: float) -> tuple[Certificate, str]:
    """The certificate, and how it was confirmed."""
    load("flint", feature="Proving bounds", extra="certify")
    from ballsbins.proof.certify import check

    try:
        saved = json_module.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        bound = f"a file that can be read ({error.strerror})"
        raise InvalidInputError(option, str(file), bound, "Name a certificate.") from None
    except ValueError:
        raise InvalidInputError(option, str(file), "a JSON file", "Name a certificate.") from None
    made = Certificate.from_dict(saved)
    return made, check(made, minutes=minutes)


def proved_of(file: Path, mechanism: Mechanism, delta: float) -> str:
    """What a certificate, confirmed here, proves about this run at this δ, as a sentence to publish."""
    made, _ = _confirmed("--certificate", file, _MINUTES)
    return _to_publish(made, file, mechanism, delta)


def proof_in(file: Path) -> tuple[Certificate, Callable[[Mechanism, float], str]]:
    """A certificate, confirmed here, and what it proves about a run at a δ: nothing, "", about other runs."""
    made, _ = _confirmed("--certificate", file, _MINUTES)

    def sentence_about(mechanism: Mechanism, delta: float) -> str:
        try:
            return _to_publish(made, file, mechanism, delta)
        except InvalidInputError:
            return ""

    return made, sentence_about


def _to_publish(made: Certificate, file: Path, mechanism: Mechanism, delta: float) -> str:
    if made.mechanism != mechanism:
        bound = f"for {mechanism}, but it is for {made.mechanism}"
        raise InvalidInputError("--certificate", str(file), bound, "Certify the run that the card states.")
    if Fraction(made.upper) > Fraction(delta):
        bound = f"for δ of at most {delta!r}, but it proves {made.upper}"
        advice = f"Certify with --delta {delta!r}."
        raise InvalidInputError("--certificate", str(file), bound, advice)
    command = f"ballsbins certify --check {file.name}"
    return f"ε ≤ {up(made.epsilon, 8)} is proved at δ = {stated(delta)}; check with: {command}"
