"""Runs: one seed, one answer; resumed equals uninterrupted; interrupted and extended runs stay valid; bad input."""

from __future__ import annotations

import io
import itertools
import json
import math
import signal
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, InvalidInputError, Mechanism, Poisson
from ballsbins.accounting.monte_carlo import MonteCarlo, confidence
from ballsbins.accounting.monte_carlo import run as running
from ballsbins.accounting.monte_carlo.estimate import Lattice
from ballsbins.accounting.monte_carlo.pairs import Untilted
from ballsbins.accounting.monte_carlo.plain import Epochs, Plain, Unfinished
from ballsbins.accounting.monte_carlo.run import Job, block_size
from ballsbins.accounting.monte_carlo.state import StateFile
from ballsbins.accounting.monte_carlo.tilted import SHARES, Tilted
from ballsbins.accounting.monte_carlo.tilted_add import TiltedAdd
from ballsbins.cli import app
from ballsbins.curves import curve_of

SAMPLER = Plain(1.0, 200, "remove")
LATTICE = Lattice.around(0.1, 0.1, 0.0)
SIZE = block_size(SAMPLER)
SAMPLES = 10 * SIZE + 17
JOB = Job(SAMPLER, LATTICE, SAMPLES)


def run(sampler, lattice, samples, *, stream=0, **more):
    return running.run([Job(sampler, lattice, samples, stream)], **more)[0]


def same(one, two):
    return (
        one.tally.count == two.tally.count
        and np.array_equal(one.tally.high, two.tally.high)
        and np.array_equal(one.tally.low, two.tally.low)
        and [look.count for look in one.looks] == [look.count for look in two.looks]
        and all(np.array_equal(a.high, b.high) for a, b in zip(one.looks, two.looks, strict=True))
    )


def test_one_seed_one_answer():
    one = run(SAMPLER, LATTICE, SAMPLES, seed=5)
    assert one.tally.count == SAMPLES
    assert [look.count for look in one.looks] == [SIZE, 2 * SIZE, 4 * SIZE, 8 * SIZE]  # of 10 blocks
    assert same(one, run(SAMPLER, LATTICE, SAMPLES, seed=5))
    assert not same(one, run(SAMPLER, LATTICE, SAMPLES, seed=6))
    assert not same(one, run(SAMPLER, LATTICE, SAMPLES, seed=5, stream=1))


def test_the_answer_does_not_depend_on_how_blocks_are_divided():
    whole = running.draw_blocks(JOB, 5, 0, 6)
    for cuts in ([0, 1, 3, 6], [0, 5, 6]):
        parts = [running.draw_blocks(JOB, 5, a, b) for a, b in itertools.pairwise(cuts)]
        total = parts[0]
        for part in parts[1:]:
            total = total.merge(part)
        assert np.array_equal(total.high, whole.high)
        assert np.array_equal(total.low, whole.low)
    one, two = (running.draw_blocks(JOB, 5, b, b + 1) for b in (0, 1))
    assert not np.array_equal(one.high, two.high)


def test_the_answer_does_not_depend_on_workers():
    pytest.importorskip("joblib")
    assert same(run(SAMPLER, LATTICE, SAMPLES, seed=5), run(SAMPLER, LATTICE, SAMPLES, seed=5, workers=2))


def stop_after(blocks):
    def progress(outcomes, over):
        if not over and outcomes[0].tally.count >= blocks * SIZE:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("blocks", [1, 3, 8, 10])
def test_resumed_equals_uninterrupted(tmp_path, blocks):
    path = tmp_path / "state.npz"
    whole = run(SAMPLER, LATTICE, SAMPLES, seed=5)
    part = run(SAMPLER, LATTICE, SAMPLES, seed=5, state=StateFile(path), progress=stop_after(blocks))
    assert part.tally.count == blocks * SIZE
    assert part.whole is None
    resumed = run(SAMPLER, LATTICE, SAMPLES, seed=5, state=StateFile(path))
    assert same(whole, resumed)
    assert resumed.whole is not None
    assert resumed.log_delta(0.1, 1e-3).upper == whole.log_delta(0.1, 1e-3).upper
    assert [p.name for p in tmp_path.iterdir()] == ["state.npz"]


