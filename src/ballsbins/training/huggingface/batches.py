"""Prepare batches for the model: in pieces that fit in memory, with one row for each example in every lookup.

`gradient_accumulation_steps` (G) and `per_device_train_batch_size` (b) concern memory here, not privacy. Each step
has one batch of the mechanism, whose size is random. It is cut into chunks of at most b examples, which are divided
between the G substeps of Trainer's loop; some substeps may have several chunks and some none.

**Randomness.** Dropout, and masks that a collator draws, must not let one example change what happens to others. With
a public seed and a batch that is padded to its longest example, they would: the masks of all examples depend on the
shape. So every chunk draws from generators whose seed is derived from the run's key. Afterwards the generators of the
process are restored: they do not advance with the sizes of batches, which are secret, and a checkpoint holds nothing
of either. A resumed run draws the same masks.

**Lookups.** BERT, DistilBERT and GPT-2 look up their positions once for the whole batch, with indices of shape (1,
T), and rely on broadcasting; other models expand a row without copying it. Opacus then finds one gradient for all
examples, or none. So before such a lookup, hooks make the indices (B, T) and contiguous. The outputs stay the same,
and the model is not changed: `OneRowPerExample.remove` removes the hooks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ballsbins.errors import RunError
from ballsbins.samplers import Key
from ballsbins.training.torch import BallsBinsLoader


@dataclass(frozen=True)
class Piece:
    """The work of one substep of a step."""

    chunks: tuple[tuple[int, list[Any]], ...]  # the number of the chunk within the batch, and its examples
    last: int  # the number of the batch's last chunk
    examples: int  # number of examples of the whole batch on this rank; secret
    final: bool  # whether this is the last piece of its batch


class Pieces:
    """The loader that Trainer's loop sees: G pieces for each batch. Not a DataLoader, so that nothing prepares it."""

    def __init__(self, loader: BallsBinsLoader, per_step: int, chunk: int) -> None:
        """Cut the batches of a loader that gives lists of examples."""
        self._loader, self._per_step, self._chunk = loader, per_step, chunk

    @property
    def dataset(self) -> Any:
        """The data set, whose length Trainer needs."""
        return self._loader.dataset

    @property
    def sampler(self) -> Any:
        """Refuse: code that asks for the sampler wants to skip batches or divide them between processes."""
        raise RunError(
            "The batches of a private run cannot be skipped or dealt out: a resumed run goes on at the batch of its "
            "next step by itself. Leave this loader as it is."
        )

    def __len__(self) -> int:
        """Count the substeps of a whole epoch."""
        return self._loader.mechanism.sampler.steps * self._per_step

    def __iter__(self) -> Iterator[Piece]:
        """Continue from the next step to the end of its epoch."""
        run = self._loader._run
        batches = iter(self._loader)
        while True:
            with drawn_from(run.key, "examples", run.steps_taken, run.rank):
                try:
                    examples = next(batches)
                except StopIteration:
                    return
            chunks = [
                (number, examples[begin : begin + self._chunk])
                for number, begin in enumerate(range(0, len(examples), self._chunk))
            ]
            share = -(-len(chunks) // self._per_step)
            for number in range(self._per_step):
                yield Piece(
                    tuple(chunks[number * share : (number + 1) * share]),
                    last=len(chunks) - 1,
                    examples=len(examples),
                    final=number == self._per_step - 1,
                )


class Shapes:
    """The shapes of batches, without their number of rows."""

    def __init__(self) -> None:
        """Start without any shape."""
        self._seen: set[Any] = set()

    def see(self, batch: Mapping[str, Any]) -> None:
        """Record the shapes of a batch."""
        tensors = [(name, value) for name, value in sorted(batch.items()) if isinstance(value, torch.Tensor)]
        self._seen.add(tuple((name, tuple(value.shape[1:])) for name, value in tensors))

    def differ(self, device: Any, ranks: int) -> bool:
        """Whether shapes differed on any rank. If so, one example affects the shape in which others are computed."""
        found = torch.tensor(float(len(self._seen) > 1), device=device)
        if ranks > 1:
            torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MAX)
        return bool(found)


@contextmanager
def drawn_from(key: Key, *domain: str | int) -> Iterator[None]:
    """Within this context, draw from generators that are seeded from the key; then restore the old ones."""
    seed = key.derive("randomness inside a step", *domain)
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int.from_bytes(seed[:8], "little") >> 1)
        random.seed(seed)
        np.random.seed(np.frombuffer(seed, np.uint32))  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


class OneRowPerExample:
    """Hooks on a model and on its trainable embedding tables."""

    def __init__(self, model: nn.Module) -> None:
        """Install the hooks."""
        self._rows = 0
        self._handles = [model.register_forward_pre_hook(self._count, with_kwargs=True)]
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Embedding) and layer.weight.requires_grad:
                self._handles.append(layer.register_forward_pre_hook(self._expander(name)))

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _count(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        self._rows = max((len(value) for value in tensors if value.dim()), default=0)

    def _expander(self, name: str) -> Any:
        def expand(layer: nn.Module, args: Any) -> Any:
            if not args or not torch.is_grad_enabled() or not layer.training:
                return None
            ids = args[0]
            broadcast = ids.dim() > 1 and len(ids) == 1
            if not broadcast and len(ids) != self._rows:
                raise RunError(
                    f"The table {name!r} is looked up with indices of shape {tuple(ids.shape)}, which do not have "
                    "one row for each example of the batch, so the gradient of one example cannot be told from those "
                    f"of others. Freeze it: model.get_submodule({name!r}).requires_grad_(False)."
                )
            return ids.expand(self._rows, *ids.shape[1:]).contiguous(), *args[1:]

        return expand
