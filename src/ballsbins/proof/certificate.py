"""A certificate: a mechanism, an ε, and a proved enclosure of δ, as a small JSON that others can check."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ballsbins import __version__, _check
from ballsbins.bound import Bound
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism

SCHEMA = 1
DIRECTIONS = ("remove", "add")
_FIELDS = {
    "schema",
    "versions",
    "mechanism",
    "epsilon",
    "target_delta",
    "delta",
    "directions",
    "method",
    "digest",
}
_METHOD = {
    "one epoch": "proved by ball arithmetic",
    "composition": "proved by ball arithmetic, composed",
    "truncated": "proved by ball arithmetic, with the penalty of truncation",
}


@dataclass(frozen=True)
class Part:
    """One direction: decimals with lower ≤ δ ≤ upper, the contour of the proof, and a second one for the checker."""

    lower: str
    upper: str
    contour: Mapping[str, Any] = field(default_factory=dict)
    witness: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Certificate:
    """A proved enclosure of δ for one mechanism at one ε.

    Attributes:
        mechanism: the mechanism that the proof is about.
        epsilon: the ε, exactly the stated double.
        directions: for "remove" and "add", the decimals `lower` ≤ δ ≤ `upper`, and how they were obtained.
        method: "one epoch", which `ballsbins.proof.checker` can check, or "composition" or "truncated", which are
            checked by computing them again.
        target_delta: the δ for which an ε was requested, if any: `upper` is at most this.
        versions: the versions of the libraries that computed the proof.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.proof.certify import certify
        >>> certificate = certify(Mechanism(BallsAndBins(steps=1000), noise_multiplier=0.5), epsilon=4.0)
        >>> certificate.lower, certificate.upper
        ('1.2656943e-6', '1.2656946e-6')
        >>> certificate.bound.kind
        'proved'
    """

    mechanism: Mechanism
    epsilon: float
    directions: Mapping[str, Part]
    method: str = "one epoch"
    target_delta: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def lower(self) -> str:
        """The proved lower bound on δ, as a decimal."""
        return max((self.directions[name].lower for name in DIRECTIONS), key=Fraction)

    @property
    def upper(self) -> str:
        """The proved upper bound on δ, as a decimal."""
        return max((self.directions[name].upper for name in DIRECTIONS), key=Fraction)

    @property
    def bound(self) -> Bound:
        """δ as a `Bound` of kind "proved"; its numbers are the decimals, rounded outward to doubles."""
        parts = {name: self._bound(part.lower, part.upper) for name, part in self.directions.items()}
        return self._bound(self.lower, self.upper, parts)

    def _bound(self, lower: str, upper: str, parts: Mapping[str, Bound] | None = None) -> Bound:
        low, high = _double(lower, -1), _double(upper, 1)
        saved = None if parts is None else self.mechanism.to_dict()
        return Bound(
            "delta", low, min(max((low + high) / 2, low), high), high, "proved", _METHOD[self.method],
            directions=parts or {}, mechanism=saved,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain data, with a digest of all other fields.

        Returns:
            Fields ready for JSON.
        """
        body = {
            "schema": SCHEMA,
            "versions": dict(self.versions),
            "mechanism": self.mechanism.to_dict(),
            "epsilon": self.epsilon,
            "target_delta": self.target_delta,
            "delta": {"lower": self.lower, "upper": self.upper},
            "directions": {
                name: {
                    "lower": part.lower,
                    "upper": part.upper,
                    "contour": dict(part.contour),
                    "witness": dict(part.witness),
                }
                for name, part in self.directions.items()
            },
            "method": self.method,
        }
        return body | {"digest": _digest(body)}

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Certificate:
        """Build the certificate that `to_dict` wrote. This does not check the stated bounds; `check` does.

        Args:
            saved: what `to_dict` returned. All fields must be present, and no others.

        Returns:
            The certificate.

        Raises:
            InvalidInputError: a field is missing, unknown or out of its range, or the content was changed.
        """
        name = "a certificate"
        advice = "Give what `ballsbins certify --json` wrote."
        body = _check.fields(name, _check.mapping(name, saved, advice=advice), _FIELDS)
        if body["schema"] != SCHEMA:
            advice = "Update ballsbins if this was saved by a later version."
            raise InvalidInputError("schema", body["schema"], f"{SCHEMA}", advice)
        digest = body.pop("digest")
        if digest != _digest(body):
            raise InvalidInputError(
                "the digest of the certificate",
                digest,
                f"{_digest(body)}, that of its content",
                "It was changed after it was written: certify the mechanism again.",
            )
        directions = _check.fields(
            "directions", _check.mapping("directions", body["directions"], advice=advice), DIRECTIONS
        )
        parts = {}
        for direction, part in directions.items():
            fields = _check.fields(
                direction,
                _check.mapping(direction, part, advice=advice),
                {"lower", "upper", "contour", "witness"},
            )
            parts[direction] = Part(**fields)
        if body["method"] not in _METHOD:
            raise InvalidInputError("method", body["method"], f"one of {', '.join(_METHOD)}", advice)
        return Certificate(
            Mechanism.from_dict(body["mechanism"]),
            _check.real("epsilon", body["epsilon"], 0.0, advice=advice),
            parts,
            body["method"],
            body["target_delta"],
            dict(_check.mapping("versions", body["versions"], advice=advice)),
        )


def rounded(value: Fraction, digits: int, sign: int) -> str:
    """Round a value ≥ 0 down (sign −1) or up (+1) to a decimal with this many significant digits."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(value)) if value > 1e-300 else -_digits(value)
    scaled = value * Fraction(10) ** (digits - 1 - exponent)
    while scaled < 10 ** (digits - 1):
        exponent, scaled = exponent - 1, scaled * 10
    whole = scaled.numerator // scaled.denominator
    if sign > 0 and whole < scaled:
        whole += 1
    text = str(whole)
    exponent += len(text) - digits
    rest = text[1:] if text.strip("0") != text[0] else ""
    return f"{text[0]}{'.' if rest else ''}{rest}e{exponent}"


def _digits(value: Fraction) -> int:
    return len(str(value.denominator // value.numerator))


def _double(text: str, sign: int) -> float:
    """The nearest double on the outer side: not above a lower bound (sign −1), not below an upper bound (+1)."""
    exact = Fraction(text)
    near = float(exact)
    if (Fraction(near) - exact) * sign < 0:
        near = math.nextafter(near, math.inf * sign)
    return max(near, 0.0)


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def versions() -> dict[str, str]:
    """The versions of the libraries that compute a proof."""
    import flint

    return {"ballsbins": __version__, "python-flint": flint.__version__, "FLINT": flint.__FLINT_VERSION__}
