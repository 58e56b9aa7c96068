"""The position as one flat vector, and back: `jax.flatten_util.ravel_pytree` for a known structure."""

from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk._types import PyTree, Vector

LARGE = 2**16
"""From this size on, leaves are copied into the flat vector one by one: XLA fuses a concatenation into an elementwise
loop with a branch per element, at many times the cost of the copies."""


class Layout(NamedTuple):
    """Shapes and dtypes of a position's leaves, and their order in the flat vector: that of `ravel_pytree`."""

    position: PyTree
    """`jax.ShapeDtypeStruct` leaves in the user's structure."""

    @property
    def size(self) -> int:
        """d."""
        return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.position))

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the flat vector."""
        return jnp.result_type(*(leaf.dtype for leaf in jax.tree.leaves(self.position)))

    def matches(self, position: PyTree) -> bool:
        """Whether a position has this structure, with these shapes and dtypes."""
        leaves, structure = jax.tree.flatten(position)
        expected, own = jax.tree.flatten(self.position)
        return bool(structure == own) and all(  # type: ignore[operator]
            (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(leaves, expected, strict=True)
        )

    def ravel(self, tree: PyTree) -> Vector:
        """The flat vector of a pytree."""
        leaves = jax.tree.leaves(tree)
        if len(leaves) == 1 or self.size < LARGE:
            return ravel_pytree(tree)[0]
        flat, start = jnp.zeros(self.size, self.dtype), 0
        for leaf in leaves:
            flat = jax.lax.dynamic_update_slice(flat, jnp.ravel(leaf).astype(self.dtype), (start,))
            start += leaf.size
        return flat

    def unravel(self, vector: Vector) -> PyTree:
        """The pytree of a flat vector."""
        leaves, structure = jax.tree.flatten(self.position)
        stops = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])
        parts = [
            vector[stop - int(np.prod(leaf.shape)) : stop].reshape(leaf.shape).astype(leaf.dtype)
            for leaf, stop in zip(leaves, stops, strict=True)
        ]
        return jax.tree.unflatten(structure, parts)


def layout_of(position: PyTree) -> Layout:
    """The layout of a position."""
    return Layout(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), position))


def leaf_names(tree: PyTree) -> list[str]:
    """A unique name for every leaf: its path joined by dots, or `position` for a bare array."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    names = [name.replace("/", "_").strip(".") or "position" for name in names]
    counts = Counter(names)
    taken = {name for name, count in counts.items() if count == 1}
    unique = []
    for i, name in enumerate(names):
        new = name if counts[name] == 1 else f"{name}_{i}"
        while counts[name] > 1 and new in taken:
            new += "_"
        taken.add(new)
        unique.append(new)
    return unique