def test_another_question_is_not_resumed(tmp_path):
    path = tmp_path / "state.npz"
    run(SAMPLER, LATTICE, SAMPLES, seed=5, state=StateFile(path))
    assert same(
        run(SAMPLER, LATTICE, SAMPLES, seed=6, state=StateFile(path)), run(SAMPLER, LATTICE, SAMPLES, seed=6)
    )


def test_an_extended_run_is_never_worse(tmp_path):
    """9/10 of β at the samples first planned, shares of the rest at the looks: all hold together."""
    points, path = np.array([0.1, 0.3]), tmp_path / "state.npz"
    lattice = Lattice.around(0.1, 0.3, 0.0)
    widths, before = [], None
    for samples in (SAMPLES, SAMPLES + SIZE, 2 * SAMPLES, 4 * SAMPLES):
        found = run(SAMPLER, lattice, samples, seed=5, state=StateFile(path))
        assert found.tally.count == samples
        assert found.whole.count == SAMPLES
        bound = found.log_delta(points, 1e-3)
        if before is not None:
            assert np.all((bound.lower >= before.lower) & (bound.upper <= before.upper))
        before = bound
        widths.append(bound.upper - bound.lower)
    assert np.all(widths[-1] < 0.8 * widths[0])
    # who planned all of them from the start has more of β to judge them by
    fresh = run(SAMPLER, lattice, 4 * SAMPLES, seed=5)
    assert np.all(fresh.log_delta(points, 1e-3).upper < before.upper)
    with pytest.raises(InvalidInputError, match="state file"):
        run(SAMPLER, lattice, SIZE, seed=5, state=StateFile(path))


def test_looks_and_plan_share_the_error_probability():
    """Every bound fails with its own share, and the shares sum to β at most."""
    found = run(SAMPLER, LATTICE, SAMPLES, seed=5)
    shares = [0.1 * 1e-3 / ((k + 1) * (k + 2)) for k in range(len(found.looks))]
    tallies = [*zip(found.looks, shares, strict=True), (found.whole, 0.9 * 1e-3)]
    assert sum(share for _, share in tallies) <= 1e-3
    uppers = [
        confidence.log_kl_upper(np.array(found.moments(0.1, tally).mean_high), tally.count, share)
        for tally, share in tallies
    ]
    assert found.log_delta(0.1, 1e-3).upper[0] == min(uppers)


def test_two_writers_lose_nothing(tmp_path):
    """Both open one file before either has written: both answers are there in the end, and the longer of two runs."""
    path = tmp_path / "state.npz"
    one, two = StateFile(path), StateFile(path)
    first = run(SAMPLER, LATTICE, SIZE, seed=5, state=one)
    other = run(SAMPLER, LATTICE, SIZE, seed=6, state=two)
    longer = run(SAMPLER, LATTICE, 4 * SIZE, seed=5, state=two)
    run(SAMPLER, LATTICE, SIZE, seed=7, state=one)
    drawn = []
    running_draw = running.draw_blocks

    def counted(job, seed, first, last):
        drawn.append((seed, first, last))
        return running_draw(job, seed, first, last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "draw_blocks", counted)
        for samples, seed, known in ((4 * SIZE, 5, longer), (SIZE, 6, other)):
            assert same(run(SAMPLER, LATTICE, samples, seed=seed, state=StateFile(path)), known)
    assert drawn == []
    assert first.whole.count == longer.whole.count == SIZE  # as whoever asked first has planned


def test_the_planned_counts_survive_a_longer_run_beside_it(tmp_path, monkeypatch):
    """One plans 10 blocks and a part, another draws 16 meanwhile: the plan is the first one's, and both are kept."""
    path = tmp_path / "state.npz"

    def meanwhile(outcomes, over):
        if not over and outcomes[0].tally.count == SIZE:
            run(SAMPLER, LATTICE, 16 * SIZE, seed=5, state=StateFile(path))

    planned = run(SAMPLER, LATTICE, SAMPLES, seed=5, state=StateFile(path), progress=meanwhile)
    monkeypatch.setattr(running, "draw_blocks", None)  # nothing is drawn again
    both = run(SAMPLER, LATTICE, 16 * SIZE, seed=5, state=StateFile(path))
    assert planned.whole.count == both.whole.count == SAMPLES
    assert both.tally.count == 16 * SIZE
    assert both.log_delta(0.1, 1e-3).upper <= planned.log_delta(0.1, 1e-3).upper


