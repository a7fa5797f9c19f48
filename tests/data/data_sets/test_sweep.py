"""A sweep that is killed continues; one of something else is refused."""

import json

import pytest

from ballsbins import InvalidInputError
from ballsbins.training.sweep import SweepLog

ABOUT = {"data": "some", "network": (8, 64)}


def test_results_are_kept(tmp_path):
    file = tmp_path / "new" / "runs.jsonl"
    log = SweepLog(file, ABOUT)
    assert log.get({"rate": 0.1, "run": 0}) is None
    log.add({"rate": 0.1, "run": 0}, {"auc": 0.75})
    log.add({"run": 1, "rate": 0.1}, {"auc": 0.7})
    again = SweepLog(file, ABOUT)
    assert len(again) == 2
    assert again.get({"rate": 0.1, "run": 1}) == {"auc": 0.7}  # whatever the order of the names
    assert again.get({"rate": 0.2, "run": 1}) is None
    first = file.read_text().splitlines()[0]
    assert json.loads(first) == {"about": {"data": "some", "network": [8, 64]}}


@pytest.mark.parametrize("cut", range(1, 30, 7))
def test_half_a_line_is_dropped_and_done_again(tmp_path, cut):
    file = tmp_path / "runs.jsonl"
    log = SweepLog(file, ABOUT)
    log.add({"run": 0}, {"auc": 0.5})
    whole = file.read_bytes()
    log.add({"run": 1}, {"auc": 0.6})
    file.write_bytes(file.read_bytes()[:-cut])
    killed = SweepLog(file, ABOUT)
    assert file.read_bytes() == whole
    assert killed.get({"run": 0}) == {"auc": 0.5}
    assert killed.get({"run": 1}) is None
    killed.add({"run": 1}, {"auc": 0.6})
    assert len(SweepLog(file, ABOUT)) == 2


def test_another_sweep_and_another_file_are_refused(tmp_path):
    file = tmp_path / "runs.jsonl"
    SweepLog(file, ABOUT)
    with pytest.raises(InvalidInputError, match="another sweep"):
        SweepLog(file, ABOUT | {"data": "other"})
    file.write_text("no JSON\n")
    with pytest.raises(InvalidInputError, match="one JSON object a line"):
        SweepLog(file, ABOUT)
    with pytest.raises(InvalidInputError, match="Not a directory"):
        SweepLog(file / "below", ABOUT)
