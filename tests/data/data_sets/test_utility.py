"""The paper's utility experiment: its sweep, its statistics, and the full form on a small data set."""

import importlib.util
import io
import json

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from ballsbins import InvalidInputError
from ballsbins.cli import app
from ballsbins.data.criteo import SPONSORED_SEARCH, generate, prepare
from ballsbins.reproduce import FalseClaimError, directory

spec = importlib.util.spec_from_file_location("utility", directory() / "utility.py")
utility = importlib.util.module_from_spec(spec)
spec.loader.exec_module(utility)


def planted(gap_tiny, gap_large, noise=0.001, seed=0):
    """Points of the quick form in which Poisson is behind by so much, and the other two are alike."""
    random, settings = np.random.default_rng(seed), utility.SCALES["quick"]
    found = []
    for size, sigma in utility.points(settings):
        start = random.normal(0.8, 0.002, 3)  # what a pair of runs shares
        for name in utility.SAMPLERS:
            gap = 0.0 if name != "Poisson" else gap_tiny if sigma <= utility.TINY else gap_large
            auc = start - gap + random.normal(0.0, noise, 3)
            found.append(
                {"sampler": name, "batch_size": size, "noise_multiplier": sigma, "auc": auc.tolist()}
            )
    return found


def test_verdicts_find_what_is_there_and_only_that():
    """As the paper says; then Poisson alike everywhere, ahead, and behind at large noise too."""
    assert all(verdict["shows"] for verdict in utility.judge(planted(0.01, 0.0)))
    alike = {verdict["claim"]: verdict["shows"] for verdict in utility.judge(planted(0.0, 0.0))}
    assert not any(shows for claim, shows in alike.items() if "above Poisson" in claim)
    assert all(shows for claim, shows in alike.items() if "within" in claim)
    ahead = utility.judge(planted(-0.01, 0.0))
    assert not any(verdict["shows"] for verdict in ahead if "above Poisson" in verdict["claim"])
    behind = [
        v
        for v in utility.judge(planted(0.01, 0.01))
        if v["claim"].startswith("σ >") and "Poisson" in v["claim"]
    ]
    assert len(behind) == 2
    assert not any(verdict["shows"] for verdict in behind)
    noisy = utility.judge(planted(0.01, 0.0, noise=0.05))  # nothing can be said, and nothing is
    assert not any(verdict["shows"] for verdict in noisy)


def test_claims_fail_where_their_contrary_shows_and_where_they_must_show():
    console = Console(file=io.StringIO())
    verdicts = utility.judge(planted(0.0, 0.0))
    assert not any(verdict["contrary_shows"] for verdict in verdicts)
    utility.state(verdicts, console, must_show=False)
    assert "does not show here" in console.file.getvalue()
    with pytest.raises(FalseClaimError, match="above Poisson"):
        utility.state(verdicts, console, must_show=True)
    with pytest.raises(FalseClaimError, match="above Poisson"):
        utility.state(utility.judge(planted(-0.01, 0.0)), console, must_show=False)
    with pytest.raises(FalseClaimError, match=r"σ > 0.001.* within 0.005 of Poisson"):
        utility.state(utility.judge(planted(0.01, 0.02)), console, must_show=False)
    utility.state(utility.judge(planted(0.01, 0.0)), console, must_show=True)


def test_axis_is_logarithmic_below_and_linear_above():
    places = [utility.position(sigma) for sigma in utility.PAPER_NOISE]
    assert places == pytest.approx([-4, -3, -2, -1, 0, 1, 2, 3])


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """Sponsored search, prepared from a file as a user has it, with small tables."""
    folder = tmp_path_factory.mktemp("search")
    file = generate(folder / "s", SPONSORED_SEARCH, 300).path
    prepare(file, folder / "d", SPONSORED_SEARCH, max_buckets=30)
    return folder / "d"


@pytest.mark.slow
def test_full_form_on_small_data_can_be_killed_and_continued(tmp_path, search):
    """Less of its grids, a small network, small batches; no validation split, so chosen on the test split."""
    settings = utility.SCALES["full"]._replace(
        batch_sizes=(64,), private_batch_sizes=(64,), noise=(0.4,), learning_rates=(1e-3, 1e-2),
        private_learning_rates=(1e-2,), clip_norms=(1.0, 10.0), runs=2, targets=(), embedding_dim=2, hidden=(8, 8),
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=200)

    def go(out):
        ((_, memory, facts),) = utility.load(settings, search)
        out.mkdir(exist_ok=True)
        points, equal = utility.compute(memory, settings, out / "utility.runs.jsonl", facts)
        assert equal == []
        return points, (out / "utility.runs.jsonl").read_text().splitlines()

    points, lines = go(tmp_path / "a")
    # three samplers, at each point two of the grid and one more run of the best
    assert len(lines) == 1 + 3 * (2 + 1) + 3 * (2 + 1)
    assert len(points) == 6
    assert all(len(point["auc"]) == 2 for point in points)
    private = {point["sampler"]: point for point in points if point["noise_multiplier"] > 0}
    assert (
        private["balls-and-bins"]["epsilon_without_truncation"]
        < private["shuffle"]["epsilon_without_truncation"]
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "utility.runs.jsonl").write_text("\n".join(lines[:7]) + "\n" + lines[7][:40])
    again, continued = go(tmp_path / "b")
    assert again == points  # bit by bit what it would have been
    assert continued[:7] == lines[:7]
    assert len(continued) == len(lines)
    utility.table(points, settings.delta, console)
    assert "balls-and-bins" in console.file.getvalue()


def test_full_form_needs_data(tmp_path):
    with pytest.raises(InvalidInputError, match="ballsbins data prepare"):
        utility.run("full", tmp_path, Console(file=io.StringIO()))


def test_other_experiments_take_no_data(tmp_path):
    done = CliRunner().invoke(app, ["reproduce", "crossover", "--data", str(tmp_path)])
    assert isinstance(done.exception, InvalidInputError)
    assert "Only utility takes data" in str(done.exception)


def test_committed_results_are_of_the_quick_form():
    saved = json.loads((directory() / "results" / "utility.json").read_text())
    assert saved["scale"] == "quick"
    assert [each["name"] for each in saved["data_sets"]] == ["display ads", "sponsored search"]
    for each in saved["data_sets"]:
        assert each["verdicts"] == utility.judge(each["points"])
        utility.state(each["verdicts"], Console(file=io.StringIO()), must_show=True)


def test_noise_without_room_on_the_grid_is_left_out():
    """As the trainer refuses it: 400 · 2²⁶/10⁻⁵ is above 2⁵¹."""
    assert not utility.fits(256, 1e-5, 48_000)
    assert utility.fits(256, 3e-5, 48_000)
    assert utility.fits(256, 0.0, 48_000)
    quick = utility.SCALES["quick"]
    assert all(utility.fits(*point, 48_000) for point in utility.points(quick))
    full = utility.SCALES["full"]
    left_out = {point for point in utility.points(full) if not utility.fits(*point, 37_000_000)}
    assert left_out == {(1024, 1e-5), (8192, 1e-5), (8192, 1e-4)}
