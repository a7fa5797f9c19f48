"""The text of the fields becomes a question; a mistake gets the sentence of the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, Deterministic, InvalidInputError, Mechanism, Poisson, Shuffle
from ballsbins.cli import app
from ballsbins.web.question import DEFAULTS, LABELS, PRESETS, field_of, question_from, worded

RUN = {"noise-multiplier": "1", "steps": "10", "delta": "1e-6", "sampler": "balls-and-bins"}


def test_the_page_begins_with_a_question_that_has_an_answer():
    question = question_from(DEFAULTS)
    assert question.main == Mechanism(Shuffle(938), 1.0, 10)
    assert question.delta == 1e-5
    assert question.target == 2.0


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_questions(name):
    question = question_from({"sampler": "unknown", **PRESETS[name]})
    assert question.delta * question.examples < 1


@pytest.mark.parametrize(
    ("name", "kind"), [("shuffle", Shuffle), ("poisson", Poisson), ("deterministic", Deterministic)]
)
def test_the_run_is_the_one_whose_batches_are_asked_about(name, kind):
    assert question_from({**RUN, "sampler": name}).main == Mechanism(kind(10), 1.0)


def test_who_does_not_know_how_batches_are_drawn_is_told_all():
    question = question_from({**RUN, "sampler": "unknown"})
    assert question.asked is None
    assert set(question.mechanisms) == {"balls-and-bins", "poisson", "shuffle", "deterministic"}
    done = CliRunner().invoke(app, question.command.split()[1:])
    assert done.exception is None
    assert "deterministic" in done.stdout


@pytest.mark.parametrize(
    ("sampler", "sigma", "examples", "batch"),
    [
        ("balls-and-bins", "0.4", "60000", "256"),
        ("balls-and-bins", "1", "60000", "256"),
        ("balls-and-bins", "2", "1000000", "64"),
        ("balls-and-bins", "0.3", "500", "10"),
        ("poisson", "0.6", "60000", "256"),
    ],
)
def test_the_limit_that_the_page_finds_is_accepted_and_costs_next_to_nothing(sampler, sigma, examples, batch):
    """At b + 8√b the page once suggested a limit that its own accountant refused."""
    fields = {"noise-multiplier": sigma, "examples": examples, "batch-size": batch, "delta": "1e-6"}
    plain = question_from({**fields, "sampler": sampler}).main
    cut = question_from({**fields, "sampler": sampler, "max-batch-size": "auto"}).main
    limit = cut.sampler.max_batch_size
    assert limit < 2 * int(batch) + 60
    assert cut.epsilon(1e-6).upper <= 1.01 * plain.epsilon(1e-6).upper
    text = question_from({**fields, "sampler": sampler, "max-batch-size": "auto"}).command
    assert f"--max-batch-size {limit}" in text


def test_a_limit_needs_the_number_of_examples_and_sizes_that_vary():
    with pytest.raises(InvalidInputError) as error:
        question_from({**RUN, "max-batch-size": "auto"})
    assert field_of(error.value) == "examples"
    with pytest.raises(InvalidInputError) as error:
        question_from({**RUN, "sampler": "shuffle", "examples": "100", "max-batch-size": "auto"})
    assert field_of(error.value) == "max-batch-size"


def test_all_samplers_have_the_same_run():
    fields = {**RUN, "epochs": "3", "examples": "1000", "max-batch-size": "150", "fixed-bins": "1"}
    runs = question_from(fields).mechanisms
    limit = {"max_batch_size": 150, "num_examples": 1000}
    assert runs["balls-and-bins"] == Mechanism(BallsAndBins(10, redraw=False, **limit), 1.0, 3)
    assert runs["poisson"] == Mechanism(Poisson(10, **limit), 1.0, 3)
    assert {run.epochs for run in runs.values()} == {3}


def test_the_command_asks_the_same():
    fields = {**RUN, "epochs": "2", "fixed-bins": "1", "epsilon": "3"}
    words = question_from(fields).command.split()
    assert words[0] == "ballsbins"
    done = CliRunner().invoke(app, [*words[1:], "--json"])
    assert done.exception is None
    assert f'"upper": {question_from(fields).main.epsilon(1e-6).upper!r}' in done.stdout


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("noise-multiplier", "0"),
        ("noise-multiplier", "-1"),
        ("noise-multiplier", "nan"),
        ("steps", "0"),
        ("steps", "-3"),
        ("epochs", "0"),
        ("delta", "0"),
        ("delta", "1"),
        ("max-batch-size", "50"),  # without --examples
    ],
)
def test_the_same_mistake_as_in_the_command_line_in_the_words_of_the_page(field, text):
    fields = {**RUN, field: text}
    with pytest.raises(InvalidInputError) as page:
        question_from(fields)
    words = [word for name, value in fields.items() for word in (f"--{name}", value)]
    shell = CliRunner().invoke(app, ["epsilon", *words])
    assert isinstance(shell.exception, InvalidInputError)
    assert page.value.bound == shell.exception.bound
    named = "examples" if field == "max-batch-size" else field
    assert field_of(page.value) == named
    said = worded(page.value)
    assert said.startswith(LABELS[named])
    assert "--" not in said
    assert "_" not in said


@pytest.mark.parametrize("field", [name for name in DEFAULTS if name not in ("epsilon", "sampler")])
@pytest.mark.parametrize("text", ["much", "1.5.2", "1e", "<b>", "9" * 50])
def test_text_that_is_no_number_names_its_field(field, text):
    fields = {"noise-multiplier": "1", "examples": "100", "batch-size": "10", "delta": "1e-6"}
    fields |= {"sampler": "balls-and-bins", field: text}
    if field == "steps":
        del fields["batch-size"]
    with pytest.raises(InvalidInputError) as error:
        question_from(fields)
    assert field_of(error.value) == field


def test_a_name_of_the_library_leads_to_its_field():
    with pytest.raises(InvalidInputError, match="num_examples is") as error:
        question_from({**RUN, "examples": str(10**18), "max-batch-size": "9"})
    assert field_of(error.value) == "examples"


def test_too_much_noise_leads_to_its_field():
    with pytest.raises(InvalidInputError, match="noise_multiplier is 1e\\+200") as error:
        question_from({**RUN, "noise-multiplier": "1e200"})
    assert field_of(error.value) == "noise-multiplier"


def test_reading_a_question_computes_nothing(monkeypatch):
    """What the accountant cannot do is the worker's error, not the server's."""

    def compute(*_):
        raise AssertionError

    for name in ("epsilon", "delta"):
        monkeypatch.setattr(Mechanism, name, compute)
    assert question_from({**RUN, "noise-multiplier": "1e6"}).main.noise_multiplier == 1e6


def test_what_is_missing_or_unknown():
    for name in ("noise-multiplier", "delta"):
        with pytest.raises(InvalidInputError) as error:
            question_from({key: text for key, text in RUN.items() if key != name})
        assert field_of(error.value) == name
    with pytest.raises(InvalidInputError, match="colour is 'red'"):
        question_from({**RUN, "colour": "red"})
