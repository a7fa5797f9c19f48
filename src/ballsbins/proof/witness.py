"""A second contour for whoever checks a certificate. The checker does not trust it: a poor one fails to convince."""

from __future__ import annotations

import math
from typing import Any

from flint import arb, ctx, fmpq

from ballsbins.errors import AccuracyError
from ballsbins.proof import hyperbola, line
from ballsbins.proof.one_epoch import MOST_NODES, Bins, Enclosure, Put

_OTHER = 1.17  # how much farther right a contour of the prover's kind goes: a choice
_FEW_NODES = 1500  # of a contour of the other kind, up to which that is taken: a choice
_MORE_BITS = 320  # than the prover needed, for closed forms: a choice


def witness_for(
    bins: Bins, epsilon: fmpq, direction: str, tolerance: float, found: Enclosure
) -> dict[str, Any]:
    """A contour other than the one of `found`, with the lattices of L (θ = 0) and the precision that it needs."""
    kind = found.contour["kind"]
    if kind not in ("hyperbola", "line"):
        return {**found.contour, "bits": found.contour.get("bits", 192) + _MORE_BITS}
    put = Put(bins, epsilon, 1 if direction == "remove" else -1)
    with ctx.workprec(128):
        log_tolerance = float((found.lower * arb(tolerance) / 4).log().mid()) - put.scale()
        path: hyperbola.Hyperbola | line.Line | None
        if kind == "hyperbola":
            path = line.choose_line(put.sketch, log_tolerance)
            if path is None or path.nodes > _FEW_NODES:
                path = hyperbola.choose_hyperbola(put.sketch, log_tolerance, _OTHER)
        else:
            path = hyperbola.choose_hyperbola(put.sketch, log_tolerance)
            if path is None or path.nodes > _FEW_NODES:
                path = line.choose_line(put.sketch, log_tolerance, _OTHER)
        if path is None or path.nodes > MOST_NODES:
            raise AccuracyError("No second contour of reasonable length was found. Ask at another ε.")
        nats = put.nats(path, log_tolerance)
        module, kind = (line, "line") if isinstance(path, line.Line) else (hyperbola, "hyperbola")
        product = module.product_on(put.basket, path, nats, upright=True)
    inner = [{"step": x.step, "first": x.first, "last": x.last, "strip": x.strip} for x in product.lattices]
    return {"kind": kind, **vars(path), "inner": inner, "bits": math.ceil(product.bits)}
