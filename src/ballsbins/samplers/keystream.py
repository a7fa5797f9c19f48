"""Seekable uniform words from a key: the word at (domain, stream, index) is a pure function of these and the key.

Each domain has its own AES-256 key. Under it, block number b of stream s is AES(s ‖ b), both as 64-bit big-endian
numbers: that is AES-CTR with the stream in the upper half of the counter. Words are cut from the blocks in
little-endian order on every platform. So reading a range takes one call of AES-CTR, reading scattered indices takes
one call of AES on the blocks that hold them, and both agree.

AES never repeats a block within a domain, although independent words sometimes would. Over 2³⁴ blocks (an epoch of
2³⁶ examples at 4 bytes) the probability of noticing the difference is at most 2⁻⁶¹.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.errors import InvalidInputError
from ballsbins.samplers.key import Key

_BLOCK = 16  # bytes; update_into needs room for one block more than it writes
_ZEROS = bytes(1 << 18)  # plaintext; small enough to stay in the processor's cache


class Keystream:
    """The words of one domain of a key, such as one purpose in one epoch of one sampler.

    Formal guarantees, assuming that AES-256 and HMAC-SHA256 are pseudorandom:

    * words at different (domain, stream, index) of one width are independent and uniform on 32 or 64 bits
      (32-bit and 64-bit words of one stream overlap: a domain is read in one width only);
    * a word depends on nothing else: not on what was read before, the size of the read, or the platform.
    """

    __slots__ = ("_secret",)

    def __init__(self, key: Key, *domain: str | int | bytes) -> None:
        """Derive this domain's own AES key from `key`."""
        self._secret = key.derive(*domain)

    def words32(self, stream: int, start: int, count: int) -> NDArray[np.uint32]:
        """Return the 32-bit words with indices start … start + count − 1."""
        return self._range(stream, 4 * start, 4 * count).view("<u4").astype(np.uint32, copy=False)

    def words64(self, stream: int, start: int, count: int) -> NDArray[np.uint64]:
        """Return the 64-bit words with indices start … start + count − 1."""
        return self._range(stream, 8 * start, 8 * count).view("<u8").astype(np.uint64, copy=False)

    def words32_at(self, stream: int, indices: NDArray[np.integer]) -> NDArray[np.uint32]:
        """Return the 32-bit words at any indices."""
        places = indices.astype(np.int64, copy=False)
        words = self._blocks(stream, places // 4).view("<u4").astype(np.uint32, copy=False)
        lanes: NDArray[np.int64] = np.arange(0, len(words), 4) + places % 4
        return words[lanes]

    def words64_at(self, stream: int, indices: NDArray[np.integer]) -> NDArray[np.uint64]:
        """Return the 64-bit words at any indices."""
        places = indices.astype(np.int64, copy=False)
        words = self._blocks(stream, places // 2).view("<u8").astype(np.uint64, copy=False)
        lanes: NDArray[np.int64] = np.arange(0, len(words), 2) + places % 2
        return words[lanes]

    def _range(self, stream: int, start: int, count: int) -> NDArray[np.uint8]:
        """Return the bytes start … start + count − 1 of a stream."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        first, skipped = divmod(start, _BLOCK)
        counter = stream.to_bytes(8, "big") + first.to_bytes(8, "big")
        encryptor = Cipher(algorithms.AES256(self._secret), modes.CTR(counter)).encryptor()
        buffer = np.empty(skipped + count + _BLOCK, dtype=np.uint8)
        zeros, written = memoryview(_ZEROS), memoryview(buffer)  # type: ignore[arg-type]
        for begin in range(0, skipped + count, len(_ZEROS)):
            encryptor.update_into(zeros[: skipped + count - begin], written[begin:])
        return buffer[skipped : skipped + count]

    def _blocks(self, stream: int, numbers: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Return the bytes of the blocks with these numbers."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        counters = np.empty((len(numbers), 2), dtype=">u8")
        counters[:, 0] = stream
        counters[:, 1] = numbers
        # ECB applies AES to each block separately, and blocks are equal only if they should give the same word.
        encryptor = Cipher(algorithms.AES256(self._secret), modes.ECB()).encryptor()
        buffer = np.empty(counters.nbytes + _BLOCK, dtype=np.uint8)
        encryptor.update_into(memoryview(counters.tobytes()), memoryview(buffer))  # type: ignore[arg-type]
        return buffer[: counters.nbytes]


_DIGEST = 16


class KeyedHash:
    """A keyed function from bytes to four 32-bit words for every salt (BLAKE2b under a derived key).

    Formal guarantee, assuming that keyed BLAKE2b and HMAC-SHA256 are pseudorandom: the words of different
    (domain, salt, identity) are independent and uniform, and a word depends on nothing else. Equal identities
    get equal words; so the identities of one data set must be unique.
    """

    __slots__ = ("_secret",)

    def __init__(self, key: Key, *domain: str | int | bytes) -> None:
        """Derive this domain's own hash key from `key`."""
        self._secret = key.derive(*domain)

    def words(self, identities: Sequence[bytes], salt: int = 0) -> NDArray[np.uint32]:
        """Return one row of four words for each identity."""
        secret, grain = self._secret, salt.to_bytes(16, "little")
        blake2b = hashlib.blake2b
        digests = b"".join(
            [blake2b(row, digest_size=_DIGEST, key=secret, salt=grain).digest() for row in identities]
        )
        return np.frombuffer(digests, dtype="<u4").reshape(-1, 4).astype(np.uint32, copy=False)


def check_identities(
    identities: NDArray[np.integer] | Sequence[bytes], max_examples: int
) -> NDArray[np.integer] | Sequence[bytes]:
    """Return an array of indices below `max_examples`, or a sequence of bytes; raise for anything else.

    Text is refused, since it has more than one encoding.
    """
    if isinstance(identities, np.ndarray) and identities.dtype.kind in "iu" and identities.ndim == 1:
        if len(identities):
            advice = "Name the examples by their indices."
            _check.integer("the smallest index", identities.min(), 0, advice=advice)
            _check.integer("the largest index", identities.max(), 0, max_examples - 1, advice=advice)
        return identities
    for place, identity in enumerate(identities):
        if not isinstance(identity, bytes):
            raise InvalidInputError(
                f"identities[{place}]",
                type(identity).__name__,
                "of type bytes",
                "Encode text yourself, always in the same way, for example with .encode('utf-8'); "
                "give indices as one numpy array of integers.",
            )
    return list(identities)
