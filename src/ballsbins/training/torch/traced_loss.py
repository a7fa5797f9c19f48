"""Record what a training loop does with a model's outputs, so that one example's loss can be computed alone.

A loop that only calls `loss.backward()` does not expose its loss function. So at some steps the outputs of the model
are tensors that record each operation on them, up to the call of `backward`. The record is then played back twice:
with the outputs and targets of the whole batch, and with those of one example. If the loss is the mean (or the sum)
of one loss for each example, that example gets the same gradient both times. If the loss divides by a property of the
batch, such as tokens or class weights, it does not.

The shapes show which rows of other tensors (targets, masks) belong to the example: a tensor has one part for each
example if it is as long, along the batch dimension, as the recorded tensor it is used with. Numbers are played back
unchanged. If that does not fit, numbers equal to the number of rows are replaced with 1, as in
`loss.sum() / len(batch)`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ballsbins.errors import RunError
from ballsbins.training.torch.example_check import TOLERANCE, gradient_of, require_own_gradient

_UNSEEN = (
    "Give the loss to make_private as criterion= and use the criterion that it returns. Or, if you know that the "
    "loss is one value for each example and divides by nothing of the batch, say loss_is_per_example=True: the "
    "card then says that this is your word."
)


@dataclass(frozen=True)
class _Ref:
    """A recorded tensor: the operation that gave it, its place in the result, and its shape in the whole batch."""

    number: int
    place: int | None
    shape: tuple[int, ...]


@dataclass
class _Operation:
    """One recorded call; an output of the model has a value instead of a function."""

    function: Callable[..., Any] | None
    arguments: Any = None
    value: torch.Tensor | None = None
    in_place: bool = False


@dataclass
class Tape:
    """The record of one step."""

    operations: list[_Operation] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)  # the operations that went backward
    # the gradients that outputs actually received
    came_back: dict[int, torch.Tensor] = field(default_factory=dict)

    def output(self, value: Any) -> Any:
        """Start recording an output of the model."""
        number = len(self.operations)
        self.operations.append(_Operation(None, value=value.detach()))

        def note(gradient: torch.Tensor) -> None:
            self.came_back[number] = self.came_back.get(number, 0.0) + gradient.detach().double()

        value.register_hook(note)
        return self._named(value.as_subclass(Traced), number, None)

    def record(self, function: Callable[..., Any], arguments: Any, result: Any, in_place: bool) -> None:
        """Record a call whose tensors were already replaced with references."""
        found = list(result) if isinstance(result, (tuple, list)) else [result]
        if not any(isinstance(each, Traced) for each in found):
            return
        self.operations.append(_Operation(function, arguments, in_place=in_place))
        for place, each in enumerate(found):
            if isinstance(each, Traced):
                several = isinstance(result, (tuple, list))
                self._named(each, len(self.operations) - 1, place if several else None)

    def went_backward(self, loss: Any, gradient: Any) -> None:
        """Record the loss that backward was called on."""
        given = (loss,) if gradient is None else (loss, gradient)
        self.operations.append(_Operation(_weighted, (_mapped(given, _reference), {})))
        self.losses.append(len(self.operations) - 1)

    def _named(self, tensor: Any, number: int, place: int | None) -> Any:
        tensor.tape, tensor.reference = self, _Ref(number, place, tuple(tensor.shape))
        return tensor


def _weighted(loss: torch.Tensor, gradient: torch.Tensor | None = None) -> torch.Tensor:
    return (loss if gradient is None else loss * gradient).sum()


class Traced(torch.Tensor):
    """A tensor whose uses are recorded on a tape."""

    tape: Tape
    reference: _Ref

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # called by torch for each operation
        """Record an operation and carry it out."""
        kwargs = kwargs or {}
        tape = _tape_in((args, kwargs))
        if func is torch.Tensor.backward and tape is not None:
            tape.went_backward(args[0], kwargs.get("gradient", args[1] if len(args) > 1 else None))
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)  # type: ignore[no-untyped-call]
        references = _mapped((args, kwargs), _reference)
        result = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if tape is not None:
            sets = func is torch.Tensor.__setitem__
            tape.record(func, references, args[0] if sets else result, sets)
        return result


def _reference(value: Any) -> Any:
    return getattr(value, "reference", value) if isinstance(value, Traced) else value


def _tape_in(value: Any) -> Tape | None:
    found: list[Tape] = []
    _mapped(value, lambda each: found.append(each.tape) if hasattr(each, "tape") else None)
    return found[0] if found else None


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to everything that is not a container, at any depth."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(each, change) for each in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(each, change) for each in value)
    if isinstance(value, Mapping):
        made: Any = copy.copy(value)
        for name, each in value.items():
            made[name] = _mapped(each, change)
        return made
    if isinstance(value, slice):
        return slice(*(_mapped(each, change) for each in (value.start, value.stop, value.step)))
    return change(value)


def tensors_in(outputs: Any) -> list[torch.Tensor]:
    """The tensors of a model's outputs through which gradients come back."""
    found: list[torch.Tensor] = []
    _mapped(
        outputs,
        lambda each: found.append(each) if isinstance(each, torch.Tensor) and each.requires_grad else None,
    )
    return found


