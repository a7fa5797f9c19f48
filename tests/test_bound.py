"""What an answer says about itself: its kind, for programs, apart from its method, for readers."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import ballsbins
from ballsbins import BallsAndBins, Bound, Deterministic, Mechanism, MonteCarlo, Poisson, Shuffle
from ballsbins.accounting.curve import Kind

SAMPLES = MonteCarlo(samples=2000, seed=1)


@pytest.mark.parametrize(
    ("mechanism", "method", "kind"),
    [
        (Mechanism(Deterministic(9), 1.0), "auto", "closed form"),
        (Mechanism(BallsAndBins(1), 1.0, 3), "auto", "closed form"),
        (Mechanism(Poisson(9), 1.0, 1, 1), "auto", "closed form"),
        (Mechanism(BallsAndBins(9), 1.0), "auto", "exact"),
        (Mechanism(BallsAndBins(9), 1.0, 3), "auto", "exact"),
        (Mechanism(BallsAndBins(9), 1.0, 2, 3), "auto", "exact"),
        (Mechanism(BallsAndBins(9, max_batch_size=60, num_examples=99), 1.0), "auto", "exact"),
        (Mechanism(Poisson(2), 0.3), "auto", "bracket"),
        (Mechanism(Shuffle(9), 1.0), "auto", "bounds"),
        (Mechanism(BallsAndBins(9), 0.04), "auto", "bounds"),
        (Mechanism(BallsAndBins(9), 1.0), "lower-bound", "bounds"),
        (Mechanism(BallsAndBins(9), 1.0), "renyi", "upper bound"),
        (Mechanism(BallsAndBins(9), 1.0), SAMPLES, "sampled"),
    ],
    ids=lambda part: repr(part) if isinstance(part, Mechanism) else "",
)
def test_every_answer_says_its_kind(mechanism, method, kind):
    answer = mechanism.delta(0.5, method)
    assert answer.kind == answer.to_dict()["kind"] == kind
    assert {part.kind for part in answer.directions.values()} <= {*get_args(Kind)}


def test_all_kinds_are_met():
    marks = test_every_answer_says_its_kind.pytestmark
    # what is proved comes from `certify`: tests/proof
    assert {case[2] for case in marks[0].args[1]} | {"proved"} == {*get_args(Kind)}


def test_the_kind_of_an_array_is_that_of_its_weakest_point():
    mechanism = Mechanism(Poisson(2), 3.0)
    answers = [mechanism.log_delta(epsilon) for epsilon in (0.5, 60.0, np.array([0.5, 60.0]))]
    order = ["closed form", "exact", "bracket", "bounds"]
    single = [order.index(answer.kind) for answer in answers[:2]]
    assert single[0] != single[1]
    assert answers[2].kind == order[max(single)]


def compares_words(tree: ast.AST) -> list[int]:
    """Lines in which the method of an answer is compared or searched."""

    def is_method(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == "method"

    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(is_method, [node.left, *node.comparators])):
            found.append(node.lineno)
        if isinstance(node, ast.Attribute) and is_method(node.value):  # .method.startswith and the like
            found.append(node.lineno)
    return found


def test_nothing_reads_the_words_of_a_method():
    source = Path(ballsbins.__file__).parent
    assert not {
        str(path.relative_to(source)): lines
        for path in sorted(source.rglob("*.py"))
        if (lines := compares_words(ast.parse(path.read_text(encoding="utf-8"))))
    }
    planted = 'if bound.method == "bounds" or bound.method.startswith("exact"):\n    pass'
    assert compares_words(ast.parse(planted)) == [1, 1]


def test_a_bound_shows_its_interval_and_its_method():
    assert repr(Bound("epsilon", 1.0, 1.5, 2.0, "bounds", "two curves")) == (
        "Bound(epsilon: 1 ≤ 1.5 ≤ 2, method='two curves')"
    )


@pytest.mark.parametrize("use", [float, "{:.2f}".format])
def test_a_bound_used_as_a_number_says_which_number_to_take(use):
    bound = Mechanism(BallsAndBins(9), 1.0).epsilon(1e-6)
    with pytest.raises(TypeError, match=r"two ends.*\.upper"):
        use(bound)
    assert f"{bound}" == str(bound)


def test_answers_keep_the_shape_of_the_question_in_json():
    deltas = np.array([[1e-6, 1e-5, 1e-4], [1e-3, 0.01, 0.1]])
    saved = Mechanism(Deterministic(10), 1.0).epsilon(deltas).to_dict()
    assert np.shape(saved["upper"]) == deltas.shape
