"""Which examples a step uses, and batches that the host reads ahead of the device.

The examples are a function of the chain's key and the step alone, so that a resumed run agrees.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._control_flow import WORD, when
from ridgewalk._random import keys_at, uniform_integers
from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk.data import Batches, read_rows

Source = Literal["none", "full", "replacement", "epochs", "iterable"]
"""none: a density has no data. full: all data in every step. replacement, epochs: rows of the data, drawn with or
without replacement. iterable: batches of the user's iterable."""

EPOCH_STREAM = 0x65706F63
"""Folded into a chain's key for the order of an epoch, so that it differs from the keys of steps."""


class EpochPosition(NamedTuple):
    """Where in an epoch a step is: the number of its batch, and the low word of the number of the epoch."""

    batch: Scalar
    epoch: Scalar


@dataclass(frozen=True)
class BatchIndexer:
    """Batches of `batch_size` of `size` examples."""

    source: Source
    size: int = 0
    batch_size: int = 0
    prefetched: bool = False
    """Whether the host reads the batches; else the compiled loop takes them from data on the device."""

    @property
    def full(self) -> bool:
        """Whether every step uses all data."""
        return self.source in ("none", "full")

    @property
    def batches_per_epoch(self) -> int:
        """Batches of one pass over the data; the remaining examples, fewer than a batch, are left out of that epoch."""
        return self.size // self.batch_size

    def epoch_position(self, step: int) -> EpochPosition:
        """Where in its epoch a step is; zeros where there are no epochs."""
        epoch, batch = divmod(step, self.batches_per_epoch) if self.source == "epochs" else (0, 0)
        return EpochPosition(jnp.asarray(batch, jnp.int32), jnp.asarray(epoch % WORD, jnp.int32))

    def draw(self, key: Key) -> jax.Array | None:
        """Rows of one batch drawn with replacement; None for other sources."""
        if self.source != "replacement":
            return None
        return uniform_integers(key, self.batch_size, self.size)

    def permutations(self, keys: Key, epoch: Scalar) -> jax.Array:
        """A random order of the examples in an epoch for every chain, (chain, N)."""

        def shuffled(key: Key) -> jax.Array:
            key = jax.random.fold_in(jax.random.fold_in(key, EPOCH_STREAM), epoch)
            return jax.random.permutation(key, self.size).astype(jnp.int32)

        return jax.vmap(shuffled)(keys)

    def from_order(self, keys: Key, begin: EpochPosition, i: Scalar, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The order that holds `i` steps after `begin`, and the rows of that step."""
        number = begin.batch + i
        batch = number % self.batches_per_epoch
        epoch = (begin.epoch + number // self.batches_per_epoch) & jnp.int32(WORD - 1)
        order = when(batch == 0, lambda _, now: self.permutations(keys, now), order, epoch)
        return order, jax.lax.dynamic_slice_in_dim(order, batch * self.batch_size, self.batch_size, 1)


def order_at(indexer: BatchIndexer, keys: Key, step: int) -> jax.Array | None:
    """The order of the epoch that `step` belongs to, where batches are drawn without replacement.

    Its random numbers are those of the epoch's first step.
    """
    if indexer.source != "epochs":
        return None
    return _permutations(
        indexer, keys_at(keys, step - step % indexer.batches_per_epoch), indexer.epoch_position(step).epoch
    )


@partial(jax.jit, static_argnames=("indexer",))
def _permutations(indexer: BatchIndexer, keys: Key, epoch: Scalar) -> jax.Array:
    return indexer.permutations(keys, epoch)


def rows_of_steps(indexer: BatchIndexer, keys: Key, start: int, count: int) -> jax.Array:
    """Rows (step, chain, example) of `count` steps, the same that the compiled loop draws, for the host to read.

    The steps have the same high word (see `StepCount`).
    """
    low = jnp.asarray(start % WORD, jnp.int32)
    return _rows(
        indexer, keys_at(keys, start), order_at(indexer, keys, start), low, indexer.epoch_position(start), count
    )


@partial(jax.jit, static_argnames=("indexer", "count"))
def _rows(
    indexer: BatchIndexer, keys: Key, order: jax.Array | None, start: Scalar, begin: EpochPosition, count: int
) -> jax.Array:
    after = jnp.arange(count, dtype=jnp.int32)
    if order is None:

        def one(key: Key, k: Scalar) -> Any:
            return indexer.draw(jax.random.split(jax.random.fold_in(key, k))[1])

        return jax.vmap(lambda k: jax.vmap(lambda key: one(key, k))(keys))(start + after)

    def forward(order: jax.Array, i: Scalar) -> tuple[jax.Array, jax.Array]:
        return indexer.from_order(keys, begin, i, order)

    return jax.lax.scan(forward, order, after)[1]


CHUNK_BYTES = 2**26
"""About what the batches of one chunk may take; two chunks are in memory at a time."""

MOST_STEPS = 1024


class Reader(Protocol):
    """Gives the batches of the next steps."""

    def read(self, start: int, count: int, most: int) -> PyTree:
        """Batches of steps `start` … `start + count − 1`, arrays with leading axes (step, chain, example); never more
        than `most` steps are asked for.
        """


class RowReader:
    """Rows of arrays on disk, the same rows that a run with the arrays in memory would use."""

    def __init__(self, data: PyTree, indexer: BatchIndexer, keys: Key) -> None:
        self.data, self.indexer, self.keys = data, indexer, keys

    def read(self, start: int, count: int, most: int) -> PyTree:
        """Look the rows of the steps up and read them."""
        rows = np.asarray(rows_of_steps(self.indexer, self.keys, start, most))[:count]
        return jax.tree.map(lambda leaf: read_rows(leaf, rows), self.data)


class IterableReader:
    """Batch after batch of an iterable: step k of chain c uses number k · chains + c."""

    def __init__(self, batches: Batches, chains: int, start: int) -> None:
        self.chains = chains
        self.items: Iterator[PyTree] = islice(batches.forever(), start * chains, None)

    def read(self, start: int, count: int, most: int) -> PyTree:
        """The next batches; steps are asked for in order."""
        steps = [[next(self.items) for _ in range(self.chains)] for _ in range(count)]
        return jax.tree.map(
            lambda *leaves: np.stack(leaves).reshape(count, self.chains, *leaves[0].shape),
            *[batch for step in steps for batch in step],
        )


class Prefetcher:
    """Reads the batches of the chunk after this one while the device is busy with this one."""

    def __init__(self, examples: PyTree, batch_size: int, chains: int) -> None:
        one = sum(leaf[:1].nbytes for leaf in jax.tree.leaves(examples)) * batch_size * chains
        self.capacity = int(np.clip(CHUNK_BYTES // max(one, 1), 1, MOST_STEPS))
        self._thread = ThreadPoolExecutor(1, "ridgewalk-prefetch")
        self._coming: Future[PyTree]
        self._reader: Reader
        self._next = 0

    def begin(self, reader: Reader, start: int, count: int) -> None:
        """Start to read the batches of the first steps."""
        self._reader, self._next = reader, start
        self._read_ahead(count)

    def _read_ahead(self, count: int) -> None:
        if count:
            self._coming = self._thread.submit(self._padded, self._next, count)
            self._next += count

    def _padded(self, start: int, count: int) -> PyTree:
        """Batches in arrays of always the same length, so that nothing is compiled again."""
        missing = self.capacity - count

        def pad(x: np.ndarray) -> jax.Array:
            return jnp.asarray(np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)]) if missing else x)

        return jax.tree.map(pad, self._reader.read(start, count, self.capacity))

    def take(self, ahead: int) -> PyTree:
        """The batches that were read; those of the `ahead` steps after them are begun."""
        batches = self._coming.result()
        self._read_ahead(ahead)
        return batches

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)
