"""Every error bound holds where it is nearly sharp, and each of a list of slips in it is found.

A check computes what a bound bounds, with a rule so coarse that the bound is the whole error, and compares. Then the
source of the bound is changed in one place, as a slip of the pen would, and the same check must fail.
"""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from flint import acb, arb, arb_poly, ctx, fmpq

import ballsbins.proof
from ballsbins.proof import basket, composition, hyperbola, line, transform
from ballsbins.proof.one_epoch import Bins, Put, enclose

FOLDER = Path(ballsbins.proof.__file__).parent
V = fmpq(4, 25)  # σ = 0.4


@pytest.fixture(autouse=True)
def _bits():
    with ctx.workprec(256):
        yield


def fine(omega, sigma2):
    """L(ω) to sixty digits."""
    v = basket.fmpq_float(sigma2)
    size, angle = float(abs(omega).log().mid()), abs(float(omega.arg().mid()))
    lattice = transform.choose_lattice(v, 150.0, (size - 0.01, size + 0.01), angle + 0.01)
    return transform.Transform(sigma2, lattice)(omega)


def rule_check(lattice, omega, sigma2=V):
    def check(module):
        found = module.Transform(sigma2, module.Lattice(*lattice))(omega)
        assert found.contains(fine(omega, sigma2).mid())

    return check


# θ, strip, step, first, last, lost
coarse = rule_check((0.0, 1.5, 1.1, -60, 60, 0.0), acb(1))
early = rule_check((0.0, 1.5, 0.02, -350, 800, 0.0), acb(1))
short = rule_check((0.0, 1.5, 0.02, -4000, 100, 0.0), acb(186))
near_end = rule_check((0.0, 1.5, 0.02, -4000, -300, 0.0), acb(arb(1) / 1000), fmpq(4))
turned = rule_check((0.7, 0.8, 0.6, -90, 90, 0.0), acb(0, 1).exp() * 2)

PUT = Put(Bins(((30, V),), 30), fmpq(1, 2), 1)
LINE = line.choose_line(PUT.sketch, PUT.peak - 40)
PATH = hyperbola.choose_hyperbola(PUT.sketch, PUT.peak - 40)


def truth():
    return hyperbola.put_on_hyperbola(PUT.basket, PATH, 60.0)[0]


def line_check(**changes):
    def check(module):
        path = replace(LINE, **changes)
        path = module.Line(**vars(path))
        assert module.put_on_line(PUT.basket, path, 60.0)[0].overlaps(truth())

    return check


def hyperbola_check(**changes):
    def check(module):
        path = module.Hyperbola(**vars(replace(PATH, **changes)))
        assert module.put_on_hyperbola(PUT.basket, path, 60.0)[0].overlaps(truth())

    return check


def moments_check(module):
    """The characteristic function of the tilted law near 0, by which `end_bound` bounds a line with many bins."""
    for c in (arb(1) / 2, arb(1) / 50):
        v, mu4 = module.tilted_moments(c, V)
        true_v, true_mu4 = line.tilted_moments(c, V)
        d = c / 10**6
        log = [fine(acb(c + j * d), V).real.log() for j in (-1, 0, 1)]
        assert abs(v - (log[0] - 2 * log[1] + log[2]) / d**2) < 1e-6 * v
        limit = (12 * true_v / (2 * true_mu4 + 6 * true_v**2)).sqrt()
        for share in (arb(1) / 20, arb(1) / 4, arb(1) / 2, arb(1)):
            y = share * limit
            true = abs(fine(acb(c, y), V)) / fine(acb(c), V).real
            assert true <= (-(y * y * v - y**4 * (2 * mu4 + 6 * v * v) / 24) / 2).exp()


def arm_check(module):
    """|L| on rays beyond the imaginary axis, sharp close to the cut for small |ω|."""
    for sigma2 in (V, fmpq(1), fmpq(9)):
        box = basket.Basket(((1, sigma2),), lambda: arb(1))
        for x in (arb(1) / 10, arb(1), arb(3) / 2, arb(311) / 200):
            for size in (arb(1) / 1000, arb(1) / 20, arb(1) / 2, arb(3), arb(40)):
                omega = size * acb(0, arb.pi() / 2 + x).exp()
                bound = module.on_arm(box, size, abs(1 - omega), x)
                assert abs(fine(omega, sigma2)) <= bound


