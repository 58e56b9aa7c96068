"""The compiled loop: many steps of all chains, with the noise of a block of steps drawn at once."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Info, Kernel, Sampler, State, build_kernel
from ridgewalk.target import Posterior
from ridgewalk.types import Key, PyTree, Scalar, Vector

BLOCK_NUMBERS = 2**18
"""About how many random numbers a block holds: enough to hide the generator's overhead in small models."""

LONGEST_BLOCK = 256

CHAINS = State(step=None, position=0, dynamics=0, preconditioner=0, estimator=0)  # type: ignore[arg-type]
"""Axes of a state of several chains: the step is common, so that what happens every K steps is a real branch."""


def take_chain(states: State, chain: int) -> State:
    """The state of one chain."""
    return State(states.step, *jax.tree.map(lambda x: x[chain], tuple(states[1:])))


def _stacked(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], tree)


class Draws(NamedTuple):
    """The draws of one chunk: arrays with leading axes (slot, chain)."""

    positions: PyTree
    info: Info


class Span(NamedTuple):
    """Which steps a chunk makes and where their draws go; numbers, so that other spans do not compile again.

    Step k (from 0) belongs to draw (k − burn_in) // thin; the last step of each draw is the one kept.
    """

    start: Scalar
    stop: Scalar
    burn_in: Scalar
    thin: Scalar


def block_length(dimension: int, batch_size: int | None, chains: int, steps: int) -> int:
    """How many steps' random numbers to draw at once."""
    numbers = chains * (dimension + (batch_size or 0))
    return max(1, min(LONGEST_BLOCK, BLOCK_NUMBERS // numbers, steps))


@jax.jit
def init_chains(sampler: Sampler, estimator: GradientEstimator, positions: PyTree) -> State:
    """The states of chains that start at `positions` (leading axis: chain)."""
    kernel = build_kernel(sampler, estimator)
    return jax.vmap(kernel.init, out_axes=CHAINS)(positions)


@partial(jax.jit, static_argnames=("block", "batch_size"), donate_argnames=("states", "draws"))
def run_chunk(
    sampler: Sampler,
    estimator: GradientEstimator,
    keys: Key,
    states: State,
    draws: Draws,
    step_sizes: Vector,
    span: Span,
    *,
    block: int,
    batch_size: int | None,
) -> tuple[State, Draws]:
    """Make the steps of `span`; `step_sizes[i]` is for step `span.start + i`."""
    kernel = build_kernel(sampler, estimator)
    chains = keys.shape[0]
    advance = Advance(kernel, estimator, chains, batch_size)
    first = jnp.maximum(span.start - span.burn_in, 0) // span.thin

    def one_step(k: Scalar, carry: tuple[State, Draws], noise: Vector, rows: jax.Array | None) -> tuple[State, Draws]:
        states, draws = carry
        states, info = advance(noise, states, rows, step_sizes[k - span.start])
        slot = jnp.maximum(k - span.burn_in, 0) // span.thin - first
        made = Draws(states.position, info)
        return states, jax.tree.map(lambda store, value: store.at[slot].set(value), draws, made)

    def one_block(carry: tuple[Scalar, tuple[State, Draws]]) -> tuple[Scalar, tuple[State, Draws]]:
        start, inner = carry
        noise, rows = _random_block(kernel, estimator, keys, inner[0].position, start, block, batch_size)

        def body(k: Scalar, inner: tuple[State, Draws]) -> tuple[State, Draws]:
            now = k - start
            return one_step(k, inner, noise[now], None if rows is None else rows[now])

        stop = jnp.minimum(start + block, span.stop)
        return stop, jax.lax.fori_loop(start, stop, body, inner)

    _, result = jax.lax.while_loop(lambda carry: carry[0] < span.stop, one_block, (span.start, (states, draws)))
    return result


def _random_block(
    kernel: Kernel,
    estimator: GradientEstimator,
    keys: Key,
    positions: PyTree,
    start: Scalar,
    block: int,
    batch_size: int | None,
) -> tuple[jax.Array, jax.Array | None]:
    """Noise (block, chain, d) and batch rows (block, chain, n); those of step k depend on the key and k alone."""
    one = jax.tree.map(lambda x: x[0], positions)

    def numbers(key: Key, k: Scalar) -> tuple[Vector, jax.Array | None]:
        noise_key, batch_key = jax.random.split(jax.random.fold_in(key, k))
        noise = kernel.draw(noise_key, one)
        if batch_size is None:
            return noise, None
        assert isinstance(estimator.target, Posterior)
        return noise, jax.random.randint(batch_key, (batch_size,), 0, estimator.target.size)

    steps = start + jnp.arange(block)
    return jax.vmap(lambda k: jax.vmap(lambda key: numbers(key, k))(keys))(steps)


class Advance:
    """One step of all chains on the batches named by their rows."""

    def __init__(self, kernel: Kernel, estimator: GradientEstimator, chains: int, batch_size: int | None) -> None:
        self.kernel, self.chains = kernel, chains
        self.data = estimator.target.data if isinstance(estimator.target, Posterior) else None
        self.whole = batch_size is None

    def _one(self, noise: Vector, state: State, rows: jax.Array | None, step_size: Scalar) -> tuple[State, Info]:
        batch = self.data
        if not self.whole:
            batch = jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), self.data)
        return self.kernel.advance(noise, state, batch, step_size)

    def __call__(self, noise: Vector, states: State, rows: jax.Array | None, step_size: Scalar) -> tuple[State, Info]:
        """The states after the step, and what happened."""
        if self.chains > 1:
            axes = (0, CHAINS, None if self.whole else 0, None)
            return jax.vmap(self._one, in_axes=axes, out_axes=(CHAINS, 0))(noise, states, rows, step_size)
        # A single chain runs without vmap: batched linear algebra of batch one is slower.
        state, info = self._one(noise[0], take_chain(states, 0), None if rows is None else rows[0], step_size)
        return State(state.step, *_stacked(tuple(state[1:]))), _stacked(info)
