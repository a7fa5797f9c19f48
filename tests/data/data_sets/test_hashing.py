"""Categories to buckets: the same everywhere, different by salt and feature, and spread as the theory says."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from ballsbins.data.criteo.formats import bucket_ids, text_hashes


def reference(text, salt, feature):
    """The definition in the module's docstring, one byte at a time in Python's integers."""
    name = f"ballsbins/category-hash/1/{len(salt)}/{salt}/{feature}".encode()
    drawn = hashlib.shake_256(name).digest(8 * (len(text) + 1))
    words = [int.from_bytes(drawn[8 * i : 8 * i + 8], "little") for i in range(len(text) + 1)]
    total = words[0] + sum(word * (byte + 1) for word, byte in zip(words[1:], text.encode(), strict=True))
    return (total % 2**64) >> 32


TEXTS = ["68fd1e64", "", "80e26c9b", "a", "aa", "\x00", "the same of another length", "ff" * 40]


def test_hash_is_its_definition():
    ours = text_hashes(pa.array(TEXTS), salt="s", feature="C1")
    assert ours.tolist() == [reference(text, "s", "C1") for text in TEXTS]


def test_buckets_never_change():
    """A prepared data set and a model trained on it must agree next year: these values are for ever."""
    ids = bucket_ids(pa.array(["68fd1e64", "80e26c9b", "fb936136"]), 2048, salt="ballsbins", feature="C1")
    assert ids.tolist() == [661, 1525, 1325]


def test_slices_and_empty_arrays():
    whole = pa.array(TEXTS)
    ours = text_hashes(whole, salt="s", feature="C1")
    assert text_hashes(whole[2:5], salt="s", feature="C1").tolist() == ours[2:5].tolist()
    assert len(text_hashes(whole[:0], salt="s", feature="C1")) == 0
    assert text_hashes(whole[1:2], salt="s", feature="C1").tolist() == ours[1:2].tolist()


def test_salt_and_feature_matter():
    texts = pa.array([f"{i:08x}" for i in range(1000)])
    base = bucket_ids(texts, 1000, salt="a", feature="C1")
    for salt, feature in (("b", "C1"), ("a", "C2")):
        same = np.mean(base == bucket_ids(texts, 1000, salt=salt, feature=feature))
        assert same < 0.02  # 1/999 expected; of 1000 values more than 20 has probability below 1e-15


@pytest.mark.parametrize("buckets", [2, 3, 65])
def test_ids_stay_within_the_buckets(buckets):
    texts = pa.array([f"{i:08x}" for i in range(3000)])
    ids = bucket_ids(texts, buckets, salt="s", feature="f")
    assert set(np.unique(ids)) == set(range(1, buckets))


def test_spread_is_uniform_and_collisions_are_rare():
    """Fixed salts; a chi-squared test at a false-alarm rate of 1e-6 for each of two kinds of texts."""
    for texts in ([f"{i:08x}" for i in range(40_000)], [str(i) for i in range(40_000)]):
        ids = bucket_ids(pa.array(texts), 1001, salt="ballsbins", feature="C3")
        assert stats.chisquare(np.bincount(ids, minlength=1001)[1:]).pvalue > 1e-6
        lopsided = np.where(ids > 950, 1, ids)  # negative control: a twentieth goes to one bucket
        assert stats.chisquare(np.bincount(lopsided, minlength=1001)[1:951]).pvalue < 1e-6
