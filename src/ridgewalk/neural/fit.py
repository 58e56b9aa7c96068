"""The phases of a fit: Adam to a mode for every chain, a step size, and sampling. Each can be killed and resumed.

**Optimiser.** Adam on Ũ(θ) / (N m w), N examples of m outputs with likelihood power w (`data_weight`), with linear
warm-up over the first twentieth and cosine decay. Batch k of a start depends on its key and k only, so a resumed phase
ends as an uninterrupted one.

**Step size.** A chain is stable up to ε = 2/λ_max(G H). Where G approximates H⁻¹, batches of n from N examples add
noise of variance ε² G C G, C ≈ (N/n) H, to the 2 ε G of a step: a fraction ε N/(2n). With ε = 0.1 (n/N) · 2/λ_max(G
H), both the discretisation error and the fraction of gradient noise stay near a tenth. Dynamics with friction α inject
only 2 ε α G of their own, and get a step α times as long. A likelihood power w > 1 makes gradient noise w times as
large against the rest. Steps are not made shorter for it, as chains of a few hundred steps would hardly move:
directions that the data determine are then sampled at a power of about w / (1 + w/10) instead of w.
"""

import contextlib
import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ridgewalk._compilation import jit, quick_compilation
from ridgewalk._io import read_json_object, seal, sole_writer, unseal, write_atomically
from ridgewalk._pytree import layout_of
from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk.dynamics import Hamiltonian
from ridgewalk.gradients import as_estimator
from ridgewalk.kernel import Sampler
from ridgewalk.neural import DEFAULT_PRIOR
from ridgewalk.neural.networks import count_weights
from ridgewalk.neural.posterior import Data, NetworkPosterior, PosteriorSpec, build, padded
from ridgewalk.neural.report import Phase
from ridgewalk.preconditioners.dense import Dense, DenseScaled
from ridgewalk.preconditioners.lbfgs import LBFGS, SnapshotLBFGS
from ridgewalk.preconditioners.low_rank import LowRank
from ridgewalk.result import Result
from ridgewalk.sampling import checkpoint
from ridgewalk.sampling.checkpoint import Checkpoint, config_snapshot, differences
from ridgewalk.sampling.loop import stability_limit
from ridgewalk.sampling.runner import ChunkSizer, Report, StopFlag, progress_bar, stop_on_signal
from ridgewalk.sampling.sample import sample
from ridgewalk.schedules import Every, parse_interval
from ridgewalk.target import Posterior

SEQUENTIAL_FROM = 1_000_000
"""Weights from which on there are 2 chains by default, and chains run one after the other."""

QUICK_WORK = 10**11
"""Weights × examples of all gradients up to which a fit is short against compiling it with full optimisation."""

FRACTION = 0.1
"""The automatic step size as a fraction of the stability limit."""

SCALED_AT_START = Dense, DenseScaled, LowRank, SnapshotLBFGS, LBFGS
"""Without a `first_curvature` they start at G₀ = I/λ_max(H), so that λ_max(G₀ H) = 1 is known."""

EXAMPLES = 64
"""Examples that λ_max is estimated on."""


