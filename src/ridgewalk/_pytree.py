"""Pytrees: dataclasses registered with JAX, positions as flat vectors, on one device or several, and names of leaves.

Samplers, preconditioners, dynamics and priors are frozen dataclasses whose fields are static unless declared with
`array_field`; they are arguments of compiled functions. `Layout` maps a position to a flat vector and back.

A run whose start is sharded over devices (`NamedSharding`) keeps that sharding: its `Placement`. Its flat vectors, in
steps and in the rows of G, have an order of their own: that of the devices, and on each device that of the leaves. So a
device has the same numbers of a leaf and of the flat vector, and neither is moved. All else is partitioned by XLA: sums
over d become local sums and an all-reduce of one number each. `using` makes a placement that of the functions traced
within it, as `jax.set_mesh` does for a mesh.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ridgewalk._types import Mask, PyTree, Vector

T = TypeVar("T")


def array_field(**options: Any) -> Any:
    """A dataclass field that holds arrays (or pytrees of them): traced by JAX, so new values do not recompile."""
    return dataclasses.field(metadata={"array": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(array_field, dataclasses.field))
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass, registered as a pytree.

    Fields declared with `array_field()` are children of the pytree. All others are auxiliary data, which JAX compares
    by equality in its compilation cache: two equal samplers share one compiled loop.

    It is not `jax.tree_util.register_dataclass`: up to jaxlib 0.10.2 at least, the structures of two classes registered
    so compare equal if their fields do, though their hashes differ. In one of about 50 processes `jax.jit` then ran the
    program of one class, such as a Laplace prior, for another, such as a Gaussian one of the same scale.
    """
    frozen: Any = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(frozen)
    arrays = [field.name for field in fields if field.metadata.get("array")]
    static = [field.name for field in fields if not field.metadata.get("array")]
    keys = [jax.tree_util.GetAttrKey(name) for name in arrays]

    def flatten(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(tree, name) for name in arrays], tuple(getattr(tree, name) for name in static)

    def flatten_with_keys(tree: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children, settings = flatten(tree)
        return list(zip(keys, children, strict=True)), settings

    def unflatten(settings: tuple[Any, ...], children: Any) -> Any:
        return frozen(**dict(zip(arrays, children, strict=True)), **dict(zip(static, settings, strict=True)))

    jax.tree_util.register_pytree_with_keys(frozen, flatten_with_keys, unflatten, flatten)
    return frozen


# Sharded positions


class _Group(NamedTuple):
    """Leaves that are replicated over the same axes of the mesh, among whose devices each shares out its numbers."""

    leaves: tuple[int, ...]
    axes: tuple[str, ...]
    copies: int
    numbers: int
    """Numbers of a device's parts of these leaves."""

    @property
    def each(self) -> int:
        """Numbers that a device has of them in the flat vector, zeros at the end included."""
        return -(-self.numbers // self.copies)


@dataclass(frozen=True)
class Placement:
    """The mesh, and the shape and the `PartitionSpec` of every leaf of a position."""

    mesh: Mesh
    shapes: tuple[tuple[int, ...], ...]
    specs: tuple[Any, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the mesh: the flat vector is sharded over all of them."""
        return tuple(self.mesh.axis_names)

    @cached_property
    def groups(self) -> tuple[_Group, ...]:
        """The leaves in the order in which a device has them."""
        free = [tuple(axis for axis in self.axes if axis not in _names(spec)) for spec in self.specs]
        local = [int(np.prod(self._local_shape(i))) for i in range(len(self.shapes))]
        found = []
        for axes in sorted(set(free), key=lambda axes: (len(axes), axes)):
            leaves = tuple(i for i, own in enumerate(free) if own == axes)
            copies = int(np.prod([self.mesh.shape[axis] for axis in axes]))
            found.append(_Group(leaves, axes, copies, sum(local[i] for i in leaves)))
        return tuple(found)

    def _local_shape(self, leaf: int) -> tuple[int, ...]:
        return tuple(NamedSharding(self.mesh, self.specs[leaf]).shard_shape(self.shapes[leaf]))

    @property
    def on_device(self) -> int:
        """Numbers of a flat vector on one device."""
        return sum(group.each for group in self.groups)

    @property
    def length(self) -> int:
        """Numbers of a flat vector: d, and the zeros that fill up what the devices cannot share equally."""
        return self.on_device * self.mesh.size

    @property
    def padded(self) -> bool:
        """Whether there are such zeros."""
        return any(group.numbers % group.copies for group in self.groups)

    # In compiled code

    def on_devices(self, function: Callable[..., Any], *arguments: Any, in_specs: Any, out_specs: Any) -> Any:
        """`function` of every device's parts of the arguments."""
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )(*arguments)  # fmt: skip

    def ravel(self, leaves: list[jax.Array]) -> Vector:
        """The flat vector; nothing is sent."""

        def of_device(*parts: jax.Array) -> Vector:
            flat = []
            for group in self.groups:
                own = jnp.concatenate([jnp.ravel(parts[i]) for i in group.leaves])
                if group.copies > 1:
                    own = jnp.pad(own, (0, group.each * group.copies - group.numbers))
                    own = jax.lax.dynamic_slice(own, (jax.lax.axis_index(group.axes) * group.each,), (group.each,))
                flat.append(own)
            return jnp.concatenate(flat)

        dtype = jnp.result_type(*leaves)
        same = [leaf.astype(dtype) for leaf in leaves]
        return self.on_devices(of_device, *same, in_specs=self.specs, out_specs=P(self.axes))

    def unravel(self, vector: Vector) -> list[jax.Array]:
        """The leaves; only those that are replicated over some axis are gathered."""

        def of_device(own: Vector) -> tuple[jax.Array, ...]:
            leaves: dict[int, jax.Array] = {}
            start = 0
            for group in self.groups:
                part = own[start : start + group.each]
                start += group.each
                if group.copies > 1:
                    part = jax.lax.all_gather(part, group.axes, tiled=True)
                before = 0
                for i in group.leaves:
                    shape = self._local_shape(i)
                    after = before + int(np.prod(shape))
                    leaves[i], before = part[before:after].reshape(shape), after
            return tuple(leaves[i] for i in range(len(self.shapes)))

        return list(self.on_devices(of_device, vector, in_specs=P(self.axes), out_specs=self.specs))

    def valid(self) -> Vector:
        """Which numbers of a flat vector are not filling."""

        def of_device() -> Vector:
            parts = []
            for group in self.groups:
                first = jax.lax.axis_index(group.axes) * group.each if group.copies > 1 else 0
                parts.append(first + jnp.arange(group.each) < group.numbers)
            return jnp.concatenate(parts)

        return self.on_devices(of_device, in_specs=(), out_specs=P(self.axes))

    def draw(self, make: Callable[[jax.Array, int], Vector], key: jax.Array) -> Vector:
        """A flat vector of independent numbers: `make(key, count)` with a key for every device."""

        def of_device(key: jax.Array) -> Vector:
            return make(jax.random.fold_in(key, jax.lax.axis_index(self.axes)), self.on_device)

        return self.on_devices(of_device, key, in_specs=P(), out_specs=P(self.axes))

    def sum_of_parts(self, function: Callable[..., jax.Array], *rows: jax.Array) -> jax.Array:
        """Σ over devices of `function` of their columns of some arrays whose last axis is that of flat vectors."""

        def of_device(*parts: jax.Array) -> jax.Array:
            return jax.lax.psum(function(*parts), self.axes)

        specs = tuple(P(*[None] * (x.ndim - 1), self.axes) for x in rows)
        return self.on_devices(of_device, *rows, in_specs=specs, out_specs=P())

    def spec_of(self, shape: tuple[int, ...]) -> Any:
        """Where an array of this shape belongs: a leaf with leading axes, flat vectors in rows, or replicated.

        It is a choice of speed: results do not depend on it.
        """
        for own, spec in zip(self.shapes, self.specs, strict=True):
            if own and shape[len(shape) - len(own) :] == own and _names(spec):
                return P(*[None] * (len(shape) - len(own)), *spec)
        if shape and shape[-1] == self.length:
            return P(*[None] * (len(shape) - 1), self.axes)
        return P()

    def constrain(self, tree: PyTree) -> PyTree:
        """Arrays in compiled code, where they belong."""

        def one(x: Any) -> Any:
            if not isinstance(x, jax.Array) or jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                return x
            return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, self.spec_of(x.shape)))

        return jax.tree.map(one, tree)

    # On the host

    def put(self, tree: PyTree) -> PyTree:
        """Arrays on the devices, where they belong; numpy arrays must be equal in every process."""

        def one(leaf: Any) -> Any:
            if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                words = one(jax.random.key_data(leaf))
                return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
            if isinstance(leaf, jax.Array) and leaf.sharding.device_set == set(self.mesh.devices.flat):
                spec = leaf.sharding.spec if isinstance(leaf.sharding, NamedSharding) else self.spec_of(leaf.shape)
                return jax.device_put(leaf, NamedSharding(self.mesh, spec))
            value = np.asarray(leaf)
            place = NamedSharding(self.mesh, self.spec_of(value.shape))
            return jax.make_array_from_callback(value.shape, place, lambda index: value[index])

        return jax.tree.map(one, tree)

    @cached_property
    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """For every number of the flat vector its place in `ravel_pytree`'s order, and whether it is not filling."""
        stops = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes)])
        numbers = [np.arange(a, b).reshape(s) for a, b, s in zip(stops, stops[1:], self.shapes, strict=False)]
        parts = [
            NamedSharding(self.mesh, spec).devices_indices_map(shape)
            for spec, shape in zip(self.specs, self.shapes, strict=True)
        ]
        order = []
        for place, device in np.ndenumerate(self.mesh.devices):
            at = dict(zip(self.axes, place, strict=True))
            for group in self.groups:
                own = np.concatenate([numbers[i][parts[i][device]].ravel() for i in group.leaves])
                own = np.concatenate([own, np.full(group.each * group.copies - group.numbers, -1)])
                sizes = [self.mesh.shape[axis] for axis in group.axes]
                copy = int(np.ravel_multi_index([at[axis] for axis in group.axes], sizes)) if sizes else 0
                order.append(own[copy * group.each : (copy + 1) * group.each])
        whole = np.concatenate(order)
        return whole, whole >= 0

    def to_ravel_order(self, tree: PyTree) -> PyTree:
        """Host arrays whose last axis is that of flat vectors, in the order of `ravel_pytree` and without filling."""
        order, valid = self._order

        def one(x: Any) -> Any:
            if not np.ndim(x) or np.shape(x)[-1] != self.length:
                return x
            made = np.empty((*np.shape(x)[:-1], int(valid.sum())), x.dtype)
            made[..., order[valid]] = np.asarray(x)[..., valid]
            return made

        return jax.tree.map(one, tree)

    def in_ravel_order(self, shapes: PyTree) -> PyTree:
        """The shapes that `to_ravel_order` leads to."""
        size = sum(int(np.prod(shape)) for shape in self.shapes)

        def one(x: Any) -> jax.ShapeDtypeStruct:
            flat = x.shape and x.shape[-1] == self.length
            return jax.ShapeDtypeStruct((*x.shape[:-1], size) if flat else x.shape, x.dtype)

        return jax.tree.map(one, shapes)

    def from_ravel_order(self, tree: PyTree) -> PyTree:
        """The inverse of `to_ravel_order`."""
        order, valid = self._order
        size = int(valid.sum())

        def one(x: Any) -> Any:
            if not np.ndim(x) or np.shape(x)[-1] != size:
                return x
            return np.where(valid, np.asarray(x)[..., order], np.zeros((), x.dtype))

        return jax.tree.map(one, tree)


