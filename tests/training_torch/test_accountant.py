"""The Opacus accountant: ε of the mechanism as run, at any step; Opacus finds, saves and loads it."""

from __future__ import annotations

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import create_accountant

from ballsbins import BallsAndBins, Mechanism
from ballsbins.errors import InvalidInputError, RunError, SecretError
from ballsbins.noise import SOURCE
from ballsbins.training.torch import BallsBinsAccountant

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG turned off")
DELTA = 1e-5


def engine():
    return PrivacyEngine(accountant="ballsbins")


def test_opacus_finds_it():
    assert isinstance(create_accountant("ballsbins"), BallsBinsAccountant)
    assert isinstance(engine().accountant, BallsBinsAccountant)


@pytest.mark.parametrize("redraw", [True, False])
def test_epsilon_at_every_step_is_the_mechanisms(training, weighted, redraw):
    sampler = BallsAndBins(3, redraw=redraw)
    run = training(Mechanism(sampler, 1.0, epochs=2, last_epoch_steps=1), weighted(20))
    accountant = run.loader.accountant
    assert accountant.get_epsilon(DELTA) == 0.0
    found = []
    for _ in range(2):
        for batch in run.loader:
            run.step(batch)
            found.append(accountant.get_epsilon(DELTA))
    planned = [
        Mechanism(sampler, 1.0, epochs=1 + step // 3, last_epoch_steps=1 + step % 3) for step in range(4)
    ]
    assert found == [mechanism.epsilon(DELTA).upper for mechanism in planned]
    assert found == sorted(found)
    assert len(accountant) == 4
    assert accountant.history == [(1.0, 1 / 3, 4)]
    assert accountant.as_run() == planned[-1]


def test_fixed_and_redrawn_bins_are_told_apart(training, weighted):
    """The 20-fold lie: Opacus passes the same σ and sample rate for both."""
    epsilons = []
    for redraw in (True, False):
        accountant = BallsBinsAccountant()
        accountant.configure(Mechanism(BallsAndBins(1000, redraw=redraw), 1.0, epochs=10))
        accountant.history = [(1.0, 1e-3, 10_000)]
        epsilons.append(accountant.get_epsilon(1e-6))
    assert epsilons[0] == pytest.approx(0.540, rel=0.01)
    assert epsilons[1] == pytest.approx(12.5, rel=0.01)


def test_what_it_was_not_told_it_does_not_guess():
    accountant = engine().accountant
    for ask in (
        lambda: accountant.get_epsilon(DELTA),
        lambda: accountant.step(noise_multiplier=1.0, sample_rate=0.1),
        lambda: setattr(accountant, "history", [(1.0, 0.1, 5)]),
        accountant.state_dict,
    ):
        with pytest.raises(RunError, match="configure"):
            ask()
    assert len(accountant) == 0


@pytest.mark.parametrize(
    "history",
    [[(1.1, 0.25, 3)], [(1.0, 0.2, 3)], [(1.0, 0.25, 3), (0.5, 0.25, 1)]],
    ids=["noise", "rate", "second entry"],
)
def test_a_history_of_something_else_is_refused(history):
    accountant = BallsBinsAccountant()
    accountant.configure(Mechanism(BallsAndBins(4), 1.0, epochs=2))
    with pytest.raises(RunError, match="is not one of Mechanism"):
        accountant.history = history
    with pytest.raises(RunError, match="is not one of Mechanism"):
        accountant.step(noise_multiplier=history[-1][0], sample_rate=history[-1][1])
    assert len(accountant) == 0


def test_a_longer_history_is_refused():
    accountant = BallsBinsAccountant()
    accountant.configure(Mechanism(BallsAndBins(4), 1.0, epochs=2))
    accountant.history = [(1.0, 0.25, 5), (1.0, 0.25, 3)]
    with pytest.raises(RunError, match="All 8 steps"):
        accountant.step(noise_multiplier=1.0, sample_rate=0.25)
    with pytest.raises(InvalidInputError, match="is 9, but must be at most 8"):
        accountant.history = [(1.0, 0.25, 9)]
    with pytest.raises(RunError, match="cannot change to another run"):
        accountant.configure(Mechanism(BallsAndBins(5), 1.0))


def test_a_history_is_never_cut_short(training, weighted):
    """The run would go back, take steps again, and its noise would be that of other sums."""
    run = training(Mechanism(BallsAndBins(10), 1.0), weighted(30), engine=(owner := engine()))
    batches = iter(run.loader)
    for _ in range(3):
        run.step(next(batches))
    for shorter in ([], [(1.0, 0.1, 2)]):
        with pytest.raises(RunError, match=r"counted 3 steps, and this history has [02]"):
            owner.accountant.history = shorter
    assert len(owner.accountant) == 3


def trained(training, weighted, steps, **options):
    owner = engine()
    run = training(
        Mechanism(BallsAndBins(10), 1.0, epochs=2), weighted(30), engine=owner, lr=0.2, **{"key": 8} | options
    )
    for number, batch in enumerate(run.loader if steps else []):
        run.step(batch)
        if number + 1 == steps:
            break
    return owner, run


def test_opacus_checkpoints_save_and_resume_all(training, weighted, tmp_path):
    path = tmp_path / "checkpoint.pt"
    owner, whole = trained(training, weighted, 4)
    owner.save_checkpoint(path=path, module=whole.model, optimizer=whole.optimizer)
    assert owner.get_epsilon(DELTA) == whole.loader.as_run().epsilon(DELTA).upper
    torch.load(path, weights_only=True)  # plain data: no code is needed to read it
    for batch in whole.loader:
        whole.step(batch)

    other, resumed = trained(training, weighted, 0)
    other.load_checkpoint(path=path, module=resumed.model, optimizer=resumed.optimizer)
    assert other.get_epsilon(DELTA) == pytest.approx(
        Mechanism(BallsAndBins(10), 1.0, last_epoch_steps=4).epsilon(DELTA).upper, rel=1e-12
    )
    for batch in resumed.loader:
        resumed.step(batch)
    assert torch.equal(whole.vector(), resumed.vector())
    assert other.accountant.as_run() == Mechanism(BallsAndBins(10), 1.0)

    with pytest.raises(RunError, match=r"has taken 10 steps, and the checkpoint is of step 4"):
        other.load_checkpoint(path=path, module=resumed.model, optimizer=resumed.optimizer)
    assert other.accountant.as_run() == Mechanism(BallsAndBins(10), 1.0)  # nothing is forgotten

    reader = engine()  # only to report: it learns the mechanism from the file
    _, fresh = trained(training, weighted, 0)
    reader.load_checkpoint(path=path, module=fresh.model, optimizer=fresh.optimizer)
    assert reader.accountant.as_run() == Mechanism(BallsAndBins(10), 1.0, last_epoch_steps=4)


def test_a_checkpoint_for_another_key_or_accountant_is_refused(training, weighted, tmp_path):
    path = tmp_path / "checkpoint.pt"
    owner, run = trained(training, weighted, 4)
    owner.save_checkpoint(path=path, module=run.model)
    other, stranger = trained(training, weighted, 0, key=9)
    with pytest.raises(SecretError, match="Resume with the key of that run"):
        other.load_checkpoint(path=path, module=stranger.model)
    assert len(other.accountant) == 0

    poisson = PrivacyEngine(accountant="prv")
    poisson.accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    poisson.save_checkpoint(path=path, module=run.model)
    with pytest.raises(InvalidInputError, match=r"'prv', but must be 'ballsbins'.*audit-run"):
        other.load_checkpoint(path=path, module=stranger.model)


def test_the_card_says_what_was_run(training, weighted):
    mechanism = Mechanism(BallsAndBins(7), 1.0, epochs=2)
    run = training(mechanism, weighted(50), clip=0.7)
    with pytest.raises(RunError, match="No step was taken"):
        run.loader.card(DELTA)
    run.gradients()
    card = run.loader.card(DELTA, metrics={"accuracy": 0.5}, not_covered=["The choice of the learning rate."])
    assert (card.mechanism, card.planned) == (Mechanism(BallsAndBins(7), 1.0), mechanism)
    assert (card.clip_norm, card.num_examples, card.normaliser) == (0.7, 50, 50 / 7)
    assert card.claim.upper == run.loader.accountant.get_epsilon(DELTA)
    assert not card.key_secret
    assert card.run == "seed"
    assert card.noise == SOURCE
    assert card.floating_point.covered
    assert card.floating_point.eta == run.optimizer.grid.eta < 1e-6
    text = card.statement().text()
    assert "plain seed" in text
    assert "learning rate" in text
    run.gradients()
    assert run.loader.card(DELTA).planned is None


def test_ghost_clipping_does_not_claim_to_cover_floating_point(training, weighted):
    run = training(Mechanism(BallsAndBins(7), 1.0), weighted(50), mode="ghost")
    run.gradients()
    found = run.loader.card(DELTA).floating_point
    assert not found.covered
    assert "second backward pass" in found.not_covered[0]
    assert "NOT covered" in run.loader.card(DELTA).statement().text()