@pytest.mark.slow
def test_processes_that_write_at_once(tmp_path):
    """Four processes, ten questions each, one file: forty entries."""
    path = tmp_path / "state.npz"
    script = (
        "import sys; from ballsbins.accounting.monte_carlo import run; from ballsbins.accounting.monte_carlo.plain"
        " import Plain; from ballsbins.accounting.monte_carlo.estimate import Lattice;"
        "from ballsbins.accounting.monte_carlo.state import StateFile; path, first = sys.argv[1], int(sys.argv[2]);"
        "[run.run([run.Job(Plain(1.0, 20, 'add'), Lattice(0.0, 1.0, 2), 10)], seed=k, state=StateFile(path))"
        " for k in range(first, first + 10)]"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(path), str(10 * k)]) for k in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    with np.load(path) as file:
        assert len(file.files) == 40
    assert [p.name for p in tmp_path.iterdir()] == ["state.npz"]


def test_an_interrupted_run_gives_a_wider_bound_and_none_before_the_first_look():
    whole = run(SAMPLER, LATTICE, SAMPLES, seed=5)
    part = run(SAMPLER, LATTICE, SAMPLES, seed=5, progress=stop_after(5))
    early, late = part.log_delta(0.1, 1e-3), whole.log_delta(0.1, 1e-3)
    assert early.lower < late.lower < late.upper < early.upper < 0.0
    nothing = running.Outcome(SAMPLER, whole.tally, (), None, 2 * SAMPLES)
    assert nothing.log_delta(0.1, 1e-3).upper == 0.0


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


