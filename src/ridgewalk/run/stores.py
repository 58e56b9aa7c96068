"""Where draws are kept: the interface of a store, and the one in memory. Those on disk are `segments`, `zarr_store`."""

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree

STORABLE = frozenset(
    [
        "bool",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        *("float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
    ]
)
"""The dtypes of draws that can be kept on disk."""


def check_storable(dtype: np.dtype[Any]) -> None:
    """Raise where draws of a dtype cannot be kept on disk."""
    if dtype.name not in STORABLE:
        raise ValueError(
            f"position: draws of dtype {dtype} cannot be kept on disk, as store and checkpoint do; start from "
            "float32 or bfloat16 numbers"
        )


def is_floating(dtype: Any) -> bool:
    """Whether a dtype has NaN; bfloat16 counts."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


class DrawStore(ABC):
    """Keeps the draws of all chains: a dictionary of groups, each a pytree whose leaves have axes (chain, draw, …)."""

    in_background: bool
    """Whether its methods are called by the writer thread."""

    @abstractmethod
    def write(self, first: int, draws: dict[str, PyTree]) -> None:
        """Append draws; `first` is the number of draws before them."""

    @abstractmethod
    def mask_draws(self, places: list[tuple[int, int]]) -> None:
        """Replace draws (chain, draw) that were written before by NaN."""

    @abstractmethod
    def flush(self) -> None:
        """Have everything written so far survive the end of the process."""

    @abstractmethod
    def manifest(self) -> dict[str, Any] | None:
        """What the store holds after a flush, as JSON, for a checkpoint; None where nothing survives the process."""

    @abstractmethod
    def remove_unused(self) -> None:
        """Remove files of the store that no checkpoint refers to any more; called after a checkpoint was written."""

    @abstractmethod
    def finish(self) -> None:
        """Flush, and complete the store for readers."""

    @abstractmethod
    def read(self, draws: int) -> PyTree:
        """The first draws, in memory."""

    @abstractmethod
    def arrays(self) -> PyTree:
        """The arrays of all draws, read when they are indexed where they are on disk."""

    @abstractmethod
    def close(self) -> None:
        """Release files; `arrays` can still be read."""


class MemoryStore(DrawStore):
    """Draws in memory."""

    in_background = False

    def __init__(self, like: dict[str, PyTree], chains: int, draws: int) -> None:
        self._arrays = jax.tree.map(lambda x: np.empty((chains, draws, *x.shape), x.dtype), like)

    def write(self, first: int, draws: dict[str, PyTree]) -> None:
        """Copy the draws."""

        def copy(array: np.ndarray, values: np.ndarray) -> None:
            array[:, first : first + values.shape[1]] = values

        jax.tree.map(copy, self._arrays, draws)

    def mask_draws(self, places: list[tuple[int, int]]) -> None:
        """NaN for draws."""
        for array in jax.tree.leaves(self._arrays):
            if is_floating(array.dtype):
                for place in places:
                    array[place] = np.nan

    def flush(self) -> None:
        """Nothing to do."""

    def manifest(self) -> dict[str, Any] | None:
        """Nothing survives the process."""
        return None

    def remove_unused(self) -> None:
        """There are no files."""

    def finish(self) -> None:
        """Nothing to do."""

    def read(self, draws: int) -> PyTree:
        """The first draws, without a copy."""
        return jax.tree.map(lambda x: x[:, :draws], self._arrays)

    def arrays(self) -> PyTree:
        """The arrays."""
        return self._arrays

    def close(self) -> None:
        """Nothing to do."""