def _names(spec: Any) -> set[str]:
    """The axes of a mesh that a `PartitionSpec` uses."""
    return {name for part in spec if part is not None for name in (part if isinstance(part, tuple) else (part,))}


def placement_of(position: PyTree, per_chain: bool = False) -> Placement | None:
    """The placement of a start that is sharded over several devices; None for any other.

    With `per_chain`, leaves have a leading axis of chains, which is not sharded.
    """
    try:
        leaves = jax.tree_util.tree_flatten_with_path(position)[0]
    except (TypeError, ValueError):
        return None  # not a valid pytree, which is said when the position is checked
    meshes, specs = {}, []
    for path, leaf in leaves:
        sharding = leaf.sharding if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) else None
        named = isinstance(sharding, NamedSharding) and sharding.mesh.size > 1
        spec = P(*sharding.spec) if named and isinstance(sharding, NamedSharding) else P()
        if per_chain and len(spec) and spec[0] is not None:
            raise ValueError(
                f"position{jax.tree_util.keystr(path)}: its leading axis, that of the chains, is sharded over "
                f"{spec[0]!r}; shard the axes of the parameters, or pass chain_method='parallel' and plain arrays"
            )
        specs.append(P(*spec[1:]) if per_chain else spec)
        if named and isinstance(sharding, NamedSharding):
            meshes[sharding.mesh.devices.shape, tuple(sharding.mesh.devices.flat), sharding.mesh.axis_names] = sharding
    if not any(_names(spec) for spec in specs):
        return None
    if len(meshes) > 1:
        raise ValueError(
            f"position: its arrays are on {len(meshes)} meshes of devices; put all of them on one (jax.device_put with "
            "NamedSharding(mesh, …))"
        )
    (sharding,) = meshes.values()
    mesh = Mesh(
        sharding.mesh.devices, sharding.mesh.axis_names, axis_types=(AxisType.Auto,) * sharding.mesh.devices.ndim
    )
    shapes = tuple(tuple(np.shape(leaf)[1 if per_chain else 0 :]) for _, leaf in leaves)
    return Placement(mesh, shapes, tuple(specs))


