"""The compiled loop: many steps of all chains in one device call, the buffer of their draws, and a divergence monitor.

The noise of a block of steps is drawn at once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P

from ridgewalk._compilation import WORD, StepCount, jit, when
from ridgewalk._pytree import current_placement, layout_of
from ridgewalk._types import Key, PyTree, Scalar, Unravel, Vector
from ridgewalk.distributed.shards import Sharded, over_shards
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Info, Kernel, Sampler, State, build_kernel
from ridgewalk.preconditioners.base import largest_eigenvalue, random_direction, whitened_hessian_product
from ridgewalk.result import Moments
from ridgewalk.sampling.batching import BATCHES, ORDER, BatchIndexer, EpochPosition
from ridgewalk.sampling.tuned_steps import PhaseSpec, TunedStepper
from ridgewalk.sampling.warmup import begin_arrival, begin_refining, begin_settling
from ridgewalk.target import Posterior

# Draw buffer


def statistics_dtype(dtype: Any) -> Any:
    """The dtype of what is computed from numbers of a dtype: float32 at least, for float16 and bfloat16."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else dtype


@partial(jit, static_argnums=0)
def _zeros(shapes: tuple[tuple[tuple[int, ...], Any], ...]) -> tuple[jax.Array, ...]:
    return tuple(jnp.zeros(shape, dtype) for shape, dtype in shapes)


def zeros_like(shapes: PyTree) -> PyTree:
    """Zeros for every `ShapeDtypeStruct`, by one compiled program; sharded where positions are."""
    leaves, structure = jax.tree.flatten(shapes)
    return jax.tree.unflatten(structure, _zeros(tuple((leaf.shape, jnp.dtype(leaf.dtype)) for leaf in leaves)))


class DrawBuffer(NamedTuple):
    """The draws of one device call, with leading axes (slot, chain), and the moments of all draws so far."""

    positions: PyTree
    collected: PyTree
    info: Info
    moments: Moments | None


