"""A handful of the audit; `make audit` asks hundreds of questions."""

from __future__ import annotations

import dataclasses

import pytest

from ballsbins import Bound, Mechanism
from ballsbins.proof.audit import BROKEN, audit, random_questions, verdict


@pytest.mark.slow
def test_a_handful():
    counts = audit(8, 0, seed=3)
    assert sum(counts.values()) == 8
    assert not [line for line in counts if BROKEN in line]


def test_an_interval_that_is_wrong_is_found(monkeypatch):
    """Moved by ten times its own width, or by a billionth."""
    mechanism, epsilon = next(random_questions(3, epochs=False))
    answer = Mechanism.delta

    def moved(self, epsilon, method="auto"):
        bound = answer(self, epsilon, method)

        def move(part: Bound) -> Bound:
            far = 10 * (part.upper - part.lower) + 1e-9 * part.upper
            return dataclasses.replace(part, lower=part.lower + far, upper=part.upper + far)

        return dataclasses.replace(
            move(bound), directions={name: move(part) for name, part in bound.directions.items()}
        )

    monkeypatch.setattr(Mechanism, "delta", moved)
    assert verdict(mechanism, epsilon) == BROKEN
