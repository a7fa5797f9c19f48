"""Speed of the accountant by itself, as ratios of CPU time within one run; benchmarks/compare.py has the peers.

    python benchmarks/accounting.py            all
    python benchmarks/accounting.py --small    seconds
    python benchmarks/accounting.py --poisson 40 0.1 20
                                               40 random Poisson runs with σ from 0.1 to 20, against dp_accounting

Compared are T = 10⁹ with T = 10³, and questions with numpy's complex exponential. Every time is the least of several:
on a machine that others use, too, the least is what the computation takes.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from ballsbins import BallsAndBins, Mechanism, Poisson, calibrate, most_epochs

DELTA = 1e-6


def cpu(call, repeat=5):
    """Least CPU time of several calls, and the last answer."""
    best, answer = float("inf"), None
    for _ in range(repeat):
        begin = time.process_time()
        answer = call()
        best = min(best, time.process_time() - begin)
    return best, answer


def ours(sigma, steps, epochs=1, repeat=5):
    return cpu(lambda: Mechanism(BallsAndBins(steps), sigma, epochs).epsilon(DELTA), repeat)


def in_the_number_of_steps():
    print("\nε at δ = 1e-6, σ = 0.35: growth with T")
    base = None
    for steps in (10**3, 10**5, 10**7, 10**9):
        seconds, bound = ours(0.35, steps, repeat=9)
        base = base or seconds
        print(
            f"T = {steps:>13,}: {1e3 * seconds:6.1f} ms, {seconds / base:4.2f} of T = 1,000, ε = {bound.value:.9f}"
        )


def unit():
    """CPU seconds of numpy's 10⁶ complex exponentials, to compare with."""
    numbers = 1j * np.linspace(0.0, 6.0, 10**6)
    return cpu(lambda: np.exp(numbers), 9)[0]


def one_epoch():
    print(
        "\none epoch, σ = 0.35, T = 1000, a fresh Mechanism each: time, and its ratio to that of numpy's 10⁶ complex"
    )
    deltas, grid = np.geomspace(1e-12, 1e-2, 200), np.linspace(0.01, 10.0, 1000)
    questions = {
        "ε at δ = 1e-6": lambda: Mechanism(BallsAndBins(1000), 0.35).epsilon(DELTA),
        "ε at δ = 1e-6, both directions": lambda: dict(
            Mechanism(BallsAndBins(1000), 0.35).epsilon(DELTA).directions
        ),
        "ε at 200 δ, 1e-12 to 0.01": lambda: Mechanism(BallsAndBins(1000), 0.35).epsilon(deltas),
        "δ at 1000 ε, 0.01 to 10, both directions": lambda: Mechanism(BallsAndBins(1000), 0.35).delta(grid),
        "σ for ε = 8, δ = 1e-6": lambda: calibrate(BallsAndBins(1000), epsilon=8.0, delta=DELTA),
    }
    exponentials = unit()
    print(f"exponentials ({1e3 * exponentials:.1f} ms)")
    for name, question in questions.items():
        seconds, _ = cpu(question, 30)
        print(f"{name:42s} {1e3 * seconds:7.1f} ms {seconds / exponentials:6.2f}")


def several_epochs():
    print(
        "\nseveral epochs and Poisson: ε at δ = 1e-6 of a fresh Mechanism, then at δ = 2e-7; CPU, width of the answer"
    )
    runs = [Mechanism(BallsAndBins(t), s, e) for s, t, e in ((1.0, 100, 10), (1.0, 1000, 10), (0.6, 4517, 3))]
    runs += [Mechanism(BallsAndBins(36133), 0.3, 2), Mechanism(BallsAndBins(1000), 0.8, 5, 300)]
    runs += [Mechanism(Poisson(t), s) for s, t in ((1.0, 10**4), (1.0, 10**7), (0.3, 36133), (0.32, 10**5))]
    for run in runs:
        cold = further = float("inf")
        for _ in range(5):
            fresh = Mechanism(run.sampler, run.noise_multiplier, run.epochs, run.last_epoch_steps)
            seconds, bound = cpu(lambda m=fresh: m.epsilon(DELTA), 1)
            cold = min(cold, seconds)
            further = min(further, cpu(lambda m=fresh: m.epsilon(0.2 * DELTA), 1)[0])
        width = bound.upper - bound.lower
        print(f"{run!r:78s} {1e3 * cold:6.0f} ms {1e3 * further:6.0f} ms {width:8.1e} {bound.method}")


