"""Numbers in the answers of commands: as they were written, or rounded conservatively, in one form everywhere."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, InvalidInputError, Mechanism
from ballsbins.ask import interval, meaning
from ballsbins.cli import app
from ballsbins.comparison import at_equal_noise, crossover


def shown(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None:
        raise done.exception
    return " ".join(done.stdout.split())


def test_what_was_chosen_is_shown_as_written_or_rounded_up():
    long = 1.23456123e-6
    for words in (
        ("epsilon", "-s", 0.6, "-T", 100),
        ("compare", "-s", 0.6, "-T", 100),
        ("calibrate", "-T", 100, "-e", 2),
        ("plan", "-n", 100, "-b", 10, "-e", 2),
    ):
        assert "at δ = 1e-6" in shown(*words, "-d", 1e-6)
        assert "at δ = 1.23457e-6" in shown(*words, "-d", long)
    assert "at ε = 1.23457" in shown("delta", "-s", 0.6, "-T", 100, "-e", 1.23456123)
    assert "for ε ≤ 1.23457 at" in shown("calibrate", "-T", 100, "-e", 1.23456123, "-d", 1e-6)
    assert "1 epoch for" in shown(
        "calibrate", "-s", 0.6, "-T", 100, "-e", 4.5, "-d", 1e-6, "--find", "epochs"
    )


def test_the_crossover_is_stated_where_it_is_proved():
    mechanisms = at_equal_noise(Mechanism(BallsAndBins(10_000), 0.5))
    found = crossover(mechanisms["balls-and-bins"], mechanisms["Poisson"])
    text = shown("compare", "-s", 0.5, "-T", 10_000, "-d", 1e-6)
    left, right = text.partition("up to ε = ")[2].rstrip(".").split(", below it from ")
    assert found.left * (1 - 1e-3) <= float(left) <= found.left
    assert found.right <= float(right) <= found.right * (1 + 1e-3)


def test_without_noise_nothing_is_better_than_anything():
    runs = at_equal_noise(Mechanism(BallsAndBins(100), 0.01))
    none = {name: mechanism.epsilon(1e-6) for name, mechanism in runs.items()}
    assert {interval(bound) for bound in none.values()} == {"700 … ∞"}
    assert "no way to draw batches protects anybody" in meaning(none, 1e-6)
    assert "better than Poisson" not in shown("compare", "-s", 1e6, "-T", 100, "-d", 1e-6)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("compare", "-d", 1e-6, "-o", "no/c.png"), "directory that exists"),
        (("compare", "-d", 1e-6, "-o", "c.txt"), "a file ending in .png"),
        (("curve", "-o", "no/c.csv"), "directory that exists"),
        (("curve", "-o", "d.json"), "the name of a file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(
    words, name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.json").mkdir()
    with pytest.raises(InvalidInputError) as caught:
        shown(*words, "-s", 0.5, "-T", 10)
    assert name in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["d.json"]
