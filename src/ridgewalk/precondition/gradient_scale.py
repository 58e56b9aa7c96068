"""The scale of every parameter, told from gradients of minibatches: a diagonal base for networks."""

from functools import partial

import jax
import jax.numpy as jnp

from ridgewalk.data import Batches, Streamed
from ridgewalk.target import Posterior
from ridgewalk.types import Key, PyTree

LEAST_CURVATURE = 1e-12
"""Of the largest: what a parameter without a gradient and without a proper prior counts as."""


def gradient_scale(key: Key, target: Posterior, position: PyTree, *, batch_size: int, batches: int = 50) -> PyTree:
    """(n/N mean of g² over batches + the prior's curvature)^(−1/4), g = ∇Ũ on batches of n: for `rescaled`.

    At a mode the mean of g² is N/n times the curvature that the data give, as far as their scores tell it; the power
    is that of RMSprop, whose G has the square root of the mean of g². It costs `batches` gradients, of data in memory.
    """
    if isinstance(target.data, Batches | Streamed):
        raise ValueError("target: its data do not fit into memory; pass a Posterior of some of them, held in arrays")
    if not 0 < batch_size <= target.size:
        raise ValueError(f"batch_size: {batch_size} is not between 1 and the {target.size} examples there are")
    if batches < 1:
        raise ValueError(f"batches: {batches} is not at least 1; the default is 50")
    position = jax.tree.map(jnp.asarray, position)
    return _scale(key, target, position, batch_size=batch_size, batches=batches)


@partial(jax.jit, static_argnames=("batch_size", "batches"))
def _scale(key: Key, target: Posterior, position: PyTree, *, batch_size: int, batches: int) -> PyTree:
    def add(total: PyTree, key: Key) -> tuple[PyTree, None]:
        rows = jax.random.randint(key, (batch_size,), 0, target.size)
        batch = jax.tree.map(lambda x: x[rows], target.data)
        gradient = jax.grad(target.potential)(position, batch)
        return jax.tree.map(lambda t, g: t + g**2 / batches, total, gradient), None

    squares = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, position), jax.random.split(key, batches))[0]
    ones, share = jax.tree.map(jnp.ones_like, position), batch_size / target.size
    floor = jax.jvp(target.prior_gradient, (position,), (ones,))[1]
    curvature = jax.tree.map(lambda v, least: share * v + jnp.maximum(least, 0), squares, floor)
    largest = jnp.max(jnp.array([jnp.max(leaf) for leaf in jax.tree.leaves(curvature)]))
    return jax.tree.map(lambda leaf: jnp.maximum(leaf, LEAST_CURVATURE * largest) ** -0.25, curvature)