@pytest.mark.parametrize("kind", ["no archive", "empty", "an array", "arrays of others", "half", "flipped"])
def test_another_or_a_broken_state_file_is_refused_and_left_alone(tmp_path, kind):
    path = tmp_path / "state.npz"
    run(SAMPLER, LATTICE, SIZE, state=StateFile(path))
    good = path.read_bytes()
    array, arrays = io.BytesIO(), io.BytesIO()
    np.save(array, np.zeros(4))
    np.savez(arrays, x=np.arange(4))
    cases = {
        "no archive": [b"PK\x03\x04 not an archive"],
        "empty": [b""],
        "an array": [array.getvalue()],
        "arrays of others": [arrays.getvalue()],
        "half": [good[: len(good) // 2]],
        "flipped": [flipped(good, at) for at in range(100, 180)],
    }
    for content in cases[kind]:
        path.write_bytes(content)
        with pytest.raises(InvalidInputError, match="state"):
            StateFile(path)
        assert path.read_bytes() == content


def test_a_state_that_cannot_be_written_is_refused_before_anything_is_drawn(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "nowhere" / "s.npz", tmp_path / "file" / "s.npz", tmp_path):
        with pytest.raises(InvalidInputError, match="state"):
            StateFile(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_the_last_state(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    state = StateFile(path)
    run(SAMPLER, LATTICE, SIZE, state=state)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InvalidInputError, match="No space left"):
        run(SAMPLER, LATTICE, 2 * SIZE, state=state)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["state.npz"]


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    """Kill −9 as soon as something is saved."""
    script = (
        "import sys; from ballsbins.accounting.monte_carlo import run, MonteCarlo; run._SAVE_SECONDS = 0.0;"
        "from ballsbins import BallsAndBins, Mechanism;"
        "print(Mechanism(BallsAndBins(100), 0.5, 2).delta(4.0, MonteCarlo(200_000, state=sys.argv[1])))"
    )
    path = tmp_path / "state.npz"
    with subprocess.Popen([sys.executable, "-c", script, str(path)]) as child:
        deadline = time.monotonic() + 100
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        child.kill()
    assert child.returncode == -signal.SIGKILL
    mechanism = Mechanism(BallsAndBins(100), 0.5, 2)
    resumed, whole = (mechanism.delta(4.0, MonteCarlo(200_000, state=file)) for file in (path, None))
    assert resumed.to_dict() == whole.to_dict()


def test_the_error_probability_is_shared_by_directions_sides_and_grid():
    """Each of four bounds has a quarter of β, at each point of a grid its share of that, and 9/10 as planned."""
    mechanism, grid = Mechanism(BallsAndBins(20), 0.7), np.array([0.5, 1.0, 2.0])
    whole = mechanism.delta(grid, MonteCarlo(5000, 0.01, sampler="plain", epsilons=tuple(grid)))
    single = mechanism.delta(grid, MonteCarlo(5000, 0.01 / 3, sampler="plain"))
    for way in ("remove", "add"):
        assert np.array_equal(whole.directions[way].upper, single.directions[way].upper)
        assert np.array_equal(whole.directions[way].lower, single.directions[way].lower)
    sampler = Plain(0.7, 20, "remove")
    found = run(sampler, Lattice.around(0.5, 2.0, 0.0), 5000)
    plain = found.log_delta(grid, 0.01 / 3 / 4)
    assert np.allclose(np.exp(plain.upper), single.directions["remove"].upper, rtol=1e-14, atol=0.0)
    mean = np.array([found.moments(float(e)).mean_high for e in grid])
    assert np.array_equal(plain.upper, confidence.log_kl_upper(mean, 5000, 0.9 * 0.01 / 3 / 4))


def test_no_answer_is_certain():
    bound = Mechanism(BallsAndBins(20), 0.7).delta(1.0, MonteCarlo(100, 1e-30))
    assert bound.confidence < 1.0


class Unnamed(Untilted):
    row = 1

    def losses(self, rng, count):
        return np.ones(3), np.ones(3)


def test_a_pair_that_is_not_told_apart_is_not_saved(tmp_path):
    """Where repr is an address, another pair may be found under it."""
    with pytest.raises(InvalidInputError, match="dataclass"):
        run(Unnamed(), LATTICE, 100, state=StateFile(tmp_path / "s.npz"))
    with pytest.raises(InvalidInputError, match=r"losses\(rng, count\)"):
        run(Unnamed(), LATTICE, 100)


class Fair(Untilted):
    """A loss that is infinite with probability 0.3: δ(ε) = 0.3 at every ε."""

    row = 2**12

    def losses(self, rng, count):
        loss = np.where(rng.random(count) < 0.3, np.inf, -np.inf)
        return loss, loss


@pytest.mark.slow
def test_coverage_of_runs_stopped_when_it_suits():
    """Stop as soon as the upper bound is below the truth if ever, else as planned: fails no more often than β."""
    beta, repetitions, failed = 0.25, 90, 0
    lattice = Lattice(0.0, 1.0, 2)

    def greedy(outcomes, over):
        outcome = outcomes[0]
        new = bool(outcome.looks) and outcome.looks[-1].count == outcome.tally.count
        if not over and new and outcome.log_delta(0.0, beta).upper[0] < math.log(0.3):
            raise KeyboardInterrupt

    for seed in range(repetitions):
        found = run(Fair(), lattice, 20 * block_size(Fair()), seed=seed, progress=greedy)
        failed += found.log_delta(0.0, beta).upper[0] < math.log(0.3)
    assert failed <= beta * repetitions + 5 * math.sqrt(beta * repetitions)


def test_method_object():
    mechanism = Mechanism(BallsAndBins(100), 0.5)
    truth = mechanism.delta(4.0)
    bound = mechanism.delta(4.0, method=MonteCarlo(samples=20_000, error_probability=1e-6))
    assert bound.confidence == 1 - 1e-6
    assert "Monte Carlo (tilted), 20,000 samples" in bound.method
    for direction in ("remove", "add"):
        one, two = bound.directions[direction], truth.directions[direction]
        assert one.lower <= two.upper
        assert two.lower <= one.upper
    assert bound.upper < 1.2 * truth.upper
    for sampler in ("plain", "importance", "order-statistics", "combined"):
        bound = mechanism.delta(1.0, method=MonteCarlo(5000, 1e-6, sampler=sampler))
        assert bound.lower <= mechanism.delta(1.0).upper
        assert bound.upper >= mechanism.delta(1.0).lower
        assert sampler in bound.method
    bernstein = mechanism.delta(4.0, method=MonteCarlo(20_000, 1e-6, bound="bernstein"))
    assert truth.lower <= bernstein.upper < 1.3 * truth.upper
    assert mechanism.delta(-1.0, method=MonteCarlo(1000)).lower >= 0.99 * (1 - math.exp(-1.0))


def test_epsilon_needs_a_grid_and_is_then_bounded():
    mechanism = Mechanism(BallsAndBins(50), 0.6)
    with pytest.raises(InvalidInputError, match="epsilons"):
        mechanism.epsilon(1e-5, method=MonteCarlo(1000))
    grid = tuple(np.arange(3.0, 6.0, 0.5))
    found = mechanism.epsilon(1e-5, method=MonteCarlo(5000, epsilons=grid))
    truth = mechanism.epsilon(1e-5).value
    assert found.lower <= truth <= found.upper
    assert found.upper - found.lower <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"samples": 0}, "samples"),
        ({"samples": 1.5}, "samples"),
        ({"error_probability": 0.0}, "error_probability"),
        ({"error_probability": 1.0}, "error_probability"),
        ({"seed": -1}, "seed"),
        ({"sampler": "best"}, "sampler"),
        ({"bound": "hoeffding"}, "bound"),
        ({"epsilons": (2.0, 1.0)}, "epsilons"),
        ({"epsilons": ()}, "epsilons"),
        ({"workers": 0}, "workers"),
        ({"looseness": 0.0}, "looseness"),
        ({"sampler": "plain", "orders": (1, 2)}, "orders"),
        ({"sampler": "tilted", "orders": (1, 2)}, "orders"),
    ],
)
def test_bad_settings_are_named(wrong, named):
    with pytest.raises(InvalidInputError, match=named):
        MonteCarlo(**wrong)


