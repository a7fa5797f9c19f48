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
from ballsbins.accounting.monte_carlo.conditional import Conditional
from ballsbins.accounting.monte_carlo.epochs import Epochs
from ballsbins.accounting.monte_carlo.estimate import Lattice
from ballsbins.accounting.monte_carlo.pairs import Untilted
from ballsbins.accounting.monte_carlo.plain import Plain
from ballsbins.accounting.monte_carlo.run import Job, block_size
from ballsbins.accounting.monte_carlo.state import StateFile
from ballsbins.accounting.monte_carlo.tilted import TiltedRemove
from ballsbins.accounting.monte_carlo.tilted_add import TiltedAdd
from ballsbins.accounting.monte_carlo.unfinished import Unfinished
from ballsbins.cli import app

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
        and one.look == two.look
        and np.array_equal(one.looked.high, two.looked.high)
    )


def test_one_seed_one_answer():
    one = run(SAMPLER, LATTICE, SAMPLES, seed=5)
    assert one.tally.count == SAMPLES
    assert one.look == 3  # after 8 of 10 blocks
    assert one.looked.count == 8 * SIZE
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
    assert not part.as_planned
    resumed = run(SAMPLER, LATTICE, SAMPLES, seed=5, state=StateFile(path))
    assert same(whole, resumed)
    assert resumed.as_planned
    assert resumed.log_delta(0.1, 1e-3).upper == whole.log_delta(0.1, 1e-3).upper
    assert [p.name for p in tmp_path.iterdir()] == ["state.npz"]


def test_another_question_is_not_resumed(tmp_path):
    path = tmp_path / "state.npz"
    run(SAMPLER, LATTICE, SAMPLES, seed=5, state=StateFile(path))
    assert same(
        run(SAMPLER, LATTICE, SAMPLES, seed=6, state=StateFile(path)), run(SAMPLER, LATTICE, SAMPLES, seed=6)
    )


def test_an_extended_run_is_judged_at_its_last_look(tmp_path):
    path = tmp_path / "state.npz"
    planned = run(SAMPLER, LATTICE, SAMPLES, seed=5, state=StateFile(path))
    longer = run(SAMPLER, LATTICE, 4 * SAMPLES, seed=5, state=StateFile(path))
    assert longer.tally.count == 4 * SAMPLES
    assert not longer.as_planned
    assert longer.looked.count == 32 * SIZE
    fresh = run(SAMPLER, LATTICE, 4 * SAMPLES, seed=5)
    assert same(longer, fresh)
    assert fresh.log_delta(0.1, 1e-3).upper < longer.log_delta(0.1, 1e-3).upper
    assert planned.as_planned
    with pytest.raises(InvalidInputError, match="state file"):
        run(SAMPLER, LATTICE, SIZE, seed=5, state=StateFile(path))


def test_an_interrupted_run_gives_a_wider_bound_and_none_before_the_first_look():
    whole = run(SAMPLER, LATTICE, SAMPLES, seed=5)
    part = run(SAMPLER, LATTICE, SAMPLES, seed=5, progress=stop_after(5))
    early, late = part.log_delta(0.1, 1e-3), whole.log_delta(0.1, 1e-3)
    assert early.lower < late.lower < late.upper < early.upper < 0.0
    nothing = running.Outcome(SAMPLER, whole.tally, -1, whole.looked, 2 * SAMPLES, 2 * SAMPLES)
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
    beta, repetitions, failed = 0.25, 150, 0
    lattice = Lattice(0.0, 1.0, 2)

    def greedy(outcomes, over):
        outcome = outcomes[0]
        new = outcome.looked.count == outcome.tally.count
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


def test_command_line(tmp_path):
    state = tmp_path / "s.npz"
    words = ["delta", "-s", "0.5", "-T", "50", "-e", "3", "--method", "monte-carlo", "--samples", "2000"]
    words += ["--error-prob", "1e-3", "--seed", "7", "--state", str(state), "--json"]
    first = command(*words)
    assert first.exit_code == 0, first.output
    assert json.loads(first.output)["confidence"] == 0.999
    assert state.exists()
    assert command(*words).output == first.output
    assert "samples" in str(command("delta", "-s", "0.5", "-T", "50", "-e", "3", "--samples", "9").exception)


def test_verify_agrees_and_fails_loudly(monkeypatch):
    words = ["verify", "-s", "0.5", "-T", "50", "-e", "3", "--samples", "20000"]
    good = command(*words)
    assert good.exit_code == 0, good.output
    assert "agree" in good.output

    log_weight = property(lambda self: math.log(1.5))
    monkeypatch.setattr("ballsbins.accounting.monte_carlo.conditional.Conditional.log_weight", log_weight)
    bad = command(*words)
    assert bad.exit_code == 1
    assert "DISJOINT" in bad.output
    assert "VERIFICATION FAILED" in bad.output


def test_verify_wants_a_probability_for_all_points_together():
    words = ["verify", "-s", "0.5", "-T", "50", "-e", "3", "-e", "4", "--error-prob", "1.5"]
    assert "error_probability is 1.5" in str(command(*words).exception)


def test_points_far_apart_do_not_share_a_lattice():
    """At σ = 10 all have the steepest tilt there is, and need a fine lattice; plain samples serve all ε."""
    mechanism, points = Mechanism(BallsAndBins(100), 10.0), np.array([600.0, 1.0, 100.0, 1.001])
    curve = MonteCarlo(100).curve(mechanism)
    groups = curve._groups(points, "remove", np.zeros(4))
    assert sorted(groups.values()) == [[0], [1, 3], [2]]
    assert max(job.lattice.size for job in groups) < 2**22
    found = mechanism.delta(points, MonteCarlo(100)).upper
    assert found[0] <= found[2] < found[3] <= found[1]
    plain = MonteCarlo(100, sampler="plain").curve(mechanism)
    assert list(plain._groups(np.array([-700.0, 700.0]), "remove", np.zeros(2)).values()) == [[0, 1]]


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
        TiltedAdd(0.5, 200_000, 3.0),
        TiltedRemove(0.3, 10**12, 2, (1, 2, 3, 10, 1000, 10**6, 10**11)),
        Conditional(1.0, 5000, 16),
        Unfinished(((1_000_000, 0.5),), 2_000_000, "remove"),
    ],
    ids=repr,
)
def test_memory_does_not_grow_with_steps_or_epochs(sampler):
    kinds = isinstance(sampler, Conditional)
    lattice = sampler.lattice(1.0, 1.0) if kinds else Lattice.around(1.0, 1.0, sampler.tilt)
    sampler.losses(np.random.default_rng(1), 1)  # tables are built once
    tracemalloc.start()
    try:
        run(sampler, lattice, min(2 * block_size(sampler), 20_000))
        assert tracemalloc.get_traced_memory()[1] < 64e6
    finally:
        tracemalloc.stop()
