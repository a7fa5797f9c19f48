"""A slow, independent evaluation of one epoch of balls-and-bins, to twenty digits and more.

With Z = exp(s g − s²/2), s = 1/σ, and S the mean of T independent Z (possibly of different σ),

    delta_remove(ε) = E(S − K)₊, K = e^ε          delta_add(ε) = e^ε E(K − S)₊, K = e^−ε .

Nothing is shared with the library, neither code nor method. The library goes onto the branch cut for the
call so as not to cancel; here the *put* is always inverted on one contour around the whole cut,

    E(K − S)₊ = 1/(2πiT) ∫ e^{TKω} Π_j L_j(ω)^{n_j} ω^−2 dω ,      L_j(ω) = E e^{−ωZ_j} ,

and the call is put + 1 − K, with as many digits in hand as that subtraction eats (350 for δ = 1e−300).

Why the digits can be trusted:

* L. On the line x = t − iψσ the integrand of L is analytic; |exp(−ω e^{sx})| ≤ 1 in the strip |Im t| ≤ a as
  long as |arg ω − ψ| + a/σ ≤ π/2. So the trapezoidal rule of step h errs by at most
  2 exp((ψσ + a)²/2) / (e^{2πa/h} − 1) and cutting at |t| = X by 2 exp(ψ²σ²/2) Q(X). `_Transform` chooses h
  and X from these and adds the bound to the radius of the ball it returns; everything after is ball
  arithmetic, so rounding and the power T are accounted for.
* The contour. ω(u) = c + w(−tan β (cosh u − 1) + i sinh u) with c the real saddle, trapezoidal in u. The
  error bound is min over strips of C(a) e^{−2πa/h}, whose logarithm at least doubles when h is halved. We
  halve until two rules agree and take 1.6 for that 2: the one part that is measured, not proved.
* A result is accepted only when all of this, relative to δ itself, is below 10^−digits; otherwise everything
  is done again with more digits.

Floats are taken as the exact binary numbers they are; a `Fraction` says a decimal like 0.35 exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from flint import acb, arb, arb_poly, ctx, fmpq
from scipy.special import lambertw

Real = float | Fraction
Groups = Sequence[tuple[int, Real]]
_LN10 = math.log(10)


class OutOfRangeError(ValueError):
    """δ is smaller than the digits we are willing to carry."""


def _exact(x: Real) -> arb:
    p, q = x.as_integer_ratio()
    return arb(fmpq(p, q))


def _tilted(c: float, sigma: Real) -> tuple[float, float, float]:
    """(log L(c), E(1 − Z), Var Z) under the density e^{−cZ}φ/L(c), for real c > 0, in doubles."""
    s = 1 / float(sigma)

    def mode(k: int) -> float:  # of −cZ + k s x − x²/2, a concave function
        lo, hi = -1e6, k * s
        for _ in range(90):
            mid = (lo + hi) / 2
            e = math.log(c * s) + s * mid - s * s / 2
            lo, hi = (lo, mid) if e > 700 or k * s - mid < math.exp(e) else (mid, hi)
        return lo

    x = np.arange(mode(0) - 13, mode(2) + 13, min(0.05, 0.05 / s))
    logz = s * x - s * s / 2
    logp = -np.exp(np.minimum(math.log(c) + logz, 700)) - x * x / 2
    p = np.exp(logp - logp.max())
    less = float(p @ -np.expm1(logz) / p.sum())
    var = float(p @ (np.expm1(logz) + less) ** 2 / p.sum())
    return math.log(p.sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi)) + float(logp.max()), less, var


def _saddle(groups: Groups, k_less_1: float) -> tuple[float, float, dict[Real, float]]:
    """Least point c of e^{TKc} Π L^n / c² on c > 0, its curvature in log c, and log L(c) of each σ.

    Doubles will do: these only steer the contour. The sought zero is that of an increasing function of c.
    """
    steps = sum(n for n, _ in groups)
    lo, hi = -90.0, 200.0
    for _ in range(60):
        mid = (lo + hi) / 2
        c = math.exp(mid)
        slope = steps * k_less_1 + sum(n * _tilted(c, v)[1] for n, v in groups if v < math.inf)
        lo, hi = (lo, mid) if c * slope > 2 else (mid, hi)
    c = math.exp(lo)
    at = {v: _tilted(c, v) for _, v in groups if v < math.inf}
    curvature = 2 + c * c * sum(n * at[v][2] for n, v in groups if v < math.inf)
    return c, curvature, {v: a[0] for v, a in at.items()}


class _Transform:
    """L(ω) = E e^{−ωZ} with error below e^−nats, for 0 ≤ arg ω ≤ π/2 + β.

    The shift ψ is arg ω itself while e^{ψ²σ²/2}, which the sum has to cancel, is affordable: then only real
    exponentials are needed and the strip is widest. For large σ it is the least that serves all ω.
    """

    def __init__(self, exact_sigma: Real, nats: float, beta: float) -> None:
        self.exact_sigma, self.nats = exact_sigma, nats
        self.sigma = sigma = float(exact_sigma)
        b = (math.pi / 2 + beta) * sigma
        wide = min(math.sqrt(2 * nats + b * b), math.pi / 2 * sigma)
        a = min(math.sqrt((nats + (beta * sigma) ** 2 / 2) / 2), sigma * (math.pi / 2 - beta) / 2)
        self._choose(wide, b)
        self.turning, self.psi = True, 0.0
        if a > 0 and self.cost > 2.5 * self._choose(a, beta * sigma + a):
            self.turning, self.psi = False, beta + a / sigma
        else:
            self._choose(wide, b)

    def _choose(self, a: float, shift: float) -> float:
        self.loss = self.nats + shift**2 / 2 + 4
        self.step = 2 * math.pi * a / (self.nats + (shift + a) ** 2 / 2 + 4)
        self.reach = int(math.sqrt(2 * self.loss) / self.step) + 2
        self.cost = self.reach * (self.loss + 100) ** 1.5
        return self.cost

    def tabulate(self) -> None:
        """Fill the tables, at the precision set by now."""
        s, h, psi = 1 / _exact(self.exact_sigma), _exact(self.step), _exact(self.psi)
        shift = psi / s
        turn = acb(-psi.cos(), psi.sin())
        front = (shift**2 / 2).exp() * h / (2 * arb.pi()).sqrt()
        self.nodes, self.weights, self.prefix = [], [], [acb(0)]
        for k in range(-self.reach, self.reach + 1):
            t = k * h
            z, gauss = (s * t - s * s / 2).exp(), front * (-t * t / 2).exp()
            self.nodes.append(-z if self.turning else turn * z)
            self.weights.append(gauss if self.turning else gauss * acb(0, shift * t).exp())
            if not self.turning:
                self.prefix.append(self.prefix[-1] + self.weights[-1])
        self.radius = acb(arb(0, math.exp(-self.nats)), arb(0, math.exp(-self.nats)))

    def _index(self, log_size: float) -> int:
        """First node where Z exceeds e^log_size."""
        k = self.sigma * log_size + 0.5 / self.sigma
        return min(max(math.ceil(k / self.step) + self.reach, 0), 2 * self.reach + 1)

    def __call__(self, omega: acb) -> acb:
        size = abs(omega)
        log_size = float(size.log().mid())
        psi = self.psi if not self.turning else float(omega.arg().mid())
        falls = math.cos(float(omega.arg().mid()) - psi)
        first = self._index(-self.loss - log_size)  # before it e^{−ωZ} = 1 to all digits
        last = self._index(math.log(self.loss / falls) - log_size)  # beyond it, 0
        pairs = zip(self.nodes[first:last], self.weights[first:last], strict=True)
        if not self.turning:
            return sum((v * (omega * z).exp() for z, v in pairs), self.prefix[first]) + self.radius
        shift = omega.arg() * _exact(self.exact_sigma)
        rows = arb_poly(self.weights[:first] + [v * (size * z).exp() for z, v in pairs])
        phase = acb(0, shift * _exact(self.step))
        return (shift**2 / 2 - phase * self.reach).exp() * rows(phase.exp()) + self.radius


def _steer(groups: Groups, rise: float, c: float, nats: float) -> tuple[float, float, float, float]:
    """For K > 1: α and μ of the contour μ(1 + sin(iu − α)), its step, and the log of its peak over that at c.

    Moving u off the real line only changes α, so a table of log|integrand| over (α, u) gives the trapezoidal
    error of every α. The table comes from a crude model, log L(ω) + ω ≈ (z − W − W²/2)/v, z = vω, W = W₀(z),
    v = Var Z, which has the right variance and tail. It can only make us slow, not wrong.
    """
    steps = sum(n for n, _ in groups)
    finite = [(n, v) for n, v in groups if v < math.inf]

    def size(omega: np.ndarray) -> np.ndarray:
        out = steps * rise * omega - 2 * np.log(omega)
        for n, sigma in finite:
            var = math.expm1(float(sigma) ** -2)
            z = var * omega
            w = lambertw(z)
            out += n / var * np.where(np.abs(z) < 1e-6, w * w / 2, z - w - w * w / 2)
        return out.real

    base = float(size(np.array(c + 0j))) + math.log(c)
    tol = base - nats
    u = np.linspace(0, 14, 141)
    angles = np.arange(-15, 29) * 0.05
    arc = 1j * u[None, :] - angles[:, None]
    best = (math.inf, 0.0, 0.0, 0.0, 0.0)
    for mu in c * 2.0 ** np.arange(-1, 11):
        table = size(mu * (1 + np.sin(arc))) + np.log(mu * np.abs(np.cos(arc)))
        for i in range(16, 42):
            peak = table[i].max() - base
            alive = np.nonzero(table[i] > tol - 5)[0][-1] + 1
            if alive > 139 or peak > 2 * nats:
                continue
            edge = table[:, :alive].max(axis=1)
            rates = 2 * math.pi * np.abs(angles - angles[i]) / np.maximum(edge - tol, 1)
            h = min(rates[:i].max(), rates[i + 1 :].max())
            inner = sum(_Transform(v, nats + peak + math.log(steps) + 10, angles[i]).cost for _, v in finite)
            best = min(best, (u[alive] / h * inner, angles[i], mu, h, peak))
    return best[1:]


def _invert(groups: Groups, epsilon: Real, sign: int, digits: float) -> tuple[arb, arb, int]:
    """Put at K = e^{sign ε}: value, absolute error, nodes used; about `digits` digits of the least peak."""
    steps = sum(n for n, _ in groups)
    nats = digits * _LN10
    sigmas = {v for _, v in groups if v < math.inf}
    beta = min(0.25, 2 / float(max(sigmas)))
    rise = math.expm1(sign * epsilon)
    c, curvature, log_l = _saddle(groups, rise)
    w, h = c / math.sqrt(curvature), 2 * math.pi * 0.45 / nats
    if rise > 0:
        beta, mu, h, peak = (float(x) for x in _steer(groups, rise, c, nats))
        c, w, nats = mu * (1 - math.sin(beta)), mu * math.cos(beta), nats + peak
        log_l = {v: _tilted(c, v)[0] for v in sigmas}
    rules = {v: _Transform(v, nats + math.log(steps) - log_l[v] + 10, beta) for v in sigmas}
    big = math.log2(steps) + sign * float(epsilon) / math.log(2) + math.log2(c)
    ctx.prec = int(max(r.loss for r in rules.values()) / math.log(2) + max(big, 0) + math.log2(steps) + 60)
    for r in rules.values():
        r.tabulate()
    rate = steps * (sign * _exact(epsilon)).exp() - sum(n for n, v in groups if v == math.inf)
    cc, ww, lean = _exact(c), _exact(w), _exact(math.tan(beta))

    def term(j: float) -> acb:  # nodes are exact multiples of the step, to all digits
        e = (_exact(j) * step).exp()
        sh, ch = (e - 1 / e) / 2, (e + 1 / e) / 2
        omega = acb(cc - ww * lean * (ch - 1), ww * sh)
        value = (rate * omega).exp() * acb(ww * ch, ww * lean * sh) / omega**2  # ω′/i
        for n, v in groups:
            if v < math.inf:
                value *= rules[v](omega) ** n
        return value

    step, h = _exact(1.55 * h), 1.0
    first = term(0.0)
    total, peak, small, count = first.real / 2, abs(first).mid(), 0, 0
    tiny = arb(10) ** (-int(nats / _LN10) - 3)
    while small < 3:
        count += 1
        value = term(float(count))
        total += value.real
        peak = max(peak, abs(value).mid())
        small = small + 1 if abs(value).mid() < tiny * peak else 0
    old = total * h
    for _ in range(7):
        total += sum((term((j + 0.5) * h).real for j in range(count)), arb(0))
        h, count = h / 2, 2 * count
        new = total * h
        gap = abs(new - old).mid() / peak + tiny
        if gap < tiny ** arb("0.625"):
            break
        old = new
    else:
        raise ArithmeticError(f"the contour does not converge: {groups}, {epsilon}, {sign}")
    error = peak * (gap ** arb("1.6") + 10 * tiny) + new.rad()
    return new.mid() * step / (arb.pi() * steps), error * step / steps, count


def delta(groups: Groups, epsilon: Real, direction: str, digits: int = 20, most: int = 400) -> arb:
    """δ of one epoch whose bins come in `groups` of (count, σ); the ball's radius is our error.

    σ = inf stands for Z ≡ 1: bins without noise seen, as in an epoch that is not finished.
    """
    steps = sum(n for n, _ in groups)
    sign = {"remove": 1, "add": -1}[direction]
    carry = digits + 12
    while True:
        ctx.prec = 4 * most + 200
        k = (sign * _exact(epsilon)).exp()
        if steps * k <= sum(n for n, v in groups if v == math.inf):  # S ≥ K always: the put is 0
            return 1 - k if sign > 0 else arb(0)
        value, error, _ = _invert(groups, epsilon, sign, carry)
        ctx.prec = 4 * most + 200
        value = value + 1 - k if sign > 0 else value / k
        error = (error if sign > 0 else error / k).mid()
        if error < abs(value) * arb(10) ** -digits:
            return value.mid() + arb(0, error)
        if carry >= most:
            raise OutOfRangeError(f"delta below 1e-{most - digits}: {groups}, {epsilon}, {direction}")
        known = abs(value) > 2 * error
        lack = float((error / abs(value)).log()) / _LN10 + digits + 3 if known else 0.5 * carry
        carry = min(carry + max(lack, 3), most)


def decimal(x: arb, digits: int = 20) -> str:
    """The midpoint of x, rounded to so many significant digits."""
    return x.mid().str(digits, radius=False, more=True)


def log_delta(groups: Groups, epsilon: Real, direction: str, digits: int = 20) -> tuple[str, str]:
    """(log δ, δ), each a decimal string of `digits` right digits."""
    value = delta(groups, epsilon, direction, digits + 2)
    near_one = -float(abs((value.mid()).log()).mid().log()) / _LN10  # digits that log δ lacks
    if near_one > 0:
        value = delta(groups, epsilon, direction, digits + 3 + math.ceil(near_one))
    return decimal(value.mid().log(), digits), decimal(value, digits)