def test_what_it_is_not_for():
    with pytest.raises(InvalidInputError, match="balls-and-bins"):
        Mechanism(Poisson(10), 1.0).delta(1.0, method=MonteCarlo(100))
    with pytest.raises(InvalidInputError, match="unfinished epoch"):
        Mechanism(BallsAndBins(10), 1.0, 1, 5).delta(1.0, method=MonteCarlo(100))
    with pytest.raises(InvalidInputError, match=r"noise_multiplier is 0\.02, but must be at least 0\.04"):
        Mechanism(BallsAndBins(10), 0.02).delta(1.0, method=MonteCarlo(100))
    with pytest.raises(InvalidInputError, match=r"noise_multiplier/√epochs.* is 0\.025"):
        Mechanism(BallsAndBins(10, redraw=False), 0.25, 100).delta(1.0, method=MonteCarlo(100))


def command(*words):
    return CliRunner().invoke(app, list(words))


def test_the_papers_own_choices_on_the_command_line():
    """Its samplers, bounds, orders and grids give what the method object gives."""
    words = [
        "delta",
        "-s",
        "0.6",
        "-T",
        "50",
        "-e",
        "3",
        "--method",
        "monte-carlo",
        "--samples",
        "2000",
        "--json",
    ]
    chosen = ["--draw", "order-statistics", "--orders", "1,2,3,10,30", "--confidence-bound", "bernstein"]
    found = command(*words, *chosen, "--grid", "2:4:3")
    method = MonteCarlo(
        2000,
        sampler="order-statistics",
        orders=(1, 2, 3, 10, 30),
        bound="bernstein",
        epsilons=(2.0, 3.0, 4.0),
    )
    assert json.loads(found.stdout)["upper"] == Mechanism(BallsAndBins(50), 0.6).delta(3.0, method).upper
    found = command(*words, "--draw", "combined")
    method = MonteCarlo(2000, sampler="combined")
    assert json.loads(found.stdout)["upper"] == Mechanism(BallsAndBins(50), 0.6).delta(3.0, method).upper
    paper = [
        "delta",
        "-s",
        "0.4",
        "-T",
        "4517",
        "-e",
        "3",
        "--method",
        "monte-carlo",
        "--samples",
        "100",
        "--json",
    ]
    found = command(*paper, "--draw", "order-statistics", "--orders", "C, T=4517")
    method = MonteCarlo(100, sampler="order-statistics", orders="C, T=4517")
    assert json.loads(found.stdout)["upper"] == Mechanism(BallsAndBins(4517), 0.4).delta(3.0, method).upper