_current: ContextVar[Placement | None] = ContextVar("placement", default=None)


@contextmanager
def using(placement: Placement | None) -> Iterator[None]:
    """Functions that `ridgewalk._compilation.jit` compiles within it have flat vectors of this placement."""
    token = _current.set(placement)
    try:
        yield
    finally:
        _current.reset(token)


def current_placement() -> Placement | None:
    """The placement of the run that is traced or made; None for positions on one device."""
    return _current.get()


def place(tree: PyTree) -> PyTree:
    """Arrays on the devices of the current placement; unchanged without one."""
    placement = current_placement()
    return tree if placement is None else placement.put(tree)


def on_one_device(array: jax.Array) -> jax.Array:
    """An array on a mesh of one device as one of that device, without the mesh in its type; any other unchanged."""
    alone = isinstance(array.sharding, NamedSharding) and array.sharding.mesh.size == 1
    return jax.device_put(array, next(iter(array.sharding.device_set))) if alone else array


def is_addressable(tree: PyTree) -> bool:
    """Whether this process can read all arrays."""
    return all(
        not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated for x in jax.tree.leaves(tree)
    )


def to_host(tree: PyTree) -> PyTree:
    """Arrays on the host; those of which other processes have parts are gathered, in every process."""

    def one(x: Any) -> np.ndarray:
        if is_addressable(x):
            return np.asarray(x)
        from jax.experimental import multihost_utils  # noqa: PLC0415

        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(one, tree)


