"""The ledger: no step of a killed process is forgotten, and a file that is not the run's is refused."""

from __future__ import annotations

import errno
import json
import math
import os

import pytest
import torch
from opacus import PrivacyEngine

from ballsbins import BallsAndBins, Mechanism, Poisson
from ballsbins.errors import DataError, InvalidInputError, RunError
from ballsbins.report import Card
from ballsbins.samplers import new_key

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG turned off")
MECHANISM = Mechanism(BallsAndBins(5), 1.0, epochs=2)
DELTA = 1e-5


class Runs:
    """Processes of one run, one after the other, that keep a ledger."""

    def __init__(self, training, weighted, path):
        self.training, self.dataset, self.path, self.key = training, weighted(30), path, new_key()

    def start(self, state=None, mechanism=MECHANISM, **options):
        run = self.training(mechanism, self.dataset, **{"key": self.key, "ledger": self.path} | options)
        if state is not None:
            run.optimizer.load_state_dict(state)
        return run

    def lines(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def take(run, steps):
    """Take so many steps; gives the state after each."""
    states = []
    while len(states) < steps:
        for batch in run.loader:
            run.step(batch)
            states.append(run.optimizer.state_dict())
            if len(states) == steps:
                break
    return states


@pytest.fixture
def runs(training, weighted, tmp_path):
    return Runs(training, weighted, tmp_path / "run.ledger")


def test_every_step_is_written_down(runs):
    run = runs.start()
    assert not runs.path.exists()  # nothing was run yet
    take(run, 7)
    first, *steps = runs.lines()
    state = run.loader.state_dict()
    assert (first["ledger"], first["run"], first["key_commitment"]) == (
        1,
        state["run"],
        runs.key.commitment(),
    )
    assert Mechanism.from_dict(first["mechanism"]) == MECHANISM
    assert [line["step"] for line in steps] == list(range(7))
    assert {line["noise"] for line in steps} == {state["last_noise"]}


def test_a_step_is_on_the_disk_before_its_noise_exists(runs, monkeypatch):
    from ballsbins.training.torch import optimizer

    run = runs.start()
    seen = []

    def watch(parameters, noise, unit):
        seen.append(len(runs.lines()))
        raise KeyboardInterrupt

    monkeypatch.setattr(optimizer, "write_gradients", watch)
    with pytest.raises(KeyboardInterrupt):
        take(run, 1)
    assert seen == [2]  # the first line, and the step


def test_a_line_that_is_written_in_part_is_not_a_step(runs, monkeypatch):
    """A disk that is nearly full takes some bytes, then none: the step is not taken, and the ledger stays whole."""
    from ballsbins.training.torch import ledger

    run = runs.start()
    take(run, 2)
    before, own, written = runs.path.read_bytes(), os.write, []

    def full(descriptor, raw):
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(own(descriptor, raw[:10]))
        return written[-1]

    monkeypatch.setattr(ledger.os, "write", full)
    with pytest.raises(DataError, match=r"No space left.*the step is not taken"):
        take(run, 1)
    monkeypatch.undo()
    assert written == [10]
    assert runs.path.read_bytes() == before
    assert run.loader.as_run().total_steps == 2


def test_a_line_may_take_several_writes(runs, monkeypatch):
    from ballsbins.training.torch import ledger

    own = os.write
    monkeypatch.setattr(ledger.os, "write", lambda descriptor, raw: own(descriptor, raw[:7]))
    take(runs.start(), 3)
    assert [line["step"] for line in runs.lines()[1:]] == [0, 1, 2]


def test_resuming_at_the_mark_needs_no_word(runs):
    states = take(runs.start(), 3)
    run = runs.start(states[-1])
    take(run, 7)
    assert [line["step"] for line in runs.lines()[1:]] == list(range(10))
    assert len({line["noise"] for line in runs.lines()[1:]}) == 2  # each process has noise of its own
    card = run.loader.card(DELTA)
    assert (card.mechanism, card.not_covered) == (MECHANISM, ())


def test_lost_steps_need_a_word(runs):
    states = take(runs.start(), 6)
    with pytest.raises(RunError, match=r"of step 4, but 6 steps were taken.*2 of them are lost.*lost_steps="):
        runs.start(states[3])


def test_lost_steps_that_nobody_saw(runs):
    states = take(runs.start(), 6)
    run = runs.start(states[3], lost_steps="unpublished")
    take(run, 6)
    card = run.loader.card(DELTA)
    assert card.mechanism == MECHANISM
    assert "Steps 4 to 5 " in card.not_covered[0]
    assert "nothing of them was or will be shown" in card.not_covered[0]
    assert runs.lines()[7] == {"resume": 4, "lost": "unpublished"}


def test_lost_steps_that_count(runs):
    states = take(runs.start(), 6)
    run = runs.start(states[3], lost_steps="accounted")
    accounted = run.loader.as_run()
    assert accounted.total_steps == 6  # the lost ones were taken, whatever comes now
    assert accounted.noise_multiplier == pytest.approx(1 / math.sqrt(2), rel=1e-12)
    assert accounted.noise_multiplier <= 1 / math.sqrt(2)
    take(run, 6)
    card = run.loader.card(DELTA)
    assert card.mechanism == run.loader.as_run()
    assert card.mechanism.total_steps == 10
    assert card.claim.upper == run.loader.accountant.get_epsilon(DELTA)
    assert card.claim.upper > 1.3 * MECHANISM.epsilon(DELTA).upper
    assert "divided by √2" in card.details["repeated_steps"]
    assert run.loader.mechanism == MECHANISM
    assert run.loader.accountant.history == [(accounted.noise_multiplier, 0.2, 10)]
    card.statement()

    again = runs.start(states[3], lost_steps="accounted")  # a second time
    assert again.loader.as_run().noise_multiplier == pytest.approx(1 / math.sqrt(3), rel=1e-12)
    take(again, 1)
    later = runs.start(again.optimizer.state_dict())  # what was counted stays counted
    assert later.loader.as_run().noise_multiplier == pytest.approx(1 / math.sqrt(3), rel=1e-12)


def test_what_is_counted_survives_in_checkpoints_without_the_ledger(runs, tmp_path):
    engine = PrivacyEngine(accountant="ballsbins")
    states = take(runs.start(), 4)
    run = runs.start(states[1], lost_steps="accounted", engine=engine)
    take(run, 1)
    other = runs.start(run.optimizer.state_dict(), ledger=None)
    assert other.loader.as_run() == run.loader.as_run()
    assert other.loader.as_run().total_steps == 4

    from ballsbins.training.opacus_history import read_history

    engine.save_checkpoint(path=tmp_path / "ours.pt", module=run.model)
    assert read_history(tmp_path / "ours.pt").mechanism == run.loader.as_run()


def test_a_stopped_epoch_states_what_was_planned(runs):
    states = take(runs.start(), 3)
    run = runs.start(states[0], lost_steps="accounted")
    card = run.loader.card(DELTA)
    assert card.planned.epochs == 2
    assert Card.from_dict(json.loads(json.dumps(card.to_dict()))).mechanism == card.mechanism


def test_without_a_ledger_the_card_says_so(runs):
    states = take(runs.start(ledger=None), 3)
    run = runs.start(states[-1], ledger=None)
    take(run, 7)
    assert "no ledger was kept" in run.loader.card(DELTA).not_covered[0]
    assert not runs.path.exists()


def test_a_checkpoint_of_a_way_that_was_given_up_is_refused(runs):
    """It has as many steps as the ledger, but they are not those of the run as it is now."""
    states = take(runs.start(), 6)
    take(runs.start(states[1], lost_steps="unpublished"), 5)
    with pytest.raises(RunError, match=r"step 5 is not on the way that the ledger"):
        runs.start(states[4])


def test_a_ledger_below_the_checkpoint_is_refused(runs):
    states = take(runs.start(), 4)
    whole = runs.path.read_bytes()
    runs.path.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    with pytest.raises(RunError, match=r"of step 4, but the ledger .* knows of 2 steps"):
        runs.start(states[-1])
    runs.path.unlink()
    with pytest.raises(RunError, match="knows of 0 steps"):
        runs.start(states[-1])


def test_half_a_last_line_is_dropped(runs):
    states = take(runs.start(), 4)
    with runs.path.open("ab") as file:
        file.write(b'{"step": 4, "noi')
    run = runs.start(states[-1])
    take(run, 2)
    assert [line["step"] for line in runs.lines()[1:]] == list(range(6))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (2, "not JSON"),
        (2, '{"step": 7, "noise": "x"}'),
        (2, '{"step": 1}'),
        (2, '{"step": 1, "noise": 5}'),
        (2, '{"resume": 9, "lost": "accounted"}'),
        (2, '{"resume": 0, "lost": "eaten"}'),
        (2, '{"resume": "0", "lost": "accounted"}'),
        (2, "[1]"),
        (0, '{"ledger": 1}'),
        (0, '{"ledger": 1, "run": 3, "key_commitment": "", "mechanism": 4}'),
        (0, "\xff\xfe"),
    ],
)
def test_a_damaged_ledger_is_refused(runs, line, text):
    states = take(runs.start(), 4)
    lines = runs.path.read_text().splitlines()
    lines[line] = text
    runs.path.write_text("\n".join(lines) + "\n", encoding="latin-1")
    with pytest.raises(DataError, match=rf"Line {line + 1} of the ledger .* is damaged"):
        runs.start(states[-1])


