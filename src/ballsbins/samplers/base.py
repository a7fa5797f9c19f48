"""The contract of a sampler: public facts are fields; the number of examples and the key are arguments.

The realised sizes of batches are secret: once they are known, balls-and-bins has only the guarantee of Shuffle.
Nothing here logs or prints them, and no error states one.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from ballsbins import _check
from ballsbins.errors import InvalidInputError
from ballsbins.samplers.key import Key, as_key
from ballsbins.samplers.physical import IndexArray, check_rank, rank_slice

MAX_STEPS = 10**12  # limit for samplers that are only accounted for
MAX_DRAWN_STEPS = 2**31 - 1  # limit for drawing batches: bins are 32-bit integers
MAX_EXAMPLES = 2**48  # beyond any data set, and far enough below 2⁶³ that no sum of indices overflows
MAX_EPOCH = 2**63 - 1

_TOO_LARGE = (
    "Take more steps, or a machine with at least 20 bytes of memory per example, "
    "or draw the bins in pieces with BallsAndBins.bins."
)

Draw = Callable[[int], IndexArray]


@dataclass(frozen=True, repr=False)
class Sampler(ABC):
    """How the batches of one epoch are drawn: the base of the four samplers.

    Ask the sampler object for its properties. The class attributes say in which ways samplers differ:
    `is_random`, `random_sizes`, `partitions` and `amplifies`.

    Args:
        steps: T in the paper, the number of batches in one epoch, from 1 to 10¹². For n examples and a batch size b
            it is ⌈n/b⌉.

    Example:
        >>> from ballsbins import BallsAndBins, Poisson
        >>> isinstance(BallsAndBins(steps=1000), Sampler)
        True
        >>> Poisson(steps=1000).partitions  # an example may be in several batches of an epoch, or in none
        False
    """

    steps: int

    type_name: ClassVar[str]  # the name in saved samplers; part of the key's domain, so never change one
    # Whether anything about the batches is random, and therefore secret.
    is_random: ClassVar[bool] = True
    # Whether the sizes of batches are random: then they are as secret as the key, and unlimited unless truncated.
    random_sizes: ClassVar[bool]
    # Whether each example is in exactly one batch of an epoch (before truncation).
    partitions: ClassVar[bool] = True
    # Whether its random batches are known to give more privacy than deterministic ones at the same noise.
    amplifies: ClassVar[bool]
    _types: ClassVar[dict[str, type[Sampler]]] = {}

    def __init_subclass__(cls, type_name: str | None = None) -> None:
        """Register a sampler under the name that `to_dict` writes."""
        super().__init_subclass__()
        if type_name is not None:
            cls.type_name = type_name
            Sampler._types[type_name] = cls

    def __post_init__(self) -> None:
        """Validate the fields."""
        advice = "State the number of batches in one epoch; from a batch size b it is ceil(num_examples / b)."
        steps = _check.integer("steps", self.steps, 1, MAX_STEPS, advice=advice)
        object.__setattr__(self, "steps", steps)

    @property
    @abstractmethod
    def name(self) -> str:
        """The name to show to people, such as "balls-and-bins"."""

    @property
    @abstractmethod
    def batching(self) -> str:
        """How its batches are drawn, in words that a PyTorch user knows; the text follows "batches: "."""

    @classmethod
    def for_batch_size(cls, num_examples: int, batch_size: int, **options: Any) -> Self:
        """Give the sampler with T = ⌈n/b⌉ steps, so that batches have b examples, exactly or on average.

        Args:
            num_examples: n, the number of examples in the data set.
            batch_size: b, the size of a batch, or its expected size if sizes are random; from 1 to n.
            **options: the sampler's other fields, such as `redraw=False`. With `max_batch_size`, truncation is
                accounted for n examples.

        Returns:
            The sampler.

        Raises:
            InvalidInputError: a number is out of range.

        Example:
            >>> from ballsbins import BallsAndBins
            >>> BallsAndBins.for_batch_size(num_examples=60_000, batch_size=256)
            BallsAndBins(steps=235, redraw=True)
        """
        advice = "Count the examples of the data set."
        examples = _check.integer("num_examples", num_examples, 1, MAX_EXAMPLES, advice=advice)
        advice = "A batch has at least one example, and at most all of them."
        size = _check.integer("batch_size", batch_size, 1, examples, advice=advice)
        known = {field.name for field in fields(cls)} - {"steps"}
        for name in sorted(set(options) - known):
            advice = f"{cls.__name__} has {', '.join(sorted(known))}." if known else "Leave it out."
            raise InvalidInputError(
                name, options[name], f"left out: {cls.__name__} has no such field", advice
            )
        if options.get("max_batch_size") is not None:
            options.setdefault("num_examples", examples)
        return cls(-(-examples // size), **options)

    @property
    def draws_once(self) -> bool:
        """Whether all epochs have the same batches. Then E epochs are as private as one with the noise σ/√E."""
        return False

    @property
    def max_batch_size(self) -> int | None:
        """The size to which larger batches are truncated; None if batches are never truncated."""
        return None

    @property
    def num_examples(self) -> int | None:
        """The number of examples for which truncation is accounted; None if it is not stated."""
        return None

    def truncated_to(self, max_batch_size: int, num_examples: int) -> Sampler:
        """Give the same sampler with truncated batches.

        Args:
            max_batch_size: the size to which larger batches are truncated.
            num_examples: the number of examples in the data set, on which the cost in privacy depends.

        Returns:
            The sampler whose batches have at most `max_batch_size` examples.

        Raises:
            InvalidInputError: the sampler's batches already have a fixed size.
        """
        advice = "Batches of Shuffle and Deterministic have one size already."
        raise InvalidInputError("max_batch_size", max_batch_size, f"None for {self!r}", advice)

    def untruncated(self) -> Sampler:
        """Give the same sampler without truncation.

        Returns:
            The sampler with `max_batch_size` None.
        """
        return self

    def largest_batch(self, num_examples: int) -> int | None:
        """Give the size that no batch exceeds.

        Args:
            num_examples: n, the number of examples in the data set.

        Returns:
            A public number; None if the sizes are random and unlimited.
        """
        return max(1, -(-num_examples // self.steps))

    def batches(self, num_examples: int, key: Key | bytes | int, epoch: int = 0, start: int = 0) -> Batches:
        """Draw the batches of one epoch.

        The same arguments give the same batches, on any machine, at any time. To resume, pass the epoch and the step.
        Every run needs its own key: `Key.for_run` derives one.

        Args:
            num_examples: n, the number of examples in the data set.
            key: the secret key, as a `Key` or 32 bytes. An integer is a seed for experiments, and not secret.
            epoch: the number of the epoch, from 0.
            start: the first step to give, from 0 to `steps`.

        Returns:
            The batches of steps start … steps − 1, as arrays of example indices.

        Raises:
            InvalidInputError: an argument is out of range, or an epoch does not fit into this machine's memory.
        """
        self._check_drawn_steps()
        examples, number = self._check_num_examples(num_examples), check_epoch(epoch)
        advice = "Steps count from 0; to resume, give the number of steps already taken in this epoch."
        first = _check.integer("start", start, 0, self.steps, advice=advice)
        self._check_memory(examples)
        return Batches(self, examples, as_key(key), number, first)

    def to_dict(self) -> dict[str, Any]:
        """Give the sampler as plain data.

        Returns:
            The type's name and all fields, ready for JSON.
        """
        return {"type": self.type_name} | {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Sampler:
        """Build the sampler that `to_dict` wrote.

        Args:
            saved: the result of `to_dict`. All fields must be present, and no others.

        Returns:
            The sampler.

        Raises:
            InvalidInputError: the type is unknown, or a field is missing, unknown or out of range.
        """
        name = _check.mapping("a saved sampler", saved, advice="Give what to_dict wrote.").get("type")
        if not isinstance(name, str) or name not in Sampler._types:
            known = ", ".join(sorted(Sampler._types))
            raise InvalidInputError(
                "type", name, f"one of {known}", "Was this saved by a later version? Update."
            )
        kind = Sampler._types[name]
        found = {field: value for field, value in saved.items() if field != "type"}
        return kind(**_check.fields(f"a saved {name}", found, {field.name for field in fields(kind)}))

    def __repr__(self) -> str:
        """Show the call that builds this sampler, without fields that are None."""
        shown = [(field.name, getattr(self, field.name)) for field in fields(self)]
        inside = ", ".join(f"{name}={value!r}" for name, value in shown if value is not None)
        return f"{type(self).__name__}({inside})"

    def _check_drawn_steps(self) -> None:
        """Refuse to draw more batches than can be numbered; accounting has no such limit."""
        advice = "So many batches can be accounted for, but not drawn: use larger batches."
        _check.integer("steps", self.steps, 1, MAX_DRAWN_STEPS, advice=advice)

    def _check_step(self, step: int) -> int:
        """Return `step` if the epoch has this step."""
        advice = f"This epoch has {self.steps:,} steps, counted from 0."
        return _check.integer("step", step, 0, self.steps - 1, advice=advice)

    def _check_num_examples(self, num_examples: int) -> int:
        """Return `num_examples` if this sampler can batch that many."""
        advice = "Give the number of examples in the data set."
        return _check.integer("num_examples", num_examples, 0, MAX_EXAMPLES, advice=advice)

    def _check_memory(self, num_examples: int) -> None:
        """Raise if an epoch of this many examples cannot fit into this machine's memory, before anything is drawn."""
        memory, least = physical_memory(), self._least_memory(num_examples)
        if least > memory:
            bound = f"so small that its {least:,} bytes (for {self.steps:,} steps) fit the {memory:,} here"
            raise InvalidInputError("num_examples", num_examples, bound, _TOO_LARGE)

    @abstractmethod
    def _least_memory(self, num_examples: int) -> int:
        """Return a lower bound, in bytes, on the memory needed to draw a batch of this many examples."""

    @abstractmethod
    def _draw(self, num_examples: int, key: Key, epoch: int) -> Draw:
        """Return the function from a step to its batch, for validated arguments."""


