"""What is kept of a draw, and how it is written inside the compiled loop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._control_flow import when
from ridgewalk._types import PyTree, Scalar, Unravel
from ridgewalk.kernel import Info
from ridgewalk.result import Moments


def statistics_dtype(dtype: Any) -> Any:
    """The dtype of what is computed from numbers of a dtype: float32 at least, for float16 and bfloat16."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else dtype


class Draws(NamedTuple):
    """The draws of one chunk, with leading axes (slot, chain), and the moments of all draws so far."""

    positions: PyTree
    collected: PyTree
    info: Info
    moments: Moments | None


@dataclass(frozen=True)
class Recording:
    """Which of a draw's position, `collect(position)` and running moments are kept.

    `eager` writes in every step, the last step of a draw overwriting the others: cheaper than asking whether a draw is
    due where a write costs little.
    """

    positions: bool
    moments: bool
    collect: Callable[[PyTree], Any] | None
    eager: bool

    def empty(self, position: PyTree, info: Info, slots: int) -> Draws:
        """Buffers for the draws of a chunk; `position` and `info` have a leading axis with the chains."""

        def zeros(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda x: jnp.array(np.zeros((slots, *x.shape), x.dtype)), tree)

        collected = None
        if self.collect is not None:
            collected = zeros(jax.eval_shape(jax.vmap(self.collect), position))
        moments = None
        if self.moments:
            mean = jax.tree.map(lambda x: jnp.zeros(x.shape, statistics_dtype(x.dtype)), position)
            weight = jnp.zeros((), statistics_dtype(jnp.result_type(*jax.tree.leaves(position))))
            moments = Moments(weight, mean, jax.tree.map(jnp.copy, mean))
        info = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, statistics_dtype(x.dtype)), info)
        return Draws(zeros(position) if self.positions else None, collected, zeros(info), moments)

    def write(
        self, draws: Draws, slot: Scalar, due: Scalar, flat: jax.Array, unravel: Unravel, info: Info, weight: Scalar
    ) -> Draws:
        """The draws with this one, flat vectors (chain, d), in its slot, if it is due."""

        def put(store: jax.Array, value: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_index_in_dim(store, value.astype(store.dtype), slot, 0)

        def act(draws: Draws, flat: jax.Array) -> Draws:
            position = unravel(flat)
            positions = jax.tree.map(put, draws.positions, position) if self.positions else None
            collected = None
            if self.collect is not None:
                collected = jax.tree.map(put, draws.collected, jax.vmap(self.collect)(position))
            moments = None if draws.moments is None else draws.moments.add(position, weight)
            return Draws(positions, collected, jax.tree.map(put, draws.info, info), moments)

        return act(draws, flat) if self.eager else when(due, act, draws, flat)


def join_moments(parts: list[Moments | None]) -> Moments:
    """The moments of groups of chains, in one with all chains."""
    present = [part for part in parts if part is not None]
    mean, squares = (
        jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *[part[i] for part in present]) for i in (1, 2)
    )
    return Moments(present[0].weight, mean, squares)