def share(count):
    """How many random runs are exact: σ in [0.2, 20], T ≤ 10⁹, up to 10⁴ epochs, δ in [1e-30, 0.1]."""
    rng, good, loose, seconds = np.random.default_rng(3), 0, [], 0.0
    while good + len(loose) < count:
        sigma, steps, epochs, delta = np.exp(
            rng.uniform(np.log([0.2, 2, 2, 1e-30]), np.log([20, 1e9, 1e4, 0.1]))
        )
        direction = str(rng.choice(["remove", "add"]))
        curve = Mechanism(BallsAndBins(int(steps)), sigma, int(epochs)).curve.curve
        begin = time.process_time()
        epsilon = curve.rough_epsilon(np.log([delta]), direction)
        if not epsilon[0] < 700.0:  # beyond what is answered
            continue
        lower, _, upper = curve.exactly(epsilon, direction)
        seconds += time.process_time() - begin
        if 0.5 * (upper[0] - lower[0]) < max(1e-9, 2e-10 * epochs):  # the single epoch is good to 10⁻¹⁰
            good += 1
        else:
            loose.append(
                f"σ = {sigma:.3g}, T = {steps:.3g}, {epochs:.0f} epochs, δ = {delta:.1e}, {direction}"
            )
    print(
        f"\n{good} of {count} random runs of several epochs are exact, {1e3 * seconds / count:.0f} ms each; not:"
    )
    print("\n".join(f"    {each}" for each in loose))


def poisson(count, least, largest):
    """ε of random Poisson runs: exact, or how wide; its CPU time; and whether dp_accounting's bracket is narrower.

    σ from `least` to `largest`, up to 10⁹ steps in all, δ in [1e-15, 0.1], all log-uniform. Wanted are bounds within
    10⁻³·ε or 10⁻⁴ in 2 CPU seconds, never wider than dp_accounting's (at its own spacing of 10⁻⁴), where it has any
    in 60 seconds. Runs whose ε is above 700 are not counted.
    """
    rng, lines, seconds = np.random.default_rng(5), [], []
    kinds = {"exact": 0, "within": 0, "wide": 0}
    slow = wider = compared = 0
    while sum(kinds.values()) < count:
        sigma, total, steps, delta = np.exp(
            rng.uniform(np.log([least, 2, 2, 1e-15]), np.log([largest, 1e9, 1e9, 0.1]))
        )
        steps = int(min(steps, total))
        run = Mechanism(Poisson(steps), sigma, max(1, int(total / steps)))
        took, found = cpu(lambda m=run, d=delta: m.epsilon(d), 1)
        if not np.isfinite(found.upper):
            continue
        seconds.append(took)
        width = found.upper - found.lower
        kind = "exact" if found.kind == "exact" else "wide"
        if kind == "wide" and width <= max(1e-3 * found.upper, 1e-4):
            kind = "within"
        kinds[kind] += 1
        theirs = dp_accounting_bracket(sigma, steps, run.total_steps, delta)
        compared += theirs is not None
        beaten = theirs is not None and theirs[1] - theirs[0] < width
        slow, wider = slow + (took > 2.0), wider + beaten
        if kind == "wide" or took > 2.0 or beaten:
            lines.append(
                f"    σ = {sigma:.3g}, T = {steps:.3g}, {run.total_steps:.3g} steps, δ = {delta:.1e}: "
                f"ε in [{found.lower:.6g}, {found.upper:.6g}], {took:.2f} s; dp_accounting {theirs}"
            )
    print(
        f"\nPoisson, {count} random runs, σ from {least:g} to {largest:g}: {kinds['exact']} exact, "
        f"{kinds['within']} within 10⁻³·ε or 10⁻⁴, {kinds['wide']} wider; {slow} took more than 2 CPU s "
        f"(median {1e3 * np.median(seconds):.0f} ms); dp_accounting answered {compared}, narrower in {wider}:"
    )
    print("\n".join(lines))


def dp_accounting_bracket(sigma, steps, total, delta):
    """dp_accounting's optimistic and pessimistic ε; None if it fails, needs a minute, or they contradict."""
    code = (
        "import sys; from dp_accounting.pld import privacy_loss_distribution as p;"
        "s, q, n, d = float(sys.argv[1]), 1 / int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]);"
        "print(*[p.from_gaussian_mechanism(s, sampling_prob=q, pessimistic_estimate=k, use_connect_dots=k)"
        ".self_compose(n).get_epsilon_for_delta(d) for k in (False, True)])"
    )
    words = [sys.executable, "-c", code, *(str(word) for word in (sigma, steps, total, delta))]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    lower, upper = (float(word) for word in done.stdout.split())
    return (lower, upper) if np.isfinite(upper) and lower <= upper else None


def calibration():
    print("\nσ for ε = 8, δ = 1e-6")
    for steps, epochs in ((1000, 1), (10**6, 1), (1000, 10)):
        seconds, found = cpu(
            lambda s=steps, e=epochs: calibrate(BallsAndBins(s), epsilon=8.0, delta=DELTA, epochs=e)
        )
        print(f"T = {steps:>9,}, {epochs:2d} epochs: {seconds:6.3f} s, σ = {found.noise_multiplier:.7f}")
    seconds, found = cpu(lambda: most_epochs(BallsAndBins(1000), 1.0, epsilon=2.0, delta=DELTA), 3)
    print(f"most epochs, T = 1,000, σ = 1, ε = 2: {seconds:6.3f} s, {found.epochs} epochs")


def main():
    small = "--small" in sys.argv
    if "--poisson" in sys.argv:
        count, least, largest = sys.argv[sys.argv.index("--poisson") + 1 :]
        poisson(int(count), float(least), float(largest))
        return
    in_the_number_of_steps()
    one_epoch()
    if small:
        share(3)
    else:
        several_epochs()
        share(300)
        calibration()


if __name__ == "__main__":
    main()