class LossWatch:
    """Checks the loss of a loop at some steps; `require` refuses one that depends on other examples."""

    def __init__(self, loss_reduction: str, is_time: Callable[[], bool]) -> None:
        """Watch a loss with this reduction whenever it is time, and at every step until it was checked once."""
        self._reduction, self._is_time = loss_reduction, is_time
        self._owed = True
        self._tape = Tape()
        self._seen = False  # whether a criterion of the user was checked

    def is_due(self) -> bool:
        """Whether the loss of the next step must be checked."""
        return self._owed or self._is_time()

    def traced(self, outputs: Any) -> Any:
        """Return the outputs of a model, with recording if a check is due."""
        if not self.is_due():
            return outputs
        return _mapped(
            outputs,
            lambda each: (
                self._tape.output(each)
                if isinstance(each, torch.Tensor) and each.requires_grad and not isinstance(each, Traced)
                else each
            ),
        )

    def saw(self) -> None:
        """Note that a criterion compared one example alone and within its batch."""
        self._seen = True

    def forget_losses(self) -> None:
        """Forget earlier losses that went backward, because their gradients were cleared."""
        self._tape.losses.clear()
        self._tape.came_back.clear()

    def forget(self) -> None:
        """Begin the next step."""
        self._tape, self._seen = Tape(), False

    def require(self, rows: int) -> None:
        """Refuse the loss of a step with `rows` rows if other examples change the gradient that one example gets."""
        if not self.is_due():
            return
        if rows > 1:  # a single row is already the whole batch
            if not self._seen:
                self._compare(rows)
            self._owed = False
        self.forget()

    def _compare(self, rows: int) -> None:
        tape = self._tape
        within = _Playback(tape, rows)
        gradients = within.gradients()
        if not gradients or not _agree(gradients, tape.came_back):
            raise RunError(
                "Nobody could see how the loss of this step follows from the outputs of the model that make_private "
                f"returned, so it may divide by something of the batch. {_UNSEEN}"
            )
        places = {number: _batch_dimension(value, rows) for number, value in within.outputs.items()}
        whole = [number for number, place in places.items() if place is None and gradients[number].any()]
        if whole:
            raise RunError(
                "The loss is computed inside the model, or from an output that has not one row for each example, so "
                f"nobody can see what it divides by. Compute it from outputs with one row for each example. {_UNSEEN}"
            )
        by_row = {number: gradients[number].movedim(place, 0).reshape(rows, -1)
                  for number, place in places.items() if place is not None}  # fmt: skip
        row = int(
            torch.stack([each.double().square().sum(dim=1) for each in by_row.values()]).sum(dim=0).argmax()
        )
        factor = float(rows) if self._reduction == "mean" else 1.0
        mine = factor * torch.cat([each[row].double() for each in by_row.values()])
        refused: RunError | None = None
        for renumbered in (False, True):
            try:
                alone = _Playback(tape, rows, row, renumbered).gradients()
            except (RuntimeError, IndexError, ValueError, TypeError):
                continue
            try:
                own = torch.cat([alone[number].double().flatten() for number in by_row])
                require_own_gradient(mine, own)
                return
            except RunError as error:
                refused = refused or error
        raise refused or RunError(
            "The loss of this step cannot be computed for one example alone, so nobody can see whether it divides by "
            f"something of the batch. {_UNSEEN}"
        )