@dataclass(frozen=True)
class DrawRecorder:
    """Which of a draw's position, `collect(position)` and running moments are kept.

    `eager` writes in every step, the last step of a draw overwriting the others: cheaper than asking whether a draw is
    due where a write costs little.
    """

    positions: bool
    moments: bool
    collect: Callable[[PyTree], Any] | None
    eager: bool

    def empty(self, position: PyTree, info: Info, slots: int) -> DrawBuffer:
        """Buffers for the draws of a chunk; `position` and `info` have a leading axis with the chains."""

        def buffers(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct((slots, *x.shape), x.dtype), tree)

        def statistics(x: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape, statistics_dtype(x.dtype))

        collected = None
        if self.collect is not None:
            collected = buffers(jax.eval_shape(jax.vmap(self.collect), position))
        moments = None
        if self.moments:
            like = jax.tree.map(statistics, position)
            weight: Any = jax.ShapeDtypeStruct((), statistics_dtype(jnp.result_type(*jax.tree.leaves(position))))
            moments = Moments(weight, like, like)
        positions = buffers(position) if self.positions else None
        shapes = DrawBuffer(positions, collected, buffers(jax.tree.map(statistics, info)), moments)
        made: DrawBuffer = zeros_like(shapes)
        return made

    def write(
        self,
        draws: DrawBuffer,
        slot: Scalar,
        due: Scalar,
        flat: jax.Array,
        unravel: Unravel,
        info: Info,
        weight: Scalar,
    ) -> DrawBuffer:
        """The draws with this one, flat vectors (chain, d), in its slot, if it is due."""

        def put(store: jax.Array, value: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_index_in_dim(store, value.astype(store.dtype), slot, 0)

        def act(draws: DrawBuffer, flat: jax.Array) -> DrawBuffer:
            position = unravel(flat)
            positions = jax.tree.map(put, draws.positions, position) if self.positions else None
            collected = None
            if self.collect is not None:
                collected = jax.tree.map(put, draws.collected, jax.vmap(self.collect)(position))
            moments = None if draws.moments is None else draws.moments.add(position, weight)
            return DrawBuffer(positions, collected, jax.tree.map(put, draws.info, info), moments)

        return act(draws, flat) if self.eager else when(due, act, draws, flat)


def join_moments(parts: list[Moments | None]) -> Moments | None:
    """The moments of groups of chains, which may be on different devices, in one with all chains."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    one_device = len(jax.tree.leaves(present[0].mean)[0].sharding.device_set) == 1
    if len(present) == 1 and (one_device or current_placement() is not None):
        return present[0]
    mean, squares = (
        jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate([np.asarray(x) for x in leaves])), *every)
        for every in ([part[i] for part in present] for i in (1, 2))
    )
    return Moments(jnp.asarray(np.asarray(present[0].weight)), mean, squares)


# Divergence

CAUSES = (
    "none",
    "the potential became NaN",
    "the potential became infinite",
    "the potential exploded",
    "the gradient became NaN or infinite",
    "the position became NaN or infinite",
)
EXPLODED = 3
"""A cause that only finite data can have: NaN or infinity in them makes the potential NaN or infinite instead."""

NONFINITE_AT_END = 5
"""The cause where potential and gradient of the last step were finite and the position it led to is not."""

EXPLODING = 1e4
"""A potential has exploded when it is above the first one by so many times its size and the number of parameters."""


class DivergenceMonitor(NamedTuple):
    """For every chain: the step in which it diverged (−1: none), the cause, and the newest potential.

    `step` and `high` are the two words of its number (see `StepCount`).
    """

    step: Scalar
    cause: Scalar
    potential: Scalar
    limit: Scalar
    high: Scalar

    def since(self, before: "DivergenceMonitor", high: Scalar) -> "DivergenceMonitor":
        """With the high word of the steps made since `before`."""
        return self._replace(high=jnp.where((self.step >= 0) & (before.step < 0), high, self.high))

    def steps(self) -> np.ndarray:
        """The step in which each chain diverged, on the host, as int64; −1: none."""
        step, high = np.asarray(self.step, np.int64), np.asarray(self.high, np.int64)
        return np.where(step < 0, -1, high * WORD + step)

    @classmethod
    def init(cls, potentials: Scalar, dimension: int, temperature: float) -> "DivergenceMonitor":
        """Chains before their first step, at potentials (chain,)."""
        here = np.asarray(potentials)  # on the host: operations of JAX outside `jit` would each be compiled
        offset = here.dtype.type((1 + float(temperature)) * dimension)
        limit = here + here.dtype.type(EXPLODING) * (np.abs(here) + offset + here.dtype.type(10))
        nothing = np.zeros(here.shape, np.int32)
        step, cause, rounds = (jnp.array(x) for x in (nothing - 1, nothing, nothing))
        return cls(step, cause, potentials, jnp.array(limit.astype(here.dtype)), rounds)

    def update(self, info: Info, k: Scalar) -> "DivergenceMonitor":
        """The monitor after a step with diagnostics `info`; `k` is the low word of the step's number."""
        u = info.potential
        cause = jnp.where(jnp.isfinite(info.gradient_norm), 0, 4)
        cause = jnp.where(u > self.limit, EXPLODED, cause)
        cause = jnp.where(jnp.isinf(u), 2, jnp.where(jnp.isnan(u), 1, cause)).astype(jnp.int32)
        first = (self.step < 0) & (cause > 0)
        return DivergenceMonitor(
            step=jnp.where(first, k, self.step).astype(jnp.int32),
            cause=jnp.where(first, cause, self.cause),
            potential=u.astype(self.potential.dtype),
            limit=self.limit,
            high=self.high,
        )


# The loop

BLOCK_NUMBERS = 2**19
"""About how many random numbers a block holds: enough to hide the generator's overhead in small models. (XLA wakes a
second thread for every block: with it, steps of 40 µs took 54, 49 and 42 µs in blocks of 64, 128 and 256.)"""

LONGEST_BLOCK = 256

CHAIN_AXES: Any = State(*(0 for _ in State._fields))._replace(step=None)  # type: ignore[arg-type]
"""Axes of a state of several chains: the step is common, so that what happens every K steps is a real branch."""


def take_chain(states: State, chain: int) -> State:
    """The state of one chain."""
    return State(states.step, *jax.tree.map(lambda x: x[chain], tuple(states[1:])))


def _stacked(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], tree)


class StepRange(NamedTuple):
    """The steps of one device call and where their draws go; traced int32 numbers, so that no range compiles again.

    Counts are relative to the first step, so that they stay small however long the run is.
    """

    start: Scalar
    """The low word of the number of the first step (see `StepCount`); all steps of a range have the same high word."""
    high: Scalar
    length: Scalar
    slots: jax.Array | np.ndarray
    """The draws of the range made before each step, and after the last one: where a step's draw goes, if it is one."""
    epoch: EpochPosition
    """Where in its epoch the first step is."""
    window_ends: jax.Array | np.ndarray | None = None
    """The steps, counted from 1, at which warm-up renews its statistics; None after warm-up."""

    def end(self) -> StepCount:
        """The number of steps made after this range."""
        total = self.start + self.length  # wraps to a negative number at 2³¹
        return StepCount(total & jnp.int32(WORD - 1), self.high + (total < 0).astype(jnp.int32))


