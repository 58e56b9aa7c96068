"""The phases of a fit: Adam to a mode for every chain, then draws. Each phase can be killed and resumed.

**Sampling at w = 1.** `ridgewalk.sample` with warm-up, which finds step size and friction, in rounds: the run is made
twice as long until the predictions of the last half of its draws have an R-hat of at most `r_hat`, or until `steps` or
`max_time` is reached. Whether to go on depends on the draws only, so that a resumed fit ends as an uninterrupted one.

**Sampling of cold posteriors, w > 1.** A chain is stable up to ε = 2/λ_max(G H). Where G approximates H⁻¹, batches of n
from N examples add noise of variance ε² G C G, C ≈ (N/n) H, to the 2 ε G of a step: a fraction ε N/(2n). With ε = 0.1
(n/N) · 2/λ_max(G H), both the discretisation error and the fraction of gradient noise stay near a tenth. Dynamics with
friction α inject only 2 ε α G of their own, and get a step α times as long. A likelihood power w > 1 makes gradient
noise w times as large against the rest. Steps are not made shorter for it, as chains of a few hundred steps would
hardly move: directions that the data determine are then sampled at a power of about w / (1 + w/10) instead of w.

The other methods start from the same modes: see `approximations`.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ridgewalk._compilation import jit, quick_compilation
from ridgewalk._io import read_json_object, seal, sole_writer, unseal, write_atomically
from ridgewalk._pytree import layout_of
from ridgewalk._types import Key, PyTree
from ridgewalk.dynamics import Hamiltonian
from ridgewalk.gradients import as_estimator
from ridgewalk.kernel import Sampler
from ridgewalk.neural import DEFAULT_PRIOR, MethodName
from ridgewalk.neural.approximations import laplace_draws, swag_draws
from ridgewalk.neural.networks import count_weights
from ridgewalk.neural.optimiser import Checkpointing, Schedule, optimise
from ridgewalk.neural.posterior import Data, NetworkPosterior, PosteriorSpec, build, padded
from ridgewalk.neural.predictive import Mixing, mixing, predictions_of_draws, probe_rows
from ridgewalk.neural.report import Phase
from ridgewalk.preconditioners.dense import Dense, DenseScaled
from ridgewalk.preconditioners.lbfgs import LBFGS, SnapshotLBFGS
from ridgewalk.preconditioners.low_rank import LowRank
from ridgewalk.result import Result
from ridgewalk.sampling.checkpoint import config_snapshot
from ridgewalk.sampling.loop import stability_limit
from ridgewalk.sampling.runner import RunProgress, progress_bar, stop_on_signal
from ridgewalk.sampling.sample import sample
from ridgewalk.schedules import Every
from ridgewalk.target import Posterior

SEQUENTIAL_FROM = 1_000_000
"""Weights from which on there are 2 chains by default, and chains run one after the other."""

QUICK_WORK = 10**11
"""Weights × examples of all gradients up to which a fit is short against compiling it with full optimisation."""

FRACTION = 0.1
"""The automatic step size of a cold posterior as a fraction of the stability limit."""

SCALED_AT_START = Dense, DenseScaled, LowRank, SnapshotLBFGS, LBFGS
"""Without a `first_curvature` they start at G₀ = I/λ_max(H), so that λ_max(G₀ H) = 1 is known."""

EXAMPLES = 64
"""Examples that λ_max is estimated on."""

FIRST_ROUND = 12_000
"""Steps after which it is asked for the first time whether the chains have mixed."""

STORED_NUMBERS = 2**26
"""About how many parameters the draws hold from which those that are kept are chosen."""


class FitSettings(NamedTuple):
    """How draws of a posterior are made."""

    method: MethodName
    cold: bool
    """Whether few steps are made of a cold posterior, without warm-up."""
    optimiser_steps: int
    learning_rate: float
    steps: int
    burn_in: int
    draws: int
    chains: int | None
    batch_size: int | None
    """None for all rows."""
    step_size: float | str
    r_hat: float | None
    max_time: float | None
    seed: int
    checkpoint: Path | None
    checkpoint_every: Every
    progress: bool


class PosteriorSample(NamedTuple):
    """Draws of the parameters, and how they were made."""

    draws: PyTree
    """Leaves (draw, …), chain after chain, of the chains that did not diverge."""
    modes: PyTree
    """The parameters that the optimiser found, leaves (chain, …)."""
    chains: int
    weights: int
    phases: tuple[Phase, ...]
    step_size: float
    temperature: float
    mixing: Mixing
    ending: str
    """Why sampling ended, in words; empty for other methods."""
    health: tuple[str, ...]


class _Problem(NamedTuple):
    """What is sampled, and how."""

    spec: PosteriorSpec
    posterior: NetworkPosterior
    sampler: Sampler
    target: Posterior
    data: Data
    starts: PyTree
    """One per chain: the modes that the optimiser found."""
    weights: int
    """Their number in the network."""
    probes: np.ndarray
    """Inputs whose predictions have to mix."""


class _Sampled(NamedTuple):
    """The draws of a sampler, as positions (chain, draw, …)."""

    positions: PyTree
    phase: Phase
    step_size: float
    temperature: float
    ending: str
    health: tuple[str, ...]


def sample_posterior(
    spec: PosteriorSpec,
    sampler: Sampler,
    x: np.ndarray,
    y: np.ndarray,
    each: np.ndarray,
    data_weight: float,
    settings: FitSettings,
) -> PosteriorSample:
    """Draws from the posterior of a network's weights, given scaled data and a weight of each example."""
    with contextlib.ExitStack() as stack:
        if settings.checkpoint is not None:
            settings.checkpoint.mkdir(parents=True, exist_ok=True)
            stack.enter_context(sole_writer(settings.checkpoint, "checkpoint"))
        posterior = build(spec)
        weights = count_weights(jax.eval_shape(posterior.start, jax.random.key(0)))
        chains = settings.chains or (4 if weights < SEQUENTIAL_FROM else 2)
        whole = settings.batch_size is None
        data = padded(x, y, each, data_weight, weights, whole=whole)
        batch_size = None if settings.batch_size is None else min(settings.batch_size, len(data.x))
        settings = settings._replace(chains=chains, batch_size=batch_size)
        work = weights * chains * (batch_size or len(data.x)) * (settings.optimiser_steps + settings.steps)
        stack.enter_context(quick_compilation(work <= QUICK_WORK))
        target = posterior.posterior(data)
        probes = x[probe_rows(len(x))]
        starts, first = _optimised(spec, posterior, target, data, chains, settings)
        modes = _parameters(posterior, starts)
        problem = _Problem(spec, posterior, sampler, target, data, starts, weights, probes)
        found = _draws(problem, settings)
        draws = _merged(found.positions)
        if settings.method != "laplace":  # which gives parameters
            draws = _parameters(posterior, draws)
        phases = (first,) if settings.method == "ensemble" else (first, found.phase)
        _check_finite(phases, draws)
        count = len(jax.tree.leaves(found.positions)[0])
        mixed = Mixing(float("nan"), float("nan"))
        if settings.method == "sample":
            mixed = _mixing(spec, draws, probes, count)
    return PosteriorSample(
        draws=draws,
        modes=modes,
        chains=count,
        weights=weights,
        phases=phases,
        step_size=found.step_size,
        temperature=found.temperature,
        mixing=mixed,
        ending=found.ending,
        health=found.health,
    )