def test_ledgers_of_something_else_are_refused(runs, tmp_path):
    states = take(runs.start(), 2)
    with pytest.raises(RunError, match="of another key"):
        runs.start(key=new_key())
    for other in (Mechanism(BallsAndBins(5), 1.5, epochs=2), Mechanism(Poisson(5), 1.0, epochs=2)):
        with pytest.raises(RunError, match="of another mechanism"):
            runs.start(mechanism=other)
    runs.start(states[-1], mechanism=Mechanism(BallsAndBins(5), 1.0, epochs=3))  # a longer run is the same
    fresh = runs.start()  # another run of the same key: nobody loaded the checkpoint
    with pytest.raises(RunError, match=r"is that of run .* but this is run"):
        take(fresh, 1)
    other = take(runs.start(ledger=tmp_path / "other"), 2)
    with pytest.raises(RunError, match="is that of run"):
        runs.start(other[-1])
    runs.path.write_text('{"ledger": 9}\n')
    with pytest.raises(DataError, match="not a ledger of this version"):
        runs.start()
    with pytest.raises(DataError, match="cannot be read"):
        runs.start(ledger=tmp_path)
    with pytest.raises(DataError, match="cannot be written"):
        take(runs.start(ledger=tmp_path / "no" / "folder"), 1)


