"""Parts of a card: the claim read back from JSON, what is known about floating point, the versions of libraries."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import metadata
from types import MappingProxyType
from typing import Any, get_args

from ballsbins import _check
from ballsbins.accounting.curve import Kind
from ballsbins.bound import Bound
from ballsbins.errors import InvalidInputError
from ballsbins.report.numbers import up

_NUMBERS = ("lower", "value", "upper")
_WANTED = {"quantity", *_NUMBERS, "kind", "method", "confidence"}
_OPTIONAL = {"penalty", "directions"}
_ALWAYS = ("numpy", "scipy")
_IF_USED = {
    "dp_accounting": "dp-accounting",
    "duckdb": "duckdb",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "jax_privacy": "jax-privacy",
    "numba": "numba",
    "opacus": "opacus",
    "optax": "optax",
    "pyarrow": "pyarrow",
    "pyspark": "pyspark",
    "torch": "torch",
}


# Optional facts about a run beyond the claim, and their names in the statement.
ABOUT = {
    "dataset": "Data set",
    "date": "Date",
    "contact": "Contact",
    "commit": "Code",
    "link": "Link",
    "key_custody": "Custody of the key",
    "certificate": "Proof",
}


def about_from(given: Any) -> dict[str, str]:
    """The facts about a run, in the order of `ABOUT`; any other fact is refused."""
    advice = (
        f"It may have {', '.join(ABOUT)}, each one line of text; metrics and details take what else there is."
    )
    if not isinstance(given, Mapping) or not set(given) <= set(ABOUT):
        raise InvalidInputError("about", given, "a mapping from the names that it may have", advice)
    for name, text in given.items():
        if not is_line(text) or not text.strip():
            raise InvalidInputError(f"{name} of about", text, "one line of text", advice)
    return {name: given[name] for name in ABOUT if name in given}


def claim_from_dict(saved: Any, *, part: str = "claim") -> Bound:
    """Restore the bound on ε that `Bound.to_dict` wrote."""
    if not isinstance(saved, Mapping):
        advice = "Write it as Bound.to_dict does."
        raise InvalidInputError(f"the card's {part}", saved, "a JSON object", advice)
    missing, unknown = sorted(_WANTED - set(saved)), sorted(map(str, set(saved) - _WANTED - _OPTIONAL))
    advice = "Nothing is guessed: a claim has the fields that Bound.to_dict writes."
    for name in missing:
        raise InvalidInputError(f"the field {name!r} of the {part}", None, "given", advice)
    for name in unknown:
        raise InvalidInputError(f"the field {name!r} of the {part}", saved.get(name), "left out", advice)
    if saved["quantity"] != "epsilon":
        advice = "A card claims an ε at its δ."
        raise InvalidInputError(f"the quantity of the {part}", saved["quantity"], '"epsilon"', advice)
    if saved["kind"] not in get_args(Kind):
        advice = "It says what the answer is."
        bound = f"one of {', '.join(get_args(Kind))}"
        raise InvalidInputError(f"the kind of the {part}", saved["kind"], bound, advice)
    if not is_line(saved["method"]):
        advice = "It says how the number was obtained."
        raise InvalidInputError(f"the method of the {part}", saved["method"], "one line of text", advice)
    lower, value, upper = (_number(f"{name} of the {part}", saved[name]) for name in _NUMBERS)
    if not lower <= value <= upper:
        advice = "A bound is lower ≤ value ≤ upper; the card was edited or damaged."
        raise InvalidInputError(
            f"lower, value, upper of the {part}", [lower, value, upper], "in increasing order", advice
        )
    confidence = _check.real(
        f"confidence of the {part}",
        saved["confidence"],
        0.0,
        1.0,
        open_left=True,
        advice="It is the probability that the bound holds: 1 unless it is from Monte Carlo.",
    )
    penalty = _check.real(
        f"penalty of the {part}",
        saved.get("penalty", 0.0),
        0.0,
        1.0,
        advice="It is the part of δ that truncation costs.",
    )
    directions = saved.get("directions", {})
    if not isinstance(directions, Mapping) or not set(directions) <= {"remove", "add"}:
        advice = "They are remove and add."
        raise InvalidInputError(f"the directions of the {part}", directions, "a JSON object", advice)
    parts = {name: claim_from_dict(given, part=f"{part} ({name})") for name, given in directions.items()}
    return Bound(
        "epsilon",
        lower,
        value,
        upper,
        saved["kind"],
        saved["method"],
        confidence,
        penalty,
        directions=MappingProxyType(parts),
    )


def is_line(text: Any) -> bool:
    """Whether the text is safe to show: it can neither start a paragraph nor send commands to a terminal."""
    return isinstance(text, str) and text.isprintable()


def _number(name: str, value: Any) -> float:
    if value == "inf":  # Bound.to_dict writes it so, because JSON has no infinity
        return float("inf")
    return _check.real(name, value, 0.0, advice="Was the card edited or damaged?")


@dataclass(frozen=True)
class FloatingPoint:
    """What is known about the arithmetic of a run: whether its guarantee also holds for floating-point numbers.

    Attributes:
        device: where sums were computed, such as "cpu".
        eta: η, the fraction of the noise that covers the rounding of sums, in [0, 1]; None if sums are not covered.
        not_covered: reasons why sums are not covered, each one line; empty if they are covered.
        tested: on what the assumptions about the machine were tested; the text follows "tested before the first step,
        ".

    Raises:
        InvalidInputError: a text is not one line, or not exactly one of `eta` and `not_covered` is given.

    Example:
        >>> from ballsbins.report import FloatingPoint
        >>> FloatingPoint("cpu", eta=1e-4).covered
        True
    """

    device: str
    eta: float | None = None
    not_covered: tuple[str, ...] = ()
    tested: str = "on the network and the batch shape of this run"

    def __post_init__(self) -> None:
        """Validate the fields."""
        object.__setattr__(self, "not_covered", tuple(self.not_covered))
        for line in (self.device, self.tested, *self.not_covered):
            if not is_line(line):
                raise InvalidInputError(
                    "floating_point", line, "made of texts of one line", "Describe it in words."
                )
        if self.eta is not None:
            advice = "It is the part of the noise that covers the rounding of sums."
            object.__setattr__(self, "eta", _check.real("eta", self.eta, 0.0, 1.0, advice=advice))
        if (self.eta is None) != bool(self.not_covered):
            raise InvalidInputError(
                "floating_point", self.to_dict(), "with eta where sums are covered, and reasons where they are not",
                "State one of the two.",
            )  # fmt: skip

    @property
    def covered(self) -> bool:
        """Whether the guarantee holds for the floating-point numbers of this run."""
        return self.eta is not None

    def sentences(self) -> str:
        """Express this in words.

        Returns:
            The text of the statement under "Floating point".
        """
        noise = (
            "The noise is exact: integers with the distribution of a rounded Gaussian, added to integers. That is a "
            "post-processing of the continuous Gaussian mechanism."
        )
        aes = (
            "This assumes that AES-256 in counter mode cannot be told from random bits: the guarantee is "
            "computational."
        )
        if self.eta is None:
            reasons = "; ".join(self.not_covered)
            return f"{noise} The sums that it is added to are NOT covered: {reasons}. {aes}"
        return (
            f"covered. {noise} What rounding adds to the sums is included in the noise (η = {up(self.eta, 3)}). "
            f"{aes} It also assumes, of the machine that ran ({self.device}), that at a fixed batch shape what an "
            "example adds depends on that example alone, and that sums can be repeated bit for bit. Both were tested "
            f"before the first step, {self.tested}. The proof is for zero-out adjacency."
        )

    def to_dict(self) -> dict[str, Any]:
        """Give the object as plain data for JSON.

        Returns:
            The fields.
        """
        reasons = list(self.not_covered)
        return {"device": self.device, "eta": self.eta, "not_covered": reasons, "tested": self.tested}

    @staticmethod
    def from_dict(saved: Any) -> FloatingPoint:
        """Restore the object that `to_dict` wrote.

        Args:
            saved: the plain data.

        Returns:
            An equal object.

        Raises:
            InvalidInputError: a field is missing, unknown or not valid.
        """
        wanted = {field.name for field in fields(FloatingPoint)}
        if (
            not isinstance(saved, Mapping)
            or set(saved) != wanted
            or not isinstance(saved["not_covered"], list)
        ):
            advice = "Was the card edited or damaged?"
            raise InvalidInputError(
                "the card's floating_point", saved, f"an object with {', '.join(sorted(wanted))}", advice
            )
        return FloatingPoint(**saved)


def library_versions() -> dict[str, str]:
    """Versions of Python, of this library, of what the accounting needs, and of other imported libraries."""
    from ballsbins import __version__

    used = [name for module, name in _IF_USED.items() if module in sys.modules]
    found = {"python": platform.python_version(), "ballsbins": __version__}
    for name in (*_ALWAYS, *used):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a source tree on the path has no version to state
            continue
    return found
