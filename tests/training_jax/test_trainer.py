"""Whole runs: what they compute, what they refuse, and what they leave behind."""

import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

from ballsbins import BallsAndBins, Deterministic, Key, Mechanism, Poisson, Shuffle, new_key
from ballsbins.data.dataset import Features
from ballsbins.errors import DataError, InvalidInputError, RunError, SecretError, UnreachableTargetError
from ballsbins.report import Card
from ballsbins.training.jax import checkpoint, trainer
from ballsbins.training.jax import noise_binding as binding
from ballsbins.training.jax import training_run as run_module
from ballsbins.training.jax.batches import FromMemory
from ballsbins.training.jax.checkpoint import load
from ballsbins.training.jax.trainer import DivergedError, InMemory, load_model, train
from ballsbins.training.machine_check import MachineCheck

SEED = 4


def same(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


@pytest.fixture(scope="module")
def whole(data, plan):
    """The run from beginning to end."""
    return train(data, plan, key=SEED)


@pytest.mark.parametrize("kind", [BallsAndBins, Poisson, Shuffle, Deterministic])
def test_every_sampler_learns_without_noise(data, plan, kind):
    limit = {"max_batch_size": 60, "num_examples": 240} if kind in (BallsAndBins, Poisson) else {}
    free = replace(
        plan, sampler=kind(12, **limit), noise_multiplier=0.0, clip_norm=None, epochs=8, learning_rate=0.02
    )
    result = train(data, free, key=1, delta=1e-5)
    assert result.metrics["test_auc"] > 0.8
    assert result.mechanism is None
    assert result.card is None
    clipped = train(data, replace(free, clip_norm=0.5), key=1)
    assert clipped.metrics["test_auc"] > 0.75
    assert not same(result.parameters, clipped.parameters)


def test_the_same_key_gives_the_same_parameters(data, plan, whole):
    assert same(whole.parameters, train(data, plan, key=SEED).parameters)
    assert not same(whole.parameters, train(data, plan, key=SEED + 1).parameters)


def test_noise_is_added_in_every_step(data, plan):
    """Two runs that differ in σ alone are apart after one step already."""
    first, second = (
        train(data, replace(plan, noise_multiplier=sigma), key=SEED, stop_after=1) for sigma in (0.0, 0.7)
    )
    assert not same(first.parameters, second.parameters)


def test_every_step_has_noise_of_its_own(data, plan):
    """Adam walks steadily along noise that repeats, and at random along noise that does not."""
    loud = replace(plan, noise_multiplier=1e4, learning_rate=1e-3)
    begun, ended = (train(data, loud, key=SEED, stop_after=stop).parameters for stop in (0, 24))
    rates = 0.5e-3 * (1 + np.cos(np.pi * np.arange(24) / 24))
    moved = np.concatenate(
        [
            np.ravel(b) - np.ravel(a)
            for a, b in zip(jax.tree.leaves(begun), jax.tree.leaves(ended), strict=True)
        ]
    )
    share = float(np.sqrt(np.mean(np.square(moved)))) / rates.sum()
    assert 0.1 < share < 0.6  # 1 if all steps had the same noise, 0 without any


def test_the_learning_rate_falls_along_a_cosine(data, plan):
    """Adam's first step is as large as its rate; its last one is bounded by the rate there, a 200th of the first."""
    at = {stop: train(data, plan, key=SEED, stop_after=stop).parameters for stop in (0, 1, 23, 24)}

    def largest(a, b):
        pairs = zip(jax.tree.leaves(at[a]), jax.tree.leaves(at[b]), strict=True)
        return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)

    assert largest(0, 1) == pytest.approx(plan.learning_rate, rel=1e-3)
    assert 0.0 < largest(23, 24) < 0.03 * plan.learning_rate


def test_the_card_states_what_was_run(data, plan):
    once = replace(plan, epochs=1)
    result = train(data, once, key=SEED, delta=1e-5)
    card = result.card
    assert card.mechanism == result.mechanism == once.mechanism
    assert card.clip_norm == 0.5
    assert card.normaliser == 20.0
    assert card.planned is None
    assert not card.key_secret
    assert card.claim.upper == once.mechanism.epsilon(1e-5).upper
    assert card.metrics["test_auc"] == result.metrics["test_auc"]