class Schedule(NamedTuple):
    """Steps and learning rate of the optimiser, and the units of its loss."""

    steps: int
    learning_rate: float
    batch_size: int
    outputs: int
    data_weight: float
    """w: divided out, so that gradients are clipped at the same norm whatever it is."""
    examples: int | None = None
    """N, where it is not the number of rows."""

    def optimiser(self) -> optax.GradientTransformation:
        """Adam, with gradients clipped at norm 1: the first ones may be large."""
        warm = max(self.steps // 20, 1)
        rate = optax.warmup_cosine_decay_schedule(0.0, self.learning_rate, warm, max(self.steps, warm + 1))
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    @property
    def without_units(self) -> "Schedule":
        """What fixes the compiled loop: not the numbers of the data."""
        return self._replace(outputs=1, data_weight=1.0, examples=None)


class OptimiserState(NamedTuple):
    """Position, state of Adam, and losses so far."""

    position: PyTree
    optimiser: PyTree
    losses: jax.Array
    """Ũ / (N m w) of every step made so far, zero for the others."""


class Checkpointing(NamedTuple):
    """Where checkpoints of a start go (None: nowhere), how often, and with which settings."""

    folder: Path | None
    checkpoint_every: Every
    settings: dict[str, object]


class Optimised(NamedTuple):
    """The end of an optimiser phase."""

    position: PyTree
    losses: np.ndarray
    finished: bool


def _begin(position: PyTree, *, schedule: Schedule) -> OptimiserState:
    dtype = jnp.result_type(*jax.tree.leaves(position))
    return OptimiserState(position, schedule.optimiser().init(position), jnp.zeros(schedule.steps, dtype))


def _advance(
    target: Posterior, key: Key, at: OptimiserState, start: Any, stop: Any, units: Any, *, schedule: Schedule
) -> OptimiserState:
    optimiser = schedule.optimiser()

    def loss(position: PyTree, rows: jax.Array) -> Scalar:
        batch = jax.tree.map(lambda x: x[rows], target.data)
        value = target.potential(position, batch)
        return value / units.astype(value.dtype)

    def step(k: Scalar, at: OptimiserState) -> OptimiserState:
        rows = jax.random.randint(jax.random.fold_in(key, k), (schedule.batch_size,), 0, target.size)
        value, gradient = jax.value_and_grad(loss)(at.position, rows)
        updates, state = optimiser.update(gradient, at.optimiser, at.position)
        return OptimiserState(optax.apply_updates(at.position, updates), state, at.losses.at[k].set(value))

    return jax.lax.fori_loop(start, stop, step, at)


begin_steps = jit(_begin, static_argnames="schedule")
advance_steps = jit(_advance, static_argnames="schedule", donate_argnums=2)


def optimise(
    key: Key,
    target: Posterior,
    position: PyTree,
    schedule: Schedule,
    checkpointing: Checkpointing,
    report: Report,
    request: StopFlag,
) -> Optimised:
    """All steps, or those until a signal arrives; resumed from the newest checkpoint where there is one."""
    fixed = schedule.without_units
    units = np.float32((schedule.examples or target.size) * schedule.outputs * schedule.data_weight)
    at, done = _resumed(begin_steps(position, schedule=fixed), checkpointing)
    between = parse_interval(checkpointing.checkpoint_every, "checkpoint_every")
    sizer, saved_at, saved = ChunkSizer(), time.monotonic(), done
    while done < schedule.steps and not request.signal:
        stop = min(done + sizer.length, schedule.steps)
        if between[0] is not None:
            stop = min(stop, (done // between[0] + 1) * between[0])
        at = advance_steps(target, key, at, np.int32(done), np.int32(stop), units, schedule=fixed)
        newest = np.asarray(at.losses)[stop - 1 : stop]
        sizer.record(stop - done)
        done = stop
        report(done, newest, np.isfinite(newest))
        if not np.isfinite(newest).all():
            raise ValueError(
                f"learning_rate: {schedule.learning_rate} made the loss {newest[0]} in optimiser step {done}; "
                "lower it by a factor of 10, or check the data for extreme values"
            )
        seconds = between[1]
        if done % between[0] == 0 if between[0] is not None else time.monotonic() - saved_at >= (seconds or 0):
            _save(at, done, checkpointing)
            saved_at, saved = time.monotonic(), done
    if done > saved:
        _save(at, done, checkpointing)
    return Optimised(at.position, np.asarray(at.losses, float)[:done], done == schedule.steps)


def _save(at: OptimiserState, done: int, checkpointing: Checkpointing) -> None:
    if checkpointing.folder is None:
        return
    arrays = [np.array(leaf) for leaf in jax.tree.leaves(at)]
    checkpoint.write(checkpointing.folder, Checkpoint(done, arrays, config_snapshot(checkpointing.settings)))


def _resumed(fresh: OptimiserState, checkpointing: Checkpointing) -> tuple[OptimiserState, int]:
    if checkpointing.folder is None:
        return fresh, 0
    checkpointing.folder.mkdir(parents=True, exist_ok=True)
    found = checkpoint.latest(checkpointing.folder)
    if found is None:
        return fresh, 0
    changed = differences(found.settings, config_snapshot(checkpointing.settings))
    if changed:
        listed = "\n  ".join(changed)
        raise ValueError(
            f"checkpoint: {checkpointing.folder} was begun with other settings:\n  {listed}\n"
            "use the same settings, or another folder"
        )
    leaves, structure = jax.tree.flatten(fresh)
    if [(x.shape, x.dtype) for x in leaves] != [(x.shape, x.dtype) for x in found.arrays]:
        raise ValueError(f"checkpoint: arrays in {checkpointing.folder} do not fit this network; use another folder")
    return jax.tree.unflatten(structure, [jnp.asarray(x) for x in found.arrays]), found.step


class FitSettings(NamedTuple):
    """How a posterior is sampled."""

    optimiser_steps: int
    learning_rate: float
    steps: int
    burn_in: int
    draws: int
    chains: int | None
    batch_size: int
    step_size: float | str
    seed: int
    checkpoint: Path | None
    checkpoint_every: Every
    progress: bool


class PosteriorSample(NamedTuple):
    """Draws of the weights, and how they were made."""

    draws: PyTree
    """Leaves (draw, …), chain after chain, of the chains that did not diverge."""
    chains: int
    weights: int
    phases: tuple[Phase, Phase]
    step_size: float
    temperature: float
    health: tuple[str, ...]


def sample_posterior(
    spec: PosteriorSpec, sampler: Sampler, x: np.ndarray, y: np.ndarray, data_weight: float, settings: FitSettings
) -> PosteriorSample:
    """Draws from the posterior of a network's weights, given scaled data."""
    with contextlib.ExitStack() as stack:
        if settings.checkpoint is not None:
            settings.checkpoint.mkdir(parents=True, exist_ok=True)
            stack.enter_context(sole_writer(settings.checkpoint, "checkpoint"))
        posterior = build(spec)
        weights = count_weights(jax.eval_shape(posterior.start, jax.random.key(0)))
        chains = settings.chains or (4 if weights < SEQUENTIAL_FROM else 2)
        data = padded(x, y, data_weight, weights)
        settings = settings._replace(chains=chains, batch_size=min(settings.batch_size, len(data.x)))
        work = weights * chains * settings.batch_size * (settings.optimiser_steps + settings.steps)
        stack.enter_context(quick_compilation(work <= QUICK_WORK))
        target = posterior.posterior(data)
        starts, first = _optimised(spec, posterior, target, data, chains, settings)
        step_size = _step_size(spec, sampler, target, data, jax.tree.map(lambda leaf: leaf[0], starts), settings)
        result, second = _sampled(sampler, target, data, starts, step_size, weights, settings)
        draws = jax.tree.map(lambda leaf: result.load_leaf(leaf).reshape(-1, *leaf.shape[2:]), result.positions)
        _check_finite((first, second), draws)
    return PosteriorSample(
        draws=draws,
        chains=int(result.alive.sum()),
        weights=weights,
        phases=(first, second),
        step_size=step_size,
        temperature=float(np.mean(np.asarray(result.info.temperature)[result.alive])),
        health=tuple(map(str, result.status)),
    )


@partial(jit, static_argnames="chains")
def _keys(key: Key, *, chains: int) -> tuple[tuple[Key, ...], tuple[Key, ...], Key]:
    """Keys of every chain's initial weights, of its optimiser's batches, and of the sampling."""
    weights, batches, sampling = jax.random.split(key, 3)
    starts, orders = jax.random.split(weights, chains), jax.random.split(batches, chains)
    return tuple(starts[i] for i in range(chains)), tuple(orders[i] for i in range(chains)), sampling


class FitError(RuntimeError):
    """A fit whose loss or draws are not finite; the message says what to change."""


def _check_finite(phases: tuple[Phase, ...], draws: PyTree) -> None:
    """Raise where the loss of a phase that made steps, or a draw, is NaN or infinite."""
    for phase in phases:
        if phase.steps and not np.isfinite(phase.last_loss):
            rate = "learning_rate" if phase.name == "optimiser" else "step_size"
            raise FitError(f"the loss of the {phase.name} is {phase.last_loss}; lower {rate}, or rescale the data")
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(draws)):
        raise FitError("draws of the weights are not finite; lower step_size, or rescale the data")


def _optimised(
    spec: PosteriorSpec, posterior: NetworkPosterior, target: Posterior, data: Data, chains: int, settings: FitSettings
) -> tuple[PyTree, Phase]:
    """A start for every chain, each from its own random weights: chains in different modes show what the data leave
    open.
    """
    began = time.perf_counter()
    starts, keys, _ = _keys(jax.random.key(settings.seed), chains=chains)
    schedule = Schedule(
        settings.optimiser_steps,
        settings.learning_rate,
        settings.batch_size,
        spec.outputs,
        data.data_weight,
        data.examples,
    )
    target = _with_plain_prior(spec, target, data)
    ends, losses = [], []
    for chain in range(chains):
        start = posterior.start(starts[chain])
        if schedule.steps == 0:
            ends.append(start)
            continue
        folder = None if settings.checkpoint is None else settings.checkpoint / f"optimiser-{chain}"
        about = {"spec": spec, "schedule": schedule, "key": keys[chain], "data": target.data, "chain": chain}
        checkpointing = Checkpointing(folder, settings.checkpoint_every, about)
        with stop_on_signal() as request, progress_bar(schedule.steps, 0, settings.progress) as report:
            done = optimise(keys[chain], target, start, schedule, checkpointing, report, request)
        if not done.finished:
            raise _interrupted(f"optimisation of chain {chain + 1} of {chains}", settings.checkpoint)
        ends.append(done.position)
        losses.append(done.losses)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *ends)
    mean = np.mean(losses, axis=0) if losses else np.full(1, np.nan)
    few = max(len(mean) // 20, 1)
    seconds = time.perf_counter() - began
    phase = Phase("optimiser", schedule.steps, seconds, float(mean[:few].mean()), float(mean[-few:].mean()))
    return stacked, phase


def _with_plain_prior(spec: PosteriorSpec, target: Posterior, data: Data) -> Posterior:
    """For a prior that is not a function of the position alone, the optimiser uses the default prior instead."""
    prior: Any = target.log_prior
    return target if callable(prior) else build(spec._replace(prior=DEFAULT_PRIOR)).posterior(data)


def _step_size(
    spec: PosteriorSpec, sampler: Sampler, target: Posterior, data: Data, position: PyTree, settings: FitSettings
) -> float:
    """The number given, or the automatic one, which is stored beside the checkpoints because it depends on the data.

    The file says what it was computed for: all that fixes the posterior, and the position where sampling starts.
    """
    if not isinstance(settings.step_size, str):
        return float(settings.step_size)
    note = None if settings.checkpoint is None else settings.checkpoint / "step_size.json"
    if note is None:
        return stable_step_size(sampler, target, position, settings.batch_size, data.examples)
    found_for = {"spec": spec, "sampler": sampler, "batch_size": settings.batch_size, "data": target.data}
    about = config_snapshot({**found_for, "start": jax.tree.leaves(position)})
    if note.exists():
        noted = unseal(note, read_json_object(note))
        if noted.get("for") == about:
            return float(noted["step_size"])
    found = stable_step_size(sampler, target, position, settings.batch_size, data.examples)
    write_atomically(note, json.dumps(seal({"step_size": found, "for": about})).encode())
    return found


def stable_step_size(
    sampler: Sampler, target: Posterior, position: PyTree, batch_size: int, examples: int | None = None
) -> float:
    """ε for the sampler with the preconditioner it starts from, at a mode.

    `examples` is N, where it is not the number of rows of the target's data.
    """
    form, size = layout_of(position), examples or target.size
    chosen = sampler.preconditioner.resolve(form)
    scaled_at_start = isinstance(chosen, SCALED_AT_START) and chosen.first_curvature is None
    limit = 2.0 if scaled_at_start else _measured_limit(sampler, target, position)
    if not np.isfinite(limit):
        raise ValueError(
            "step_size: the curvature where sampling starts is zero or not finite, so 'auto' finds none; "
            "give a number, or more optimiser_steps"
        )
    dynamics = sampler.dynamics
    friction = dynamics.friction_without_warmup if isinstance(dynamics, Hamiltonian) and batch_size < size else 1.0
    return float(np.float32(FRACTION * limit * friction * min(1.0, batch_size / size)))


def _measured_limit(sampler: Sampler, target: Posterior, position: PyTree) -> float:
    size = target.size
    rows = np.unique(np.linspace(0, size - 1, min(size, EXAMPLES)).astype(int))
    data = jax.tree.map(lambda x: np.asarray(x)[rows], target.data)
    few = Posterior(target.log_prior, Weighted(target.log_likelihood, size / len(rows)), data)
    return stability_limit(sampler, as_estimator(few), position)


@dataclass(frozen=True)
class Weighted:
    """A log likelihood times a number; equal ones share compiled programs."""

    log_likelihood: Any
    weight: float

    def __call__(self, position: PyTree, batch: PyTree) -> jax.Array:
        """One value for each example."""
        return self.weight * self.log_likelihood(position, batch)


def _sampled(
    sampler: Sampler,
    target: Posterior,
    data: Data,
    starts: PyTree,
    step_size: float,
    weights: int,
    settings: FitSettings,
) -> tuple[Result, Phase]:
    began, chains = time.perf_counter(), settings.chains or 1
    per_chain = -(-settings.draws // chains)
    thin = max(1, (settings.steps - settings.burn_in) // per_chain)
    result = sample(
        _keys(jax.random.key(settings.seed), chains=chains)[2],
        sampler,
        target,
        starts,
        steps=settings.steps,
        step_size=step_size,
        batch_size=settings.batch_size,
        chains=chains,
        burn_in=max(settings.burn_in, settings.steps - thin * per_chain),
        thin=thin,
        start_per_chain=True,
        chain_method="vectorized" if weights < SEQUENTIAL_FROM else "sequential",
        checkpoint=None if settings.checkpoint is None else settings.checkpoint / "sampling",
        checkpoint_every=settings.checkpoint_every,
        resume=settings.checkpoint is not None,
        progress=settings.progress,
    )
    if result.steps < settings.steps:
        raise _interrupted(f"step {result.steps:,} of {settings.steps:,} of the sampling", settings.checkpoint)
    potentials = np.asarray(result.info.potential)[result.alive].mean(0)
    per = data.examples * data.y.shape[1] * data.data_weight
    seconds = time.perf_counter() - began
    return result, Phase("sampling", settings.steps, seconds, float(potentials[0] / per), float(potentials[-1] / per))


def _interrupted(where: str, checkpoint: Path | None) -> KeyboardInterrupt:
    again = "nothing was saved, because no checkpoint folder was given"
    if checkpoint is not None:
        again = f"rerun the same call to resume from {checkpoint}"
    return KeyboardInterrupt(f"fit was interrupted ({where}); {again}")
