"""`ballsbins page | serve`: the privacy of runs in a browser, as one file or with knobs to turn."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from ballsbins._progress import telling
from ballsbins.cli import output
from ballsbins.cli.certify import proof_in, proved_of
from ballsbins.cli.options import RUN, RunUnlessCard, Without, refuse_others, with_groups
from ballsbins.cli.report import CARD_STATES
from ballsbins.errors import InvalidInputError
from ballsbins.report.numbers import describe

ENDINGS = (".html", ".htm")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("page")(page)
    app.command("serve")(serve)


@with_groups
def page(
    context: typer.Context,
    run: Annotated[RunUnlessCard, Without("last_epoch_steps")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, ending in .html.")],
    cards: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="Card of a training run, in place of the options below; may be repeated."
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option("--delta", "-d", help="δ, a probability in (0, 1).", rich_help_panel=RUN),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="What `certify` proved of this run.")
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Leave out the other samplers.")] = False,
    title: Annotated[str, typer.Option("--title", help="Heading of the page.")] = "Privacy of a training run",
) -> None:
    """Curves, table and statement in one file.

    For example: ballsbins page --sampler balls-and-bins -s 0.5 -T 1000 -d 1e-6 -o privacy.html
    """
    from ballsbins._files import write_text
    from ballsbins.web import page as pages

    if out.suffix.lower() not in ENDINGS:
        raise InvalidInputError(
            "--out", str(out), f"a file ending in {' or '.join(ENDINGS)}", "It is a web page."
        )
    output.check_place(out)
    if cards:
        allowed = "cards", "out", "title", "certificate"
        refuse_others(context, *allowed, beside="--from", advice=CARD_STATES)
        proof = "" if certificate is None else _proof_of_card(certificate, cards)
        with telling(lambda: "drawing the page"):
            text = pages.page_of_cards(cards, title, proof)
    else:
        if run.noise_multiplier is None or delta is None:
            missing = "--noise-multiplier" if run.noise_multiplier is None else "--delta"
            raise InvalidInputError(
                missing, None, "given, or --from card.json", "Describe the run, or name its card."
            )
        mechanism = run.mechanism()
        proof = "" if certificate is None else proved_of(certificate, mechanism, delta)
        with telling(lambda: "drawing the page"):
            text = pages.page_of_mechanism(
                mechanism, delta, title, examples=run.examples, alone=alone, proof=proof
            )
        output.tell_if_shuffled(run.sampler, mechanism, delta=[delta])
    write_text(out, text)
    typer.echo(
        f"Wrote {out}, {len(text.encode()) / 1e3:.0f} kB: open it in any browser, no server or network needed."
    )


def _proof_of_card(certificate: Path, cards: list[Path]) -> str:
    from ballsbins.report import Card

    if len(cards) > 1:
        advice = "A certificate is for one run: make a page of its card alone."
        raise InvalidInputError("--certificate", str(certificate), "left out with several cards", advice)
    card = Card.read(cards[0])
    return proved_of(certificate, card.mechanism, card.delta)


def serve(
    port: Annotated[int, typer.Option("--port", "-p", help="Where to listen; 0 picks a free port.")] = 0,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; the default is for this machine alone.")
    ] = "127.0.0.1",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="What `certify` proved, shown where its run is asked for."),
    ] = None,
) -> None:
    """A local page with sliders: ε of the four samplers, curves, noise for a target, and the statement."""
    from ballsbins.web import server

    # Ctrl-C is the normal way to stop the server; it interrupts no work that matters.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    proof = None
    if certificate is not None:
        made, proof = proof_in(certificate)
        typer.echo(f"Confirmed {certificate}; the page shows it for this run: {describe(made.mechanism)}")
    server.serve(host, port, browser=browser, say=typer.echo, proof=proof)
