"""A mask holds the pruned coordinates of a vector at zero."""

import jax
import jax.numpy as jnp

Mask = jax.Array | None
"""True where a coordinate is kept, (d,); None where nothing is pruned, which costs nothing."""


def hold(vectors: jax.Array, mask: Mask) -> jax.Array:
    """M v, with exact zeros, of one vector (d,) or of rows (…, d)."""
    return vectors if mask is None else jnp.where(mask, vectors, jnp.zeros((), vectors.dtype))


def degrees(mask: Mask, size: int) -> jax.Array | int:
    """How many of `size` coordinates move."""
    return size if mask is None else jnp.sum(mask)
