"""Citations: of what was used, and of nothing else."""

from __future__ import annotations

import re

import pytest

from ballsbins import BallsAndBins, Deterministic, Mechanism, Poisson, Shuffle
from ballsbins.report import citation
from ballsbins.report.citation import _ENTRIES, cited

COMPOSED = {"doroshenko22connect", "koskela20computing"}


@pytest.mark.parametrize(
    ("mechanism", "kind", "has", "has_not"),
    [
        (Mechanism(BallsAndBins(9), 1.0), None, {"chua25balls", "abadi16deep"}, {*COMPOSED, "zhu22optimal"}),
        (Mechanism(BallsAndBins(9), 1.0, 3), None, {"chua25balls"}, {*COMPOSED, "hoeffding63probability"}),
        (Mechanism(BallsAndBins(9), 1.0, 3), "bracket", COMPOSED, {"hoeffding63probability"}),
        (Mechanism(BallsAndBins(9), 1.0), "sampled", {"hoeffding63probability"}, COMPOSED),
        (Mechanism(Poisson(9), 1.0), None, {"zhu22optimal"}, {"chua25balls", *COMPOSED}),
        (Mechanism(Deterministic(9), 1.0), None, {"balle18improving"}, {"chua25balls", *COMPOSED}),
        (Mechanism(Shuffle(9), 1.0), None, {"chua24private"}, {"zhu22optimal"}),
        (
            Mechanism(BallsAndBins(9, max_batch_size=90, num_examples=99), 1.0),
            None,
            {"chua24scalable"},
            COMPOSED,
        ),
    ],
    ids=lambda part: repr(part) if isinstance(part, Mechanism) else "",
)
def test_what_was_used(mechanism, kind, has, has_not):
    keys = cited(mechanism, mechanism.curve.kind if kind is None else kind)
    assert has <= set(keys)
    assert not has_not & set(keys)
    assert len(keys) == len(set(keys))


def test_entries_are_well_formed():
    for key, entry in _ENTRIES.items():
        assert re.match(rf"@\w+\{{{key},\n", entry)
        assert entry.count("{") == entry.count("}")
        assert all(f"  {field} " in entry for field in ("title", "author", "year"))
    text = citation(Mechanism(BallsAndBins(9), 1.0), "exact")
    assert "Balls-and-Bins Sampling for {DP-SGD}" in text
    assert "@software{ballsbins," in text
