"""`sample`: runs chains of a sampler on a target, from a key to draws."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import layout_of
from ridgewalk._types import Key, PyTree
from ridgewalk.data import Batches
from ridgewalk.gradients import GradientEstimator, as_estimator, estimator_on_device
from ridgewalk.kernel import Sampler
from ridgewalk.result import Result
from ridgewalk.sampling import validation
from ridgewalk.sampling.loop import DrawRecorder, LoopSpec, block_length, join_moments
from ridgewalk.sampling.runner import LONGEST_CHUNK, ChainGroup, ChainMethod, Runner, compile_seconds, split_chains
from ridgewalk.sampling.schedule import Every, RunSchedule, StepSizes, parse_interval
from ridgewalk.sampling.storage import RunWriter
from ridgewalk.target import Posterior, Target

BUFFER_NUMBERS = 2**22
"""About how many parameters the draw buffer holds on the device."""

EAGER_NUMBERS = 2**12
"""Draws of so few numbers are written in every step: asking whether one is due would cost more."""

MAY_CHANGE = ("target", "steps", "step_size", "store", "checkpoint", "checkpoint_every", "resume", "progress")
"""Arguments of `sample` that a resumed run is not compared by; the estimator and step sizes are compared instead."""


def sample(
    key: Key,
    sampler: Sampler,
    target: Target | GradientEstimator,
    position: PyTree,
    *,
    steps: int,
    step_size: float | Callable[[Any], Any],
    batch_size: int | None = None,
    chains: int = 1,
    burn_in: int = 0,
    thin: int = 1,
    start_per_chain: bool = False,
    chain_method: ChainMethod = "vectorized",
    replacement: bool = True,
    keep: Literal["draws", "moments"] | None = None,
    collect: Callable[[PyTree], Any] | None = None,
    store: str | Path | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: Every = "5 min",
    resume: bool = False,
    progress: bool = True,
) -> Result:
    """Run `chains` chains of `steps` steps and keep every `thin`-th position after `burn_in`.

    Ctrl-C ends the run after the current device call: a checkpoint is written, and the draws so far are returned.
    SIGTERM does the same and then ends the process with exit code 143.

    Args:
        key: a JAX random key; the same key gives the same draws.
        sampler: one of the recipes, such as `hasgld_sa()`, or a `Sampler(dynamics, preconditioner)`.
        target: a `Posterior`, a `Density`, or an estimator such as `control_variates(posterior, centre)`.
        position: where the chains start: any pytree of float arrays, whose structure and dtypes the draws keep.
        steps: steps of each chain, burn-in included.
        step_size: ε, a positive number or a schedule (any optax schedule: a function of the step, from 0); the drift
            is −ε G ∇U and the noise has covariance 2 ε T G.
        batch_size: examples of each step's batch; None uses the full data (or the batches as `Batches` gives them).
        chains: independent chains.
        burn_in: the number of first steps that are not kept.
        thin: keep every `thin`-th position after burn-in.
        start_per_chain: `position` has a leading axis with one start per chain.
        chain_method: "vectorized" runs all chains in one loop, "sequential" one after the other, "parallel" one on
            each device.
        replacement: draw batches with replacement; False goes through the data in a new random order every epoch.
        keep: "draws" keeps positions; "moments" only their running mean and variance, for models of millions of
            weights. None means draws, or moments where `collect` is given.
        collect: a function of the position whose value is kept for every draw, such as predictions on a grid.
        store: a folder to write the draws to (zarr) instead of memory; it can be read during the run.
        checkpoint: a folder for checkpoints, from which the same call with `resume=True` continues bit for bit.
        checkpoint_every: steps (500) or time ("10 min") between checkpoints.
        resume: continue from the newest checkpoint, or start a run if there is none.
        progress: show a progress bar if standard error is a terminal.
    """
    arguments = {name: value for name, value in locals().items() if name not in MAY_CHANGE}
    compiled_before = compile_seconds()
    validation.check_kinds(key, sampler, target)
    validation.check_counts(steps, burn_in, thin, chains)
    validation.check_pruning(sampler, steps)
    validation.check_keep(keep, collect, store)
    validation.check_resume(checkpoint, resume)
    schedule = RunSchedule(steps, burn_in, thin, chains, StepSizes(step_size, steps))
    parts = split_chains(chain_method, chains)
    estimator = as_estimator(target)
    data = estimator.target.data if isinstance(estimator.target, Posterior) else None
    indexer = validation.check_data(estimator.target, batch_size, replacement)
    nonfinite = validation.find_nonfinite_rows(data)
    if isinstance(data, Batches) and len(parts) > 1:
        raise ValueError(
            f"chain_method: {chain_method!r} with Batches would read the iterable once per chain; use 'vectorized'"
        )

    starts = _starts(validation.check_position(position), chains, start_per_chain)
    # Chains are taken apart on the host: operations of JAX outside `jit` would each be compiled.
    on_host_starts = jax.tree.map(np.asarray, starts)
    layout = layout_of(jax.tree.map(lambda x: x[0], on_host_starts))
    sampler.resolve(layout)
    on_device = estimator_on_device(estimator)
    potentials = [
        validation.check_functions(
            on_device.target, jax.tree.map(lambda x, c=chain: x[c], on_host_starts), indexer, nonfinite
        )
        for chain in range(chains if start_per_chain else 1)
    ]
    validation.check_precision(sampler, on_device, jax.tree.map(lambda x: x[0], on_host_starts))
    first_potentials = jnp.array(np.broadcast_to(np.asarray(potentials, layout.dtype), (chains,)))

    keep = keep or ("draws" if collect is None or store is not None else "moments")
    numbers = layout.size * chains
    eager = keep == "draws" and store is None and collect is None and numbers <= EAGER_NUMBERS
    recorder = DrawRecorder(keep == "draws", keep == "moments" or store is not None, collect, eager)
    spec = LoopSpec(block_length(layout.size, batch_size, chains, steps), indexer, recorder)
    buffer_draws = max(1, min(BUFFER_NUMBERS // numbers, LONGEST_CHUNK // thin, steps // thin))
    keys = jax.random.split(key, chains)
    groups = [
        ChainGroup(
            sampler,
            on_device,
            keys[part],
            jax.tree.map(lambda x, part=part: x[part], starts),
            first_potentials[part],
            spec,
            data,
            buffer_draws,
            device,
        )
        for part, device in parts
    ]
    settings = {**arguments, "estimator": estimator, "keep": keep, "x64": bool(jax.config.read("jax_enable_x64"))}
    every = parse_interval(checkpoint_every)
    writer = RunWriter(schedule, groups[0].draw_shapes(), settings, store, checkpoint, every, resume)
    with contextlib.closing(writer):
        runner = Runner(schedule, groups, writer, buffer_draws)
        runner.run(progress, compiled_before)
        status = runner.status(starts)
        draws = schedule.draws_by(runner.step)
        made = writer.result_draws(draws)
        moments = [group.carry.draws.moments for group in groups]
        return Result(
            positions=made.get("posterior"),
            final_states=tuple(state for group in groups for state in group.chain_states()),
            info=made["sample_stats"],
            step_sizes=schedule.draw_step_sizes(draws),
            sampler=sampler,
            estimator=estimator,
            batch_size=batch_size,
            status=status,
            steps=runner.step,
            collected=made.get("collected"),
            moments=None if moments[0] is None else join_moments(moments),
            store=writer.store_path,
            burn_in=burn_in,
            thin=thin,
        )


def _starts(position: PyTree, chains: int, per_chain: bool) -> PyTree:
    if not per_chain:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (chains, *x.shape)), position)
    for path, leaf in jax.tree_util.tree_flatten_with_path(position)[0]:
        if leaf.ndim < 1 or leaf.shape[0] != chains:
            raise ValueError(
                f"position{jax.tree_util.keystr(path)}: shape {leaf.shape} has no leading axis of {chains} chains, "
                "which start_per_chain=True asks for"
            )
    return position
