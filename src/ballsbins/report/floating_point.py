"""What is known of a run's floating point: a part of its card, and the sentences that the statement makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ballsbins import _check
from ballsbins.errors import InvalidInputError
from ballsbins.report.saved_claim import is_line
from ballsbins.report.words import up


@dataclass(frozen=True)
class FloatingPoint:
    """What holds on the computer that ran, not only for real numbers. The noise of every run of ours is exact.

    Attributes:
      device: where sums were computed, such as "cpu".
      eta: η, the part of the noise that covers the rounding of sums; None where sums are not covered.
      not_covered: reasons why sums are not covered, each one line; empty where they are.
      tested: on what the assumptions about the machine were tested, to follow "tested before the first step, ".
    """

    device: str
    eta: float | None = None
    not_covered: tuple[str, ...] = ()
    tested: str = "on the network and the batch shape of this run"

    def __post_init__(self) -> None:
        """Validate, once."""
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
        """Whether the guarantee holds for the floating-point numbers that ran."""
        return self.eta is not None

    def sentences(self) -> str:
        """What the statement says."""
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
        """Plain data for JSON."""
        reasons = list(self.not_covered)
        return {"device": self.device, "eta": self.eta, "not_covered": reasons, "tested": self.tested}

    @staticmethod
    def from_dict(saved: Any) -> FloatingPoint:
        """Read what `to_dict` wrote."""
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