class Batches:
    """The batches of one epoch from step `start` on: iterable any number of times, with an exact length.

    `batches[j]` is the j-th batch of the iteration; `batches.at(step)` counts from the epoch's beginning. Empty
    batches are given, never skipped. Arrays are read-only, with 4 bytes per index up to 2³² − 1 examples and 8 above.
    Large data is drawn at first use and left out of pickles, but a pickle does hold the key. The length of a batch is
    secret (except for Shuffle and Deterministic): do not log it, and divide by the public n/T.

    Formal guarantees: iteration, `[j]` and `at` agree; a later start gives the same batches as an earlier one from
    there on; over all ranks of `for_rank` every batch is partitioned, and every rank gets all the steps.
    """

    def __init__(self, sampler: Sampler, num_examples: int, key: Key, epoch: int, start: int) -> None:
        """Take validated arguments. Call `Sampler.batches` instead, which validates them."""
        self._sampler, self._num_examples, self._key = sampler, num_examples, key
        self._epoch, self._start = epoch, start
        self._rank, self._world_size = 0, 1
        self._draw: Draw | None = None

    def __len__(self) -> int:
        """The number of steps from `start` to the end of the epoch."""
        return self._sampler.steps - self._start

    def __iter__(self) -> Iterator[IndexArray]:
        """Give the batches in order."""
        return (self.at(step) for step in range(self._start, self._sampler.steps))

    def __getitem__(self, position: int) -> IndexArray:
        """Give the batch at a position of the iteration; negative positions count from the end."""
        return self.at(range(self._start, self._sampler.steps)[position])

    def at(self, step: int) -> IndexArray:
        """Give the batch of a step.

        Args:
            step: counted from the beginning of the epoch, whatever `start` is.

        Returns:
            The indices of its examples, read-only.

        Raises:
            InvalidInputError: the epoch does not have this step.
        """
        number = self._sampler._check_step(step)
        if self._draw is None:
            self._draw = self._drawn()
        batch = rank_slice(self._draw(number), self._rank, self._world_size)
        batch.flags.writeable = False  # it may be a view of the epoch's order
        return batch

    def for_rank(self, rank: int, world_size: int) -> Batches:
        """Give this rank's share of every batch. It has as many steps as the whole, even if a share is empty.

        Args:
            rank: the number of this process, from 0.
            world_size: the number of processes that train.

        Returns:
            Batches of the same steps, each with every world_size-th example.

        Raises:
            InvalidInputError: the rank is out of range, or these batches are already a share.
        """
        checked = check_rank(rank, world_size)
        if self._world_size != 1:
            raise InvalidInputError(
                "world_size of these batches",
                self._world_size,
                "1",
                "Slice the whole batches, not a slice of them.",
            )
        share = Batches(self._sampler, self._num_examples, self._key, self._epoch, self._start)
        share._rank, share._world_size = checked
        share._draw = self._draw
        return share

    def __repr__(self) -> str:
        """Show public facts and the key's commitment."""
        rank = "" if self._world_size == 1 else f", rank={self._rank}, world_size={self._world_size}"
        return (
            f"Batches({self._sampler!r}, num_examples={self._num_examples}, key={self._key!r}, "
            f"epoch={self._epoch}, start={self._start}{rank})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out data that can be drawn again."""
        return self.__dict__ | {"_draw": None}

    def _drawn(self) -> Draw:
        try:
            return self._sampler._draw(self._num_examples, self._key, self._epoch)
        except MemoryError:
            bound = "small enough for the memory that is left on this machine"
            raise InvalidInputError("num_examples", self._num_examples, bound, _TOO_LARGE) from None


def pooled_noise(noise_multiplier: float, visits: int) -> float:
    """The noise multiplier at which one visit to a batch is as private as `visits` visits at σ: σ/√visits.

    The sum of what the visits release is a sufficient statistic: it has `visits` times the signal and √visits times
    the noise.
    """
    return noise_multiplier / math.sqrt(visits)


def check_epoch(epoch: int) -> int:
    """Return `epoch` if it is a valid epoch number."""
    return _check.integer("epoch", epoch, 0, MAX_EPOCH, advice="Epochs count from 0.")


def physical_memory() -> int:
    """Return the bytes of memory of this machine, or a number beyond all bounds if it cannot be determined."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 2**63


def index_dtype(num_examples: int) -> type[np.uint32 | np.int64]:
    """Return the narrowest type for indices: 4 bytes up to 2³² − 1 examples, 8 above."""
    return np.uint32 if num_examples < 2**32 else np.int64


def even_cuts(num_examples: int, steps: int) -> Callable[[int], slice]:
    """Return the function from a step to its part of 0 … n − 1: the first n mod T parts have one extra element."""
    size, longer = divmod(num_examples, steps)

    def cut(step: int) -> slice:
        begin = step * size + min(step, longer)
        return slice(begin, begin + size + (step < longer))

    return cut