def test_a_run_that_goes_on_twice_is_seen(runs):
    states = take(runs.start(), 2)
    one, two = runs.start(states[-1]), runs.start(states[-1])
    take(one, 1)
    before = two.vector()
    with pytest.raises(RunError, match="Somebody else has written to the ledger"):
        take(two, 1)
    assert torch.equal(two.vector(), before)


def test_a_word_without_use_is_refused(runs):
    with pytest.raises(InvalidInputError, match="lost_steps is 'forgotten'"):
        runs.start(lost_steps="forgotten")
    with pytest.raises(InvalidInputError, match="left out without a ledger"):
        runs.start(ledger=None, lost_steps="accounted")


def test_steps_that_repeat_bit_for_bit_cost_nothing(runs):
    """With a fingerprint lost steps are taken again as they were; the ledger holds each against its first time."""
    options = {"data_fingerprint": "thirty examples", "lr": 0.1}
    first = runs.start(**options)
    (state,) = take(first, 1)
    weights = {name: value.clone() for name, value in first.net.state_dict().items()}
    take(first, 5)
    for steps in (2, 5):  # killed once more on the way
        second = runs.start(state, **options)
        second.net.load_state_dict(weights)
        take(second, steps)
    assert torch.equal(first.vector(), second.vector())
    card = second.loader.card(DELTA)
    assert card.not_covered == ()
    assert card.mechanism.noise_multiplier == 1.0
    assert runs.lines().count({"resume": 1, "lost": "repeat"}) == 2


def test_steps_that_do_not_repeat_are_refused_before_they_are_taken(runs):
    states = take(runs.start(data_fingerprint="one", lr=0.1), 4)
    run = runs.start(states[1], data_fingerprint="another", lr=0.1)
    before = run.vector()
    with pytest.raises(
        RunError, match=r"Step 2 was taken before, and lost; it cannot be repeated.*lost_steps="
    ):
        take(run, 1)
    assert torch.equal(run.vector(), before)
    accounted = runs.start(states[1], data_fingerprint="another", lr=0.1, lost_steps="accounted")
    take(accounted, 1)
    assert accounted.loader.as_run().noise_multiplier < 0.71
