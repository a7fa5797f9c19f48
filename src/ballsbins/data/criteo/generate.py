"""Generate files in the format of the real ones, of any size, with a planted signal: for tests, demos and CI.

Every category has a Zipf-like distribution over its values, and every value has its own normal weight, a function of
the seed. The label is a coin whose log-odds are the sum of the weights (and of the integers' logarithms, if there are
integers). Rare values carry as much signal as frequent ones, so a model gains from every further example it sees, as
it does on the real data. Every chunk of rows has its own random stream: the same seed gives the same file, and a
longer file begins with the rows of a shorter one.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from ballsbins import _check, _extras
from ballsbins._files import replacing
from ballsbins.data.criteo.encode import DataProgress
from ballsbins.data.criteo.formats import DISPLAY_ADS, Format
from ballsbins.errors import InvalidInputError

_CHUNK = 2**15  # rows per random stream; changing it would change what a seed generates
_JUDGED = 8 * _CHUNK  # number of rows on which the best AUC is measured
_MISSING = 0.1  # missing fraction of the integers, and of categories with many values
_LARGEST = 5000  # maximum number of values of a category
_WEIGHT = 0.36  # standard deviation of a value's weight
# categories that are numbers in the file and carry no signal
_PLAIN = (
    "click_timestamp",
    "nb_clicks_1week",
)
_DAYS = 90 * 86_400
_FIRST_CLICK = 1_596_439_471
_MAX_ROWS = 2**40
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Generated:
    """What was written. `best_auc` is that of the true log-odds: an upper limit for any model, up to chance."""

    path: Path
    num_examples: int
    positives: int
    best_auc: float


def generate(
    path: str | Path, form: Format, num_examples: int, *, seed: int = 0, progress: DataProgress | None = None
) -> Generated:
    """Write a file of this format, compressed if its name ends in .gz. It appears whole or not at all."""
    target = Path(path)
    rows = _check.integer(
        "num_examples", num_examples, 1, _MAX_ROWS, advice="Give the number of lines to write."
    )
    _check.integer("seed", seed, 0, 2**63 - 1, advice="The same seed gives the same file.")
    if target.exists() or not target.parent.is_dir():
        raise InvalidInputError(
            "the output file", str(path), "a new file in a directory that exists",
            "Nothing is overwritten: choose another path, or remove it.",
        )  # fmt: skip
    csv = _extras.load("pyarrow.csv", feature="Generating data", extra="data")
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    positives, judged = 0, []
    try:
        with replacing(target, mode=0o644) as raw:
            # Leave name and time out of the header, so that the same seed gives the same bytes.
            file: IO[bytes] = gzip.GzipFile("", "wb", 5, raw, 0) if target.suffix == ".gz" else raw  # type: ignore[assignment]
            for chunk in range(-(-rows // _CHUNK)):
                begin = chunk * _CHUNK
                table, labels, logits = _rows(form, seed, chunk, min(_CHUNK, rows - begin))
                csv.write_csv(table, file, options)
                positives += int(labels.sum())
                if begin < _JUDGED:
                    judged.append((labels, logits))
                if progress is not None:
                    progress("generating", begin + len(labels), rows)
            if file is not raw:
                file.close()
    except OSError as error:
        raise InvalidInputError(
            "the output file", str(path), f"one that can be written ({error.strerror})",
            "Free some space or choose another place; what was begun has been removed.",
        ) from None  # fmt: skip
    return Generated(target, rows, positives, _auc(judged))


def _rows(
    form: Format, seed: int, chunk: int, count: int
) -> tuple[Any, NDArray[np.bool_], NDArray[np.float64]]:
    """One chunk as a table of text and numbers, with its labels and true log-odds."""
    arrow = _extras.load("pyarrow", feature="Generating data", extra="data")
    random = np.random.default_rng([seed, chunk])
    columns: dict[str, Any] = {}
    clicks = form is DISPLAY_ADS
    logits = np.full(_CHUNK, -1.9 if clicks else -3.0)
    for place, (name, buckets) in enumerate(form.buckets.items()):
        values = min(buckets // 4, _LARGEST)
        index = np.floor(np.exp(random.random(_CHUNK) * np.log1p(values))).astype(np.uint64) - np.uint64(1)
        words = _mix(index + (np.uint64(place + 1) << np.uint64(40)), seed)
        absent = (random.random(_CHUNK) < _MISSING) & (values > 64)
        if name not in _PLAIN:
            uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
            logits += np.where(absent, 0.0, _WEIGHT * special.ndtri(uniform))
        columns[name] = _category(form, name, words, index, absent, count)
    for place, name in enumerate(form.integers):
        size = np.minimum(random.exponential(1.0 + place % 4, _CHUNK), 14.0)
        # the second integer may be −1, as in the real file
        number = np.floor(np.expm1(size)).astype(np.int64) - (place == 1)
        absent = random.random(_CHUNK) < _MISSING
        logits += np.where(absent, 0.0, 0.15 * (-1.0) ** place * (size - 1.0 - place % 4))
        columns[name] = arrow.array(number[:count], mask=absent[:count])
    labels = random.random(_CHUNK) < special.expit(logits)
    columns[form.label] = arrow.array(labels[:count].astype(np.int8))
    if not clicks:
        columns |= _outcomes(random, labels, chunk, count)
    return arrow.table([columns[name] for name in form.columns], form.columns), labels[:count], logits[:count]


def _outcomes(
    random: np.random.Generator, labels: NDArray[np.bool_], chunk: int, count: int
) -> dict[str, Any]:
    """The columns of sponsored search that are not hashes; −1 means that there was no sale, as in the real file."""
    arrow = _extras.load("pyarrow", feature="Generating data", extra="data")
    price = np.round(np.exp(random.normal(3.0, 1.0, _CHUNK)), 2)
    delay = random.integers(60, 30 * 86_400, _CHUNK)
    time = _FIRST_CLICK + (chunk * _CHUNK + np.arange(_CHUNK)) // 2 % _DAYS
    parts = {
        "SalesAmountInEuro": np.where(labels, price, -1.0),
        "time_delay_for_conversion": np.where(labels, delay, -1),
        "click_timestamp": time,
        "nb_clicks_1week": random.geometric(0.02, _CHUNK) - 2,
        "product_price": np.where(labels, price, 0.0),
    }
    return {name: arrow.array(values[:count]) for name, values in parts.items()}


def _category(
    form: Format,
    name: str,
    words: NDArray[np.uint64],
    index: NDArray[np.uint64],
    absent: NDArray[np.bool_],
    count: int,
) -> Any:
    arrow = _extras.load("pyarrow", feature="Generating data", extra="data")
    compute = _extras.load("pyarrow.compute", feature="Generating data", extra="data")
    absence = arrow.array(absent[:count])
    if form is DISPLAY_ADS:
        return compute.if_else(absence, None, _hex(words[:count, None], 8, b"0123456789abcdef"))
    digits = b"0123456789ABCDEF"
    text = _hex(np.stack([_mix(words[:count], part) for part in range(2)], 1), 32, digits)
    if name == "product_title":  # one to four words, each a hash
        more = [
            _hex(np.stack([_mix(words[:count], 2 * k + part) for part in range(2)], 1), 32, digits)
            for k in (1, 2, 3)
        ]
        length = (index[:count] % np.uint64(4)).astype(int)
        kept = [compute.if_else(arrow.array(length > k), word, None) for k, word in enumerate(more)]
        text = compute.binary_join_element_wise(text, *kept, " ", null_handling="skip")
    return compute.if_else(absence, "-1", text)


def _hex(words: NDArray[np.uint64], width: int, digits: bytes) -> Any:
    """Texts of `width` hexadecimal digits from rows of 64-bit words."""
    arrow = _extras.load("pyarrow", feature="Generating data", extra="data")
    raw = np.ascontiguousarray(words.astype("<u8")).view(np.uint8)[:, : width // 2]
    table = np.frombuffer(digits, np.uint8)
    text = np.stack([table[raw >> 4], table[raw & 15]], axis=2).reshape(-1)
    offsets = np.arange(0, len(words) * width + 1, width, dtype=np.int32)
    return arrow.StringArray.from_buffers(len(words), arrow.py_buffer(offsets), arrow.py_buffer(text))


def _mix(words: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a fixed bijection whose output looks random."""
    mixed = words + np.uint64((seed + 1) * _GOLDEN % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _auc(parts: list[tuple[NDArray[np.bool_], NDArray[np.float64]]]) -> float:
    labels, scores = (np.concatenate(both) for both in zip(*parts, strict=True))
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if positives == 0 or negatives == 0:
        return float("nan")
    ranks = stats.rankdata(scores)[labels].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))
