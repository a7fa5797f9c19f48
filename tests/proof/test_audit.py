"""A handful of the audit; `make audit` asks hundreds of questions."""

from __future__ import annotations

import dataclasses

import pytest

from ballsbins import Bound, Mechanism
from ballsbins.proof.audit import BROKEN, CONTAINED, MEETS, ONE, REFUSED, STEPS, audit, question, verdict


@pytest.mark.parametrize(("kind", "first", "last"), [(ONE, 0, 5), (STEPS, 5, 6)])
def test_a_handful(kind, first, last):
    counts = audit(kind, first, last)
    assert sum(counts.values()) == last - first
    assert not [line for line in counts if BROKEN in line]


def test_an_interval_that_is_wrong_is_found(monkeypatch):
    """Moved by ten times its own width, or by a billionth."""
    mechanism, epsilon = question(ONE, 0)
    assert verdict(mechanism, epsilon).words in (CONTAINED, MEETS)
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
    assert verdict(mechanism, epsilon).words == BROKEN


def test_a_refusal_has_its_reason():
    found = verdict(Mechanism(question(ONE, 0)[0].sampler, 50.0), 1.0)
    assert found.words == REFUSED
    assert "noise of a bin" in found.reason
