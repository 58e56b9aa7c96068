"""Data that stay on the host: arrays on disk, iterables of batches, and their placeholder in compiled code."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import PyTree
from ridgewalk._validation import check_whole

SUBSAMPLE_SIZE = 1024
"""The largest number of examples in a subsample of the data."""


@pytree_dataclass
class DataPlaceholder:
    """Stands for data on the host inside compiled code: the number of examples, and a subsample of them."""

    size: int
    examples: PyTree = array_field()


@dataclass(frozen=True)
class Batches:
    """An iterable of batches, such as a PyTorch DataLoader, for use as the data of a `Posterior`.

    Each item is a pytree of arrays (or tensors) of one batch; `size` is N, the number of examples of the whole data
    set, which scales the likelihood. When the iterable ends it is restarted. All batches must have the same number of
    examples: set `drop_last=True` in a loader.
    A resumed run skips the batches already used, so it continues bit for bit only if the iterable yields the same
    batches in every process (a loader with a seeded generator does).
    """

    batches: Iterable[Any]
    size: int

    def __post_init__(self) -> None:
        """Check that the iterable can be restarted."""
        check_whole("size", self.size, 1, "give N, the number of examples of the whole data set")
        if not hasattr(self.batches, "__iter__"):
            raise ValueError(f"batches: {type(self.batches).__name__} is not iterable; pass a list or a data loader")
        if iter(self.batches) is self.batches:
            raise ValueError(
                f"batches: {type(self.batches).__name__} can be read only once; pass one that can be restarted "
                "each time it is iterated (a list, a DataLoader, an object with __iter__)"
            )

    def first(self) -> PyTree:
        """The first batch, as numpy arrays."""
        return next(self.forever())

    def forever(self) -> Iterator[PyTree]:
        """The batches, repeated without end."""
        expected: Any = None
        while True:
            empty = True
            for number, item in enumerate(self.batches):
                empty, batch = False, jax.tree.map(np.asarray, item)
                shapes = jax.tree.map(np.shape, batch)
                expected = expected or shapes
                if shapes != expected:
                    raise ValueError(
                        f"batches: number {number} has shapes {shapes}, the first had {expected}; make all batches "
                        "equal in shape (a DataLoader with drop_last=True)"
                    )
                yield batch
            if empty:
                raise ValueError("batches: the iterable is empty; give at least one batch")


def read_rows(leaf: Any, rows: np.ndarray) -> np.ndarray:
    """`leaf[rows]` of an array in memory or on disk, each row read once and in ascending order."""
    if isinstance(leaf, np.ndarray):
        return np.asarray(leaf[rows])
    unique, where = np.unique(rows, return_inverse=True)
    selected = leaf.oindex[unique] if hasattr(leaf, "oindex") else leaf[unique]
    return np.asarray(selected)[where.reshape(rows.shape)]


def placeholder(data: PyTree) -> DataPlaceholder:
    """The placeholder for data on the host inside compiled code."""
    if isinstance(data, Batches):
        return DataPlaceholder(data.size, data.first())
    size = int(jax.tree.leaves(data)[0].shape[0])
    rows = np.arange(0, size, -(-size // SUBSAMPLE_SIZE))
    return DataPlaceholder(size, jax.tree.map(lambda leaf: read_rows(leaf, rows), data))