# Flat vectors


class Layout(NamedTuple):
    """Shapes and dtypes of a position's leaves, and their order in the flat vector: that of `ravel_pytree`, or of the
    devices that a position is sharded over.
    """

    position: PyTree
    """`jax.ShapeDtypeStruct` leaves in the user's structure."""
    placement: Placement | None = None

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
        return ravel_pytree(tree)[0] if self.placement is None else self.placement.ravel(jax.tree.leaves(tree))

    def unravel(self, vector: Vector) -> PyTree:
        """The pytree of a flat vector."""
        leaves, structure = jax.tree.flatten(self.position)
        if self.placement is not None:
            found = zip(self.placement.unravel(vector), leaves, strict=True)
            return jax.tree.unflatten(structure, [part.astype(leaf.dtype) for part, leaf in found])
        stops = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])
        parts = [
            vector[stop - int(np.prod(leaf.shape)) : stop].reshape(leaf.shape).astype(leaf.dtype)
            for leaf, stop in zip(leaves, stops, strict=True)
        ]
        return jax.tree.unflatten(structure, parts)


def layout_of(position: PyTree) -> Layout:
    """The layout of a position; in a run whose start is sharded, with its placement."""
    placement = current_placement()
    if placement is not None and placement.shapes != tuple(tuple(x.shape) for x in jax.tree.leaves(position)):
        placement = None
    return Layout(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), position), placement)


def is_file(leaf: Any) -> bool:
    """Whether an array is on disk: memmap, zarr, h5py."""
    if isinstance(leaf, np.ndarray):
        return isinstance(leaf, np.memmap) or isinstance(leaf.base, np.memmap)
    is_array_like = all(hasattr(leaf, name) for name in ("shape", "dtype", "__getitem__"))
    return is_array_like and not isinstance(leaf, jax.Array | np.generic)


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