def _without_step(states: State) -> State:
    """States whose step is not carried through the loop, which knows it: a counter of its own would cost 0.1 µs."""
    return states._replace(step=None)  # type: ignore[arg-type]


class LoopCarry(NamedTuple):
    """What a group of chains carries from one device call to the next."""

    states: State
    draws: DrawBuffer
    monitor: DivergenceMonitor
    order: jax.Array | None
    """The order of the examples in this epoch, (chain, N), where batches are drawn without replacement."""


class LoopSpec(NamedTuple):
    """The static part of the compiled loop."""

    block: int
    """Steps whose random numbers are drawn at once."""
    indexer: BatchIndexer
    recorder: DrawRecorder
    phase: PhaseSpec | None = None
    """The settings of a phase of warm-up, and of undoing steps after it; None in a run without warm-up, and after it
    where gradients are not exact."""


def block_length(dimension: int, batch_size: int | None, chains: int, steps: int) -> int:
    """The number of steps whose random numbers are drawn at once."""
    numbers = chains * (dimension + (batch_size or 0))
    return max(1, min(LONGEST_BLOCK, BLOCK_NUMBERS // numbers, steps))


@jit
def init_chains(sampler: Sampler, estimator: GradientEstimator, positions: PyTree) -> State:
    """The states of chains that start at `positions` (leading axis: chain)."""

    def init(estimator: GradientEstimator, positions: PyTree) -> State:
        kernel = build_kernel(sampler, estimator, jax.tree.map(lambda x: x[0], positions))
        return jax.vmap(kernel.init, out_axes=CHAIN_AXES)(positions)

    return _on_devices(init, estimator, positions)


def _on_devices(function: Callable[..., State], estimator: GradientEstimator, *arguments: Any) -> State:
    """`function(estimator, *arguments)`, where the data are `Sharded` on every device with its part of them."""
    if sharded_data(estimator) is None:
        return function(estimator, *arguments)
    return over_shards(function, estimator, *arguments)


def sharded_data(estimator: GradientEstimator) -> Sharded | None:
    """The data, where they are `Sharded`."""
    data = estimator.target.data if isinstance(estimator.target, Posterior) else None
    return data if isinstance(data, Sharded) else None


@partial(jit, static_argnames=("cached", "directions"))
def arriving_chains(
    sampler: Sampler, estimator: GradientEstimator, states: State, hot_until: Scalar, *, cached: bool, directions: int
) -> State:
    """The states before warm-up, from those of `init_chains`."""

    def begin(estimator: GradientEstimator, states: State, hot_until: Scalar) -> State:
        data = estimator.target.data if isinstance(estimator.target, Posterior) else None
        data = data.arrays if isinstance(data, Sharded) else data

        def one(state: State) -> State:
            return begin_arrival(sampler, estimator, data, state, hot_until, cached, directions)

        return jax.vmap(one, in_axes=(CHAIN_AXES,), out_axes=CHAIN_AXES)(states)

    return _on_devices(begin, estimator, states, hot_until)


@partial(jit, static_argnames=("energy_error",))
def settling_chains(sampler: Sampler, estimator: GradientEstimator, states: State, *, energy_error: float) -> State:
    """The states after the first phase of warm-up."""

    def begin(estimator: GradientEstimator, states: State) -> State:
        def one(state: State) -> State:
            return begin_settling(sampler, estimator, state, energy_error)

        return jax.vmap(one, in_axes=(CHAIN_AXES,), out_axes=CHAIN_AXES)(states)

    return _on_devices(begin, estimator, states)


@jit
def refining_chains(sampler: Sampler, estimator: GradientEstimator, states: State) -> State:
    """The states after the second phase of warm-up, with the preconditioner of `sampler` in place of that phase's."""

    def begin(estimator: GradientEstimator, states: State) -> State:
        def one(state: State) -> State:
            return begin_refining(sampler, estimator, state)

        return jax.vmap(one, in_axes=(CHAIN_AXES,), out_axes=CHAIN_AXES)(states)

    return _on_devices(begin, estimator, states)


Loop = Callable[..., LoopCarry]


def _on_shards(run: Loop) -> Loop:
    """The loop on every shard of the data, where they are sharded."""

    @wraps(run)
    def call(
        sampler: Sampler, estimator: GradientEstimator, keys: Key, carry: LoopCarry, *inputs: Any, spec: LoopSpec
    ) -> LoopCarry:
        steps = partial(run, spec=spec)
        if sharded_data(estimator) is None:
            return steps(sampler, estimator, keys, carry, *inputs)
        replicated: Any = P()
        specs: Any = LoopCarry(replicated, replicated, replicated, ORDER)  # type: ignore[arg-type]
        return over_shards(
            steps, sampler, estimator, keys, carry, *inputs,
            in_specs=(None, None, None, specs, None, None, BATCHES), out_specs=specs,
        )  # fmt: skip

    return call


@partial(jit, static_argnames=("spec",), donate_argnames=("carry",))
@_on_shards
def run_steps(
    sampler: Sampler,
    estimator: GradientEstimator,
    keys: Key,
    carry: LoopCarry,
    step_sizes: Vector,
    step_range: StepRange,
    batches: PyTree,
    *,
    spec: LoopSpec,
) -> LoopCarry:
    """Make the steps of a range; `step_sizes[i]`, and `batches[i]` of prefetched data, are for its i-th step."""
    position = jax.tree.map(lambda x: x[0], carry.states.position)
    layout = layout_of(position)
    kernel = build_kernel(sampler, estimator, position, flat=True)
    if spec.phase is not None:
        stepper = TunedStepper(kernel, sampler, estimator, layout, spec.phase)
        kernel = kernel._replace(
            advance=partial(stepper.advance, step_range.window_ends), draw=partial(draw_with_uniform, kernel)
        )
    chains = keys.shape[0]
    advance = ChainStepper(kernel, estimator, chains, spec.indexer)

    def one_step(i: Scalar, carry: LoopCarry, noise: Vector, rows: jax.Array | None) -> LoopCarry:
        order = carry.order
        if order is not None:
            order, rows = spec.indexer.from_order(keys, step_range.epoch, i, order)
        batch = jax.tree.map(lambda x: x[i], batches)
        epsilon = step_sizes[i]
        slot = step_range.slots[i]
        due = step_range.slots[i + 1] > slot
        count = StepCount(step_range.start + i, step_range.high)
        states, info = advance(noise, carry.states._replace(step=count), rows, batch, epsilon, due)
        draws = spec.recorder.write(carry.draws, slot, due, states.position, jax.vmap(layout.unravel), info, epsilon)
        return LoopCarry(_without_step(states), draws, carry.monitor.update(info, step_range.start + i), order)

    def one_block(outer: tuple[Scalar, LoopCarry]) -> tuple[Scalar, LoopCarry]:
        start, carry = outer
        noise, rows = _random_block(kernel, spec, keys, step_range.start + start)

        def body(i: Scalar, carry: LoopCarry) -> LoopCarry:
            now = i - start
            return one_step(i, carry, jax.tree.map(lambda x: x[now], noise), None if rows is None else rows[now])

        stop = jnp.minimum(start + spec.block, step_range.length)
        return stop, jax.lax.fori_loop(start, stop, body, carry)

    def with_position(carry: LoopCarry, convert: Callable[[PyTree], PyTree]) -> LoopCarry:
        return carry._replace(states=carry.states._replace(position=jax.vmap(convert)(carry.states.position)))

    flat = with_position(carry._replace(states=_without_step(carry.states)), layout.ravel)
    begin = jnp.zeros_like(step_range.length)
    made = jax.lax.while_loop(lambda outer: outer[0] < step_range.length, one_block, (begin, flat))[1]
    made = made._replace(states=made.states._replace(step=step_range.end()))
    return with_position(made._replace(monitor=made.monitor.since(carry.monitor, step_range.high)), layout.unravel)


def draw_with_uniform(kernel: Kernel, key: Key) -> tuple[Vector, Scalar]:
    """The noise of a step, and a uniform number for Metropolis's rule."""
    noise = kernel.draw(key)
    dtype = statistics_dtype(noise.dtype)
    tiny = float(jnp.finfo(dtype).tiny)
    return noise, jax.random.uniform(jax.random.fold_in(key, 1), (), dtype, minval=tiny)


def _random_block(kernel: Kernel, spec: LoopSpec, keys: Key, start: Scalar) -> tuple[jax.Array, jax.Array | None]:
    """Noise (block, chain, d) and batch rows (block, chain, n); those of step k depend on the key and k alone."""

    def numbers(key: Key, k: Scalar) -> tuple[Vector, jax.Array | None]:
        noise_key, batch_key = jax.random.split(jax.random.fold_in(key, k))
        return kernel.draw(noise_key), None if spec.indexer.prefetched else spec.indexer.draw(batch_key)

    steps = start + jnp.arange(spec.block, dtype=jnp.int32)
    return jax.vmap(lambda k: jax.vmap(lambda key: numbers(key, k))(keys))(steps)


class ChainStepper:
    """One step of all chains, on batches that are given, or on rows of the data."""

    def __init__(self, kernel: Kernel, estimator: GradientEstimator, chains: int, indexer: BatchIndexer) -> None:
        self.kernel, self.chains = kernel, chains
        self.data = estimator.target.data if isinstance(estimator.target, Posterior) else None
        if isinstance(self.data, Sharded):
            self.data = self.data.arrays
        self.full, self.blocks = indexer.full, indexer.block_size > 1

    def _one(
        self, noise: Vector, state: State, rows: jax.Array | None, batch: PyTree, step_size: Scalar, due: Scalar
    ) -> tuple[State, Info]:
        if self.full:
            batch = self.data
        elif rows is not None:
            batch = jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), self.data)
            if self.blocks:  # copied once: a step over 10⁶ rows then takes about 0.85 of the time (study tall)
                batch = jax.lax.optimization_barrier(batch)
        return self.kernel.advance(noise, state, batch, step_size, due)

    def __call__(
        self, noise: Vector, states: State, rows: jax.Array | None, batch: PyTree, step_size: Scalar, due: Scalar
    ) -> tuple[State, Info]:
        """The states after the step, and what happened."""
        if self.chains > 1:
            axes = (0, CHAIN_AXES, 0, 0, None, None)
            return jax.vmap(self._one, in_axes=axes, out_axes=(CHAIN_AXES, 0))(
                noise, states, rows, batch, step_size, due
            )
        # A single chain runs without vmap: batched linear algebra of batch one is slower.
        rows, batch = jax.tree.map(lambda x: x[0], (rows, batch))
        noise = jax.tree.map(lambda x: x[0], noise)
        state, info = self._one(noise, take_chain(states, 0), rows, batch, step_size, due)
        return State(state.step, *_stacked(tuple(state[1:]))), _stacked(info)


