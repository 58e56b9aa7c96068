"""`sample`: the whole run, from a key to draws."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, PyTree
from ridgewalk.data import Batches, on_host
from ridgewalk.gradients import GradientEstimator, as_estimator, estimator_on_device
from ridgewalk.kernel import Sampler
from ridgewalk.ravel import layout_of
from ridgewalk.result import ChainStatus, Result
from ridgewalk.run import checks
from ridgewalk.run.archive import RunWriter
from ridgewalk.run.finite import suspects
from ridgewalk.run.groups import ChainMethod, Group, Stream, split_chains
from ridgewalk.run.loop import Chunk, block_length
from ridgewalk.run.pace import LONGEST_CHUNK
from ridgewalk.run.plan import Every, Plan, parse_every
from ridgewalk.run.recording import Recording, join_moments
from ridgewalk.run.rows import Rows
from ridgewalk.run.session import Session
from ridgewalk.run.step_sizes import StepSizes
from ridgewalk.target import Posterior, Target

CHUNK_NUMBERS = 2**22
"""About how many parameters a chunk's draws hold on the device."""

EAGER_NUMBERS = 2**12
"""Draws of so few numbers are written in every step: asking whether one is due would cost more."""


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
    every: Every = "5 min",
    resume: bool = False,
    progress: bool = True,
) -> Result:
    """Run `chains` chains of `steps` steps and keep every `thin`-th position after `burn_in`.

    Ctrl-C and SIGTERM end the run after the current chunk, write a checkpoint and return what there is.

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
        burn_in: first steps that are not kept.
        thin: keep one of so many positions.
        start_per_chain: `position` has a leading axis with one start per chain.
        chain_method: "vectorized" runs all chains in one loop, "sequential" one after the other, "parallel" one on
            each device.
        replacement: draw batches with replacement; False goes through the data in a new random order every epoch.
        keep: "draws" keeps positions; "moments" only their running mean and variance, for models of millions of
            weights. None means draws, or moments where `collect` is given.
        collect: a function of the position whose value is kept for every draw, such as predictions on a grid.
        store: a folder to stream the draws to (zarr), in place of memory; it can be read while the run goes on.
        checkpoint: a folder for checkpoints, from which the same call with `resume=True` continues bit for bit.
        every: steps (500) or time ("10 min") between checkpoints.
        resume: continue from the newest checkpoint, or begin where there is none.
        progress: show a bar, where there is a terminal.
    """
    checks.check_kinds(key, sampler, target)
    checks.check_counts(steps, burn_in, thin, chains)
    checks.check_pruning(sampler, steps)
    plan = Plan(steps, burn_in, thin, chains, StepSizes(step_size, steps))
    checks.check_keep(keep, collect, store)
    checks.check_resume(checkpoint, resume)
    parts = split_chains(chain_method, chains)
    estimator = as_estimator(target)
    data = estimator.target.data if isinstance(estimator.target, Posterior) else None
    rows = checks.check_data(estimator.target, batch_size, replacement)
    suspected = suspects(data)
    if isinstance(data, Batches) and len(parts) > 1:
        raise ValueError(
            f"chain_method: {chain_method!r} with Batches would read the iterable once per chain; use 'vectorized'"
        )

    starts = _starts(checks.check_position(position), chains, start_per_chain)
    # Chains are taken apart on the host: operations of JAX outside `jit` would each be compiled.
    on_host_starts = jax.tree.map(np.asarray, starts)
    form = layout_of(jax.tree.map(lambda x: x[0], on_host_starts))
    sampler.resolve(form)
    inside, stream = _inside(estimator)
    potentials = [
        checks.check_functions(inside.target, jax.tree.map(lambda x, c=chain: x[c], on_host_starts), rows, suspected)
        for chain in range(chains if start_per_chain else 1)
    ]
    checks.check_precision(sampler, inside, jax.tree.map(lambda x: x[0], on_host_starts))
    first_potentials = jnp.array(np.broadcast_to(np.asarray(potentials, form.dtype), (chains,)))

    keep = keep or ("draws" if collect is None or store is not None else "moments")
    eager = keep == "draws" and store is None and collect is None and form.size * chains <= EAGER_NUMBERS
    recording = Recording(keep == "draws", keep == "moments" or store is not None, collect, eager)
    block = block_length(form.size, batch_size, chains, steps)
    chunk = Chunk(block, rows if stream is None else Rows("stream"), recording)
    slots = max(1, min(CHUNK_NUMBERS // (form.size * chains), LONGEST_CHUNK // thin, steps // thin))
    keys = jax.random.split(key, chains)
    groups = [
        Group(
            sampler,
            inside,
            keys[part],
            jax.tree.map(lambda x, part=part: x[part], starts),
            first_potentials[part],
            chunk,
            rows,
            stream,
            slots,
            device,
        )
        for part, device in parts
    ]
    settings = {
        "sampler": sampler,
        "estimator": estimator,
        "key": key,
        "position": position,
        "chains": chains,
        "burn_in": burn_in,
        "thin": thin,
        "batch_size": batch_size,
        "start_per_chain": start_per_chain,
        "chain_method": chain_method,
        "replacement": replacement,
        "keep": keep,
        "collect": collect,
        "x64": bool(jax.config.read("jax_enable_x64")),
    }
    archive = RunWriter(plan, groups[0].like(), settings, store, checkpoint, parse_every(every), resume)
    with contextlib.closing(archive):
        session = Session(plan, groups, archive, slots)
        session.run(progress)
        status = session.status(starts)
        return _result(session, sampler, estimator, batch_size, status)


def _result(
    session: Session,
    sampler: Sampler,
    estimator: GradientEstimator,
    batch_size: int | None,
    status: tuple[ChainStatus, ...],
) -> Result:
    """The draws and states of a session that has ended."""
    draws, archive = session.plan.draws_by(session.step), session.archive
    groups = archive.result_draws(draws)
    moments = [group.carry.draws.moments for group in session.groups]
    return Result(
        positions=groups.get("posterior"),
        final_states=tuple(state for group in session.groups for state in group.chain_states()),
        info=groups["sample_stats"],
        step_sizes=session.plan.draw_step_sizes(draws),
        sampler=sampler,
        estimator=estimator,
        batch_size=batch_size,
        status=status,
        steps=session.step,
        collected=groups.get("collected"),
        moments=None if moments[0] is None else join_moments(moments),
        store=archive.store_path,
        burn_in=session.plan.burn_in,
        thin=session.plan.thin,
    )


def _inside(estimator: GradientEstimator) -> tuple[GradientEstimator, Stream | None]:
    """The estimator as compiled code sees it, and the data that stay on the host."""
    target, inside = estimator.target, estimator_on_device(estimator)
    if not (isinstance(target, Posterior) and on_host(target.data)):
        return inside, None
    return inside, Stream(target.data, inside.target.data.examples)  # type: ignore[union-attr]


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
