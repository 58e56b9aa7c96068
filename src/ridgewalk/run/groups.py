"""Chains that one compiled loop runs together on one device."""

import math
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._compilation import jit
from ridgewalk._step_count import WORD, keys_at
from ridgewalk._types import Key, PyTree
from ridgewalk.data import Batches
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Info, Sampler, State, build_kernel
from ridgewalk.run.feed import ArrayReader, Feed, IterableReader
from ridgewalk.run.finite import blame
from ridgewalk.run.health import healthy
from ridgewalk.run.loop import Carry, Chunk, Span, init_chains, run_chunk, take_chain
from ridgewalk.run.rows import Rows, order_at

ChainMethod = Literal["vectorized", "sequential", "parallel"]


def split_chains(method: str, chains: int) -> list[tuple[slice, Any]]:
    """Which chains run together, and on which device (None: the default one)."""
    if method == "vectorized":
        return [(slice(0, chains), None)]
    each = [slice(chain, chain + 1) for chain in range(chains)]
    if method == "sequential":
        return [(one, None) for one in each]
    if method != "parallel":
        raise ValueError(
            f"chain_method: {method!r} is unknown; use one of {', '.join(map(repr, get_args(ChainMethod)))}"
        )
    devices = jax.local_devices()
    if len(devices) < chains:
        raise ValueError(
            f"chain_method: 'parallel' runs one chain per device, and {chains} chains find {len(devices)}; use "
            f"'vectorized', or on CPU set XLA_FLAGS=--xla_force_host_platform_device_count={chains} before JAX starts"
        )
    return [(one, devices[i]) for i, one in enumerate(each)]


def _info(sampler: Sampler, estimator: GradientEstimator, states: State) -> Info:
    """What a step of all chains shows; for its shapes. (Not a method, so that it is traced once for many runs.)"""
    batch = estimator.target.subsample()
    state = take_chain(states, 0)
    info = build_kernel(sampler, estimator, state.position).step(jax.random.key(0), state, batch, 1.0)[1]
    chains = jax.tree.leaves(states.position)[0].shape[0]
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (chains, *x.shape)), info)


_take_chain = jit(take_chain)


class Stream(NamedTuple):
    """Data that the host reads, and a few examples of them."""

    data: PyTree
    examples: PyTree


class Group:
    """Some chains, what they carry, and the data they are fed with."""

    def __init__(
        self,
        sampler: Sampler,
        estimator: GradientEstimator,
        keys: Key,
        starts: PyTree,
        potentials: jax.Array,
        chunk: Chunk,
        rows: Rows,
        stream: Stream | None,
        slots: int,
        device: Any,
    ) -> None:
        self.device = device
        if device is not None:
            estimator, keys, starts, potentials = jax.device_put((estimator, keys, starts, potentials), device)
        self.sampler, self.estimator, self.keys, self.chunk = sampler, estimator, keys, chunk
        self._era = 0, keys
        self.chains = keys.shape[0]
        self.dimension = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(starts))
        states = init_chains(sampler, estimator, starts)
        info = jax.eval_shape(_info, sampler, estimator, states)
        draws = chunk.recording.empty(states.position, info, slots)
        temperature = sampler.dynamics.temperature
        self.carry = Carry(states, draws, healthy(potentials, self.dimension, temperature), None)
        self.rows, self.feed = rows, None
        if stream is not None:
            self.stream = stream
            self.feed = Feed(stream.examples, rows.batch_size, self.chains)

    def saved(self) -> PyTree:
        """What a checkpoint holds of the group."""
        return self.carry.states, self.carry.draws.moments, self.carry.health

    def restore(self, saved: PyTree) -> None:
        """Go on from what a checkpoint held."""
        states, moments, health = jax.device_put(saved, self.device)  # None leaves the device open, as at the start
        self.carry = self.carry._replace(states=states, draws=self.carry.draws._replace(moments=moments), health=health)

    @property
    def alive(self) -> bool:
        """Whether any chain of the group goes on."""
        return bool(np.any(np.asarray(self.carry.health.step) < 0))

    @property
    def finite(self) -> np.ndarray:
        """Which chains are at a position that is finite."""
        leaves = jax.tree.leaves(self.carry.states.position)
        each = [np.isfinite(np.asarray(leaf)).reshape(self.chains, -1).all(axis=1) for leaf in leaves]
        return np.all(each, axis=0)

    def begin(self, step: int, stop: int) -> None:
        """Make the data ready for the steps from `step` on, the first `stop − step` of them at once."""
        if self.feed is None:
            self.carry = self.carry._replace(order=order_at(self.chunk.rows, self.keys, step))
            return
        data = self.stream.data
        if isinstance(data, Batches):
            self.feed.begin(IterableReader(data, self.chains, step), step, stop - step)
        else:
            self.feed.begin(ArrayReader(data, self.rows, self.keys), step, stop - step)

    def batches(self, ahead: int) -> PyTree:
        """The batches of the next steps that the host has read; those of the `ahead` steps after them are begun."""
        return None if self.feed is None else self.feed.take(ahead)

    def advance(self, start: int, span: Span, step_sizes: np.ndarray, batches: PyTree) -> None:
        """Start the steps of a span, from number `start` on, on the device; reading the carry waits for them."""
        leaf = jax.tree.leaves(self.carry.states.position)[0]
        sizes = jnp.asarray(step_sizes, jnp.result_type(*jax.tree.leaves(self.carry.states.position)))
        if len(jax.local_devices()) > 1:
            sizes, span, batches = jax.device_put((sizes, span, batches), leaf.sharding)
        self.carry = run_chunk(
            self.sampler, self.estimator, self._keys_at(start), self.carry, sizes, span, batches, chunk=self.chunk
        )

    def _keys_at(self, step: int) -> Key:
        high = step // WORD
        if self._era[0] != high:
            self._era = high, keys_at(self.keys, step)
        return self._era[1]

    def culprit(self, chain: int, step: int) -> str:
        """What is not finite in the data that a chain of the group, counted in it, read from the host in a step."""
        return "" if self.feed is None else blame(self.stream.data, self.rows, self.keys, chain, step)

    def like(self) -> dict[str, PyTree]:
        """One chain's draw: shapes and dtypes."""

        def one(x: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape[2:], x.dtype)

        return {name: jax.tree.map(one, tree) for name, tree in self._rooms().items()}

    def _rooms(self) -> dict[str, PyTree]:
        made = self.carry.draws
        rooms = {"posterior": made.positions, "collected": made.collected, "sample_stats": made.info}
        return {name: tree for name, tree in rooms.items() if tree is not None}

    def draws(self, count: int) -> dict[str, PyTree]:
        """The draws of the last span on the host, leading axes (chain, draw)."""

        def to_host(x: jax.Array) -> np.ndarray:
            return np.array(np.swapaxes(np.asarray(x)[:count], 0, 1))  # slicing on the device would compile per count

        return {name: jax.tree.map(to_host, tree) for name, tree in self._rooms().items()}

    def chain_states(self) -> list[State]:
        """The states, a chain at a time."""
        return [_take_chain(self.carry.states, chain) for chain in range(self.chains)]

    def close(self) -> None:
        """End what runs beside the loop."""
        if self.feed is not None:
            self.feed.close()
