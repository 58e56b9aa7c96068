"""Adam in the place of a sampler: the same gradients, the same pruning, no noise."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ridgewalk._control_flow import when
from ridgewalk._types import Key, PyTree, Scalar, Vector
from ridgewalk.pruning import Pruning, apply_mask
from ridgewalk.ravel import layout_of
from ridgewalk.target import Posterior


class _At(NamedTuple):
    flat: Vector
    mask: Vector
    adam: PyTree


@partial(jax.jit, static_argnames=("steps", "batch_size", "pruning"))
def refine(
    key: Key,
    target: Posterior,
    position: PyTree,
    rate: Scalar | float,
    *,
    steps: int,
    batch_size: int,
    pruning: Pruning | None,
) -> PyTree:
    """Where Adam ends after so many steps, its rate falling along a cosine to zero."""
    form = layout_of(position)
    optimiser = optax.scale_by_adam()

    def step(k: Scalar, at: _At) -> _At:
        rows = jax.random.randint(jax.random.fold_in(key, k), (batch_size,), 0, target.size)
        batch = jax.tree.map(lambda x: x[rows], target.data)
        gradient = apply_mask(form.ravel(jax.grad(target.potential)(form.unravel(at.flat), batch)), at.mask)
        update, adam = optimiser.update(gradient, at.adam)
        falling = rate * 0.5 * (1 + jnp.cos(jnp.pi * k / steps))
        moved = _At(apply_mask(at.flat - falling * jnp.asarray(update), at.mask), at.mask, adam)
        if pruning is None:
            return moved

        def prune(now: _At, number: Scalar) -> _At:
            mask = pruning.update_mask(form, now.flat, now.mask, number)
            return _At(apply_mask(now.flat, mask), mask, now.adam)

        return when(pruning.due(k + 1), prune, moved, k + 1)

    flat = form.ravel(position)
    start = _At(flat, jnp.ones(flat.shape, bool), optimiser.init(flat))
    return form.unravel(jax.lax.fori_loop(0, steps, step, start).flat)