def merge_folds(spec: PosteriorSpec, parts: list[PosteriorSample], x: np.ndarray) -> PosteriorSample:
    """Fits of one chain each as one fit."""
    least = min(len(jax.tree.leaves(part.draws)[0]) for part in parts)
    draws = jax.tree.map(lambda *leaves: np.concatenate([leaf[-least:] for leaf in leaves]), *(p.draws for p in parts))
    modes = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part.modes for part in parts))
    phases = tuple(
        Phase(
            each[0].name,
            max(phase.steps for phase in each),
            sum(phase.seconds for phase in each),
            float(np.mean([phase.first_loss for phase in each])),
            float(np.mean([phase.last_loss for phase in each])),
        )
        for each in zip(*(part.phases for part in parts), strict=True)
    )
    return parts[0]._replace(
        draws=draws,
        modes=modes,
        chains=len(parts),
        phases=phases,
        step_size=float(np.median([part.step_size for part in parts])),
        temperature=float(np.mean([part.temperature for part in parts])),
        mixing=_mixing(spec, draws, x[probe_rows(len(x))], len(parts)),
        health=tuple(status for part in parts for status in part.health),
    )


def _merged(positions: PyTree) -> PyTree:
    """(chain, draw, …) as (draw, …)."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), positions)


def _mixing(spec: PosteriorSpec, draws: PyTree, probes: np.ndarray, chains: int) -> Mixing:
    """How well the predictions of examples mix."""
    values = predictions_of_draws(spec, draws, probes)
    return mixing(values.reshape(chains, -1, *values.shape[1:]))


def _parameters(posterior: NetworkPosterior, positions: PyTree) -> PyTree:
    """Parameters (draw, …) of positions (draw, …)."""
    return jax.tree.map(np.asarray, _map_positions(positions, convert=posterior.parameters))


@partial(jit, static_argnames="convert")
def _map_positions(positions: PyTree, *, convert: Callable[[PyTree], PyTree]) -> PyTree:
    return jax.lax.map(convert, positions)


def _draws(problem: _Problem, settings: FitSettings) -> _Sampled:
    """By the method that is asked for."""
    spec, posterior, sampler, target, data, starts, weights, _ = problem
    chains, key = settings.chains or 1, jax.random.key(settings.seed)
    if settings.method == "sample":
        if not settings.cold and isinstance(settings.step_size, str):
            return _sampled_until_mixed(problem, settings)
        step_size = _step_size(spec, sampler, target, data, jax.tree.map(lambda leaf: leaf[0], starts), settings)
        return _sampled(sampler, target, data, starts, step_size, weights, settings)
    began, each = time.perf_counter(), -(-settings.draws // chains)
    nothing = float("nan")
    if settings.method == "ensemble":
        positions = jax.tree.map(lambda leaf: leaf[:, None], starts)
        steps = 0
    elif settings.method == "laplace":
        positions, steps = laplace_draws(jax.random.fold_in(key, 1), posterior, target, starts, each), 0
    else:
        rows = data.examples if settings.batch_size is None else len(data.x)  # without padding of weight 0
        positions, steps = swag_draws(jax.random.fold_in(key, 2), target, starts, rows, each)
    phase = Phase(settings.method, steps, time.perf_counter() - began, nothing, nothing)
    return _Sampled(positions, phase, nothing, nothing, "", ("finished",) * chains)


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
        if phase.steps and phase.name in ("optimiser", "sampling") and not np.isfinite(phase.last_loss):
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
        spec.likelihood.network_outputs,
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
        return stable_step_size(sampler, target, position, settings.batch_size or data.examples, data.examples)
    found_for = {"spec": spec, "sampler": sampler, "batch_size": settings.batch_size, "data": target.data}
    about = config_snapshot({**found_for, "start": jax.tree.leaves(position)})
    if note.exists():
        noted = unseal(note, read_json_object(note))
        if noted.get("for") == about:
            return float(noted["step_size"])
    found = stable_step_size(sampler, target, position, settings.batch_size or data.examples, data.examples)
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


def _run(
    sampler: Sampler, target: Posterior, starts: PyTree, weights: int, settings: FitSettings, **options: Any
) -> Result:
    """`ridgewalk.sample` with the settings of the fit."""
    chains = settings.chains or 1
    return sample(
        _keys(jax.random.key(settings.seed), chains=chains)[2],
        sampler,
        target,
        starts,
        batch_size=settings.batch_size,
        chains=chains,
        start_per_chain=True,
        chain_method="vectorized" if weights < SEQUENTIAL_FROM else "sequential",
        checkpoint_every=settings.checkpoint_every,
        progress=settings.progress,
        **options,
    )


def _sampled(
    sampler: Sampler,
    target: Posterior,
    data: Data,
    starts: PyTree,
    step_size: float,
    weights: int,
    settings: FitSettings,
) -> _Sampled:
    """A run of a given step size and length."""
    began, chains = time.perf_counter(), settings.chains or 1
    per_chain = -(-settings.draws // chains)
    thin = max(1, (settings.steps - settings.burn_in) // per_chain)
    result = _run(
        sampler,
        target,
        starts,
        weights,
        settings,
        steps=settings.steps,
        step_size=step_size,
        burn_in=max(settings.burn_in, settings.steps - thin * per_chain),
        thin=thin,
        checkpoint=None if settings.checkpoint is None else settings.checkpoint / "sampling",
        resume=settings.checkpoint is not None,
    )
    if result.steps < settings.steps:
        raise _interrupted(f"step {result.steps:,} of {settings.steps:,} of the sampling", settings.checkpoint)
    return _of_result(result, data, time.perf_counter() - began, step_size, f"{settings.steps:,} steps were made")


def _of_result(
    result: Result, data: Data, seconds: float, step_size: float, ending: str, kept: slice | np.ndarray = slice(None)
) -> _Sampled:
    potentials = np.asarray(result.info.potential)[result.alive].mean(0)
    per = data.examples * data.y.shape[1] * data.data_weight
    return _Sampled(
        jax.tree.map(lambda leaf: result.load_leaf(leaf)[:, kept], result.positions),
        Phase("sampling", result.steps, seconds, float(potentials[0] / per), float(potentials[-1] / per)),
        step_size,
        float(np.mean(np.asarray(result.info.temperature)[result.alive])),
        ending,
        tuple(map(str, result.status)),
    )


class _OutOfTimeError(Exception):
    """`max_time` is over; the run has written a checkpoint."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step


