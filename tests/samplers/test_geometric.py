"""Exact trials of probability 1/T by gaps."""

import math

import mpmath
import numpy as np
import pytest

from ballsbins.samplers.key import Key
from ballsbins.samplers.keystream import Keystream
from ballsbins.samplers.poisson import exact_gap, gaps, successes

STREAM = Keystream(Key.from_seed(77), "test")
STEPS = [2, 3, 10, 1000, 36_133, 10**7, 2**31 - 1]


class GivenWords(Keystream):
    """A keystream that gives the words it is told: the first at stream 0, further ones above."""

    __slots__ = ("first", "further")

    def __init__(self, first, further):
        self.first, self.further = np.array(first, dtype=np.uint64), further

    def words64(self, stream, start, count):
        if stream >> 32 == 0:
            return self.first[start : start + count]
        return np.full(count, self.further, dtype=np.uint64)


def reference(word: int, further: int, one_in: int) -> int:
    """Evaluate the definition with 200 digits, for digits of U that are followed by `further` for ever."""
    with mpmath.workdps(200):
        digits = mpmath.mpf(word) / 2**64 + mpmath.mpf(further) / (2**64 - 1) / 2**64
        return int(mpmath.floor(mpmath.log(digits) / mpmath.log(mpmath.mpf(one_in - 1) / one_in)))


@pytest.mark.parametrize("one_in", STEPS)
def test_gaps_equal_a_high_precision_evaluation(one_in):
    words = STREAM.words64(0, 0, 400).tolist()
    further = 2**63 + 12_345
    got = gaps(GivenWords(words, further), 0, 0, len(words), one_in=one_in, ceiling=2**62)
    assert got.tolist() == [reference(word, further, one_in) for word in words]


@pytest.mark.parametrize("one_in", STEPS)
def test_gaps_next_to_a_threshold_and_far_in_the_tail(one_in):
    """Where double precision alone would guess: U within a few units of (1 − 1/T)^k, next to 1, next to 0."""
    with mpmath.workdps(60):
        ratio = mpmath.mpf(one_in - 1) / one_in
        thresholds = [int(mpmath.floor(2**64 * ratio**power)) for power in (1, 2, 3, 10, 29)]
    words = [word + shift for word in thresholds for shift in (-3, -2, -1, 0, 1, 2)]
    words += [0, 1, 2, 1000, 2**30, 2**48 - 1, 2**48, 2**48 + 1, 2**64 - 1, 2**64 - 2, 2**64 - 1000]
    words = [min(max(word, 0), 2**64 - 1) for word in words]
    for further in (1, 2**63, 2**64 - 2):
        got = gaps(GivenWords(words, further), 0, 0, len(words), one_in=one_in, ceiling=2**62)
        assert got.tolist() == [reference(word, further, one_in) for word in words]


def test_plain_double_precision_would_be_wrong():
    """The negative control of the test above: without the exact path some of those gaps are wrong."""
    one_in, further = 10**7, 2**64 - 2
    with mpmath.workdps(60):
        words = [
            int(mpmath.floor(2**64 * (mpmath.mpf(one_in - 1) / one_in) ** power)) for power in range(1, 40)
        ]
    plain = [math.floor(math.log(word / 2**64) / math.log1p(-1 / one_in)) for word in words]
    assert plain != [reference(word, further, one_in) for word in words]


def test_an_exact_gap_reads_on_until_it_is_decided():
    half = 2**63  # U = 0.1000… in binary, for T = 2 exactly a threshold until a digit differs
    read = []

    def further(attempt):
        read.append(attempt)
        return 1 if attempt == 4 else 0

    assert exact_gap(half, further, 2) == 0  # U just above 1/2
    assert read == [1, 2, 3, 4]
    assert exact_gap(half - 1, lambda attempt: 2**64 - 1 if attempt < 4 else 0, 2) == 1  # just below
    assert exact_gap(0, lambda attempt: 0 if attempt < 3 else 1, 2) == 4 * 64 - 1


def test_the_ceiling_replaces_larger_gaps():
    words = [1, 2**63]
    assert gaps(GivenWords(words, 5), 0, 0, 2, one_in=10**7, ceiling=1000).tolist()[0] == 1000


SIZES = [(0, 5), (1, 5), (1000, 1), (1000, 2), (200_000, 2), (10**6, 1000)]


@pytest.mark.parametrize(("trials", "one_in"), SIZES)
def test_successes_ascend_and_do_not_depend_on_the_size_of_the_reads(monkeypatch, trials, one_in):
    found = np.concatenate([np.empty(0, np.int64), *successes(STREAM, 3, trials, one_in)])
    assert np.all(np.diff(found) > 0)
    assert len(found) == 0 or (found[0] >= 0 and found[-1] < trials)
    monkeypatch.setattr("ballsbins.samplers.poisson._CHUNK", 37)
    again = np.concatenate([np.empty(0, np.int64), *successes(STREAM, 3, trials, one_in)])
    assert np.array_equal(found, again)
    if one_in == 1:
        assert len(found) == trials


def test_more_trials_keep_the_first_successes():
    few, many = (np.concatenate(list(successes(STREAM, 1, trials, 50))) for trials in (10_000, 90_000))
    assert np.array_equal(few, many[many < 10_000])


def test_gaps_are_geometric(fits):
    one_in, last = 4, 20
    found = gaps(STREAM, 0, 0, 400_000, one_in=one_in, ceiling=10**6)
    shares = [(1 - 1 / one_in) ** k / one_in for k in range(last)]
    shares.append(1 - sum(shares))
    assert fits(np.bincount(np.minimum(found, last), minlength=last + 1), shares)
    likelier = np.where(np.arange(len(found)) % 100 == 0, 0, found)  # a gap of 0 is 3 % likelier
    assert not fits(np.bincount(np.minimum(likelier, last), minlength=last + 1), shares)
