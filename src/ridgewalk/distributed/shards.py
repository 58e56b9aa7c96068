"""Data split by rows over devices, and sums over the parts in an order that does not depend on the devices.

`shards` is a logical number: which rows a step uses, and the order of every sum, follow from it. A device holds the
same number of whole shards as every other. Compiled code runs under `shard_map`: the state of the chains is replicated,
and each gradient is summed over the devices, packed with its value into one vector.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ridgewalk._pytree import array_field, is_file, pytree_dataclass
from ridgewalk._types import PyTree, Scalar, Vector
from ridgewalk._validation import check_whole
from ridgewalk.distributed import processes

CHAINS, ROWS = "chains", "rows"
"""Axes of the mesh: groups of chains, and shards of the data."""

EXAMPLES = 1024
"""About how many rows of data on disk are also kept on the devices, to measure curvature on."""

BYTES_AT_ONCE = 2**26

GATHERED_NUMBERS = 2**16
"""Vectors are gathered from all devices, then summed, up to so many numbers in all; longer ones are summed in slices,
one on each device, which costs the traffic of an all-reduce and one more latency."""


@pytree_dataclass
class Sharded:
    """Rows of data on the devices of a mesh, each with an equal number of shards; made by `shard`."""

    arrays: PyTree = array_field()
    size: int
    """N, the number of examples of all shards."""
    shards: int
    mesh: Mesh
    fingerprint: str = ""
    """A SHA-256 of the SHA-256 of every shard."""
    inside: bool = False
    """Whether `arrays` are the part of one device, as compiled code within `over_shards` sees them."""
    sampled: bool = False
    """Whether `arrays` are only some of the rows, evenly spaced: the others stay on the host."""
    source: Any = None
    """The rows of this process where they stay on the host: arrays on disk, or `Batches`. None in compiled code."""

    @property
    def devices(self) -> int:
        """Devices that share the rows."""
        return int(self.mesh.shape[ROWS])

    @property
    def here(self) -> int:
        """Shards in `arrays`: of one device, or all."""
        return self.shards // self.devices if self.inside else self.shards

    @property
    def rows_per_shard(self) -> int:
        """Examples of a shard."""
        return self.size // self.shards

    def rows_of_all(self, batch: PyTree) -> int:
        """The number of rows of a batch over all devices."""
        rows = int(jax.tree.leaves(batch)[0].shape[0])
        return rows * self.devices if self.inside else rows

    def spaced(self, most: int) -> PyTree:
        """At most `most` examples, at least one of each shard, evenly spaced; if `sampled`, all on devices."""
        if self.sampled:
            return self.arrays
        stride = -(-self.rows_per_shard // max(1, most // self.shards))

        def chosen(x: jax.Array) -> jax.Array:
            split = x.reshape(self.here, self.rows_per_shard, *x.shape[1:])[:, ::stride]
            return split.reshape(-1, *x.shape[1:])

        return jax.tree.map(chosen, self.arrays)

    def first_rows(self) -> jax.Array:
        """Within `over_shards`: the numbers of this device's shards."""
        return jax.lax.axis_index(ROWS) * self.here + jnp.arange(self.here, dtype=jnp.int32)

    def local_rows(self) -> tuple[np.ndarray, PyTree]:
        """The numbers of the rows that this process has, and the rows, on the host."""
        leaves, structure = jax.tree.flatten(self.arrays)
        parts = [_local_parts(leaf) for leaf in leaves]
        numbers = np.concatenate([np.arange(start, start + len(part)) for start, part in parts[0].items()])
        return numbers, jax.tree.unflatten(structure, [np.concatenate(list(part.values())) for part in parts])

    def shards_of_process(self) -> tuple[int, ...]:
        """The numbers of the shards whose rows this process has, in their order."""
        each = self.shards // self.devices
        return tuple(each * column + i for column in _columns_here(self.mesh) for i in range(each))

    def placed_batches(self, rows: np.ndarray, axis: int) -> jax.Array:
        """Rows of the shards of this process along an axis, with those of the other processes, on the devices."""
        place = NamedSharding(self.mesh, P(*[None] * axis, ROWS))
        everyone = rows.shape[axis] * self.devices // len(_columns_here(self.mesh))
        shape = (*rows.shape[:axis], everyone, *rows.shape[axis + 1 :])
        return jax.make_array_from_process_local_data(place, rows, shape)

    def blocks_on_host(self, count: int) -> Iterator[PyTree]:
        """All rows of arrays on disk, about `count` at a time, as batches on the devices."""
        each, here = self.rows_per_shard, len(self.shards_of_process())
        step = max(1, count // self.shards)
        for first in range(0, each, step):

            def read(leaf: Any, first: int = first) -> jax.Array:
                parts = [leaf[k * each + first : k * each + min(first + step, each)] for k in range(here)]
                return self.placed_batches(np.concatenate([np.asarray(part) for part in parts]), 0)

            yield jax.tree.map(read, self.source)

    def group(self, number: int) -> "Sharded":
        """The same rows on the devices of one group of chains."""
        mesh = Mesh(self.mesh.devices[number : number + 1], (CHAINS, ROWS))
        there = set(mesh.devices.flat)
        place = NamedSharding(mesh, P(ROWS))

        def taken(leaf: jax.Array) -> jax.Array:
            parts = [part.data for part in leaf.addressable_shards if part.device in there]
            return jax.make_array_from_single_device_arrays(leaf.shape, place, parts)

        return replace(self, mesh=mesh, arrays=jax.tree.map(taken, self.arrays))


def _local_parts(leaf: jax.Array) -> dict[int, np.ndarray]:
    """Rows on the devices of this process by their first number, each once."""
    found = {part.index[0].start or 0: part.data for part in leaf.addressable_shards}
    return {start: np.asarray(found[start]) for start in sorted(found)}


def shard(rows: PyTree, *, shards: int | None = None, chain_groups: int = 1) -> Sharded:
    """Split data by rows over the devices of all processes, for use as the data of a `Posterior`.

    Each process passes the rows of its own devices: those of process 0 come first, and all have the same number. Draws
    depend on `shards`, not on the number of processes or devices, so a run can be resumed on any number of devices that
    divides it.

    Args:
        rows: a pytree of arrays, whose leading axis counts the examples of this process. Arrays on disk (numpy memmap,
            zarr, h5py) stay there, and each process reads its rows of every batch. `Batches` gives this process's rows
            of every batch, and its `size` is N, the number of examples of all processes.
        shards: the number of parts; a multiple of the devices that share the rows. None is one for each of them.
        chain_groups: with `chain_method="parallel"`, the number of groups that the chains are split into. Each group
            has its own devices and a copy of all rows. Its devices are in as many processes as possible; where each
            group has a process of its own, every process passes all rows.
    """
    check_whole("chain_groups", chain_groups, 1, "use 1 to run all chains on all devices")
    mesh = _mesh(chain_groups)
    devices = int(mesh.shape[ROWS])
    shards = devices if shards is None else shards
    check_whole("shards", shards, 1, "give the number of parts of the data")
    iterable = callable(getattr(rows, "forever", None))  # Batches
    first = rows.first() if iterable else rows
    leaves = jax.tree_util.tree_flatten_with_path(first)[0]
    if not leaves:
        raise ValueError("rows: there are no arrays; pass a pytree of arrays with one row per example")
    on_disk = any(is_file(leaf) for _, leaf in leaves)
    if (iterable or on_disk) and chain_groups > 1:
        raise ValueError(
            f"chain_groups: {chain_groups} groups would each read the data from the host; use 1, or load the rows of "
            "each process with np.asarray"
        )
    named = {f"rows{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}
    counts = {name: np.shape(leaf)[:1] for name, leaf in named.items()}
    if len(set(counts.values())) > 1 or () in counts.values():
        raise ValueError(f"rows: leading axes disagree ({counts}); every array needs one row per example")
    if shards % devices:
        raise ValueError(
            f"shards: {shards} cannot be shared equally by {devices} devices; use a multiple of {devices}, or start as "
            f"many processes as divide {shards}"
        )
    kinds = {name: f"{np.asarray(leaf[:1]).dtype}{list(np.shape(leaf)[1:])}" for name, leaf in named.items()}
    _check_same_call({"shards": shards, "chain_groups": chain_groups, "arrays": kinds})
    size = _common_size(next(iter(counts.values()))[0], shards, mesh)
    made = Sharded(None, rows.size if iterable else size, shards, mesh, sampled=iterable or on_disk)
    if on_disk:
        first = _spaced_on_host(made, rows)
    made = replace(made, arrays=jax.tree.map(lambda x: made.placed_batches(np.asarray(x), 0), first))
    if iterable:
        return replace(made, source=rows)  # a loader has no fingerprint
    return replace(made, source=rows if on_disk else None, fingerprint=_fingerprint(made, rows))


def _spaced_on_host(data: Sharded, rows: PyTree) -> PyTree:
    """Some rows of each shard of this process, evenly spaced."""
    each = data.rows_per_shard
    stride = -(-each // max(1, EXAMPLES // data.shards))

    def chosen(leaf: Any) -> np.ndarray:
        starts = range(0, each * len(data.shards_of_process()), each)
        return np.concatenate([np.asarray(leaf[start : start + each : stride]) for start in starts])

    return jax.tree.map(chosen, rows)


def _mesh(chain_groups: int) -> Mesh:
    """All devices: rows over processes first, groups of chains within a process where that is possible."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    if len(devices) % chain_groups:
        raise ValueError(f"chain_groups: {chain_groups} does not divide the {len(devices)} devices")
    return Mesh(np.array(devices).reshape(-1, chain_groups).T, (CHAINS, ROWS))


def _columns_here(mesh: Mesh) -> list[int]:
    """The places along the axis of the rows that have a device of this process."""
    own = jax.process_index()
    return [i for i, column in enumerate(mesh.devices.T) if any(device.process_index == own for device in column)]


def _check_same_call(given: dict[str, Any]) -> None:
    """Raise where the processes split different kinds of rows, or split them differently."""
    told = processes.exchange_json("shard", given)
    for process, other in enumerate(told):
        for name, value in told[0].items():
            if other[name] != value:
                raise ValueError(
                    f"shard: {name} are {value} in process 0 and {other[name]} in process {process}; pass the same "
                    "kind of rows, split in the same way, in each"
                )


def _common_size(rows: int, shards: int, mesh: Mesh) -> int:
    """The number of all rows, of which the processes have equal parts, and which the shards must divide."""
    here = _columns_here(mesh)
    counts = [int(count) for count in processes.exchange("rows", str(rows).encode())]
    if len(set(counts)) > 1:
        raise ValueError(f"rows: the processes have {counts} rows; pass the same number in each")
    size = rows * int(mesh.shape[ROWS]) // len(here)
    if size % shards or size == 0:
        raise ValueError(
            f"shards: {size} rows cannot be split into {shards} equal parts; leave {size % shards} rows out, or choose "
            f"a number that divides {size}"
        )
    return size


def _fingerprint(data: Sharded, rows: PyTree) -> str:
    """One digest of all shards, each of which the processes that have it read, in pieces where it is on disk."""
    if data.sampled:
        numbers = [data.rows_per_shard * shard for shard in data.shards_of_process()]
    else:
        every, rows = data.local_rows()  # with JAX's dtypes
        numbers = every[:: data.rows_per_shard].tolist()
    each, own = data.rows_per_shard, {}
    for place, number in enumerate(numbers):
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(rows):
            digest.update(f"{leaf.dtype}{(each, *leaf.shape[1:])}".encode())
            at_once = max(1, BYTES_AT_ONCE * each // max(1, leaf.dtype.itemsize * each * math.prod(leaf.shape[1:])))
            for start in range(place * each, (place + 1) * each, at_once):
                part = np.ascontiguousarray(leaf[start : min(start + at_once, (place + 1) * each)])
                digest.update(part.reshape(-1).view(np.uint8).data)
        own[number // each] = digest.hexdigest()
    listed = processes.exchange("fingerprint", "\n".join(f"{s} {d}" for s, d in own.items()).encode())
    found = dict(line.split() for text in listed for line in text.decode().splitlines())
    together = "".join(found[str(number)] for number in range(data.shards))
    return hashlib.sha256(together.encode()).hexdigest()[:16]


# Compiled code


def is_sharded(tree: Any) -> bool:
    """Whether a value is `Sharded`."""
    return isinstance(tree, Sharded)


def refuse_shards(target: Any, function: str) -> None:
    """Raise where a function cannot take `Sharded` data."""
    if isinstance(getattr(getattr(target, "target", target), "data", None), Sharded):
        raise ValueError(
            f"target: {function} does not take data of distributed.shard; pass the arrays, or a part of them"
        )


def over_shards(function: Callable[..., Any], *arguments: Any, out_specs: Any = None, in_specs: Any = None) -> Any:
    """`function(*arguments)` on every device of a mesh; arguments that hold `Sharded` data, each its part of them.

    All else is replicated, unless `in_specs` or `out_specs` say otherwise. Without `Sharded` data the function is
    called as it is.
    """
    found = [x for x in jax.tree.leaves(arguments, is_leaf=is_sharded) if is_sharded(x) and not x.inside]
    if not found:
        return function(*arguments)

    def spec(x: Any) -> Any:
        return replace(x, arrays=jax.tree.map(lambda _: P(ROWS), x.arrays)) if is_sharded(x) else P()

    def of_device(*parts: Any) -> Any:
        inner = jax.tree.map(lambda x: replace(x, inside=True) if is_sharded(x) else x, parts, is_leaf=is_sharded)
        return function(*inner)

    specs = tuple(jax.tree.map(spec, argument, is_leaf=is_sharded) for argument in arguments)
    if in_specs is not None:
        specs = tuple(own if given is None else given for own, given in zip(specs, in_specs, strict=True))
    # Sums over devices are written out below, so that replication need not be inferred.
    out = P() if out_specs is None else out_specs
    return jax.shard_map(of_device, mesh=found[0].mesh, in_specs=specs, out_specs=out, check_vma=False)(*arguments)


def sum_of_shards(data: Sharded, function: Callable[[PyTree, PyTree], Scalar], position: PyTree, batch: PyTree) -> Any:
    """Σ over all shards of `function(position, rows of the batch in the shard)`.

    Its derivative sums the gradients of the shards, together with their values, in one vector of d + 1 numbers.
    """
    flat, unravel = ravel_pytree(position)

    def one(vector: Vector, rows: PyTree) -> Scalar:
        return function(unravel(vector), rows)

    @jax.custom_jvp
    def total(vector: Vector) -> Scalar:
        return vector_over_shards(data, lambda vector, rows: one(vector, rows)[None], vector, batch)[0]

    @total.defjvp
    def rule(primals: tuple[Vector], tangents: tuple[Vector]) -> tuple[Scalar, Scalar]:
        def packed(vector: Vector, rows: PyTree) -> Vector:
            value, gradient = jax.value_and_grad(one)(vector, rows)
            return jnp.concatenate([value[None].astype(gradient.dtype), gradient])

        both = vector_over_shards(data, packed, primals[0], batch)
        return both[0], both[1:] @ tangents[0]

    return total(flat)


def vector_over_shards(
    data: Sharded, function: Callable[[PyTree, PyTree], Vector], given: PyTree, batch: PyTree
) -> Any:
    """Σ over all shards of the vector `function(given, rows of the batch in the shard)`, the shards in their order."""

    def of_device(given: PyTree, batch: PyTree) -> Vector:
        return _sum_over_devices(_sum_in_pairs(_of_each_shard(data, function, given, batch)), data.devices)

    return _on_devices(data, of_device, P(), given, batch)


def vectors_of_shards(
    data: Sharded, function: Callable[[PyTree, PyTree], Vector], given: PyTree, batch: PyTree
) -> jax.Array:
    """The vectors of `vector_over_shards` before they are added, a row for each shard; each stays on its device.

    In the batch of a later sum, beside the rows, they are split as the rows are.
    """
    return _on_devices(data, partial(_of_each_shard, data, function), P(ROWS), given, batch)


def _of_each_shard(
    data: Sharded, function: Callable[[PyTree, PyTree], Vector], given: PyTree, batch: PyTree
) -> jax.Array:
    """The vectors of the shards of one device."""
    shards = data.shards // data.devices
    if shards == 1:
        return function(given, batch)[None]
    split = jax.tree.map(lambda x: x.reshape(shards, -1, *x.shape[1:]), batch)
    return jax.lax.map(lambda rows: function(given, rows), split)


def _on_devices(data: Sharded, of_device: Callable[..., Any], out: P, given: PyTree, batch: PyTree) -> Any:
    """`of_device(given, rows of the batch on the device)`, also where compiled code is not within `over_shards`."""
    if data.inside:
        return of_device(given, batch)
    specs = P(), P(ROWS)
    return jax.shard_map(of_device, mesh=data.mesh, in_specs=specs, out_specs=out, check_vma=False)(given, batch)


def _sum_in_pairs(parts: jax.Array) -> jax.Array:
    """The sum over the first axis: neighbours are added while their number is even, then one after the other.

    Where each device has 2ᵏ parts, the sum of all is the same, bit for bit, whether devices add their parts first.
    """
    while parts.shape[0] % 2 == 0:
        parts = parts[0::2] + parts[1::2]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _sum_over_devices(vector: Vector, devices: int) -> Vector:
    """The sum over the devices of a mesh, in their order."""
    if devices == 1:
        return vector
    if devices == 2:
        return jax.lax.psum(vector, ROWS)  # two numbers commute
    if vector.size * devices <= GATHERED_NUMBERS:
        return _sum_in_pairs(jax.lax.all_gather(vector, ROWS))
    padded = jnp.pad(vector, (0, -vector.size % devices)).reshape(devices, -1)
    slices = jax.lax.all_to_all(padded, ROWS, 0, 0)
    return jax.lax.all_gather(_sum_in_pairs(slices), ROWS, tiled=True)[: vector.size]


# Placement


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Arrays, equal in every process, on all devices of a mesh; those that are there stay."""
    place = NamedSharding(mesh, P())

    def one(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and set(leaf.sharding.device_set) == set(mesh.devices.flat):
            return leaf
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = one(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        value = np.asarray(leaf)
        return jax.make_array_from_callback(value.shape, place, lambda index: value[index])

    return jax.tree.map(one, tree)


def local_copy(tree: PyTree) -> PyTree:
    """Replicated arrays as arrays of this process's first device."""
    return jax.tree.map(lambda x: x.addressable_data(0) if isinstance(x, jax.Array) else x, tree)
