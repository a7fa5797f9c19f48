"""The kernel compiled by XLA, for machines with JAX but without numba. Always on the CPU, in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ballsbins.noise.kernel import HALF, pair_function

_pair = pair_function(
    jnp.where,
    lambda x: jax.lax.bitcast_convert_type(x, jnp.int64),
    lambda i: jax.lax.bitcast_convert_type(i, jnp.float64),
    jnp.sqrt,
    jnp.rint,
)


@jax.jit
def _blocks(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    one, two, undecided = _pair(words[:, 0], words[:, 1])
    return jnp.stack([one, two], axis=1).astype(jnp.int32), undecided


def fill(words: NDArray[np.int64], out: NDArray[np.int32]) -> NDArray[np.int64]:
    """Fill r from the words of whole blocks; return the numbers of the undecided pairs."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        drawn, undecided = _blocks(words.reshape(-1, 2, HALF))
        out[:] = np.asarray(drawn).reshape(-1)
        return np.flatnonzero(np.asarray(undecided))
