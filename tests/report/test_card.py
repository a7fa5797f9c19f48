"""The card: what goes in comes back, and what is not a card is refused with the reason."""

from __future__ import annotations

import json
import os
import stat

import numpy as np
import pytest

from ballsbins import BallsAndBins, InvalidInputError, Mechanism, MonteCarlo, Poisson, Shuffle, new_key
from ballsbins.report import Card, FloatingPoint

RUN = Mechanism(BallsAndBins(100), 0.6)


def full_card():
    sampler = BallsAndBins(100, max_batch_size=120, num_examples=5000)
    return Card(
        Mechanism(sampler, 0.7, last_epoch_steps=40),
        1e-5,
        clip_norm=1.5,
        planned=Mechanism(sampler, 0.7),
        metrics={"test AUC": np.float32(0.75), "curve": [1, 2]},
        not_covered=["The vocabulary."],
        key_commitment=new_key().commitment(),
        run="0123456789abcdef0123456789abcdef",
        noise="from the same key",
        floating_point=FloatingPoint("cpu", 5e-4),
        normaliser=50,
        details={"optimiser": {"name": "Adam", "rate": 0.001}},
    )


@pytest.mark.parametrize("card", [Card(RUN, 1e-5), full_card()], ids=["short", "full"])
def test_written_and_read_back(card, tmp_path):
    file = tmp_path / "card.json"
    card.write(file)
    again = Card.read(file)
    assert again.to_dict() == card.to_dict() == json.loads(file.read_text())
    assert again.mechanism == card.mechanism
    assert again.planned == card.planned
    assert again.claim.upper == card.claim.upper == card.mechanism.epsilon(card.delta).upper
    assert os.listdir(tmp_path) == ["card.json"]


def test_what_is_saved_never_changes_its_meaning():
    saved = full_card().to_dict()
    assert saved["schema"] == 3
    assert set(saved) == {
        "about",
        "schema", "mechanism", "delta", "claim", "planned", "clip_norm", "num_examples", "normaliser", "noise",
        "key_commitment", "key_secret", "run", "floating_point", "not_covered", "metrics", "details", "versions",
    }  # fmt: skip
    assert set(saved["claim"]) == {
        "quantity", "lower", "value", "upper", "kind", "method", "confidence", "penalty", "directions",
    }  # fmt: skip
    assert saved["num_examples"] == 5000  # known from the sampler
    assert saved["metrics"]["test AUC"] == pytest.approx(0.75, rel=1e-6)
    assert {"python", "ballsbins", "numpy", "scipy"} <= set(saved["versions"])


def test_a_monte_carlo_claim_keeps_its_confidence(tmp_path):
    method = MonteCarlo(samples=2000, error_probability=1e-4, epsilons=(1.0, 2.0, 3.0, 4.0, 6.0, 9.0))
    card = Card(RUN, 1e-5, stated=RUN.epsilon(1e-5, method))
    card.write(tmp_path / "card.json")
    again = Card.read(tmp_path / "card.json")
    assert again.claim.confidence == 1.0 - 1e-4
    assert (again.claim.kind, again.claim.method) == ("sampled", card.claim.method)


def test_a_new_card_replaces_the_old_one_whole_or_not_at_all(tmp_path):
    file = tmp_path / "card.json"
    file.write_text("the old one")
    bad = Card(RUN, 1e-5)
    object.__setattr__(bad, "metrics", {"auc": float("nan")})  # as a bug might
    with pytest.raises(ValueError):
        bad.write(file)
    assert file.read_text() == "the old one"
    Card(RUN, 1e-5).write(file)
    assert json.loads(file.read_text())["delta"] == 1e-5
    assert stat.S_IMODE(file.stat().st_mode) & 0o444 == 0o444 & ~_umask()
    assert os.listdir(tmp_path) == ["card.json"]


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"delta": None}, "delta is None"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"clip_norm": "1"}, "clip_norm is '1'"),
        ({"num_examples": -1}, "num_examples is -1"),
        ({"normaliser": -2.0}, "normaliser is -2.0"),
        ({"planned": "more"}, "planned is 'more'"),
        ({"planned": Mechanism(Shuffle(100), 0.6)}, "the sampler and the noise"),
        ({"planned": Mechanism(BallsAndBins(100), 0.7)}, "the sampler and the noise"),
        ({"not_covered": "the vocabulary"}, "not_covered is"),
        ({"metrics": {"auc": float("nan")}}, "metrics is"),
        ({"metrics": {"batches": np.arange(3)}}, "metrics is"),
        ({"details": {"model": object()}}, "details is"),
        ({"key_commitment": b"0123"}, "key_commitment is 'bytes'"),
        ({"noise": "from a key\n\n# ε is 0"}, "noise is 'str'"),
        ({"not_covered": ["a line\x1b[2J"]}, "not_covered is"),
        ({"not_covered": 3}, "not_covered is 3"),
        ({"versions": {"python": "3\n# ε is 0"}}, "versions is"),
        ({"key_secret": None}, "key_secret is None"),
        ({"run": b"0123"}, "run is 'bytes'"),
        ({"floating_point": "covered"}, "floating_point is 'covered'"),
        ({"stated": 3.0}, "stated is 3.0"),
        ({"stated": RUN.delta(1.0)}, "stated is"),
        (
            {"mechanism": Mechanism(Poisson(9, max_batch_size=9, num_examples=50), 1.0), "num_examples": 51},
            "50",
        ),
    ],
)
def test_bad_values(words, name):
    words = {"mechanism": RUN, "delta": 1e-5} | words
    with pytest.raises(InvalidInputError) as caught:
        Card(words.pop("mechanism"), words.pop("delta"), **words)
    assert name in str(caught.value)


