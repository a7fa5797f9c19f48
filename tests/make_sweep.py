"""Write tests/data/sweep.json: values of the oracle at random points, for the library to be held against.

    python tests/make_sweep.py [--limit SECONDS] [--most POINTS] [--shallow DIGITS]

The points are the same at every run (fixed seed). The file is written as it grows and a run goes on where the
last one stopped, so it can be interrupted; a point that takes longer than the limit is skipped and counted.
Points differ in what they are after ("kind"): `box` the region people use, `wide` all we claim, `blind`
log-uniform without aiming at any δ, `coalescence` where two saddles meet, `few` steps, `clt` many steps and
tiny δ, `partial` epochs that are not finished, and `fixed` bins that stop inside an epoch. For the last two
`groups` lists [count, sigma] of the bins, null for a sigma of infinity (a bin not seen yet).
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import oracle

FILE = Path(__file__).parent / "data" / "sweep.json"
PLAN = dict(box=270, wide=45, blind=40, coalescence=20, few=25, clt=20, partial=18, fixed=18)  # noqa: C408
DEEPEST = 300


def _log_cdf(x: float) -> float:
    if x > -30:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2)))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi))


def _guess(sigma: float, steps: float, epsilon: float, direction: str) -> float:
    """log10 δ, roughly: Chernoff for the put; a normal S, or one large Z, for the call. Only to aim."""
    s = 1 / sigma
    if direction == "add":
        rise = math.expm1(-epsilon)
        c, curvature, log_l = oracle._saddle([(steps, sigma)], rise)
        width = c * steps * math.sqrt(2 * math.pi * curvature)
        return min(steps * (c * (rise + 1) + log_l[sigma]) - math.log(width) + epsilon, 0) / math.log(10)
    spread = math.sqrt(math.expm1(s * s) / steps)
    rise = math.expm1(epsilon)
    jump = _log_cdf(s / 2 - sigma * math.log(steps * rise + 1))
    normal = _log_cdf(-rise / spread) + math.log(min(spread, 1)) if spread < 1 else -math.inf
    return max(jump, normal) / math.log(10)


def _aim(rng: random.Random, sigma: float, steps: int, direction: str, span: tuple) -> float | None:
    """An ε whose δ is about a random power of ten; None if there is none, save one time in six."""
    depth = 10 ** rng.uniform(0, 2.4) if rng.random() < 0.6 else rng.uniform(1, 120)
    other = _log_uniform(rng, *span) if rng.random() < 1 / 6 else None
    a, b = (math.log(x) for x in span)
    for _ in range(10):
        mid = (a + b) / 2
        a, b = (mid, b) if _guess(sigma, steps, math.exp(mid), direction) > -depth else (a, mid)
    near = math.exp(rng.uniform(a, b))
    return near if abs(_guess(sigma, steps, near, direction) + depth) < 2 + depth / 5 else other


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return min(max(math.exp(rng.uniform(math.log(low), math.log(high))), low), high)


def _point(kind: str, rng: random.Random) -> dict | None:
    direction = rng.choice(["remove", "add"])
    sigma, steps = _log_uniform(rng, 0.05, 100), int(_log_uniform(rng, 2, 1e12))
    span, groups = (1e-6, 50.0), None
    if kind == "box":
        sigma, steps, span = _log_uniform(rng, 0.1, 20), int(_log_uniform(rng, 2, 1e9)), (1e-4, 30.0)
    elif kind == "few":
        sigma, steps = _log_uniform(rng, 0.3, 5), rng.randint(2, 10)
    elif kind in ("partial", "fixed"):
        sigma, steps = _log_uniform(rng, 0.3, 8), int(_log_uniform(rng, 3, 1e6))
    if kind == "coalescence":
        sigma, steps, epsilon = rng.uniform(5, 20), rng.randint(2, 3), rng.uniform(0.5, 1.2)
    elif kind == "blind":
        epsilon = _log_uniform(rng, *span)
    elif kind == "clt":
        sigma, steps, direction = _log_uniform(rng, 0.7, 100), int(_log_uniform(rng, 1e3, 1e12)), "remove"
        epsilon = math.sqrt(math.expm1(sigma**-2) / steps) * rng.uniform(2, 25)
    elif kind == "partial":  # S = 1 − t/T + (t/T) S_t: aim at S_t
        done = rng.randint(1, steps - 1)
        groups = [[done, sigma], [steps - done, math.inf]]
        sign = 1 if direction == "remove" else -1
        epsilon = _aim(rng, sigma, done, direction, span)
        epsilon = epsilon and sign * math.log1p(math.expm1(sign * epsilon) * done / steps)
    elif kind == "fixed":
        k, done = rng.randint(1, 9), rng.randint(1, steps - 1)
        groups = [[done, sigma / math.sqrt(k + 1)], [steps - done, sigma / math.sqrt(k)]]
        epsilon = _aim(rng, sigma / math.sqrt(k + 0.5), steps, direction, span)
    else:
        epsilon = _aim(rng, sigma, steps, direction, span)
    if epsilon is None or not 1e-6 <= epsilon <= 50:
        return None
    if groups is None and _guess(sigma, steps, epsilon, direction) < -DEEPEST:
        return None
    point = {"kind": kind, "noise_multiplier": sigma, "steps": steps, "epsilon": epsilon}
    return {**point, "direction": direction} | ({"groups": groups} if groups else {})


@functools.cache
def points() -> list[dict]:
    rng = random.Random(20240917)
    found = []
    for kind, number in PLAN.items():
        goal = len(found) + number
        while len(found) < goal:
            found += filter(None, [_point(kind, rng)])
    rng.shuffle(found)
    return found


def _timeout(*_: object) -> None:
    raise TimeoutError


def _save(entries: list[dict], skipped: dict[str, str]) -> None:
    order = {_key(p): i for i, p in enumerate(points())}
    content = {
        "what": "One epoch of balls-and-bins, by tests/oracle.py. Floats are exactly what was used; log_delta"
        " (20 digits) and delta (18) are decimal strings. groups: [count, sigma], null for infinity.",
        "skipped": dict(sorted(skipped.items())),
        "values": sorted(entries, key=lambda e: order.get(_key(e), -1)),
    }
    text = json.dumps(content, indent=1).replace("Infinity", "null")
    temporary = FILE.with_suffix(".part")
    temporary.write_text(text + "\n")
    os.replace(temporary, FILE)


def _key(p: dict) -> str:
    fields = ("noise_multiplier", "steps", "epsilon", "direction", "groups")
    return json.dumps([p.get(f) for f in fields]).replace("Infinity", "null")


def main() -> None:
    parser = argparse.ArgumentParser(description="write tests/data/sweep.json")
    parser.add_argument("--limit", type=int, default=60, help="seconds for one point")
    parser.add_argument("--most", type=int, default=10**9, help="stop after so many new points")
    parser.add_argument("--shallow", type=float, default=math.inf, help="only where we guess δ > 10^-SHALLOW")
    parser.add_argument("--again", action="store_true", help="try again what was skipped before")
    args = parser.parse_args()
    before = json.loads(FILE.read_text()) if FILE.exists() else {"values": [], "skipped": {}}
    known = {_key(p) for p in points()}
    entries = before["values"]
    skipped = {} if args.again else {k: why for k, why in before["skipped"].items() if k in known}
    done, new = {_key(e) for e in entries} | set(skipped), 0
    signal.signal(signal.SIGALRM, _timeout)
    for p in points():
        guess = _guess(p["noise_multiplier"], p["steps"], p["epsilon"], p["direction"])
        if _key(p) in done or guess < -args.shallow:
            continue
        groups = [tuple(g) for g in p.get("groups", [[p["steps"], p["noise_multiplier"]]])]
        start = time.process_time()
        signal.alarm(args.limit)
        try:
            log_delta, delta = oracle.log_delta(groups, p["epsilon"], p["direction"])
        except TimeoutError:
            skipped[_key(p)] = f"more than {args.limit} s"
        except oracle.OutOfRangeError:
            skipped[_key(p)] = f"below 1e-{DEEPEST}"
        else:
            signal.alarm(0)
            if not -DEEPEST * math.log(10) < float(log_delta):
                skipped[_key(p)] = f"below 1e-{DEEPEST}"
            else:
                delta = oracle.decimal(oracle.arb(delta), 18)
                entries.append({**p, "log_delta": log_delta, "delta": delta})
        finally:
            signal.alarm(0)
        spent = time.process_time() - start
        print(f"{spent:7.2f} s", f"{guess:8.1f}", skipped.get(_key(p)) or delta, _key(p), flush=True)
        new += 1
        if new % 5 == 0 or new >= args.most:
            _save(entries, skipped)
        if new >= args.most:
            break
    _save([e for e in entries if _key(e) in known], skipped)


if __name__ == "__main__":
    main()
