"""The card of a run: what was run and what is claimed about it, as a small JSON file that others can check."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ballsbins import _check
from ballsbins._files import write_text
from ballsbins.bound import Bound
from ballsbins.errors import InvalidInputError
from ballsbins.mechanism import Mechanism
from ballsbins.report.card_parts import FloatingPoint, about_from, claim_from_dict, is_line, library_versions
from ballsbins.samplers.base import MAX_EXAMPLES

if TYPE_CHECKING:
    from ballsbins.report.statement import Statement

SCHEMA = 3  # version of `to_dict`; a card must mean the same next year
_EARLIER = {
    1: "It is of a version before 0.2, whose runs had no id: write the card anew with this one.",
    2: "It is of a version before 0.2, whose claims did not state their kind: write the card anew with this one.",
}
_LONGEST = 40  # maximum number of digits of an integer; no count on a card has more
_REQUIRED = {"schema", "mechanism", "delta", "claim"}
_NEWER = "Update ballsbins: this card was written by a later version."
_NOTHING_GUESSED = "Nothing is guessed: remove what is unknown, or put it under details."


@dataclass(frozen=True, eq=False)
class Card:
    """The card of a run: what was run, which ε is claimed, and the circumstances. None means "not recorded".

    Attributes:
        mechanism: what was run, with the number of steps actually taken.
        delta: δ at which ε is claimed, a probability in (0, 1).
        clip_norm: the maximum norm of one example's gradient, above 0.
        num_examples: the number of training examples; it is public.
        planned: what was planned, if the run stopped early; it differs from `mechanism` only in its length.
        metrics: how good the model is, as free JSON. Never put anything here that depends on the batches.
        not_covered: one sentence for each use of the data that the claim does not cover.
        key_commitment: `Key.commitment()` of the master key.
        key_secret: whether the key was more than a plain seed (`Key.is_secret`).
        run: `Key.run`, the public id of the run. Two cards with the same id share their batches.
        noise: how the noise was drawn, in a few words.
        floating_point: what is known about the arithmetic of the run.
        normaliser: the public constant by which sums of clipped gradients were divided, above 0.
        about: other facts to publish about the run, each one line: "dataset", "date", "contact", "commit" (of the
            code), "link", "key_custody" (who holds the key, and when it is deleted), "certificate" (what is proved,
            and how to check it).
        details: further facts, as free JSON; never anything that depends on the batches.
        versions: libraries and their versions; by default those that are loaded.
        stated: the claim, if it did not come from `mechanism.epsilon(delta)` but, for example, from Monte Carlo.

    Raises:
        InvalidInputError: a field is not valid; the error names it.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.report import Card
        >>> card = Card(Mechanism(BallsAndBins(steps=1000), noise_multiplier=0.5), delta=1e-6, clip_norm=1.0)
        >>> card.write("card.json")
        >>> Card.read("card.json").claim.upper == card.claim.upper
        True
    """

    mechanism: Mechanism
    delta: float
    _: KW_ONLY
    clip_norm: float | None = None
    num_examples: int | None = None
    planned: Mechanism | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    not_covered: Sequence[str] = ()
    key_commitment: str | None = None
    key_secret: bool = True
    run: str | None = None
    noise: str | None = None
    floating_point: FloatingPoint | None = None
    normaliser: float | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=library_versions)
    stated: Bound | None = None

    def __post_init__(self) -> None:
        """Validate the fields; free JSON is stored as JSON would give it back."""
        for name, value, optional in (("mechanism", self.mechanism, False), ("planned", self.planned, True)):
            if not isinstance(value, Mechanism) and not (optional and value is None):
                raise InvalidInputError(name, value, "a Mechanism", "State what was, or was to be, run.")
        delta = _check.delta(
            self.delta, advice="An ε means nothing without its δ; usually below 1 / number of examples."
        )
        object.__setattr__(self, "delta", delta)
        self._check_numbers()
        self._check_plan()
        if not isinstance(self.key_secret, bool):
            advice = "It says whether the key was secret: Key.is_secret."
            raise InvalidInputError("key_secret", self.key_secret, "True or False", advice)
        for name in ("key_commitment", "run", "noise"):
            value = getattr(self, name)
            if value is not None and not is_line(value):
                kind = type(
                    value
                ).__name__  # do not show the value itself: it may be a key, passed by mistake
                raise InvalidInputError(name, kind, "one line of text or None", "Describe it in words.")
        if self.floating_point is not None and not isinstance(self.floating_point, FloatingPoint):
            advice = "Give a ballsbins.report.FloatingPoint."
            raise InvalidInputError("floating_point", self.floating_point, "a FloatingPoint or None", advice)
        lines = self.not_covered
        if isinstance(lines, str) or not isinstance(lines, Iterable) or not all(map(is_line, lines)):
            advice = "One sentence for each use of the data that the claim does not cover."
            raise InvalidInputError("not_covered", lines, "a list of texts of one line", advice)
        object.__setattr__(self, "not_covered", tuple(lines))
        object.__setattr__(self, "about", about_from(self.about))
        for name in ("metrics", "details", "versions"):
            object.__setattr__(self, name, _plain_mapping(name, getattr(self, name)))
        if not all(is_line(word) for pair in self.versions.items() for word in pair):
            advice = "Names of libraries, and their versions as text."
            raise InvalidInputError("versions", self.versions, "texts of one line", advice)
        if self.stated is not None and (
            not isinstance(self.stated, Bound) or self.stated.quantity != "epsilon"
        ):
            advice = "Give what Mechanism.epsilon(delta) returned."
            raise InvalidInputError("stated", self.stated, "a Bound on epsilon", advice)

    def _check_numbers(self) -> None:
        positive = {
            "clip_norm": "It is the largest norm of one example's gradient.",
            "normaliser": "It is the public constant that sums of clipped gradients are divided by, usually n / T.",
        }
        for name, advice in positive.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _check.real(name, value, 0.0, open_left=True, advice=advice))
        if self.num_examples is not None:
            advice = "Count the examples of the training data; the number is public."
            number = _check.integer("num_examples", self.num_examples, 0, MAX_EXAMPLES, advice=advice)
            object.__setattr__(self, "num_examples", number)
        known = self.mechanism.sampler.num_examples
        if known is not None and self.num_examples not in (None, known):
            advice = "The penalty of truncation was computed for the sampler's number: use one and the same."
            raise InvalidInputError(
                "num_examples", self.num_examples, f"{known}, as the sampler states", advice
            )
        if known is not None:
            object.__setattr__(self, "num_examples", known)

    def _check_plan(self) -> None:
        plan, run = self.planned, self.mechanism
        if plan is None:
            return
        if plan.sampler != run.sampler or plan.noise_multiplier != run.noise_multiplier:
            advice = "A plan differs from what was run in its length only; a change of either is another run."
            raise InvalidInputError("planned", plan, f"with the sampler and the noise of {run!r}", advice)

    @cached_property
    def claim(self) -> Bound:
        """ε at δ as stated, or the accountant's answer if none was stated."""
        return self.mechanism.epsilon(self.delta) if self.stated is None else self.stated

    def statement(self) -> Statement:
        """Express the card in words.

        Returns:
            The statement. A claim that the accountant does not confirm is refused.
        """
        from ballsbins.report.statement_text import statement_of

        return statement_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Give the card as plain data for JSON.

        Returns:
            All fields, the claim, and the schema number.
        """
        claim = self.claim.to_dict()
        claim.pop("mechanism", None)  # the card already has it beside the claim
        return {
            "schema": SCHEMA,
            "mechanism": self.mechanism.to_dict(),
            "delta": self.delta,
            "claim": claim,
            "planned": None if self.planned is None else self.planned.to_dict(),
            "clip_norm": self.clip_norm,
            "num_examples": self.num_examples,
            "normaliser": self.normaliser,
            "noise": self.noise,
            "key_commitment": self.key_commitment,
            "key_secret": self.key_secret,
            "run": self.run,
            "floating_point": None if self.floating_point is None else self.floating_point.to_dict(),
            "not_covered": list(self.not_covered),
            "about": dict(self.about),
            "metrics": dict(self.metrics),
            "details": dict(self.details),
            "versions": dict(self.versions),
        }

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Card:
        """Build the card that `to_dict` wrote.

        Args:
            saved: the plain data. An unknown or missing field is an error.

        Returns:
            The card, with its claim unchecked; `ballsbins check` recomputes it.

        Raises:
            InvalidInputError: it is not a valid card, or has another version; the error names the field.
        """
        if not isinstance(saved, Mapping):
            raise InvalidInputError("a card", type(saved).__name__, "a JSON object", "Was the file cut?")
        schema = saved.get("schema")
        if schema != SCHEMA or isinstance(schema, bool):
            later = isinstance(schema, int) and schema > SCHEMA
            advice = _NEWER if later else "A card of ballsbins has it as its first field; is this one?"
            if isinstance(schema, int) and not isinstance(schema, bool):
                advice = _EARLIER.get(schema, advice)
            raise InvalidInputError("the schema of the card", schema, f"{SCHEMA}", advice)
        for name in sorted(_REQUIRED - set(saved)):
            advice = {
                "delta": "An ε means nothing without its δ: ask whoever wrote the card to add it.",
                "claim": "A card that claims nothing cannot be checked: ask whoever wrote it to add the claim.",
            }.get(name, "Ask whoever wrote the card to add it.")
            raise InvalidInputError(f"the card's {name}", None, "stated", advice)
        optional = {item.name for item in fields(Card)} - {"mechanism", "delta", "stated"}
        unknown = sorted(map(str, set(saved) - _REQUIRED - optional))
        for name in unknown:
            raise InvalidInputError(
                f"the field {name!r} of the card", saved.get(name), "left out", _NOTHING_GUESSED
            )
        given = {name: saved[name] for name in optional & set(saved)}
        for name in ("mechanism", "planned"):
            run = saved.get(name)
            if run is None and name == "planned":
                continue
            for part, what in (
                (run, name),
                (run.get("sampler") if isinstance(run, Mapping) else {}, "sampler"),
            ):
                if not isinstance(part, Mapping):
                    raise InvalidInputError(f"the card's {what}", part, "a JSON object", "Was it edited?")
        if given.get("planned") is not None:
            given["planned"] = Mechanism.from_dict(saved["planned"])
        if given.get("floating_point") is not None:
            given["floating_point"] = FloatingPoint.from_dict(saved["floating_point"])
        given.setdefault("versions", {})
        mechanism = Mechanism.from_dict(saved["mechanism"])
        return Card(mechanism, saved["delta"], stated=claim_from_dict(saved["claim"]), **given)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the card as JSON; a reader sees either the old file or the complete new one.

        Args:
            path: the file to create or replace.
        """
        target = Path(path)
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_text(target, text)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Card:
        """Read a card.

        Args:
            path: the file. Anything but a valid card is refused, and the error gives the reason.

        Returns:
            The card, with its claim as stated in the file.

        Raises:
            InvalidInputError: the file cannot be read, or does not hold a card.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidInputError("the path of the card", path, "text or a path", "Name the file.")
        name = str(path)
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            advice = "Check the path of the card."
            raise InvalidInputError(
                "the card", name, f"a file that can be read ({error.strerror})", advice
            ) from None
        except UnicodeDecodeError:
            raise InvalidInputError(
                "the card", name, "a text file in UTF-8", "Is it a card at all?"
            ) from None
        try:
            saved = json.loads(text, parse_constant=_no_constant, parse_int=_whole)
        except RecursionError:
            advice = "Is it a card at all?"
            raise InvalidInputError(
                "the card", name, "JSON that is nested a few levels deep", advice
            ) from None
        except json.JSONDecodeError as error:
            where = f"JSON (line {error.lineno}, column {error.colno}: {error.msg})"
            raise InvalidInputError("the card", name, where, "Was the file cut or edited?") from None
        return Card.from_dict(saved)


def _no_constant(name: str) -> float:
    raise InvalidInputError("a number in the card", name, "finite", "JSON has no such number.")


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST:
        advice = "Was the card edited or damaged?"
        raise InvalidInputError(
            "a number in the card", f"{digits[:12]}…", f"of at most {_LONGEST} digits", advice
        )
    return int(digits)


def _plain_mapping(name: str, given: Any) -> dict[str, Any]:
    """A copy as JSON would give it back, so that a card equals the one read from its file."""
    if not isinstance(given, Mapping) or not all(isinstance(word, str) for word in given):
        raise InvalidInputError(name, given, "a mapping from texts", "Give names and values.")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(given), allow_nan=False, default=_number))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            name, sorted(given), f"plain JSON ({error})", "Use text, numbers and lists."
        ) from None
    return plain


def _number(value: Any) -> float | int:
    """A NumPy, JAX or torch scalar as a Python number."""
    if hasattr(value, "item") and getattr(value, "shape", None) in ((), None):
        number = value.item()
        if isinstance(number, (int, float)) and math.isfinite(number):
            return number
    raise TypeError(f"a {type(value).__name__} is not JSON")