def test_epsilon_by_monte_carlo_on_the_command_line():
    words = ["epsilon", "-s", "0.6", "-T", "50", "-d", "1e-5", "--method", "monte-carlo", "--samples", "3000"]
    found = json.loads(command(*words, "--grid", "3,3.5,4,4.5,5,5.5", "--json").stdout)
    assert found["lower"] <= Mechanism(BallsAndBins(50), 0.6).epsilon(1e-5).value <= found["upper"]
    assert "--grid" in str(command(*words).exception)
    assert "from:to:points" in str(command(*words, "--grid", "1:2").exception)
    assert "--draw is 'plain'" in str(
        command("delta", "-s", "1", "-T", "9", "-e", "1", "--draw", "plain").exception
    )


def test_command_line(tmp_path):
    state = tmp_path / "s.npz"
    words = ["delta", "-s", "0.5", "-T", "50", "-e", "3", "--method", "monte-carlo", "--samples", "2000"]
    words += ["--error-prob", "1e-3", "--seed", "7", "--state", str(state), "--json"]
    first = command(*words)
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["confidence"] == 0.999
    assert state.exists()
    assert command(*words).output == first.output
    assert "--samples is 9" in str(
        command("delta", "-s", "0.5", "-T", "50", "-e", "3", "--samples", "9").exception
    )


def test_points_far_apart_do_not_share_a_lattice():
    """Tilted samples are for one ε each; plain ones serve all that one lattice holds."""
    mechanism, points = Mechanism(BallsAndBins(100), 10.0), np.array([0.3, 0.1, 0.2])
    tilted = curve_of(mechanism, MonteCarlo(1000))._groups(points, "remove", np.zeros(3))
    assert sorted(tilted.values()) == [[0], [1], [2]]
    found = mechanism.delta(points, MonteCarlo(1000)).upper
    assert found[0] < found[2] < found[1]
    plain = curve_of(mechanism, MonteCarlo(100, sampler="plain"))
    groups = plain._groups(np.array([-700.0, 0.0, 700.0]), "remove", np.zeros(3))
    assert list(groups.values()) == [[0], [1], [2]]
    assert max(job.lattice.size for job in groups) < 2**20
    assert list(plain._groups(np.array([-20.0, 20.0]), "remove", np.zeros(2)).values()) == [[0, 1]]


def test_a_long_plan_is_not_held_in_memory():
    """10⁹ blocks on two workers: interrupted at once, it has planned little more than it has drawn."""
    pytest.importorskip("joblib")
    tracemalloc.start()
    try:
        found = run(SAMPLER, LATTICE, 10**9 * SIZE, workers=2, progress=stop_after(1))
        assert tracemalloc.get_traced_memory()[1] < 64e6
    finally:
        tracemalloc.stop()
    assert found.tally.count >= SIZE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Dask's own parts
def test_the_answer_is_the_same_on_a_dask_cluster():
    joblib = pytest.importorskip("joblib")
    dask = pytest.importorskip("dask.distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with (
        dask.LocalCluster(**options) as cluster,
        dask.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        found = run(SAMPLER, LATTICE, SAMPLES, seed=5, workers=2)
    assert same(found, run(SAMPLER, LATTICE, SAMPLES, seed=5))


@pytest.mark.parametrize(
    "sampler",
    [
        Plain(0.3, 3_000_000, "remove"),
        Epochs(Plain(1.0, 2000, "add"), 20),
        TiltedAdd(0.5, 200_000, 3.0, 0.05),
        Tilted(0.3, 10**12, "remove", 0.01),
        Tilted(1.0, 5000, "remove", 0.3, 3),
        Tilted(0.05, 1000, "add", 161.0),
        Unfinished(((1_000_000, 0.5),), 2_000_000, "remove"),
    ],
    ids=repr,
)
def test_memory_does_not_grow_with_steps_or_epochs(sampler):
    lattice = SHARES if isinstance(sampler, running.TILTED) else Lattice.around(1.0, 1.0, sampler.tilt)
    sampler.losses(np.random.default_rng(1), 1)  # tables are built once
    tracemalloc.start()
    try:
        run(sampler, lattice, min(2 * block_size(sampler), 20_000))
        assert tracemalloc.get_traced_memory()[1] < 64e6
    finally:
        tracemalloc.stop()
