"""Uniform words for rows whose identity is a unique key of bytes instead of a number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ballsbins import _check
from ballsbins.errors import InvalidInputError
from ballsbins.samplers.key import Key

_DIGEST = 16


class KeyedHash:
    """A keyed function from bytes to four 32-bit words for every salt (BLAKE2b under a derived key).

    Formal guarantee, taking keyed BLAKE2b and HMAC-SHA256 to be pseudorandom: the words of different
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