def chernoff_check(module):
    """On a line with a coarse step the images are a large part of the sum."""
    path = module.Line(**vars(replace(LINE, step=LINE.step * 3, nodes=LINE.nodes)))
    assert module.put_on_line(PUT.basket, path, 60.0)[0].overlaps(truth())


STEP = Bins(((1, fmpq(1)),), 20)


def polygon_check(module):
    """Both polygons of a Poisson step, at points between the nodes."""
    part = module.Part(STEP, 3)
    nodes = part.nodes(fmpq(1, 300), 1e-6, 20)
    for polygon, sign in ((module.above(nodes), 1), (module.below(nodes), -1)):
        for (a, va), (b, vb) in pairwise(polygon):
            if not a.strike > 0:
                continue
            for share in (fmpq(1, 4), fmpq(1, 2), fmpq(3, 4)):
                strike = a.strike + share * (b.strike - a.strike)
                k = strike.log()
                exact = fmpq(int((k * 2**60).mid().floor().unique_fmpz()), 2**60)
                if exact >= 0:
                    true = enclose(STEP, exact, "remove", 1e-9).ball
                else:
                    ratio = arb(exact).exp()
                    true = 1 - ratio + ratio * enclose(STEP, -exact, "add", 1e-9).ball
                assert sign * (va + share * (vb - va) - true) >= -1e-15


