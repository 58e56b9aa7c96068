"""Batches that the host reads from disk or takes from an iterable, one chunk ahead of the device."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, PyTree
from ridgewalk.data import Batches, read_rows
from ridgewalk.run.rows import Rows, rows_of_steps

CHUNK_BYTES = 2**26
"""About what the batches of one chunk may take; two chunks are in memory at a time."""

MOST_STEPS = 1024


class Reader(Protocol):
    """Gives the batches of the next steps."""

    def read(self, start: int, count: int, most: int) -> PyTree:
        """Batches of steps `start` … `start + count − 1`, arrays with leading axes (step, chain, example); never more
        than `most` steps are asked for.
        """


class ArrayReader:
    """Rows of arrays on disk, the same rows that a run with the arrays in memory would use."""

    def __init__(self, data: PyTree, rows: Rows, keys: Key) -> None:
        self.data, self.rows, self.keys = data, rows, keys

    def read(self, start: int, count: int, most: int) -> PyTree:
        """Look the rows of the steps up and read them."""
        rows = np.asarray(rows_of_steps(self.rows, self.keys, start, most))[:count]
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


class Feed:
    """Reads the batches of the chunk after this one while the device is busy with this one."""

    def __init__(self, examples: PyTree, batch_size: int, chains: int) -> None:
        one = sum(leaf[:1].nbytes for leaf in jax.tree.leaves(examples)) * batch_size * chains
        self.capacity = int(np.clip(CHUNK_BYTES // max(one, 1), 1, MOST_STEPS))
        self._thread = ThreadPoolExecutor(1, "ridgewalk-feed")
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