def test_stopping_early_states_the_mechanism_as_run(data, plan):
    once, calls = replace(plan, epochs=1), []
    result = train(data, once, key=SEED, delta=1e-5, should_stop=lambda: calls.append(1) or len(calls) == 5)
    assert result.steps == 5
    assert result.mechanism == Mechanism(plan.sampler, 0.7, 1, 5)
    assert result.card.planned == once.mechanism
    assert result.card.claim.upper < once.mechanism.epsilon(1e-5).upper
    assert any("stop" in line for line in result.card.not_covered)


def test_what_cannot_be_accounted_for_fails_before_the_first_step(data, plan, tmp_path):
    tight = replace(plan, epochs=1, sampler=replace(plan.sampler, max_batch_size=25))
    with pytest.raises(UnreachableTargetError, match="truncates batches so often"):
        train(data, tight, key=SEED, delta=1e-5, directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stop", [1, 12, 17])
def test_a_run_in_two_parts_has_the_same_bits(data, plan, whole, tmp_path, stop):
    first = train(data, plan, key=SEED, directory=tmp_path, stop_after=stop, checkpoint_seconds=0.0)
    assert first.steps == stop
    second = train(data, plan, key=SEED, directory=tmp_path)
    assert same(second.parameters, whole.parameters)
    header, arrays = load(tmp_path / trainer.CHECKPOINT)
    assert header["steps"] == 24
    again = train(data, plan, key=SEED, directory=tmp_path)  # nothing is left to do
    assert same(again.parameters, whole.parameters)
    assert len(arrays) == 3 * 7 + 1


def test_a_run_that_goes_on_withdraws_what_it_claimed_when_it_stopped(data, plan, tmp_path):
    """Killed later, its directory has a checkpoint of more steps than the card would account for."""
    once = replace(plan, epochs=1)
    train(data, once, key=SEED, directory=tmp_path, delta=1e-5, stop_after=3)
    train(
        data, once, key=SEED, directory=tmp_path, delta=1e-5, stop_after=3
    )  # nothing to do, nothing to withdraw
    assert (tmp_path / trainer.CARD).exists()

    def killed():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            data, once, key=SEED, directory=tmp_path, delta=1e-5, checkpoint_seconds=0.0, should_stop=killed
        )
    assert load(tmp_path / trainer.CHECKPOINT)[0]["steps"] == 4
    assert not (tmp_path / trainer.CARD).exists()
    assert not (tmp_path / trainer.STATEMENT).exists()
    train(data, once, key=SEED, directory=tmp_path, delta=1e-5)
    assert Card.read(tmp_path / trainer.CARD).mechanism == once.mechanism


def test_two_runs_with_one_key_file_share_neither_batches_nor_noise(data, plan, tmp_path):
    """Else models trained on data sets that differ in one example would differ by that example's gradients alone."""
    key = new_key()
    first = train(data, plan, key=key, directory=tmp_path / "one", stop_after=1, checkpoint_seconds=0.0)
    second = train(data, plan, key=key, directory=tmp_path / "two", stop_after=1)
    assert not same(first.parameters, second.parameters)
    runs = [load(tmp_path / name / trainer.CHECKPOINT)[0]["run_id"] for name in ("one", "two")]
    assert runs[0] != runs[1]
    batches = [list(map(list, plan.sampler.batches(240, key.for_run(run)))) for run in runs]
    assert batches[0] != batches[1]
    (tmp_path / "three").mkdir()
    shutil.copy(tmp_path / "one" / trainer.CHECKPOINT, tmp_path / "three")
    ended = [train(data, plan, key=key, directory=tmp_path / name, stop_after=9) for name in ("one", "three")]
    assert same(ended[0].parameters, ended[1].parameters)  # what is continued keeps its batches and its noise


def noises(data, plan, key, directory, monkeypatch, **options):
    """The noise that a run adds in each of its next steps."""
    seen = []
    own = run_module.NoiseAhead

    class Watching(own):
        def of(self, key, domain, count):
            drawn = super().of(key, domain, count)
            seen.append(drawn.copy())
            return drawn

    monkeypatch.setattr(run_module, "NoiseAhead", Watching)
    train(data, plan, key=key, directory=directory, **options)
    monkeypatch.undo()
    return seen


def begun(data, plan, key, place):
    """A run of four steps, to be continued."""
    train(data, plan, key=key, directory=place, stop_after=4)
    return place


