"""Which examples a step looks at: a function of the chain's key and the step alone, so that a resumed run agrees."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ridgewalk._control_flow import when
from ridgewalk._random import uniform_integers
from ridgewalk._types import Key, Scalar

Source = Literal["none", "whole", "replacement", "epochs", "stream"]
"""none: a density. whole: all data. replacement, epochs: rows of the data, drawn with or without replacement.
stream: batches that the host reads."""

EPOCH_STREAM = 0x65706F63
"""Folded into a chain's key for the order of an epoch, so that it differs from the keys of steps."""


@dataclass(frozen=True)
class Rows:
    """Batches of `batch_size` of `size` examples."""

    source: Source
    size: int = 0
    batch_size: int = 0

    @property
    def whole(self) -> bool:
        """Whether every step uses all there is."""
        return self.source in ("none", "whole")

    @property
    def per_epoch(self) -> int:
        """Batches of one pass over the data; the rest of the examples, fewer than a batch, waits for the next order."""
        return self.size // self.batch_size

    def draw(self, key: Key) -> jax.Array | None:
        """Rows drawn with replacement, where that is asked for."""
        if self.source != "replacement":
            return None
        return uniform_integers(key, self.batch_size, self.size)

    def order(self, keys: Key, epoch: Scalar) -> jax.Array:
        """The order of the examples in an epoch, for every chain."""

        def shuffled(key: Key) -> jax.Array:
            key = jax.random.fold_in(jax.random.fold_in(key, EPOCH_STREAM), epoch)
            return jax.random.permutation(key, self.size).astype(jnp.int32)

        return jax.vmap(shuffled)(keys)

    def from_order(self, keys: Key, k: Scalar, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The order that holds at step k, and the rows of that step."""
        epoch, batch = k // self.per_epoch, k % self.per_epoch
        order = when(batch == 0, lambda _, now: self.order(keys, now), order, epoch)
        return order, jax.lax.dynamic_slice_in_dim(order, batch * self.batch_size, self.batch_size, 1)


@partial(jax.jit, static_argnames=("rows",))
def order_at(rows: Rows, keys: Key, step: Scalar) -> jax.Array | None:
    """The order of the epoch that `step` belongs to, where batches are drawn without replacement."""
    return rows.order(keys, step // rows.per_epoch) if rows.source == "epochs" else None


@partial(jax.jit, static_argnames=("rows", "count"))
def rows_of_steps(rows: Rows, keys: Key, start: Scalar, count: int) -> jax.Array:
    """Rows (step, chain, example) of `count` steps, the same that the compiled loop draws, for the host to read."""
    steps = start + jnp.arange(count)
    if rows.source == "replacement":

        def one(key: Key, k: Scalar) -> Any:
            return rows.draw(jax.random.split(jax.random.fold_in(key, k))[1])

        return jax.vmap(lambda k: jax.vmap(lambda key: one(key, k))(keys))(steps)

    def forward(order: jax.Array, k: Scalar) -> tuple[jax.Array, jax.Array]:
        return rows.from_order(keys, k, order)

    return jax.lax.scan(forward, rows.order(keys, start // rows.per_epoch), steps)[1]
