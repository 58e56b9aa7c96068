"""The compiled loop: many steps of all chains, with the noise of a block of steps drawn at once."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._compilation import jit
from ridgewalk._types import Key, PyTree, Scalar, Vector
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Info, Kernel, Sampler, State, build_kernel
from ridgewalk.ravel import layout_of
from ridgewalk.run.health import Health, watch
from ridgewalk.run.recording import Draws, Recording
from ridgewalk.run.rows import EpochPlace, Rows
from ridgewalk.target import Posterior

BLOCK_NUMBERS = 2**19
"""About how many random numbers a block holds: enough to hide the generator's overhead in small models. (XLA wakes a
second thread for every block: with it, steps of 40 µs took 54, 49 and 42 µs in blocks of 64, 128 and 256.)"""

LONGEST_BLOCK = 256

CHAINS: Any = State(*(0 for _ in State._fields))._replace(step=None)  # type: ignore[arg-type]
"""Axes of a state of several chains: the step is common, so that what happens every K steps is a real branch."""


def take_chain(states: State, chain: int) -> State:
    """The state of one chain."""
    return State(states.step, *jax.tree.map(lambda x: x[chain], tuple(states[1:])))


def _stacked(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], tree)


class Span(NamedTuple):
    """Which steps a chunk makes and where their draws go; int32 numbers, so that other spans do not compile again.

    Counts are from the chunk's first step, so that they stay small however long the run is.
    """

    start: Scalar
    """The low word of the number of the first step (see `StepCount`); all steps of a chunk have the same high word."""
    high: Scalar
    steps: Scalar
    until: Scalar
    """Steps before the first one whose position is a draw; after it every `thin`-th is."""
    thin: Scalar
    place: EpochPlace
    """Where in its epoch the first step is."""


class Carry(NamedTuple):
    """What a group of chains carries from chunk to chunk."""

    states: State
    draws: Draws
    health: Health
    order: jax.Array | None
    """The order of the examples in this epoch, (chain, N), where batches are drawn without replacement."""


class Chunk(NamedTuple):
    """What fixes the compiled loop, beside the shapes of the arrays."""

    block: int
    rows: Rows
    recording: Recording


def block_length(dimension: int, batch_size: int | None, chains: int, steps: int) -> int:
    """How many steps' random numbers to draw at once."""
    numbers = chains * (dimension + (batch_size or 0))
    return max(1, min(LONGEST_BLOCK, BLOCK_NUMBERS // numbers, steps))


@jit
def init_chains(sampler: Sampler, estimator: GradientEstimator, positions: PyTree) -> State:
    """The states of chains that start at `positions` (leading axis: chain)."""
    kernel = build_kernel(sampler, estimator, jax.tree.map(lambda x: x[0], positions))
    return jax.vmap(kernel.init, out_axes=CHAINS)(positions)


@partial(jit, static_argnames=("chunk",), donate_argnames=("carry",))
def run_chunk(
    sampler: Sampler,
    estimator: GradientEstimator,
    keys: Key,
    carry: Carry,
    step_sizes: Vector,
    span: Span,
    batches: PyTree,
    *,
    chunk: Chunk,
) -> Carry:
    """Make the steps of `span`; `step_sizes[i]`, and `batches[i]` of streamed data, are for its i-th step."""
    position = jax.tree.map(lambda x: x[0], carry.states.position)
    layout = layout_of(position)
    kernel = build_kernel(sampler, estimator, position, flat=True)
    chains = keys.shape[0]
    advance = Advance(kernel, estimator, chains, chunk.rows)

    def one_step(i: Scalar, carry: Carry, noise: Vector, rows: jax.Array | None) -> Carry:
        order = carry.order
        if order is not None:
            order, rows = chunk.rows.from_order(keys, span.place, i, order)
        batch = jax.tree.map(lambda x: x[i], batches)
        epsilon = step_sizes[i]
        slot = jnp.maximum(i - span.until + span.thin - 1, 0) // span.thin
        due = (i >= span.until) & ((i - span.until) % span.thin == 0)
        states, info = advance(noise, carry.states, rows, batch, epsilon, due)
        draws = chunk.recording.write(carry.draws, slot, due, states.position, jax.vmap(layout.unravel), info, epsilon)
        return Carry(states, draws, watch(carry.health, info, span.start + i), order)

    def one_block(outer: tuple[Scalar, Carry]) -> tuple[Scalar, Carry]:
        start, carry = outer
        noise, rows = _random_block(kernel, chunk, keys, span.start + start)

        def body(i: Scalar, carry: Carry) -> Carry:
            now = i - start
            return one_step(i, carry, noise[now], None if rows is None else rows[now])

        stop = jnp.minimum(start + chunk.block, span.steps)
        return stop, jax.lax.fori_loop(start, stop, body, carry)

    def relaid(carry: Carry, lay: Callable[[PyTree], PyTree]) -> Carry:
        return carry._replace(states=carry.states._replace(position=jax.vmap(lay)(carry.states.position)))

    flat = relaid(carry, layout.ravel)
    begin = jnp.zeros_like(span.steps)
    made = jax.lax.while_loop(lambda outer: outer[0] < span.steps, one_block, (begin, flat))[1]
    return relaid(made._replace(health=made.health.since(carry.health, span.high)), layout.unravel)


def _random_block(kernel: Kernel, chunk: Chunk, keys: Key, start: Scalar) -> tuple[jax.Array, jax.Array | None]:
    """Noise (block, chain, d) and batch rows (block, chain, n); those of step k depend on the key and k alone."""

    def numbers(key: Key, k: Scalar) -> tuple[Vector, jax.Array | None]:
        noise_key, batch_key = jax.random.split(jax.random.fold_in(key, k))
        return kernel.draw(noise_key), chunk.rows.draw(batch_key)

    steps = start + jnp.arange(chunk.block, dtype=jnp.int32)
    return jax.vmap(lambda k: jax.vmap(lambda key: numbers(key, k))(keys))(steps)


class Advance:
    """One step of all chains on the batches given, or named by their rows."""

    def __init__(self, kernel: Kernel, estimator: GradientEstimator, chains: int, rows: Rows) -> None:
        self.kernel, self.chains = kernel, chains
        self.data = estimator.target.data if isinstance(estimator.target, Posterior) else None
        self.whole = rows.whole

    def _one(
        self, noise: Vector, state: State, rows: jax.Array | None, batch: PyTree, step_size: Scalar, due: Scalar
    ) -> tuple[State, Info]:
        if self.whole:
            batch = self.data
        elif rows is not None:
            batch = jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), self.data)
        return self.kernel.advance(noise, state, batch, step_size, due)

    def __call__(
        self, noise: Vector, states: State, rows: jax.Array | None, batch: PyTree, step_size: Scalar, due: Scalar
    ) -> tuple[State, Info]:
        """The states after the step, and what happened."""
        if self.chains > 1:
            axes = (0, CHAINS, 0, 0, None, None)
            return jax.vmap(self._one, in_axes=axes, out_axes=(CHAINS, 0))(noise, states, rows, batch, step_size, due)
        # A single chain runs without vmap: batched linear algebra of batch one is slower.
        rows, batch = jax.tree.map(lambda x: x[0], (rows, batch))
        state, info = self._one(noise[0], take_chain(states, 0), rows, batch, step_size, due)
        return State(state.step, *_stacked(tuple(state[1:]))), _stacked(info)
