"""Collating empty batches: the structure of a batch with no example in it, whatever the structure is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from ballsbins.errors import InvalidInputError

Collate = Callable[[list[Any]], Any]


class UnknownStructureError(Exception):
    """Where the batch dimension of a collated batch is cannot be seen."""


class EmptyAwareCollate:
    """Collate as `collate` does, and an empty batch into the same structure without examples.

    The structure is found once, at construction: one example is collated alone and twice over, and what grows is the
    batch dimension. So it works for tensors, tuples, named tuples, lists, dictionaries and anything nested of them,
    wherever the batch dimension is, and also if the very first batch is empty. Leaves that do not grow are kept.
    """

    def __init__(self, collate: Collate | None, example: Any) -> None:
        """Learn the structure from one example of the data set."""
        self.collate: Collate = default_collate if collate is None else collate
        self._empty = self._find_empty(example)

    def __call__(self, examples: list[Any]) -> Any:
        """Collate a batch."""
        return self.collate(examples) if examples else _copy(self._empty)

    def _find_empty(self, example: Any) -> Any:
        try:
            return _without_examples(self.collate([example]), self.collate([example, example]))
        except UnknownStructureError as unknown:
            reason = str(unknown)
        try:
            return self.collate([])
        except Exception:
            raise InvalidInputError(
                "the batch that collate_fn makes",
                reason,
                "made of tensors, sequences and mappings that grow with the batch",
                "Or let collate_fn([]) return the batch without examples: empty batches occur and must be stepped.",
            ) from None


def _without_examples(one: Any, two: Any) -> Any:
    """What a batch is without examples, from the batch of one example and of the same example twice."""
    if type(one) is not type(two):
        raise UnknownStructureError(f"{type(one).__name__} for one example, {type(two).__name__} for two")
    if isinstance(one, torch.Tensor):
        return _cut(one, two)
    if isinstance(one, Mapping):
        parts = {name: _without_examples(one[name], two[name]) for name in one}
        return parts if type(one) is dict else _rebuild(one, parts)
    if isinstance(one, Sequence) and not isinstance(one, (str, bytes)):
        if len(one) != len(two):  # a list of examples, such as texts
            return type(one)()
        items = [_without_examples(a, b) for a, b in zip(one, two, strict=True)]
        return type(one)(*items) if hasattr(one, "_fields") else _rebuild(one, items)
    if one is two or one == two:
        return one
    raise UnknownStructureError(f"a {type(one).__name__} that is not the same for one and two examples")


def _cut(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    if one.dim() != two.dim():
        raise UnknownStructureError("a tensor with another number of dimensions for two examples")
    grown = [axis for axis in range(one.dim()) if one.shape[axis] != two.shape[axis]]
    if not grown:
        return one  # a constant of the batch, which has no row of any example
    if len(grown) > 1:
        raise UnknownStructureError("a tensor that grows in several dimensions")
    return one.narrow(grown[0], 0, 0).clone()


def _rebuild(like: Any, parts: Any) -> Any:
    try:
        return type(like)(parts)
    except Exception:
        raise UnknownStructureError(
            f"a {type(like).__name__}, which cannot be built from its parts"
        ) from None


def _copy(batch: Any) -> Any:
    """A batch of its own, so that whoever changes it in place changes nothing here."""
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if isinstance(batch, Mapping):
        parts = {name: _copy(part) for name, part in batch.items()}
        return parts if type(batch) is dict else type(batch)(parts)  # type: ignore[call-arg]
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        items = [_copy(part) for part in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)  # type: ignore[call-arg]
    return batch