def _agree(played: dict[int, torch.Tensor], real: dict[int, torch.Tensor]) -> bool:
    """Whether the record explains the gradients that came back."""
    for number in {*played, *real}:
        mine, other = (found.get(number, torch.zeros(())) for found in (played, real))
        if not bool((mine - other).norm() <= TOLERANCE * torch.maximum(mine.norm(), other.norm())):
            return False
    return True


def _batch_dimension(value: torch.Tensor, rows: int) -> int | None:
    return next((place for place in (0, 1) if value.dim() > place and value.shape[place] == rows), None)


class _Playback:
    """Plays the record back with the outputs of the whole batch, or with those of one row."""

    def __init__(self, tape: Tape, rows: int, row: int | None = None, renumbered: bool = False) -> None:
        self._tape, self._rows, self._row, self._renumbered = tape, rows, row, renumbered
        self.outputs: dict[int, torch.Tensor] = {}
        self._values: dict[int, Any] = {}
        with torch.enable_grad():
            for number in sorted(self._needed()):
                self._values[number] = self._play(number)

    def gradients(self) -> dict[int, torch.Tensor]:
        """The gradients of the sum of all losses, with respect to each output."""
        total = sum((self._values[number] for number in self._tape.losses), torch.zeros(()))
        leaves = list(self.outputs.values())
        if not leaves:
            return {}
        flat: Any = gradient_of(total, leaves)
        parts = flat.split([leaf.numel() for leaf in leaves])
        return {number: part.view(leaf.shape)
                for (number, leaf), part in zip(self.outputs.items(), parts, strict=True)}  # fmt: skip

    def _needed(self) -> set[int]:
        """The operations that the losses depend on, including in-place writes."""
        found: set[int] = set()
        todo = list(self._tape.losses)
        while todo:
            number = todo.pop()
            if number not in found:
                found.add(number)
                _mapped(
                    self._tape.operations[number].arguments,
                    lambda each: todo.append(each.number) if isinstance(each, _Ref) else None,
                )
        return found

    def _play(self, number: int) -> Any:
        operation = self._tape.operations[number]
        if operation.value is not None:
            leaf = operation.value
            place = _batch_dimension(leaf, self._rows)
            if self._row is not None and place is not None:
                leaf = leaf.narrow(place, self._row, 1)
            self.outputs[number] = leaf.clone().requires_grad_()
            return self.outputs[number] * 1  # so that it may be changed in place
        met: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        _mapped(operation.arguments, lambda each: met.append((each.shape, tuple(self._of(each).shape)))
                if isinstance(each, _Ref) else None)  # fmt: skip
        args, kwargs = _mapped(operation.arguments, lambda each: self._argument(each, met))
        assert operation.function is not None
        result = operation.function(*args, **kwargs)
        return args[0] if operation.in_place else result

    def _of(self, reference: _Ref) -> Any:
        value = self._values[reference.number]
        return value if reference.place is None else value[reference.place]

    def _argument(self, value: Any, met: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> Any:
        if isinstance(value, _Ref):
            return self._of(value)
        if self._row is None:
            return value
        if isinstance(value, torch.Tensor):
            return self._part(value, met)
        if self._renumbered and isinstance(value, range) and value == range(self._rows):
            return range(1)
        if self._renumbered and isinstance(value, (int, float)) and not isinstance(value, bool):
            return type(value)(1) if value in (self._rows, 1.0 / self._rows) else value
        return value

    def _part(self, value: torch.Tensor, met: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> torch.Tensor:
        """Return the row's part of a tensor, if the tensor has one part for each row."""
        assert self._row is not None
        if value.dim() == 0:
            same = self._renumbered and float(value) in (self._rows, 1.0 / self._rows)
            return torch.ones_like(value) if same else value
        for batch, alone in met:
            for place, (many, few) in enumerate(zip(batch, alone, strict=False)):
                if many == few or value.dim() <= place or value.shape[place] != many:
                    continue
                if self._renumbered and value.dim() == 1 and _counts(value):
                    return value[:few]
                part = value.narrow(place, self._row * few, few)
                shares = self._renumbered and bool(
                    torch.isclose(value, value.new_tensor(1.0 / self._rows)).all()
                )
                return torch.ones_like(part) if shares else part
        return value


def _counts(value: torch.Tensor) -> bool:
    """Whether a tensor holds the row numbers 0, 1, 2, …"""
    return not value.is_floating_point() and torch.equal(value, torch.arange(len(value), device=value.device))
