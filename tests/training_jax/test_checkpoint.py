"""A checkpoint is the old one or the new one, whatever happens while it is written."""

import errno
import os

import numpy as np
import pytest

from ballsbins.errors import DataError, InvalidInputError
from ballsbins.training.jax.checkpoint import clean, load, require_same, save

ARRAYS = [np.arange(6.0).reshape(2, 3), np.array(7, np.int32)]


def test_what_is_saved_is_loaded(tmp_path):
    save(tmp_path / "a.npz", {"steps": 3}, ARRAYS)
    header, arrays = load(tmp_path / "a.npz")
    assert header == {"schema": 2, "steps": 3}
    for got, given in zip(arrays, ARRAYS, strict=True):
        np.testing.assert_array_equal(got, given)
        assert got.dtype == given.dtype


@pytest.mark.parametrize("place", ["savez", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, place):
    save(tmp_path / "a.npz", {"steps": 3}, ARRAYS)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np if place == "savez" else os, place, full)
    with pytest.raises(DataError, match="what was there before is whole"):
        save(tmp_path / "a.npz", {"steps": 4}, ARRAYS)
    monkeypatch.undo()
    assert load(tmp_path / "a.npz")[0]["steps"] == 3
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    save(tmp_path / "a.npz", {"steps": 3}, ARRAYS)
    (tmp_path / ".a.npz.xyz").write_bytes(b"half")
    clean(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def test_files_that_are_none(tmp_path):
    for content in (b"", b"text", b"PK\x03\x04 cut"):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(DataError, match="is not a file that training wrote"):
            load(tmp_path / "a.npz")
    with pytest.raises(DataError, match="cannot be written"):
        save(tmp_path / "nowhere" / "a.npz", {}, ARRAYS)


def test_a_later_schema_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ballsbins.training.jax.checkpoint.SCHEMA", 3)
    save(tmp_path / "a.npz", {}, ARRAYS)
    monkeypatch.undo()
    with pytest.raises(InvalidInputError, match="later version"):
        load(tmp_path / "a.npz")


def test_a_checkpoint_of_the_first_version_is_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("ballsbins.training.jax.checkpoint.SCHEMA", 1)
    save(tmp_path / "a.npz", {}, ARRAYS)
    monkeypatch.undo()
    with pytest.raises(InvalidInputError, match=r"noise is not safe.*Train anew"):
        load(tmp_path / "a.npz")


def test_the_first_fact_that_differs_is_named(tmp_path):
    saved = {"plan": {"a": 1, "sampler": {"steps": 3}}, "n": 4}
    require_same(saved, {"plan": {"a": 1, "sampler": {"steps": 3}}, "n": 4}, tmp_path)
    with pytest.raises(InvalidInputError, match="steps is 5, but must be 3, as this run began"):
        require_same(saved, {"plan": {"a": 1, "sampler": {"steps": 5}}, "n": 4}, tmp_path)
    with pytest.raises(InvalidInputError, match="n is None"):
        require_same(saved, {"plan": saved["plan"]}, tmp_path)
