"""Chain groups: chains that one compiled loop runs together on their devices, through warm-up and the run after it."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._compilation import WORD, jit, quick_compilation
from ridgewalk._pytree import current_placement, is_addressable, layout_of, to_host
from ridgewalk._random import keys_at
from ridgewalk._types import Key, PyTree
from ridgewalk._validation import check_choice
from ridgewalk.data import Batches
from ridgewalk.distributed.shards import Sharded, replicate
from ridgewalk.dynamics import BAOAB
from ridgewalk.gradients import Anchor, ControlVariates, GradientEstimator, anchor_at
from ridgewalk.kernel import Info, Sampler, State, build_kernel
from ridgewalk.preconditioners.base import Preconditioner
from ridgewalk.preconditioners.diagonal import Diagonal, RMSProp
from ridgewalk.preconditioners.lbfgs import SnapshotLBFGS
from ridgewalk.preconditioners.low_rank import LowRank
from ridgewalk.preconditioners.static import Identity
from ridgewalk.sampling.batching import (
    IterableReader,
    Prefetcher,
    Reader,
    RowReader,
    locate_nonfinite_batch,
    order_at,
)
from ridgewalk.sampling.loop import (
    CHAIN_AXES,
    DivergenceMonitor,
    LoopCarry,
    LoopSpec,
    StepRange,
    arriving_chains,
    init_chains,
    refining_chains,
    run_steps,
    settling_chains,
    sharded_data,
    take_chain,
)
from ridgewalk.sampling.parts import ChainPart, parallel_parts
from ridgewalk.sampling.tuned_steps import (
    WarmupState,
    arrival_sampler,
    noise_directions,
    phase_spec,
    scale_noise,
    settling_sampler,
)
from ridgewalk.sampling.warmup import Measured, WarmupPlan, begin_sampling, largest_preconditioned_curvature
from ridgewalk.target import Posterior, on_host

ChainMethod = Literal["vectorized", "sequential", "parallel"]


def split_chains(method: str, chains: int, data: PyTree = None) -> list[ChainPart]:
    """Which chains run together, where, and which process writes them; the parts of all processes."""
    check_choice("chain_method", method, get_args(ChainMethod))
    if method == "parallel":
        return parallel_parts(chains, data)
    cuts = [slice(0, chains)] if method == "vectorized" else [slice(i, i + 1) for i in range(chains)]
    return [ChainPart(cut, None, None, tuple(range(jax.process_count())), 0) for cut in cuts]


def readable_start(position: PyTree) -> dict[str, PyTree]:
    """The start as a setting of the run; on the host where other processes have parts of it."""
    return {} if jax.process_count() == 1 or is_addressable(position) else {"position": to_host(position)}


def _broadcast(position: PyTree, chains: int) -> PyTree:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (chains, *x.shape)), position)


_repeat = jit(_broadcast, static_argnums=1)  # which keeps the sharding


def start_chains(position: PyTree, chains: int, per_chain: bool) -> PyTree:
    """The starts of all chains, with a leading axis."""
    placement = current_placement()
    if placement is not None:
        position = placement.put(position)
    if not per_chain:
        return _repeat(position, chains) if placement is not None else _broadcast(position, chains)
    for path, leaf in jax.tree_util.tree_flatten_with_path(position)[0]:
        if leaf.ndim < 1 or leaf.shape[0] != chains:
            raise ValueError(
                f"position{jax.tree_util.keystr(path)}: shape {leaf.shape} has no leading axis of {chains} chains, "
                "which start_per_chain=True asks for"
            )
    return position


def split_starts(starts: PyTree, count: int) -> list[PyTree]:
    """The starts of the first chains: on the host, as operations of JAX outside `jit` would each be compiled; sharded
    ones on their devices.
    """
    if current_placement() is not None:
        return [_take_position(starts, chain) for chain in range(count)]
    on_host_starts = jax.tree.map(np.asarray, starts)
    return [jax.tree.map(lambda x, c=chain: x[c], on_host_starts) for chain in range(count)]


def check_placement(sampler: Sampler, data: PyTree, chain_method: str) -> Sampler:
    """The sampler, if a run with it can keep a sharded position; else an error."""
    if current_placement() is None:
        return sampler
    rule = sampler.preconditioner
    known = isinstance(rule, Identity | Diagonal | LowRank | SnapshotLBFGS)
    if not (known or (isinstance(rule, RMSProp) and rule.second_moment is None and not rule.curvature_correction)):
        raise ValueError(
            f"position: it is sharded over devices, which {type(rule).__name__} does not support; use sgld(), sghmc(), "
            "psgld(), hasgld_sa(form='low_rank'), hasgld_sa(form='snapshot_lbfgs') or Diagonal(), or a start on one "
            "device"
        )
    if sampler.pruning is not None:
        raise ValueError("position: it is sharded over devices, which pruned(…) does not support; use one device")
    if isinstance(data, Sharded):
        raise ValueError(
            "position: it is sharded over devices, and so are the rows of distributed.shard; pass plain arrays as "
            "data, or a position on one device"
        )
    if chain_method == "parallel":
        raise ValueError(
            "chain_method: 'parallel' puts each chain on one device, but the position is sharded over several; use "
            "'vectorized' or 'sequential'"
        )
    return sampler


def _info(sampler: Sampler, estimator: GradientEstimator, states: State) -> Info:
    """What a step of all chains shows; for its shapes. (Not a method, so that it is traced once for many runs.)"""
    batch = estimator.target.subsample()
    state = take_chain(states, 0)
    info = build_kernel(sampler, estimator, state.position).step(jax.random.key(0), state, batch, 1.0)[1]
    chains = jax.tree.leaves(states.position)[0].shape[0]
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (chains, *x.shape)), info)


_take_chain = jit(take_chain)
_take_position = jit(lambda positions, chain: jax.tree.map(lambda x: x[chain], positions))


@jit
def _finite(positions: PyTree) -> jax.Array:
    """Which chains have a position without NaN and infinity."""
    each = [jnp.isfinite(x).all(axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(positions)]
    return jnp.all(jnp.stack(each), axis=0)


class ChainGroup:
    """Chains that one compiled loop runs together on one device."""

    def __init__(
        self,
        sampler: Sampler,
        estimator: GradientEstimator,
        keys: Key,
        starts: PyTree,
        potentials: jax.Array,
        spec: LoopSpec,
        host_data: PyTree,
        buffer_draws: int,
        part: ChainPart,
        plan: WarmupPlan | None = None,
    ) -> None:
        self.part, self.device, self.plan = part, part.device, plan
        self.data, self.placement, self.host_keys = sharded_data(estimator), current_placement(), keys
        self.spread = self.data is not None or self.placement is not None
        if self.spread or self.device is not None:
            estimator, keys, starts, potentials = self.place((estimator, keys, starts, potentials))
            sampler = self.place(sampler) if self.spread else sampler
        self.estimator, self.keys, self.spec = estimator, keys, spec
        self.dimension = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(starts))
        if plan is not None and isinstance(sampler.dynamics, BAOAB):
            adjusted = phase_spec(sampler, estimator, self.dimension, spec.indexer.full).adjusted
            sampler = replace(sampler, dynamics=sampler.dynamics.reversible) if adjusted else sampler
        self.sampler, self.fell_back = sampler, False
        first = sampler if plan is None else arrival_sampler(sampler)
        self._keys_of_word = 0, keys
        self.chains = keys.shape[0]
        with self._compilation():
            states = init_chains(first, estimator, starts)
        info = jax.eval_shape(_info, first, estimator, states)
        if plan is not None:
            hot_until = jnp.asarray(plan.ends[1], jnp.int32)
            self.phase, self.settling = (
                phase_spec(each, estimator, self.dimension, spec.indexer.full)
                for each in (sampler, settling_sampler(sampler))
            )
            cached, directions = self.phase.cached, noise_directions(sampler, self.dimension, spec.indexer.full)
            with self._compilation():
                states = arriving_chains(first, estimator, states, hot_until, cached=cached, directions=directions)
            if isinstance(estimator, ControlVariates):
                given = Anchor(estimator.centre, estimator.likelihood_gradient)
                states = states._replace(estimator=jax.tree.map(lambda x: jnp.stack([x] * self.chains), given))
        draws = spec.recorder.empty(states.position, info, buffer_draws)
        temperature = sampler.dynamics.temperature
        carry = LoopCarry(states, draws, DivergenceMonitor.init(potentials, self.dimension, temperature), None)
        self.carry = self.place(carry) if self.spread else carry
        self.host_data, self.prefetcher = host_data, None
        if spec.indexer.prefetched:
            self.prefetcher = self._prefetcher()

    def _compilation(self, warmup: bool = True) -> AbstractContextManager[None]:
        """The compiler options of warm-up, or of the run after it."""
        return quick_compilation() if warmup and self.plan is not None and self.plan.short else nullcontext()

    def _prefetcher(self) -> Prefetcher:
        """What reads batches ahead: those of a process where the data are `Sharded`."""
        count, data = self.spec.indexer.batch_size, self.data
        if data is None:
            examples = self.estimator.target.data.examples  # type: ignore[union-attr]
            return Prefetcher(examples, count, self.chains)
        here = count * len(data.shards_of_process()) // data.shards
        return Prefetcher(data.arrays, here, self.chains, lambda rows: data.placed_batches(rows, 2))

    def place(self, tree: PyTree) -> PyTree:
        """Arrays where the group runs; without a device they stay where they are."""
        if self.placement is not None:
            return self.placement.put(tree)
        return jax.device_put(tree, self.device) if self.data is None else replicate(tree, self.data.mesh)

    def saved(self) -> PyTree:
        """The arrays of a checkpoint; of a sharded position, on the host and in the order of `ravel_pytree`."""
        saved = self.carry.states, self.carry.draws.moments, self.carry.monitor
        if self.placement is None:
            return saved
        return self.placement.to_ravel_order(to_host((saved[0]._replace(mask=None), *saved[1:])))

    def saved_shapes(self, step: int) -> PyTree:
        """Shapes and dtypes of the arrays of a checkpoint after `step` steps, for a group that has made none."""
        states = self.carry.states
        for phase in range(1, 1 + (0 if self.plan is None else self.plan.phase(step))):
            states = jax.eval_shape(partial(self._states_of, phase), states)
        if self.placement is not None:
            return self.placement.in_ravel_order(
                (states._replace(mask=None), self.carry.draws.moments, self.carry.monitor)
            )
        return states, self.carry.draws.moments, self.carry.monitor

    def fall_back(self) -> bool:
        """Go on with the preconditioner for posteriors that no constant G describes; whether there is another."""
        rule = self.sampler.preconditioner
        other = rule.fallback if isinstance(rule, Preconditioner) else None
        if other is not None:
            self.sampler, self.fell_back = replace(self.sampler, preconditioner=other), True
            self.phase = self.phase.fallen_back()
            self.settling = self.settling._replace(friction=self.phase.friction)
        return self.fell_back

    def _states_of(self, phase: int, states: State) -> State:
        """The states that a phase of warm-up, or the run after it (3), begins with, from those that ended the former.

        Statistics and centres of a new phase are filled in by `enter`.
        """
        if phase == 1:
            sampler, error = settling_sampler(self.sampler), self.settling.energy_error
            states = settling_chains(sampler, self.estimator, states, energy_error=error)
        if phase < 3 and isinstance(self.estimator, ControlVariates):
            return states._replace(estimator=Anchor(states.position, states.position))
        if phase == 3:
            numbers = Measured(*(states.tuning.root_step for _ in Measured._fields))
            switch = jax.vmap(partial(begin_sampling, self.sampler), in_axes=(CHAIN_AXES, 0), out_axes=CHAIN_AXES)
            return switch(states, numbers)
        return states

    def enter(self, phase: int, unfit: bool = False) -> None:
        """Begin a phase of warm-up; `unfit`: with the preconditioner to fall back on, if there is one."""
        former = self.carry.states
        with self._compilation():
            states = self._states_of(phase, former)
            if unfit and self.fall_back():
                states = refining_chains(settling_sampler(self.sampler), self.estimator, states)
        if isinstance(self.estimator, ControlVariates):
            states = states._replace(estimator=self._anchors(former, mean=phase > 1))
        self.carry = self.carry._replace(states=self.place(states) if self.spread else states)

    def centre(self, mean: bool) -> None:
        """Centre control variates anew within a phase of warm-up (see `_anchors`)."""
        states = self.carry.states._replace(estimator=self._anchors(self.carry.states, mean))
        self.carry = self.carry._replace(states=self.place(states) if self.spread else states)

    def _anchors(self, states: State, mean: bool) -> Anchor:
        """New centres of control variates: the position of each chain, or its mean over the last window."""
        posterior = self.estimator.target
        assert isinstance(posterior, Posterior)
        if on_host(self.host_data):
            posterior = replace(posterior, data=self.host_data)
        chains = [take_chain(states, chain) for chain in range(self.chains)]
        unravel = layout_of(chains[0].position).unravel
        centres = [unravel(state.tuning.last_centre) if mean else state.position for state in chains]
        anchors = [anchor_at(posterior, centre) for centre in centres]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *anchors)

    def measure_warmup(self) -> list[Measured]:
        """What the warm-up of each chain measured."""
        warm: WarmupState = self.carry.states.tuning
        states = [] if self.data is None else self.chain_states()
        largest, found = warm.noise.largest, []
        for chain in range(self.chains):
            state = _take_chain(self.carry.states, chain) if self.data is None else self.place(states[chain])
            with self._compilation():
                curvature = largest_preconditioned_curvature(self.estimator, state)
            h = jnp.exp(warm.last_log_step[chain])
            h = h * (self.phase.energy_error / self.settling.energy_error) ** (1 / 6)
            scales = warm.scale[chain], warm.slow_scale[chain]
            numbers = (h, *scales, warm.noise.recent[chain], largest[chain], curvature, self.dimension)
            found.append(Measured(*map(float, numbers)))
        return found

    def finish_warmup(self, step_sizes: np.ndarray, friction: float, noise: float, measured: list[Measured]) -> None:
        """The run after warm-up."""
        self.enter(3)
        states = self.carry.states
        tuned = states.tuning

        def fill(value: Any) -> jax.Array:
            return jnp.broadcast_to(jnp.asarray(value, tuned.step_size.dtype), tuned.step_size.shape)

        numbers = Measured(*(fill(np.array(values)) for values in zip(*measured, strict=True)))
        tuned = scale_noise(tuned, fill(noise))._replace(
            step_size=fill(step_sizes), friction=fill(friction), measured=numbers
        )
        states = states._replace(tuning=tuned)
        self.carry = self.carry._replace(states=self.place(states) if self.spread else states)

    def restore(self, saved: PyTree) -> None:
        """Continue from the arrays of a checkpoint."""
        if self.placement is not None:
            saved = self.placement.from_ravel_order(saved)
        states, moments, monitor = self.place(saved)  # no device is left open, as at the start
        if self.placement is not None:
            states = states._replace(mask=self.carry.states.mask)
        draws = self.carry.draws._replace(moments=moments)
        self.carry = self.carry._replace(states=states, draws=draws, monitor=monitor)

    @property
    def alive(self) -> bool:
        """Whether any chain of the group has not diverged."""
        return bool(np.any(np.asarray(self.carry.monitor.step) < 0))

    @property
    def finite(self) -> np.ndarray:
        """Which chains are at a position that is finite."""
        if self.placement is not None:
            return np.asarray(_finite(self.carry.states.position))
        leaves = jax.tree.leaves(self.carry.states.position)
        each = [np.isfinite(np.asarray(leaf)).reshape(self.chains, -1).all(axis=1) for leaf in leaves]
        return np.all(each, axis=0)

    def begin(self, step: int, stop: int, data_state: Any = None) -> None:
        """Prepare the data of the steps from `step` on; batches of the first `stop − step` steps are prefetched.

        `data_state` is where a checkpoint says that the data were read up to.
        """
        if self.prefetcher is None:
            self.carry = self.carry._replace(order=order_at(self.spec.indexer, self.keys, step, self.data))
            return
        reader: Reader
        rows = self.host_data.source if isinstance(self.host_data, Sharded) else self.host_data
        if isinstance(rows, Batches):
            reader = IterableReader(rows, self.chains, step, data_state)
        else:
            reader = RowReader(rows, self.spec.indexer.of_process(self.host_data), self.host_keys)
        self.prefetcher.begin(reader, step, stop - step)

    def batches(self, ahead: int) -> PyTree:
        """The prefetched batches of the next steps; those of the `ahead` steps after them are begun."""
        return None if self.prefetcher is None else self.prefetcher.take(ahead)

    def advance(self, start: int, step_range: StepRange, step_sizes: np.ndarray, batches: PyTree) -> None:
        """Start a device call whose first step is number `start`; reading the carry waits for it."""
        leaf = jax.tree.leaves(self.carry.states.position)[0]
        sizes = jnp.asarray(step_sizes, jnp.result_type(*jax.tree.leaves(self.carry.states.position)))
        if self.spread:
            sizes, step_range, batches = self.place((sizes, step_range, batches))
        elif len(jax.local_devices()) > 1:
            sizes, step_range, batches = jax.device_put((sizes, step_range, batches), leaf.sharding)
        keys = self._keys_at(start)
        sampler, spec = self._phase(start)
        with self._compilation(warmup=spec.phase is not None and spec.phase.tuning):
            self.carry = run_steps(sampler, self.estimator, keys, self.carry, sizes, step_range, batches, spec=spec)

    def _phase(self, start: int) -> tuple[Sampler, LoopSpec]:
        """The sampler and the settings of the loop for the steps after `start`."""
        if self.plan is None:
            return self.sampler, self.spec
        number, phase = self.plan.phase(start + 1), self.phase
        if number == 3:
            return self.sampler, self.spec._replace(phase=phase) if phase.cached else self.spec
        sampler = arrival_sampler(self.sampler) if number == 0 else settling_sampler(self.sampler)
        return sampler, self.spec._replace(phase=self.settling.of_phase(number))

    def _keys_at(self, step: int) -> Key:
        high = step // WORD
        if self._keys_of_word[0] != high:
            self._keys_of_word = high, keys_at(self.keys, step)
        return self._keys_of_word[1]

    def locate_nonfinite_batch(self, chain: int, step: int) -> str:
        """What is not finite in the batch that a chain of the group, counted in it, read from the host in a step."""
        if self.prefetcher is None:
            return ""
        return locate_nonfinite_batch(self.host_data, self.spec.indexer, self.host_keys, chain, step)

    def draw_shapes(self) -> dict[str, PyTree]:
        """Shapes and dtypes of one draw of one chain."""

        def one(x: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape[2:], x.dtype)

        return {name: jax.tree.map(one, tree) for name, tree in self._groups().items()}

    def _groups(self) -> dict[str, PyTree]:
        made = self.carry.draws
        groups = {"posterior": made.positions, "collected": made.collected, "sample_stats": made.info}
        return {name: tree for name, tree in groups.items() if tree is not None}

    def draws(self, count: int) -> dict[str, PyTree]:
        """The draws of the last device call on the host, leading axes (chain, draw)."""

        def copied(x: jax.Array) -> np.ndarray:
            return np.array(np.swapaxes(to_host(x)[:count], 0, 1))  # slicing on the device would compile per count

        return {name: jax.tree.map(copied, tree) for name, tree in self._groups().items()}

    def chain_states(self) -> list[State]:
        """The states, a chain at a time; of a sharded position, all else is on the host, in `ravel_pytree`'s order."""
        states = self.carry.states if self.data is None else jax.tree.map(np.asarray, self.carry.states)
        if self.placement is not None:
            rest = self.placement.to_ravel_order(to_host(states._replace(position=None)))
            chains = [take_chain(rest, chain) for chain in range(self.chains)]
            return [
                one._replace(position=_take_position(states.position, chain), mask=None)
                for chain, one in enumerate(chains)
            ]
        return [_take_chain(states, chain) for chain in range(self.chains)]

    def close(self) -> None:
        """End the thread that reads batches."""
        if self.prefetcher is not None:
            self.prefetcher.close()
