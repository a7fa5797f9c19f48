"""Gaussian noise from the secret key: AES in counter mode gives the words, Box and Muller make them normal.

The noise of a step is a pure function of the key, the run and the step: nothing of it needs to be saved, and a run
that was killed goes on with the very same noise. The words come from the same AES-256 keystream as the batches, under
another purpose. JAX's own generators would do, but their keys have 64 bits (Threefry) or are meant for speed alone
(RBG), and on a processor with AES instructions they are about ten times slower than AES: see benchmarks/training.py.

**Precision.** Three words make two values: a radius √(−2 log u) with u a multiple of 2⁻⁶⁴ and an angle that is one of
2³². Values reach 9.4 standard deviations. How far they reach matters more than how rarely a normal variable is beyond
it: an example moves a sum by 1/σ standard deviations, and a value that noise alone cannot reach shows that it was
there (see `tail`). Values are float32, as is all arithmetic of the step. Like that of all training
libraries this is an approximation of the continuous Gaussian for which privacy is proved, and the privacy statement
says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballsbins.samplers import Key
from ballsbins.samplers.keystream import Keystream
from ballsbins.training._jax import jax, jnp

_PIECE = 1 << 18  # words at a time, which stay in the processor's cache until they are in their place
_ALIGNMENT = 64  # bytes
SOURCE = "AES-256 in counter mode and the Box–Muller transform, in 32-bit floating point"


def words_for(size: int) -> int:
    """How many 32-bit words `size` normal values need: three for each pair."""
    return 3 * (-(-size // 2))


def step_words(key: Key, run: bytes, step: int, count: int) -> NDArray[np.uint32]:
    """Return the words of one step of one run.

    `run` tells runs apart, so that two models trained with one key do not share their noise, which their difference
    would cancel.
    """
    return _filled(_aligned(count), key, run, step)


class RunWords:
    """The words of one step of a run after the other, in two rooms that take turns.

    New memory for every step costs more than the words in it: with 85 million parameters that is half a gigabyte, of
    which the system clears every page. XLA reads a room in place, so one is filled again only when the step that
    used it is done; meanwhile the other serves the next step.
    """

    def __init__(self, key: Key, run: bytes, count: int) -> None:
        """`run` tells runs apart, as in `step_words`."""
        self._key, self._run = key, run
        self._rooms = (_aligned(count), _aligned(count))
        self._readers: list[Any] = [None, None]

    def of(self, step: int) -> NDArray[np.uint32]:
        """Return what `step_words` gives, to be read until the step after the next asks."""
        jax.block_until_ready(self._readers[step % 2])  # type: ignore[no-untyped-call]
        return _filled(self._rooms[step % 2], self._key, self._run, step)

    def read_by(self, step: int, results: Any) -> None:
        """Tell what is computed from the words of a step: they stay until that is ready."""
        self._readers[step % 2] = results


def _filled(words: NDArray[np.uint32], key: Key, run: bytes, step: int) -> NDArray[np.uint32]:
    stream, count = Keystream(key, "training noise", run, step), len(words)
    for begin in range(0, count, _PIECE):
        words[begin : begin + _PIECE] = stream.words32(0, begin, min(_PIECE, count - begin))
    return words


def _aligned(count: int) -> NDArray[np.uint32]:
    """Room for so many words, at an address from which XLA takes an array as it is; any other it copies."""
    room = np.empty(4 * count + _ALIGNMENT, np.uint8)
    skipped = -room.ctypes.data % _ALIGNMENT
    return room[skipped : skipped + 4 * count].view(np.uint32)


def normals(words: jax.Array, size: int) -> jax.Array:
    """Turn uniform 32-bit words, three for each pair, into `size` independent standard normal values."""
    first, finer, second = words.reshape(3, -1)
    fraction = (finer.astype(jnp.float32) + 0.5) * np.float32(2.0**-32)
    uniform = (first.astype(jnp.float32) + fraction) * np.float32(
        2.0**-32
    )  # in (0, 1]: fine where it is small
    radius = jnp.sqrt(-2.0 * jnp.log(uniform))
    sine, cosine = _sine_cosine(second)
    return jnp.concatenate([radius * cosine, radius * sine])[:size]


def _sine_cosine(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sine and cosine of a uniform angle: two bits for the quarter, thirty for the angle in [−π/4, π/4).

    Taylor's polynomials to relative 10⁻⁸ on that interval: XLA's own functions are not vectorised on a CPU.
    """
    quarter = words >> 30
    centred = ((words << 2) ^ jnp.uint32(2**31)).astype(jnp.int32).astype(jnp.float32)
    x = centred * np.float32(np.pi / 4 * 2.0**-31)
    y = x * x
    s = x * (1 + y * (-1 / 6 + y * (1 / 120 + y * (-1 / 5040 + y * (1 / 362880)))))
    c = 1 + y * (-1 / 2 + y * (1 / 24 + y * (-1 / 720 + y * (1 / 40320 - y * (1 / 3628800)))))
    odd = (quarter & 1) == 1
    sign = jnp.where(quarter > 1, -1.0, 1.0)
    return sign * jnp.where(odd, c, s), sign * jnp.where(odd, -s, c)