def copied(place, name):
    shutil.copytree(place, place.parent / name)
    return place.parent / name


def changed_data(data, plan):
    other = data.train.take(np.arange(240))
    other.categories[200, 1] = (other.categories[200, 1] + 1) % 5
    return replace(data, train=other)


def share_of_equal(first, second):
    """Independent values of this size meet once in 10⁸."""
    assert len(first) == len(second) > 0
    return max(float((a == b).mean()) for a, b in zip(first, second, strict=True))


def test_what_is_continued_unchanged_repeats_and_what_changed_has_other_noise_in_every_step(
    data, plan, tmp_path, monkeypatch
):
    """One byte of the data, of the machine's facts or of the checkpoint; the control is noise by (key, run, step)."""
    key = new_key()
    place = begun(data, plan, key, tmp_path / "run")
    first = noises(data, plan, key, copied(place, "a"), monkeypatch, stop_after=20)
    again = noises(data, plan, key, copied(place, "b"), monkeypatch, stop_after=20)
    assert len(first) == 16
    assert share_of_equal(first, again) == 1.0

    edited = changed_data(data, plan)
    with pytest.raises(
        RunError, match=r"at step 4 .* something has changed: the training data\..*accept_changes"
    ):
        train(edited, plan, key=key, directory=copied(place, "c"))
    other = noises(edited, plan, key, tmp_path / "c", monkeypatch, stop_after=20, accept_changes=True)
    assert share_of_equal(first, other) < 1e-2

    with monkeypatch.context() as patch:
        facts = dict(binding.machine_facts()) | {"jax": "99.0"}
        patch.setattr(run_module, "machine_facts", lambda: facts)
        with pytest.raises(RunError, match=r"something has changed: jax \(.* → 99.0\)"):
            train(data, plan, key=key, directory=copied(place, "d"))
        other = noises(data, plan, key, tmp_path / "d", patch, stop_after=20, accept_changes=True)
    assert share_of_equal(first, other) < 1e-2

    header, arrays = load(place / trainer.CHECKPOINT)
    arrays[0] = arrays[0].copy()
    arrays[0].view(np.uint8)[0, 0] ^= 1
    forged = copied(place, "e")
    header.pop("schema")
    checkpoint.save(forged / trainer.CHECKPOINT, header, arrays)
    with pytest.raises(RunError, match="something has changed: the checkpoint itself"):
        train(data, plan, key=key, directory=forged)
    other = noises(data, plan, key, forged, monkeypatch, stop_after=20, accept_changes=True)
    assert share_of_equal(first, other) < 1e-2

    # The control: noise that follows from key, run and step alone is the same on the edited data.
    monkeypatch.setattr(binding.Binding, "noise_domain", lambda self: ("training noise", "broken"))
    with monkeypatch.context() as patch:
        one = noises(data, plan, key, copied(place, "f"), patch, stop_after=20)
    monkeypatch.setattr(binding.Binding, "noise_domain", lambda self: ("training noise", "broken"))
    with monkeypatch.context() as patch:
        two = noises(edited, plan, key, copied(place, "g"), patch, stop_after=20, accept_changes=True)
    assert share_of_equal(one, two) == 1.0


def test_two_continuations_do_not_show_the_example_that_was_changed(data, plan, tmp_path, monkeypatch):
    """With shared noise the rows of the tables that differ after its step are the example's own categories."""
    key = Key(bytes(range(32))).for_run("ab" * 16)  # a fixed run: its network passes signals on to the tables
    place = begun(data, plan, key, tmp_path / "run")
    batches = [set(batch.tolist()) for batch in plan.sampler.batches(240, key)]
    example = min(batches[6])  # of a step after the checkpoint
    other = data.train.take(np.arange(240))
    other.labels[example] = 1.0 - other.labels[example]
    edited = replace(data, train=other)

    def differing_rows(**patched):
        for name, value in patched.items():
            monkeypatch.setattr(binding.Binding, name, value)
        tables = []
        for number, given in enumerate((data, edited)):
            directory = copied(place, f"{len(patched)} {number}")
            result = train(given, plan, key=key, directory=directory, stop_after=7, accept_changes=True)
            tables.append(np.asarray(result.parameters.table))
        monkeypatch.undo()
        return set(np.flatnonzero((tables[0] != tables[1]).any(axis=1)).tolist())

    rows = {int(data.train.categories[example, 0]), 7 + int(data.train.categories[example, 1])}
    # The control: noise by key, run and step alone, which is what two models of one checkpoint used to share.
    assert differing_rows(noise_domain=lambda self: ("training noise", "broken")) == rows
    assert differing_rows() == set(range(12))


