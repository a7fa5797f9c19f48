"""The format of the two public files, and what the paper uses from them (section 5 and appendix C).

Categories are hashed to buckets without looking at the data, by multilinear hashing. For a text of bytes s₁ … s_k the
hash is the upper half of m₀ + Σ mᵢ·(sᵢ + 1) mod 2⁶⁴, with multipliers drawn by SHAKE-256 from a public salt and the
feature's name. Over a random salt, two different texts fall into the same of M buckets with probability at most
1/M + 2⁻³², whatever the texts are (strong universality; adding one to every byte makes texts of different lengths
differ). The same salt gives the same buckets on every machine and in every version; Python's own `hash` guarantees
neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Format:
    """The columns of a tab-separated file without a header, and which of them are features.

    `buckets` are the default numbers of hash buckets. They were chosen in advance so that a model with embeddings of
    dimension 48 has about as many parameters as the paper's (85 and 57 million). They do not depend on a user's file.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    label: str
    integers: tuple[str, ...]
    buckets: Mapping[str, int]
    missing: tuple[str, ...]  # texts that mean "no value" in a category
    pattern: str | None  # what a category looks like, if the format specifies it
    chronological: bool
    fractions: Mapping[Literal["train", "validation", "test"], float]

    @property
    def used(self) -> tuple[str, ...]:
        """The columns that are read, the label first."""
        return (self.label, *self.integers, *self.buckets)


DISPLAY_ADS = Format(
    name="display-ads",
    title="Criteo Display Ads pCTR",
    columns=("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))),
    label="label",
    integers=tuple(f"I{i}" for i in range(1, 14)),
    buckets=MappingProxyType(
        {
            "C1": 2048, "C2": 1024, "C3": 262_144, "C4": 262_144, "C5": 512, "C6": 64, "C7": 8192, "C8": 1024,
            "C9": 16, "C10": 65_536, "C11": 4096, "C12": 262_144, "C13": 4096, "C14": 64, "C15": 8192,
            "C16": 262_144, "C17": 32, "C18": 4096, "C19": 2048, "C20": 16, "C21": 262_144, "C22": 64, "C23": 64,
            "C24": 262_144, "C25": 256, "C26": 65_536,
        }
    ),
    missing=("",),
    pattern="^[0-9a-f]{8}$",
    chronological=True,
    fractions=MappingProxyType({"train": 0.8, "validation": 0.1, "test": 0.1}),
)  # fmt: skip

# The two outcomes besides Sale, and product_price, which reveals the label, are left out. The other nineteen columns
# are categories, including click time and click count: "we treat all features as categorical" (appendix C).
SPONSORED_SEARCH = Format(
    name="sponsored-search",
    title="Criteo Sponsored Search Conversion Log",
    columns=(
        "Sale", "SalesAmountInEuro", "time_delay_for_conversion", "click_timestamp", "nb_clicks_1week",
        "product_price", "product_age_group", "device_type", "audience_id", "product_gender", "product_brand",
        *(f"product_category{i}" for i in range(1, 8)), "product_country", "product_id", "product_title",
        "partner_id", "user_id",
    ),
    label="Sale",
    integers=(),
    buckets=MappingProxyType(
        {
            "click_timestamp": 262_144, "nb_clicks_1week": 8192, "product_age_group": 64, "device_type": 64,
            "audience_id": 16_384, "product_gender": 64, "product_brand": 65_536, "product_category1": 64,
            "product_category2": 512, "product_category3": 2048, "product_category4": 4096,
            "product_category5": 8192, "product_category6": 4096, "product_category7": 256, "product_country": 64,
            "product_id": 262_144, "product_title": 262_144, "partner_id": 1024, "user_id": 262_144,
        }
    ),
    missing=("", "-1"),
    pattern=None,
    chronological=False,
    fractions=MappingProxyType({"train": 0.8, "test": 0.2}),
)  # fmt: skip

FORMATS = MappingProxyType({form.name: form for form in (DISPLAY_ADS, SPONSORED_SEARCH)})


MISSING_ID = 0  # the first bucket is reserved for missing values
_HALF = np.uint64(32)


def bucket_ids(texts: Any, buckets: int, *, salt: str, feature: str) -> NDArray[np.int32]:
    """Ids from 1 to buckets − 1 of a pyarrow string array without nulls."""
    hashes = text_hashes(texts, salt=salt, feature=feature)
    # Multiply and shift instead of taking a remainder: no division, and bucket shares differ by at most 2⁻³².
    return (((hashes * np.uint64(buckets - 1)) >> _HALF) + np.uint64(1)).astype(np.int32)


def text_hashes(texts: Any, *, salt: str, feature: str) -> NDArray[np.uint64]:
    """A 32-bit hash of every text."""
    count = len(texts)
    offsets = np.frombuffer(texts.buffers()[1], np.int32, count + 1, 4 * texts.offset).astype(np.int64)
    if count == 0 or offsets[-1] == offsets[0]:
        first = _multipliers(salt, feature, 1)[0]
        return np.full(count, first >> _HALF, np.uint64)
    raw = np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    lengths = np.diff(offsets)
    multipliers = _multipliers(salt, feature, _power_of_two(int(lengths.max()) + 1))
    places = np.arange(len(raw)) - np.repeat(offsets[:-1], lengths)
    terms = multipliers[places + 1] * (raw.astype(np.uint64) + np.uint64(1))  # wraps: arithmetic modulo 2⁶⁴
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    totals = sums[offsets[1:]] - sums[offsets[:-1]] + multipliers[0]
    hashes: NDArray[np.uint64] = totals >> _HALF
    return hashes


@lru_cache(maxsize=256)
def _multipliers(salt: str, feature: str, count: int) -> NDArray[np.uint64]:
    """The first `count` multipliers; a longer draw begins with the same ones."""
    name = f"ballsbins/category-hash/1/{len(salt)}/{salt}/{feature}".encode()
    drawn = np.frombuffer(hashlib.shake_256(name).digest(8 * count), "<u8").astype(np.uint64)
    drawn.flags.writeable = False
    return drawn


def _power_of_two(number: int) -> int:
    """A power of two that is at least `number`, so that only few different lengths are drawn and kept."""
    return 1 << (number - 1).bit_length()
