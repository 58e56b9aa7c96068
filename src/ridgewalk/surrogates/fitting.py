"""Optimise, sample, keep draws: the phases of a fit, each of which can be killed and resumed."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._io import sole_writer, write_atomically
from ridgewalk._types import PyTree
from ridgewalk.diagnostics.mixing import ess, r_hat
from ridgewalk.kernel import Sampler
from ridgewalk.result import Result
from ridgewalk.run.fingerprint import describe
from ridgewalk.run.plan import Every
from ridgewalk.run.progress import progress_bar
from ridgewalk.run.sample import sample
from ridgewalk.run.stopping import stop_request
from ridgewalk.surrogates.defaults import DEFAULT_PRIOR
from ridgewalk.surrogates.model import count_weights
from ridgewalk.surrogates.optimise import Keeping, Schedule, optimise
from ridgewalk.surrogates.prediction import predict_each
from ridgewalk.surrogates.problem import Problem, Spec, define
from ridgewalk.surrogates.report import Phase
from ridgewalk.surrogates.step_rule import stable_step_size
from ridgewalk.target import Posterior

LARGE = 1_000_000
"""Weights from which on chains are fewer, and run one after the other."""


class Settings(NamedTuple):
    """How a posterior is explored."""

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
    every: Every
    progress: bool


class Explored(NamedTuple):
    """Draws of the weights, and how they came about."""

    draws: PyTree
    """Leaves (draw, …), chain after chain, of the chains that did not diverge."""
    chains: int
    weights: int
    phases: tuple[Phase, Phase]
    step_size: float
    temperature: float
    health: tuple[str, ...]


def explore(spec: Spec, sampler: Sampler, x: np.ndarray, y: np.ndarray, settings: Settings) -> Explored:
    """Draws from the posterior of a network's weights, given scaled data."""
    with contextlib.ExitStack() as stack:
        if settings.checkpoint is not None:
            settings.checkpoint.mkdir(parents=True, exist_ok=True)
            stack.enter_context(sole_writer(settings.checkpoint, "checkpoint"))
        problem = define(spec)
        target = problem.posterior(jnp.asarray(x), jnp.asarray(y))
        weights = count_weights(jax.eval_shape(problem.start, jax.random.key(0)))
        chains = settings.chains or (4 if weights < LARGE else 2)
        batch = min(settings.batch_size, len(x))
        settings = settings._replace(chains=chains, batch_size=batch)
        starts, first = _optimised(spec, problem, target, chains, settings)
        step_size = _step_size(spec, sampler, target, jax.tree.map(lambda leaf: leaf[0], starts), settings)
        result, second = _sampled(spec, sampler, target, starts, step_size, weights, settings)
        draws = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), result.kept_positions())
    return Explored(
        draws=draws,
        chains=int(result.alive.sum()),
        weights=weights,
        phases=(first, second),
        step_size=step_size,
        temperature=float(np.mean(np.asarray(result.info.temperature)[result.alive])),
        health=tuple(map(str, result.status)),
    )


def mixing(spec: Spec, draws: PyTree, chains: int, x: np.ndarray) -> tuple[float, float]:
    """Median effective sample size and R̂ of a few predictions, spread over examples and outputs."""
    values = predict_each(spec, draws, x[np.unique(np.linspace(0, len(x) - 1, 8).astype(int))])
    flat = values.reshape(chains, -1, values.shape[1] * values.shape[2])
    if flat.shape[1] < 4:
        return float("nan"), float("nan")
    some = flat[:, :, np.unique(np.linspace(0, flat.shape[2] - 1, 16).astype(int))].astype(float)
    sizes, ratios = ([measure(some[:, :, i]) for i in range(some.shape[2])] for measure in (ess, r_hat))
    return float(np.median(sizes)), float(np.median(ratios))


def _streams(seed: int) -> jax.Array:
    """Keys of the first weights, of the optimiser's batches, and of the sampling."""
    return jax.random.split(jax.random.key(seed), 3)


