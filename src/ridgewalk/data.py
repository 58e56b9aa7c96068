"""Data that need not fit the device: arrays on the host or on disk, and any iterable of batches."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import PyTree

SKETCH_EXAMPLES = 1024
"""How many examples a first look at the data takes."""


@pytree_dataclass
class Streamed:
    """What compiled code knows of data that stays outside: how many examples there are, and a few of them."""

    size: int
    examples: PyTree = array_field()


@dataclass(frozen=True)
class Batches:
    """An iterable of batches, such as a PyTorch DataLoader, in the place of a posterior's data.

    Each item is a pytree of arrays (or tensors) of one batch; `size` is N, the number of examples of the whole data
    set, which scales the likelihood. When the iterable ends it is started again. All batches must have the same
    number of examples: a loader drops the last, smaller one (`drop_last=True`).
    A run that is resumed goes through the batches already used, so it continues bit-identically only if the iterable
    gives the same batches each time the program runs (a loader with a seeded generator does).
    """

    batches: Iterable[Any]
    size: int

    def __post_init__(self) -> None:
        """Refuse what can be read only once."""
        if not isinstance(self.size, int | np.integer) or self.size < 1:
            raise ValueError(f"size: {self.size!r} is not a positive number of examples; give N of the whole data set")
        if not hasattr(self.batches, "__iter__"):
            raise ValueError(f"batches: {type(self.batches).__name__} is not iterable; pass a list or a data loader")
        if iter(self.batches) is self.batches:
            raise ValueError(
                f"batches: {type(self.batches).__name__} can be read only once; pass something that starts afresh "
                "each time it is iterated (a list, a DataLoader, an object with __iter__)"
            )

    def first(self) -> PyTree:
        """The first batch, as numpy arrays."""
        return next(self.forever())

    def forever(self) -> Iterator[PyTree]:
        """Batch after batch, from the beginning again when they end."""
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
                        "alike (a DataLoader with drop_last=True)"
                    )
                yield batch
            if empty:
                raise ValueError("batches: the iterable is empty; give at least one batch")


def on_host(data: PyTree) -> bool:
    """Whether the data stay outside the device: a `Batches`, or leaves that are files (memmap, zarr, h5py)."""
    return isinstance(data, Batches) or any(map(_is_file, jax.tree.leaves(data)))


def _is_file(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return isinstance(leaf, np.memmap) or isinstance(leaf.base, np.memmap)
    is_array_like = all(hasattr(leaf, name) for name in ("shape", "dtype", "__getitem__"))
    return is_array_like and not isinstance(leaf, jax.Array | np.generic)


def read_rows(leaf: Any, rows: np.ndarray) -> np.ndarray:
    """`leaf[rows]` of an array in memory or on disk, each row read once and in ascending order."""
    if isinstance(leaf, np.ndarray):
        return np.asarray(leaf[rows])
    unique, where = np.unique(rows, return_inverse=True)
    selected = leaf.oindex[unique] if hasattr(leaf, "oindex") else leaf[unique]
    return np.asarray(selected)[where.reshape(rows.shape)]


def streamed(data: PyTree) -> Streamed:
    """The stand-in for host data inside compiled code."""
    if isinstance(data, Batches):
        return Streamed(data.size, data.first())
    size = int(jax.tree.leaves(data)[0].shape[0])
    rows = np.arange(0, size, -(-size // SKETCH_EXAMPLES))
    return Streamed(size, jax.tree.map(lambda leaf: read_rows(leaf, rows), data))
