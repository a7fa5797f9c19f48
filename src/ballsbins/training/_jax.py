"""JAX and Optax, or the pip command that installs them."""

from __future__ import annotations

from ballsbins.errors import MissingExtraError

try:
    import jax
    import jax.numpy as jnp
    import optax
except ImportError as missing:
    raise MissingExtraError("Training in JAX", "jax") from missing

__all__ = ["jax", "jnp", "optax"]