def test_the_card_of_a_run_that_went_on_after_a_change_says_so(data, plan, tmp_path):
    key, once = new_key(), replace(plan, epochs=1)
    train(data, once, key=key, directory=tmp_path, stop_after=4, delta=1e-5)
    result = train(
        changed_data(data, plan), once, key=key, directory=tmp_path, delta=1e-5, accept_changes=True
    )
    assert any("went on at step 4 with independent noise" in line for line in result.card.not_covered)
    again = train(
        changed_data(data, plan), once, key=key, directory=tmp_path, delta=1e-5
    )  # nothing left to do
    assert again.card.not_covered == result.card.not_covered


def test_the_card_says_what_is_covered(data, plan):
    card = train(data, replace(plan, epochs=1), key=new_key(), delta=1e-5).card
    assert card.floating_point.covered
    assert 0 < card.floating_point.eta < 1e-3
    assert len(card.run) == 32
    text = " ".join(card.statement().text().split())
    assert "Floating point. Covered." in text
    assert "guarantee is computational" in text
    assert "floating-point noise" not in text.partition("What is not covered")[2]
    assert "with one row fewer" in text


def test_a_machine_that_fails_its_test_trains_only_if_told(data, plan, tmp_path, monkeypatch):
    failing = MachineCheck("cpu (cpu)", row_local=False, reproducible=True)
    monkeypatch.setattr(run_module, "check_step", lambda *_: failing)
    once = replace(plan, epochs=1)
    with pytest.raises(
        RunError, match=r"not covered on this machine: what one example adds .*allow_uncovered"
    ):
        train(data, once, key=new_key(), directory=tmp_path / "out", delta=1e-5)
    assert not (tmp_path / "out").exists()
    card = train(data, once, key=new_key(), delta=1e-5, allow_uncovered=True).card
    assert not card.floating_point.covered
    assert "NOT covered: what one example adds" in " ".join(card.statement().text().split())


def test_where_sums_do_not_repeat_noise_is_never_the_same(data, plan, tmp_path, monkeypatch):
    """Two runs would otherwise release k + r and k′ + r, whose difference has no noise."""
    key = new_key()
    place = begun(data, plan, key, tmp_path / "run")
    wavering = MachineCheck("cpu (cpu)", row_local=True, reproducible=False)
    found = []
    for name in ("a", "b"):
        directory = copied(place, name)
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "check_step", lambda *_: wavering)
            found.append(noises(data, plan, key, directory, patch, stop_after=8))
    assert share_of_equal(*found) < 1e-2


def test_what_was_not_covered_once_stays_so(data, plan, tmp_path, monkeypatch):
    """Steps on a machine that fails are not covered by ending, or by writing the card, on one that passes."""
    once = replace(plan, epochs=1)
    failing = MachineCheck("gpu (card)", row_local=True, reproducible=True)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "check_step", lambda *_: failing)
        options = {"key": SEED, "directory": tmp_path, "delta": 1e-5}
        train(data, once, stop_after=9, allow_uncovered=True, **options)
    card = train(data, once, **options).card
    assert not card.floating_point.covered
    assert "gpu (card)" in card.floating_point.device
    again = train(data, once, **options).card  # nothing is left to do
    assert again.floating_point == card.floating_point


