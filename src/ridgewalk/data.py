"""Data that stay on the host: arrays on disk, iterables of batches, and their placeholder in compiled code."""

import base64
import json
from collections.abc import Iterable
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
    batches in every process (a loader with a seeded generator does). Where its iterators have `get_state()` and
    `set_state(state)`, as those of grain do, a checkpoint holds the state, and nothing is read again.
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

    def forever(self) -> "BatchStream":
        """The batches, repeated without end."""
        return BatchStream(self)


class BatchStream:
    """The batches of an iterable, repeated without end, and how far they were read where its iterators know that."""

    def __init__(self, batches: Batches) -> None:
        self._iterable, self._iterator = batches.batches, iter(batches.batches)
        self._number, self._expected = 0, None
        self._fresh = True

    def __iter__(self) -> "BatchStream":
        """Itself."""
        return self

    def __next__(self) -> PyTree:
        """The next batch, as numpy arrays."""
        try:
            item = next(self._iterator)
        except StopIteration:
            if self._fresh:
                raise ValueError("batches: the iterable is empty; give at least one batch") from None
            self._iterator, self._number, self._fresh = iter(self._iterable), 0, True
            return next(self)
        batch = jax.tree.map(np.asarray, item)
        shapes = jax.tree.map(np.shape, batch)
        self._expected = self._expected or shapes
        if shapes != self._expected:
            raise ValueError(
                f"batches: number {self._number} has shapes {shapes}, the first had {self._expected}; make all batches "
                "equal in shape (a DataLoader with drop_last=True)"
            )
        self._number, self._fresh = self._number + 1, False
        return batch

    @property
    def has_state(self) -> bool:
        """Whether the iterable's iterators can say how far they are, and continue from there."""
        return all(callable(getattr(self._iterator, name, None)) for name in ("get_state", "set_state"))

    def state(self) -> Any:
        """How far the iterable was read, as JSON; None where it does not say."""
        return _state_as_json(self._iterator.get_state()) if self.has_state else None  # type: ignore[attr-defined]

    def restore(self, state: Any) -> None:
        """Continue where `state` was taken."""
        self._iterator.set_state(_state_from_json(state))  # type: ignore[attr-defined]
        self._fresh = False  # it may be at its end


def _state_as_json(state: Any) -> dict[str, Any]:
    """The state of an iterator for a checkpoint: bytes, or what JSON gives back unchanged."""
    if isinstance(state, bytes):
        return {"bytes": base64.b64encode(state).decode()}
    try:
        same = json.loads(json.dumps(state)) == state
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise ValueError(
            f"batches: get_state() of its iterator returned {type(state).__name__} {str(state)[:80]!r}, which a "
            "checkpoint cannot hold; return bytes, or dictionaries with string keys, lists, strings and numbers"
        )
    return {"json": state}


def _state_from_json(state: dict[str, Any]) -> Any:
    return base64.b64decode(state["bytes"], validate=True) if "bytes" in state else state["json"]


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
