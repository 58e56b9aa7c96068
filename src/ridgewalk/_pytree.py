"""Pytrees: dataclasses registered with JAX, positions as flat vectors, and names of leaves.

Samplers, preconditioners, dynamics and priors are frozen dataclasses whose fields are static unless declared with
`array_field`; they are arguments of compiled functions. `Layout` maps a position to a flat vector and back.
"""

import dataclasses
from collections import Counter
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk._types import Mask, PyTree, Vector

T = TypeVar("T")


def array_field(**options: Any) -> Any:
    """A dataclass field that holds arrays (or pytrees of them): traced by JAX, so new values do not recompile."""
    return dataclasses.field(metadata={"array": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(array_field, dataclasses.field))
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass, registered with `jax.tree_util.register_dataclass`.

    Fields declared with `array_field()` are data fields of the pytree. All others are metadata, which JAX compares by
    equality in its compilation cache: two equal samplers share one compiled loop.
    """
    frozen = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(frozen)  # type: ignore[arg-type]
    arrays = [field.name for field in fields if field.metadata.get("array")]
    static = [field.name for field in fields if not field.metadata.get("array")]
    jax.tree_util.register_dataclass(frozen, data_fields=arrays, meta_fields=static)
    return frozen


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
        return ravel_pytree(tree)[0]

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


def apply_mask(vectors: jax.Array, mask: Mask) -> jax.Array:
    """M v, with exact zeros, of one vector (d,) or of rows (…, d)."""
    return vectors if mask is None else jnp.where(mask, vectors, jnp.zeros((), vectors.dtype))