def test_a_key_given_by_mistake_is_not_shown():
    with pytest.raises(InvalidInputError) as caught:
        Card(RUN, 1e-5, key_commitment=b"k" * 32)
    assert "kkkk" not in str(caught.value)


def without(name):
    saved = Card(RUN, 1e-5).to_dict()
    del saved[name]
    return saved


def with_claim(**words):
    saved = Card(RUN, 1e-5).to_dict()
    return saved | {"claim": saved["claim"] | words}


@pytest.mark.parametrize(
    ("saved", "names"),
    [
        (without("delta"), ["delta", "An ε means nothing without its δ"]),
        (without("claim"), ["claim", "cannot be checked"]),
        (without("mechanism"), ["mechanism"]),
        (without("schema"), ["schema of the card is None"]),
        (full_card().to_dict() | {"schema": 4}, ["schema of the card is 4", "later version"]),
        (full_card().to_dict() | {"schema": "3"}, ["schema of the card is '3'"]),
        (
            full_card().to_dict() | {"epsilon": 3.0, "colour": "red"},
            ["the field 'colour' of the card is 'red'", "left out"],
        ),
        (full_card().to_dict() | {"stated": None}, ["the field 'stated' of the card"]),
        (full_card().to_dict() | {"delta": "1e-6"}, ["delta is '1e-6'"]),
        (full_card().to_dict() | {"mechanism": 3}, ["mechanism is 3"]),
        (full_card().to_dict() | {"planned": [1]}, ["planned is [1]"]),
        (full_card().to_dict() | {"mechanism": None}, ["mechanism is None"]),
        (full_card().to_dict() | {"mechanism": RUN.to_dict() | {"sampler": 3}}, ["sampler is 3"]),
        (full_card().to_dict() | {"planned": RUN.to_dict() | {"sampler": None}}, ["sampler is None"]),
        (full_card().to_dict() | {"schema": 2}, ["schema of the card is 2", "did not state their kind"]),
        (with_claim(kind="certain"), ["kind of the claim is 'certain'", "one of closed form, exact"]),
        (full_card().to_dict() | {"schema": True}, ["schema of the card is True"]),
        (full_card().to_dict() | {"clip_norm": 10**400}, ["'100000000000…'", "40 digits"]),
        (with_claim(penalty=2.0), ["penalty of the claim is 2.0"]),
        (with_claim(method="exact\x1b[31m"), ["method of the claim", "one line"]),
        (with_claim(upper=-1.0), ["upper of the claim is -1.0"]),
        (with_claim(upper="big"), ["upper of the claim is 'big'"]),
        (with_claim(upper=0.0), ["lower, value, upper"]),
        (with_claim(confidence=0.0), ["confidence of the claim is 0.0"]),
        (with_claim(quantity="delta"), ["quantity of the claim is 'delta'"]),
        (with_claim(colour="red"), ["the field 'colour' of the claim is 'red'", "left out"]),
        (with_claim(directions={"sideways": {}}), ["directions of the claim"]),
        (with_claim(directions={"add": {"upper": 1}}), ["of the claim (add) must be given"]),
        (with_claim(method=3), ["method of the claim is 3"]),
        ([1, 2], ["a card is 'list'"]),
    ],
)
def test_what_is_not_a_card(saved, names, tmp_path):
    file = tmp_path / "card.json"
    file.write_text(json.dumps(saved))
    with pytest.raises(InvalidInputError) as caught:
        Card.read(file)
    for name in names:
        assert name in str(caught.value)


def test_a_card_written_by_hand_may_leave_out_the_circumstances():
    saved = Card(RUN, 1e-5).to_dict()
    card = Card.from_dict({name: saved[name] for name in ("schema", "mechanism", "delta", "claim")})
    assert card.clip_norm is None
    assert card.versions == {}  # not those of this machine
    assert "not recorded" in card.statement().text()


def test_an_infinite_claim_is_a_claim():
    saved = with_claim(upper="inf")
    assert Card.from_dict(saved).claim.upper == float("inf")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"{", "line 1"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"schema": 1, "delta": NaN}', "NaN"),
        (b'{"schema": ' + 5000 * b"1" + b"}", "40 digits"),
        (100_000 * b"[", "a few levels deep"),
        (b"", "line 1"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_json(content, name, tmp_path):
    file = tmp_path / "card.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidInputError, match=name):
        Card.read(file)


def test_a_card_of_the_first_version_is_refused_with_the_reason():
    with pytest.raises(InvalidInputError, match="runs had no id: write the card anew"):
        Card.from_dict(full_card().to_dict() | {"schema": 1})


@pytest.mark.parametrize(
    "saved",
    [
        "covered",
        {"device": "cpu", "eta": 0.1},
        {"device": "cpu", "eta": None, "not_covered": [], "tested": "x"},
        {"device": "cpu", "eta": 0.1, "not_covered": ["a reason"], "tested": "x"},
        {"device": "cpu", "eta": -0.1, "not_covered": [], "tested": "x"},
        {"device": "cpu\n# ε is 0", "eta": 0.1, "not_covered": [], "tested": "x"},
        {"device": "cpu", "eta": None, "not_covered": "a reason", "tested": "x"},
        {"device": "cpu", "eta": 0.1, "not_covered": [], "tested": "x", "more": 1},
    ],
)
def test_what_says_nothing_about_floating_point_is_refused(saved):
    with pytest.raises(InvalidInputError):
        Card.from_dict(full_card().to_dict() | {"floating_point": saved})
