"""The keystream: seekable, agreeing with itself, uniform, separate by domain."""

import numpy as np
import pytest

from ballsbins.samplers.key import Key
from ballsbins.samplers.keystream import KeyedHash, Keystream

KEY = Key.from_seed(20)
STREAM = Keystream(KEY, "test", 1)


@pytest.mark.parametrize("read", ["words32", "words64"])
def test_any_range_and_any_scattered_read_agree(read):
    ranged, scattered = getattr(STREAM, read), getattr(STREAM, read + "_at")
    whole = ranged(3, 0, 1000)
    for start in (0, 1, 2, 3, 4, 5, 17, 998):
        for count in (0, 1, 2, 5, 400):
            expected = whole[start : start + count]
            got = ranged(3, start, count)[: len(expected)]
            assert np.array_equal(got, expected)
    indices = np.random.default_rng(0).integers(0, 1000, 500)
    for dtype in (np.uint32, np.int64, np.uint64):
        assert np.array_equal(scattered(3, indices.astype(dtype)), whole[indices])
    assert scattered(3, np.empty(0, np.int64)).shape == (0,)


def test_reads_longer_than_one_buffer_agree():
    count = (1 << 18) // 4 * 3 + 5
    whole = STREAM.words32(0, 0, count)
    for start in (65_535, 65_536, 131_073, count - 3):
        assert np.array_equal(STREAM.words32(0, start, count - start), whole[start:])


def test_far_offsets_do_not_wrap():
    far = 2**48
    near = STREAM.words64(0, 0, 4)
    assert not np.array_equal(STREAM.words64(0, far, 4), near)
    assert np.array_equal(STREAM.words64(0, far, 4), STREAM.words64_at(0, far + np.arange(4)))
    assert np.array_equal(STREAM.words64(0, far - 2, 4)[2:], STREAM.words64(0, far, 2))


def test_domains_streams_and_keys_share_no_words():
    sources = [Keystream(KEY, *domain) for domain in (("a",), ("b",), ("a", 0), ("a", 1), ())]
    sources.append(Keystream(Key.from_seed(21), "a"))
    words = [source.words64(stream, 0, 1000) for source in sources for stream in (0, 1, 2**32, 2**40)]
    everything = np.concatenate(words)
    assert len(np.unique(everything)) == len(everything)


def test_words_are_uniform(fits):
    words = STREAM.words64(0, 0, 500_000)
    for byte in range(8):
        values = (words >> np.uint64(8 * byte)).astype(np.uint8)
        assert fits(np.bincount(values, minlength=256))
    biased = np.where(np.arange(500_000) % 50 == 0, np.uint8(0), values)
    assert not fits(np.bincount(biased, minlength=256))


def test_neighbouring_words_are_independent(fits):
    top = (STREAM.words32(0, 0, 400_001) >> np.uint32(28)).astype(np.int64)
    assert fits(np.bincount(top[:-1] * 16 + top[1:], minlength=256))
    repeated = np.where(np.arange(len(top)) % 10 == 0, np.roll(top, 1), top)  # one in ten repeats the last
    assert not fits(np.bincount(repeated[:-1] * 16 + repeated[1:], minlength=256))


def test_hashed_identities_are_uniform_and_separate(fits):
    names = [b"row-%d" % number for number in range(50_000)]
    words = KeyedHash(KEY, "names").words(names)
    for column in range(4):
        assert fits(np.bincount(words[:, column] >> np.uint32(25), minlength=128))
    assert not fits(np.bincount(words[:, 0] >> np.uint32(25) & np.uint32(126), minlength=128) + 1)
    others = [KeyedHash(KEY, "names").words(names, salt=1), KeyedHash(KEY, "other").words(names)]
    for other in others:
        assert (words == other).mean() < 1e-3
    assert KeyedHash(KEY, "names").words([]).shape == (0, 4)