def test_wrong_noise_stops_training(data, plan, monkeypatch):
    def wrong():
        raise RunError("The noise that xla computes here is wrong")

    monkeypatch.setattr(run_module, "require_right_noise", wrong)
    with pytest.raises(RunError, match="computes here is wrong"):
        train(data, plan, key=SEED, allow_uncovered=True)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"continued": []}, "the checkpoint itself"),
        ({"uncovered": ["x"]}, "the checkpoint itself"),
        ({"steps": 7}, "the checkpoint itself"),
        ({"steps": "x"}, "no valid steps"),
        ({"steps": 99}, "no valid steps"),
        ({"seals": {}}, "no valid seals"),
        ({"branch": None}, "no valid branch"),
    ],
)
def test_a_checkpoint_that_was_edited_is_noticed_also_when_the_run_is_over(data, plan, tmp_path, edit, words):
    once = replace(plan, epochs=1)
    train(data, once, key=SEED, directory=tmp_path, stop_after=4)
    header, arrays = load(tmp_path / trainer.CHECKPOINT)
    arrays[0] = arrays[0] + np.float32(1)
    checkpoint.save(tmp_path / trainer.CHECKPOINT, {k: v for k, v in header.items() if k != "schema"}, arrays)
    train(data, once, key=SEED, directory=tmp_path, accept_changes=True)
    header, arrays = load(tmp_path / trainer.CHECKPOINT)
    assert header["steps"] == 12
    header.pop("schema")
    checkpoint.save(tmp_path / trainer.CHECKPOINT, header | edit, arrays)
    with pytest.raises((RunError, DataError), match=words):
        train(data, once, key=SEED, directory=tmp_path)


def test_data_without_categories_trains_and_resumes(data, plan, tmp_path):
    examples = replace(data.train, categories=np.empty((240, 0), np.int32))
    few = InMemory(Features(("i1", "i2"), ()), examples)
    key = new_key()
    train(few, plan, key=key, directory=tmp_path, stop_after=3)
    assert train(few, plan, key=key, directory=tmp_path, stop_after=5).steps == 5


def test_settings_of_jax_are_bound(monkeypatch):
    before = dict(binding.machine_facts())
    with jax.disable_jit():
        assert dict(binding.machine_facts()) != before
    with jax.default_matmul_precision("bfloat16"):
        assert dict(binding.machine_facts()) != before
    assert dict(binding.machine_facts()) == before


def test_a_device_that_was_not_tested_is_outside_the_guarantee():
    assert MachineCheck("cpu (cpu)", row_local=True, reproducible=True).failures == ()
    (said,) = MachineCheck("gpu (some card)", row_local=True, reproducible=True).failures
    assert "computed on gpu (some card), where they have not been tested" in said


def test_a_grid_that_would_overflow_is_refused_before_anything_is_written(data, plan, tmp_path):
    quiet = replace(plan, noise_multiplier=1e-7)
    with pytest.raises(InvalidInputError, match=r"rows · 2²⁶/σ is '60 · 2²⁶/1e-07"):
        train(data, quiet, key=SEED, directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_left_behind(data, plan, tmp_path):
    key, once = new_key(), replace(plan, epochs=1)
    made = train(data, once, key=key, directory=tmp_path, delta=1e-5)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {trainer.CHECKPOINT, trainer.MODEL, trainer.CARD, trainer.STATEMENT}
    model, parameters = load_model(tmp_path / trainer.MODEL)
    assert model == made.model
    assert same(parameters, made.parameters)
    assert Card.read(tmp_path / trainer.CARD).mechanism == once.mechanism
    assert "balls-and-bins" in (tmp_path / trainer.STATEMENT).read_text().lower()
    key.save(tmp_path / "key")
    digits = (tmp_path / "key").read_bytes().strip()
    for name in names:
        content = (tmp_path / name).read_bytes()
        assert digits not in content
        assert bytes.fromhex(digits.decode()) not in content
    assert key.commitment() != Key.from_seed(SEED).commitment()


def test_one_example_that_becomes_empty_changes_one_batch_only(data, plan):
    """The batch that has it loses its row; every other batch keeps all its bits: the premise of the accounting."""
    key, place = Key.from_seed(SEED), 100
    feed = FromMemory(data.train, plan.sampler, key, 60)
    zeroed = data.train.take(np.arange(240))
    zeroed.integers[place] = 77.0
    other = FromMemory(zeroed, plan.sampler, key, 60)
    changed = 0
    for first, second in zip(feed.batches(0, 0), other.batches(0, 0), strict=True):
        if any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True)):
            changed += 1
            rows = np.flatnonzero((first.integers != second.integers).any(axis=1))
            assert len(rows[first.weights[rows] > 0]) <= 1
            assert np.array_equal(first.weights, second.weights)
    # padding repeats the last example, never this one
    assert changed == 1