def kept_check(module):
    """Whatever is trimmed, δ of three steps is between the two sums."""
    made = module.Composition([module.Part(STEP, 3)], 1e-2)
    with ctx.workprec(320):
        (lower, upper), step = made.pairs
        cut = module.Masses(upper.first + 5, arb_poly(upper.poly.coeffs()[5 : -upper.poly.length() * 2 // 3]))
        made.__dict__["pairs"] = (lower, cut), step
        for direction in ("remove", "add"):
            true = module.Composition([module.Part(STEP, 3)], 1e-9).delta(fmpq(1, 10), direction)
            found = made.delta(fmpq(1, 10), direction)
            assert found.upper() >= true.lower()
            assert found.lower() <= true.upper()


def coarse_check(module):
    """The curve of a pair of which a part is missing, at every third lattice point, against its definition."""
    step, q = fmpq(1, 10), [arb(x) / 100 for x in (2, 9, 20, 30, 18, 8, 3, 1)]
    p = [mass * (arb(step) * (i - 4)).exp() for i, mass in enumerate(q)]
    rest_p, rest_q = 1 - sum(p, arb(0)), 1 - sum(q, arb(0))
    rests = {module.revealed: [(rest_p, arb(0)), (arb(0), rest_q)], module.merged: [(rest_p, rest_q)]}
    for missing, atoms in rests.items():
        nodes = module.Masses(-4, arb_poly(q)).nodes(step, 3, missing)
        assert [node.index for node in nodes] == [-2, -1, 0, 1, 2]
        for node in nodes:
            assert node.strike.overlaps((arb(step) * 3 * node.index).exp())
            call = sum(
                ((a - node.strike * b).max(arb(0)) for a, b in [*zip(p, q, strict=True), *atoms]), arb(0)
            )
            assert node.value.overlaps(call - module.intrinsic(node))


CHECKS = {
    "5 aliases": (transform, coarse),
    "5 aliases, turned": (transform, turned),
    "6 left end": (transform, early),
    "6 right end": (transform, short),
    "6 right end, density": (transform, near_end),
    "7 images": (line, chernoff_check),
    "8 moments": (line, moments_check),
    "9 far end": (line, line_check(nodes=LINE.nodes // 3, far=0.1)),
    "10 strip": (hyperbola, hyperbola_check(step=PATH.step * 3)),
    "11 arms": (hyperbola, arm_check),
    "12 ends": (hyperbola, hyperbola_check(nodes=PATH.nodes // 3)),
    "14, 15 polygons": (composition, polygon_check),
    "17 coarser": (composition, coarse_check),
    "18 what was dropped": (composition, kept_check),
}

# (check, text of the source, what a slip makes of it)
MUTATIONS = [
    ("5 aliases", "aliases = edges / ((2 * arb.pi() * a / h)", "aliases = edges / ((4 * arb.pi() * a / h)"),
    ("5 aliases", "return aliases + size", "return size"),
    ("5 aliases, turned", "aliases = edges / ((2 * arb.pi()", "aliases = edges / ((5 * arb.pi()"),
    ("6 left end", "left = ((rho - low) * (s2 / 2).sqrt())", "left = ((rho - low) * (s2 * 2).sqrt())"),
    ("6 left end", "size * (left + right)", "size * right"),
    ("6 right end", "right = gauss * (-((", "right = gauss * (-2 * (("),
    ("6 right end", "size * (left + right)", "size * left"),
    ("6 right end, density", "right.min(((high - rho) * (s2 / 2)", "right.min(((high - rho) * (s2 * 2)"),
    ("7 images", "((2 * arb.pi() * exact(gap)", "((9 * arb.pi() * exact(gap)"),
    ("7 images", "arb(-images / 2, images / 2)", "arb(0)"),
    ("7 images", "arb(-images / 2, images / 2)", "arb(images / 2, images / 2)"),
    ("8 moments", "variance = m[2] / m[0] - mean**2", "variance = m[2] / m[0]"),
    ("8 moments", "return variance, mu4", "return variance, 0 * mu4"),
    ("8 moments", "(j * (j - 1) * s2 / 2).exp()", "(j * (j - 1) * s2 / 3).exp()"),
    ("8 moments", "laplace_at(c * (j * s2).exp(), sigma2)", "laplace_at(c, sigma2)"),
    ("9 far end", "+ arb(0, ends)", ""),
    ("9 far end", "sigma2, n)) ** n", "sigma2, n)) ** (4 * n)"),
    ("10 strip", "turn = 2 * arb.pi() / step", "turn = 6 * arb.pi() / step"),
    ("10 strip", "(strip_bound(basket, path) + end_bound(basket, path))", "end_bound(basket, path)"),
    ("11 arms", "size * size / 2 * below", "size * size / 20 * below"),
    ("11 arms", "turned = (arb(sigma2) * x * x / 2)", "turned = (arb(sigma2) * x * x / 20)"),
    ("11 arms", "(arb(1) / 2 - power) / sigma", "(arb(1) / 2 - 2 * power) / sigma"),
    ("11 arms", "value *= turned.min(", "value *= (turned / 2).min("),
    ("12 ends", "(strip_bound(basket, path) + end_bound(basket, path))", "strip_bound(basket, path)"),
    ("12 ends", "total += value.upper()", "total += 0 * value.upper()"),
    ("14, 15 polygons", "(node, node.value.upper() +", "(node, node.value.upper() * 0.9 +"),
    ("14, 15 polygons", "beside = [a.max(b)", "beside = [a.min(b) / 9"),
    ("14, 15 polygons", "else (left * right / (left + right) * w)", "else (left * right / (left + right) * w / 9)"),
    ("17 coarser", "return rest_p if strike >= 1 else strike * rest_q", "return rest_p"),
    ("17 coarser", "return rest_p if strike >= 1 else strike * rest_q", "return arb(0)"),
    ("17 coarser", "return (gain if strike >= 1 else -gain).max(arb(0))", "return arb(0)"),
    ("17 coarser", "gain = rest_p - strike * rest_q", "gain = rest_p"),
    ("17 coarser", "sum_p + p[at], sum_q + q[at]", "sum_p + p[at], sum_q + p[at]"),
    ("18 what was dropped", "(value + 1 - kept)", "value"),
]  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_the_bound_holds(name):
    module, check = CHECKS[name]
    check(module)


@pytest.mark.parametrize(("name", "old", "new"), MUTATIONS, ids=[f"{m[0]}: {m[1]}" for m in MUTATIONS])
def test_a_slip_is_found(name, old, new):
    module, check = CHECKS[name]
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert source.count(old) >= 1
    broken = types.ModuleType(module.__name__)
    broken.__dict__["__file__"] = module.__file__
    kept = sys.modules[module.__name__]
    sys.modules[module.__name__] = broken  # dataclasses look their module up
    try:
        exec(compile(source.replace(old, new), module.__file__, "exec"), broken.__dict__)
        with pytest.raises(AssertionError):
            check(broken)
    finally:
        sys.modules[module.__name__] = kept
