"""The assignment for a fixed key, by a slow independent reading of the definition, and pinned as numbers.

A saved run must mean the same next year and on any machine: if a number here changes, every assignment ever
drawn has changed. Do not update the numbers; find out what broke.
"""

import hashlib
import hmac
import math
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from ballsbins.samplers import BallsAndBins, Key, Poisson, Shuffle, binomial_sizes, thrown_sizes

SECRET = bytes(range(32))
KEY = Key(SECRET)


def subkey(*domain) -> bytes:
    message = b"ballsbins/1"
    for part in domain:
        if isinstance(part, int):
            message += b"i" + part.to_bytes(8, "little")
        else:
            message += b"s" + len(part.encode()).to_bytes(8, "little") + part.encode()
    return hmac.new(SECRET, message, hashlib.sha256).digest()


def word(secret: bytes, stream: int, index: int, size: int) -> int:
    block, lane = divmod(index, 16 // size)
    counter = stream.to_bytes(8, "big") + block.to_bytes(8, "big")
    encrypted = Cipher(algorithms.AES256(secret), modes.ECB()).encryptor().update(counter)
    return int.from_bytes(encrypted[size * lane : size * (lane + 1)], "little")


def reference_bin(steps: int, epoch: int | str, index: int) -> int:
    secret = subkey("balls_and_bins", steps, "bins", epoch)
    attempt = 0
    while True:
        upper, lower = divmod(word(secret, attempt, index, 4) * steps, 2**32)
        if lower >= 2**32 % steps:
            return upper
        attempt += 1


def reference_bin_of_bytes(steps: int, epoch: int, identity: bytes) -> int:
    secret = subkey("balls_and_bins", steps, "bins of bytes", epoch)
    attempt = 0
    while True:
        salt, lane = divmod(attempt, 4)
        digest = hashlib.blake2b(
            identity, digest_size=16, key=secret, salt=salt.to_bytes(16, "little")
        ).digest()
        upper, lower = divmod(int.from_bytes(digest[4 * lane : 4 * lane + 4], "little") * steps, 2**32)
        if lower >= 2**32 % steps:
            return upper
        attempt += 1


# 3·2³⁰ refuses a quarter of all words and so exercises the redrawing; the others are ordinary.
@pytest.mark.parametrize("steps", [1, 2, 7, 36_133, 10_000_000, 3 * 2**29])
def test_bins_are_as_defined(steps):
    sampler = BallsAndBins(steps)
    for epoch in (0, 5):
        expected = [reference_bin(steps, epoch, index) for index in range(41)]
        assert sampler.bins(KEY, epoch, 0, 41).tolist() == expected
        assert [sampler.bin_of(KEY, epoch, index) for index in range(41)] == expected
    far = 2**47 + 3
    assert sampler.bin_of(KEY, 0, far) == reference_bin(steps, 0, far)
    assert BallsAndBins(steps, redraw=False).bin_of(KEY, 3, 8) == reference_bin(steps, "every", 8)


@pytest.mark.parametrize("steps", [1, 7, 36_133, 3 * 2**29])
def test_bins_of_bytes_are_as_defined(steps):
    names = [b"", b"\0", b"\0\0", "müller".encode(), b"x" * 1000, *(b"%d" % number for number in range(40))]
    expected = [reference_bin_of_bytes(steps, 2, name) for name in names]
    sampler = BallsAndBins(steps)
    assert sampler.bins_of(KEY, 2, names).tolist() == expected
    assert [sampler.bin_of(KEY, 2, name) for name in names] == expected


def test_poisson_gaps_are_as_defined():
    steps, trials = 5, 60
    secret = subkey("poisson", steps, "gaps", 1)
    for step in range(steps):
        expected, place, index = [], -1, 0
        while True:
            uniform = Fraction(2 * word(secret, step, index, 8) + 1, 2**65)
            gap, threshold = 0, Fraction(steps - 1, steps)
            while uniform < threshold ** (gap + 1):
                gap += 1
            place, index = place + gap + 1, index + 1
            if place >= trials:
                break
            expected.append(place)
        assert Poisson(steps).batches(trials, KEY, epoch=1).at(step).tolist() == expected


def test_shuffled_order_is_as_defined():
    secret = subkey("shuffle", 4, "order", 3)
    expected = sorted(range(50), key=lambda index: word(secret, 0, index, 4))
    assert Shuffle(4).order(50, KEY, epoch=3).tolist() == expected


def test_truncation_is_as_defined():
    sampler = BallsAndBins(2, max_batch_size=5, num_examples=40)
    secret = subkey("balls_and_bins", 2, "truncate", 1)
    for step, whole in enumerate(BallsAndBins(2).batches(40, KEY, epoch=1)):
        words = {index: word(secret, step, index, 8) for index in whole.tolist()}
        kept = sorted(sorted(words, key=words.__getitem__)[:5])
        assert sampler.batches(40, KEY, epoch=1).at(step).tolist() == kept
        assert sampler.truncation_words(KEY, 1, step, whole).tolist() == list(words.values())


def test_commitment_is_as_defined():
    assert KEY.commitment() == subkey("commitment").hex()[:16]


def test_pinned_values():
    assert KEY.commitment() == PINNED["commitment"]
    assert Key.from_seed(42).commitment() == PINNED["seed 42"]
    assert KEY.derive("noise", 3).hex() == PINNED["noise 3"]
    assert BallsAndBins(36_133).bins(KEY, 0, 0, 8).tolist() == PINNED["bins"]
    assert BallsAndBins(36_133).bins(KEY, 1, 10**9, 10**9 + 4).tolist() == PINNED["later bins"]
    assert BallsAndBins(36_133, redraw=False).bins(KEY, 1, 0, 4).tolist() == PINNED["fixed bins"]
    assert BallsAndBins(36_133).bins_of(KEY, 0, [b"a", b"b", b""]).tolist() == PINNED["bins of bytes"]
    assert Poisson(1000).batches(10_000, KEY).at(7).tolist() == PINNED["poisson"]
    assert Shuffle(3).order(10, KEY).tolist() == PINNED["order"]
    assert thrown_sizes(BallsAndBins(6), 100, KEY).tolist() == PINNED["thrown"]
    assert list(binomial_sizes(BallsAndBins(6), 100, KEY)) == PINNED["binomials"]
    everything = BallsAndBins(1000).batches(100_000, KEY, epoch=9)
    digest = hashlib.sha256(b"".join(np.asarray(batch, dtype="<u8").tobytes() + b"|" for batch in everything))
    assert digest.hexdigest() == PINNED["epoch 9"]
    assert math.prod(len(batch) > 0 for batch in everything) == 1


PINNED = {
    "commitment": "c4b7cb874c4e62f6",
    "seed 42": "a9d71eb2c87e129f",
    "noise 3": "632f514a5b47ef26fe543d6ed54ba67844303ad3744be250e4efd55925db50f7",
    "bins": [18764, 34599, 31445, 12640, 21025, 1843, 14302, 21073],
    "later bins": [22015, 23112, 22167, 15024],
    "fixed bins": [32067, 10937, 4210, 14507],
    "bins of bytes": [17876, 30100, 1605],
    "poisson": [171, 2320, 2573, 3810, 4545, 5365, 5537, 5576, 8579, 8607],
    "order": [2, 4, 0, 9, 3, 6, 7, 8, 1, 5],
    "thrown": [13, 21, 17, 15, 19, 15],
    "binomials": [14, 25, 20, 10, 11, 20],
    "epoch 9": "75d88a0c208e301391028b263281d178780f92d08804d946e58e6fa27c52e1f9",
}