def test_truncated_batches_keep_the_largest_size_and_every_row_once(data, plan):
    tight = replace(plan.sampler, max_batch_size=18)
    seen = np.zeros(240)
    for batch, indices in zip(
        FromMemory(data.train, tight, Key.from_seed(1), 18).batches(0, 0), tight.batches(240, 1), strict=True
    ):
        assert batch.weights.shape == (18,)
        assert batch.weights.sum() == len(indices) <= 18
        np.testing.assert_array_equal(batch.integers[: len(indices)], data.train.integers[indices])
        seen[indices] += 1
    assert seen.max() == 1
    assert 0 < (seen == 0).sum() < 120  # some were cut


def test_progress_tells_nothing_of_batch_sizes(data, plan):
    seen = []
    train(data, plan, key=SEED, progress=seen.append, stop_after=14)
    assert [at.steps for at in seen] == list(range(1, 15))
    assert {at.expected_batch_size for at in seen} == {20.0}
    assert all(at.loss > 0 for at in seen)


def test_a_gradient_that_is_no_number_stops_with_its_step(data, plan, tmp_path):
    broken = data.train.take(np.arange(240))
    broken.integers[100] = 3e38  # finite, so that the data is accepted, but its gradient is not
    step = 1 + next(t for t, batch in enumerate(plan.sampler.batches(240, SEED)) if 100 in batch)
    with pytest.raises(DivergedError, match=f"step {step} of 24"):
        train(replace(data, train=broken), plan, key=SEED, directory=tmp_path, checkpoint_seconds=0.0)
    if step > 1:
        header, arrays = load(tmp_path / trainer.CHECKPOINT)
        assert header["steps"] == step - 1
        assert all(np.isfinite(array).all() for array in arrays)


def test_a_parameter_that_is_no_number_stops_with_its_step(data, plan, tmp_path):
    wild = replace(plan, learning_rate=3e38)
    with pytest.raises(DivergedError, match=r"at step \d+ of 24"):
        train(data, wild, key=SEED, directory=tmp_path, checkpoint_seconds=0.0)
    _, arrays = load(tmp_path / trainer.CHECKPOINT)
    assert all(np.isfinite(array).all() for array in arrays)


def test_bad_data_is_refused(data, plan):
    few = replace(data, train=data.train.take(np.arange(11)))
    with pytest.raises(InvalidInputError, match="number of training examples is 11"):
        train(few, replace(plan, sampler=Shuffle(12)), key=1)
    labels = data.train.labels.copy()
    labels[3] = 2.0
    with pytest.raises(InvalidInputError, match=r"a label .* is 2.0, but must be 0 or 1"):
        train(replace(data, train=replace(data.train, labels=labels)), plan, key=1)
    ids = data.train.categories.copy()
    ids[3, 1] = 5
    with pytest.raises(InvalidInputError, match=r"'c2'.* is 5"):
        train(replace(data, train=replace(data.train, categories=ids)), plan, key=1)
    with pytest.raises(InvalidInputError, match="num_examples"):
        train(replace(data, train=data.train.take(np.arange(200))), plan, key=1)


def test_a_checkpoint_of_another_run_is_refused(data, plan, tmp_path):
    train(data, plan, key=SEED, directory=tmp_path, stop_after=2)
    before = (tmp_path / trainer.CHECKPOINT).read_bytes()
    with pytest.raises(InvalidInputError, match=r"noise_multiplier is 0.8, but must be 0.7"):
        train(data, replace(plan, noise_multiplier=0.8), key=SEED, directory=tmp_path)
    with pytest.raises(InvalidInputError, match=r"redraw is False, but must be True"):
        train(data, replace(plan, sampler=replace(plan.sampler, redraw=False)), key=SEED, directory=tmp_path)
    with pytest.raises(SecretError, match="Resume with the key of that run"):
        train(data, plan, key=SEED + 1, directory=tmp_path)
    assert (tmp_path / trainer.CHECKPOINT).read_bytes() == before
    (tmp_path / trainer.CHECKPOINT).write_bytes(before[: len(before) // 2])
    with pytest.raises(DataError, match="is not a file that training wrote"):
        train(data, plan, key=SEED, directory=tmp_path)


def test_epochs_with_new_bins_have_other_batches_and_noise(data, plan):
    feed = FromMemory(data.train, plan.sampler, Key.from_seed(SEED), 60)
    first, second = (next(iter(feed.batches(epoch, 0))) for epoch in (0, 1))
    assert not np.array_equal(first.integers, second.integers)


def test_no_test_split_no_metrics(data, plan):
    result = train(InMemory(data.features, data.train), plan, key=1, stop_after=1)
    assert result.metrics == {}
