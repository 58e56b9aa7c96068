"""The scale of every parameter, told from gradients of minibatches: a diagonal base for networks."""

from functools import partial

import jax
import jax.numpy as jnp

from ridgewalk._types import Key, PyTree, Scalar, Vector
from ridgewalk.data import Streamed, on_host
from ridgewalk.ravel import layout_of
from ridgewalk.target import Posterior

LEAST_CURVATURE = 1e-12
"""Of the largest: what a parameter without a gradient and without a proper prior counts as."""
HIGH = 0.99
"""The quantile of curvatures that `least` is a share of."""
PROBES = 20
"""Random signs that tell the diagonal of the prior's curvature; one is exact where it is diagonal."""


def gradient_scale(
    key: Key, target: Posterior, position: PyTree, *, batch_size: int, batches: int = 50, least: float = 0.0
) -> PyTree:
    """(n/N mean of g² over batches + diagonal of the prior's curvature)^(−1/4), g = ∇Ũ on batches of n: for `rescaled`.

    At a mode of a well-specified likelihood the mean of g² is N/n times the curvature that the data give; the power is
    that of RMSprop, whose G is the inverse root of the mean of g². It costs `batches` gradients, of data in memory.
    Where weights do nothing at the mode and much a little beside it, as those of a network's idle units, take `least`
    of 0.01 or so: no curvature counts as less than this share of their 99 % quantile.
    """
    if isinstance(target.data, Streamed) or on_host(target.data):
        raise ValueError("target: its data are not in memory; pass a Posterior of some of them, held in jax arrays")
    if not 0 < batch_size <= target.size:
        raise ValueError(f"batch_size: {batch_size} is not between 1 and the {target.size} examples there are")
    if batches < 1:
        raise ValueError(f"batches: {batches} is not at least 1; the default is 50")
    if not 0 <= least < 1:
        raise ValueError(f"least: {least} is not in [0, 1); 0 sets no bound, 0.01 is for networks")
    position = jax.tree.map(jnp.asarray, position)
    return _scale(key, target, position, jnp.asarray(least), batch_size=batch_size, batches=batches)


@partial(jax.jit, static_argnames=("batch_size", "batches"))
def _scale(key: Key, target: Posterior, position: PyTree, least: Scalar, *, batch_size: int, batches: int) -> PyTree:
    form = layout_of(position)

    def add(total: Vector, key: Key) -> tuple[Vector, None]:
        rows = jax.random.randint(key, (batch_size,), 0, target.size)
        batch = jax.tree.map(lambda x: x[rows], target.data)
        return total + form.ravel(jax.grad(target.potential)(position, batch)) ** 2 / batches, None

    def probe(total: Vector, key: Key) -> tuple[Vector, None]:
        signs = jax.random.rademacher(key, (form.size,), form.dtype)
        image = jax.jvp(target.prior_gradient, (position,), (form.unravel(signs),))[1]
        return total + signs * form.ravel(image) / PROBES, None

    nothing = jnp.zeros(form.size, form.dtype)
    squares = jax.lax.scan(add, nothing, jax.random.split(key, batches))[0]
    prior = jax.lax.scan(probe, nothing, jax.random.split(jax.random.fold_in(key, 1), PROBES))[0]
    curvature = (batch_size / target.size) * squares + jnp.maximum(prior, 0)
    floor = jnp.maximum(LEAST_CURVATURE * jnp.max(curvature), least * jnp.quantile(curvature, HIGH))
    return form.unravel(jnp.maximum(curvature, floor.astype(form.dtype)) ** -0.25)