class DivergenceError(RuntimeError):
    """Every chain diverged; the message says where and what to try."""


@jit
def _largest_curvature(sampler: Sampler, estimator: GradientEstimator, position: PyTree) -> Scalar:
    """λ_max(G H) by power iteration. (A function of the module, so that a second call compiles nothing.)"""
    flat, unravel = ravel_pytree(position)
    begun = build_kernel(sampler, estimator, position).init(position)
    density = estimator.target.frozen(begun.prior) if begun.prior is not None else estimator.target
    subsample = density.subsample()

    def gradient_at(vector: Vector) -> Vector:
        return ravel_pytree(jax.grad(density.potential)(unravel(vector), subsample))[0]

    product = whitened_hessian_product(begun.preconditioner, gradient_at, flat)
    return largest_eigenvalue(product, random_direction(flat))


def stability_limit(sampler: Sampler, estimator: GradientEstimator, position: PyTree) -> float:
    """2 / λ_max(G H) at a position, with the preconditioner a chain starts from: about the largest stable step size."""
    curvature = float(_largest_curvature(sampler, estimator, position))
    return 2 / curvature if math.isfinite(curvature) and curvature > 0 else math.nan


def hint(step_size: float, limit: float) -> str:
    """What to try after a divergence."""
    if not math.isfinite(limit):
        return f"lower step_size ({step_size:.3g}) by a factor of 10, or start where the density is smoother"
    advice = f"the curvature seen at the start allows step sizes up to about {limit:.2g}"
    if step_size > limit / 4:
        return f"step_size {step_size:.3g} is too large: {advice}; try {limit / 10:.1g}"
    return (
        f"step_size {step_size:.3g} is below the limit there ({advice}), so curvature along the chain exceeds that at "
        f"the start: try {step_size / 10:.1g}, a start nearer the mode, or a prior with lighter tails"
    )
