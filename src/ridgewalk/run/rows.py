"""Which examples a step looks at: a function of the chain's key and the step alone, so that a resumed run agrees."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._control_flow import when
from ridgewalk._random import uniform_integers
from ridgewalk._step_count import WORD, keys_at
from ridgewalk._types import Key, Scalar

Source = Literal["none", "whole", "replacement", "epochs", "stream"]
"""none: a density. whole: all data. replacement, epochs: rows of the data, drawn with or without replacement.
stream: batches that the host reads."""

EPOCH_STREAM = 0x65706F63
"""Folded into a chain's key for the order of an epoch, so that it differs from the keys of steps."""


class EpochPlace(NamedTuple):
    """Where in an epoch a step is: the number of its batch, and the low word of the number of the epoch."""

    batch: Scalar
    epoch: Scalar


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

    def place(self, step: int) -> EpochPlace:
        """Where in its epoch a step is; zeros where there are no epochs."""
        epoch, batch = divmod(step, self.per_epoch) if self.source == "epochs" else (0, 0)
        return EpochPlace(jnp.asarray(batch, jnp.int32), jnp.asarray(epoch % WORD, jnp.int32))

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

    def from_order(self, keys: Key, place: EpochPlace, i: Scalar, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The order that holds `i` steps after `place`, and the rows of that step."""
        number = place.batch + i
        batch = number % self.per_epoch
        epoch = (place.epoch + number // self.per_epoch) & jnp.int32(WORD - 1)
        order = when(batch == 0, lambda _, now: self.order(keys, now), order, epoch)
        return order, jax.lax.dynamic_slice_in_dim(order, batch * self.batch_size, self.batch_size, 1)


def order_at(rows: Rows, keys: Key, step: int) -> jax.Array | None:
    """The order of the epoch that `step` belongs to, where batches are drawn without replacement.

    Its random numbers are those of the epoch's first step.
    """
    if rows.source != "epochs":
        return None
    return _order(rows, keys_at(keys, step - step % rows.per_epoch), rows.place(step).epoch)


@partial(jax.jit, static_argnames=("rows",))
def _order(rows: Rows, keys: Key, epoch: Scalar) -> jax.Array:
    return rows.order(keys, epoch)


def rows_of_steps(rows: Rows, keys: Key, start: int, count: int) -> jax.Array:
    """Rows (step, chain, example) of `count` steps, the same that the compiled loop draws, for the host to read.

    The steps have the same high word (see `StepCount`).
    """
    low = jnp.asarray(start % WORD, jnp.int32)
    return _rows(rows, keys_at(keys, start), order_at(rows, keys, start), low, rows.place(start), count)


@partial(jax.jit, static_argnames=("rows", "count"))
def _rows(rows: Rows, keys: Key, order: jax.Array | None, start: Scalar, place: EpochPlace, count: int) -> jax.Array:
    after = jnp.arange(count, dtype=jnp.int32)
    if order is None:

        def one(key: Key, k: Scalar) -> Any:
            return rows.draw(jax.random.split(jax.random.fold_in(key, k))[1])

        return jax.vmap(lambda k: jax.vmap(lambda key: one(key, k))(keys))(start + after)

    def forward(order: jax.Array, i: Scalar) -> tuple[jax.Array, jax.Array]:
        return rows.from_order(keys, place, i, order)

    return jax.lax.scan(forward, order, after)[1]