def _sampled_until_mixed(problem: _Problem, settings: FitSettings) -> _Sampled:
    """Rounds of a run with warm-up, each twice as long as the one before; the last half of the draws is kept.

    The length of the present round is stored beside the checkpoints: shorter ones are not asked again.
    """
    spec, posterior, sampler, target, data, starts, weights, probes = problem
    began, chains = time.perf_counter(), settings.chains or 1
    per_chain = -(-settings.draws // chains)
    most = settings.steps
    stored = int(np.clip(STORED_NUMBERS // (chains * weights), 2 * per_chain, 20 * per_chain))
    thin = max(1, (most - settings.burn_in) // stored, (min(FIRST_ROUND, most) - settings.burn_in) // (4 * per_chain))
    with contextlib.ExitStack() as stack:
        folder = settings.checkpoint
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        note, about = folder / "rounds.json", config_snapshot({"first": FIRST_ROUND, "most": most, "thin": thin})
        steps = most if settings.r_hat is None else min(most, max(FIRST_ROUND, 2 * settings.burn_in))
        if note.exists():
            noted = unseal(note, read_json_object(note))
            steps = int(noted["steps"]) if noted.get("for") == about else steps
        options = {
            "step_size": settings.step_size,
            "burn_in": settings.burn_in,
            "thin": thin,
            "checkpoint": folder / "sampling",
            "resume": True,
        }

        def limit(progress: RunProgress) -> None:
            if settings.max_time is not None and time.perf_counter() - began > settings.max_time:
                raise _OutOfTimeError(progress.step)

        while True:
            late = False
            try:
                result = _run(sampler, target, starts, weights, settings, steps=steps, callback=limit, **options)
            except _OutOfTimeError as error:
                if error.step < settings.burn_in + 8 * thin:
                    raise FitError(
                        f"max_time: {settings.max_time} s were over after {error.step:,} steps, in the burn-in of "
                        f"{settings.burn_in:,}; give more time, or fewer burn_in"
                    ) from None
                late, steps = True, error.step
                result = _run(sampler, target, starts, weights, settings, steps=steps, **options)
            if result.steps < steps:
                raise _interrupted(f"step {result.steps:,} of {steps:,} of the sampling", settings.checkpoint)
            count = len(result.step_sizes)
            kept = np.unique(np.linspace(count // 2, count - 1, min(per_chain, count - count // 2)).astype(int))
            found = _of_result(result, data, time.perf_counter() - began, float(result.step_sizes[-1]), "", kept)
            draws = _parameters(posterior, _merged(found.positions))
            ratio = _mixing(spec, draws, probes, len(jax.tree.leaves(found.positions)[0])).r_hat
            reached = settings.r_hat is not None and ratio <= settings.r_hat
            if late or reached or steps >= most:
                return found._replace(ending=_ending(steps, ratio, settings, reached=reached, late=late))
            steps = min(2 * steps, most)
            write_atomically(note, json.dumps(seal({"steps": steps, "for": about})).encode())


def _ending(steps: int, ratio: float, settings: FitSettings, *, reached: bool, late: bool) -> str:
    """Why sampling ended."""
    text = f"{steps:,} steps: R-hat of predictions {ratio:.2f}"
    if reached:
        return f"{text} is at most {settings.r_hat:g}"
    goal = "" if settings.r_hat is None else f" is above {settings.r_hat:g}"
    return f"{text}{goal}; max_time was reached" if late else f"{text}{goal}; no more steps were asked for"


def _interrupted(where: str, checkpoint: Path | None) -> KeyboardInterrupt:
    again = "nothing was saved, because no checkpoint folder was given"
    if checkpoint is not None:
        again = f"rerun the same call to resume from {checkpoint}"
    return KeyboardInterrupt(f"fit was interrupted ({where}); {again}")
