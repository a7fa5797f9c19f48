"""The text of the fields becomes a question; a mistake gets the sentence of the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ballsbins import BallsAndBins, InvalidInputError, Mechanism, Poisson
from ballsbins.cli import app
from ballsbins.web.question import DEFAULTS, field_of, question_from

RUN = {"noise-multiplier": "1", "steps": "10", "delta": "1e-6"}


def test_the_page_begins_with_a_question_that_has_an_answer():
    question = question_from(DEFAULTS)
    assert question.main == Mechanism(BallsAndBins(235), 0.6)
    assert question.delta == 1e-6
    assert question.target == 2.0


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
def test_same_words_as_the_command_line(field, text):
    fields = {**RUN, field: text}
    with pytest.raises(InvalidInputError) as page:
        question_from(fields)
    words = [word for name, value in fields.items() for word in (f"--{name}", value)]
    shell = CliRunner().invoke(app, ["epsilon", *words])
    assert str(page.value) == str(shell.exception)
    assert field_of(page.value) == ("examples" if field == "max-batch-size" else field)


@pytest.mark.parametrize("field", [name for name in DEFAULTS if name != "epsilon"])
@pytest.mark.parametrize("text", ["much", "1.5.2", "1e", "<b>", "9" * 50])
def test_text_that_is_no_number_names_its_field(field, text):
    fields = {"noise-multiplier": "1", "examples": "100", "batch-size": "10", "delta": "1e-6", field: text}
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