def _optimised(
    spec: Spec, problem: Problem, target: Posterior, chains: int, settings: Settings
) -> tuple[PyTree, Phase]:
    """A start for every chain, each from its own random weights: modes of their own show what the data leave open."""
    began = time.perf_counter()
    weights_key, batches_key, _ = _streams(settings.seed)
    starts, keys = jax.random.split(weights_key, chains), jax.random.split(batches_key, chains)
    schedule = Schedule(
        settings.optimiser_steps, settings.learning_rate, settings.batch_size, spec.outputs, spec.data_weight
    )
    target = _with_plain_prior(spec, target)
    ends, losses = [], []
    for chain in range(chains):
        start = jax.jit(problem.start)(starts[chain])
        if schedule.steps == 0:
            ends.append(start)
            continue
        folder = None if settings.checkpoint is None else settings.checkpoint / f"optimiser-{chain}"
        about = {"spec": spec, "schedule": schedule, "key": keys[chain], "data": target.data, "chain": chain}
        keeping = Keeping(folder, settings.every, about)
        with stop_request() as request, progress_bar(schedule.steps, 0, settings.progress) as report:
            done = optimise(keys[chain], target, start, schedule, keeping, report, request)
        if not done.finished:
            raise _interrupted(f"start {chain + 1} of {chains} was being optimised", settings.checkpoint)
        ends.append(done.position)
        losses.append(done.losses)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *ends)
    mean = np.mean(losses, axis=0) if losses else np.full(1, np.nan)
    few = max(len(mean) // 20, 1)
    seconds = time.perf_counter() - began
    phase = Phase("optimiser", schedule.steps, seconds, float(mean[:few].mean()), float(mean[-few:].mean()))
    return stacked, phase


def _with_plain_prior(spec: Spec, target: Posterior) -> Posterior:
    """For a prior that is no function of the position alone, the optimiser takes the default prior in its place."""
    prior: Any = target.log_prior
    if callable(prior):
        return target
    return define(spec._replace(prior=DEFAULT_PRIOR)).posterior(*target.data)


def _step_size(spec: Spec, sampler: Sampler, target: Posterior, position: PyTree, settings: Settings) -> float:
    """The number given, or the rule's, which is noted beside the checkpoints because it takes a look at the data.

    The note says what it was found for: all that fixes the posterior, and the place where sampling starts.
    """
    if not isinstance(settings.step_size, str):
        return float(settings.step_size)
    note = None if settings.checkpoint is None else settings.checkpoint / "step_size.json"
    found_for = {"spec": spec, "sampler": sampler, "batch_size": settings.batch_size, "data": target.data}
    about = describe({**found_for, "start": jax.tree.leaves(position)})
    if note is not None and note.exists():
        noted = json.loads(note.read_text())
        if noted["for"] == about:
            return float(noted["step_size"])
    found = stable_step_size(sampler, target, position, settings.batch_size)
    if note is not None:
        write_atomically(note, json.dumps({"step_size": found, "for": about}).encode())
    return found


def _sampled(
    spec: Spec,
    sampler: Sampler,
    target: Posterior,
    starts: PyTree,
    step_size: float,
    weights: int,
    settings: Settings,
) -> tuple[Result, Phase]:
    began, chains = time.perf_counter(), settings.chains or 1
    per_chain = -(-settings.draws // chains)
    thin = max(1, (settings.steps - settings.burn_in) // per_chain)
    result = sample(
        _streams(settings.seed)[2],
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
        chain_method="vectorized" if weights < LARGE else "sequential",
        checkpoint=None if settings.checkpoint is None else settings.checkpoint / "sampling",
        every=settings.every,
        resume=settings.checkpoint is not None,
        progress=settings.progress,
    )
    if result.steps < settings.steps:
        raise _interrupted(f"step {result.steps:,} of {settings.steps:,} of the sampling", settings.checkpoint)
    potentials = np.asarray(result.info.potential)[result.alive].mean(0)
    per = target.size * int(target.data[1].shape[1]) * spec.data_weight
    seconds = time.perf_counter() - began
    return result, Phase("sampling", settings.steps, seconds, float(potentials[0] / per), float(potentials[-1] / per))


def _interrupted(where: str, checkpoint: Path | None) -> KeyboardInterrupt:
    again = "nothing was kept, because no checkpoint folder was given"
    if checkpoint is not None:
        again = f"the same call goes on from {checkpoint}"
    return KeyboardInterrupt(f"fit was interrupted ({where}); {again}")
