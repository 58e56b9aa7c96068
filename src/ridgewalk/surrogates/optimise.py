"""The optimiser phase: from random weights to a mode, so that chains start where the posterior is.

Adam on Ũ(θ) / (N m w), N examples of m outputs that each count w times (`data_weight`), with a rate that rises over the
first twentieth and falls along a cosine.
Batch k of a start depends on its key and k only, so a phase that was killed ends as one that was not.
"""

import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk.run import checkpoint
from ridgewalk.run.checkpoint import Checkpoint
from ridgewalk.run.fingerprint import describe, differences
from ridgewalk.run.pace import Pace
from ridgewalk.run.plan import Every, parse_every
from ridgewalk.run.progress import Report
from ridgewalk.run.stopping import Request
from ridgewalk.target import Posterior


class Schedule(NamedTuple):
    """How long and how fast."""

    steps: int
    learning_rate: float
    batch_size: int
    outputs: int
    data_weight: float
    """w: divided out, so that gradients are cut at the same length whatever it is."""

    def optimiser(self) -> optax.GradientTransformation:
        """Adam, with gradients cut at 1: the first ones of a cold start may be large."""
        warm = max(self.steps // 20, 1)
        rate = optax.warmup_cosine_decay_schedule(0.0, self.learning_rate, warm, max(self.steps, warm + 1))
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


class Progressed(NamedTuple):
    """Where the phase is."""

    position: PyTree
    optimiser: PyTree
    losses: jax.Array
    """Ũ / (N m w) of every step made so far, zero for the others."""


class Keeping(NamedTuple):
    """Where checkpoints of a start go, how often, and with which settings; nowhere without a folder."""

    folder: Path | None
    every: Every
    settings: dict[str, object]


class Optimised(NamedTuple):
    """The end of a phase."""

    position: PyTree
    losses: np.ndarray
    finished: bool


@partial(jax.jit, static_argnames="schedule")
def begin(position: PyTree, *, schedule: Schedule) -> Progressed:
    """Before the first step."""
    dtype = jnp.result_type(*jax.tree.leaves(position))
    return Progressed(position, schedule.optimiser().init(position), jnp.zeros(schedule.steps, dtype))


@partial(jax.jit, static_argnames="schedule", donate_argnums=2)
def _advance(
    target: Posterior, key: Key, at: Progressed, start: Scalar, stop: Scalar, *, schedule: Schedule
) -> Progressed:
    optimiser = schedule.optimiser()

    def loss(position: PyTree, rows: jax.Array) -> Scalar:
        batch = jax.tree.map(lambda x: x[rows], target.data)
        # Divided by a float: the number of targets may exceed int32.
        return target.potential(position, batch) / float(target.size * schedule.outputs * schedule.data_weight)

    def step(k: Scalar, at: Progressed) -> Progressed:
        rows = jax.random.randint(jax.random.fold_in(key, k), (schedule.batch_size,), 0, target.size)
        value, gradient = jax.value_and_grad(loss)(at.position, rows)
        updates, state = optimiser.update(gradient, at.optimiser, at.position)
        return Progressed(optax.apply_updates(at.position, updates), state, at.losses.at[k].set(value))

    return jax.lax.fori_loop(start, stop, step, at)


def optimise(
    key: Key,
    target: Posterior,
    position: PyTree,
    schedule: Schedule,
    keeping: Keeping,
    report: Report,
    request: Request,
) -> Optimised:
    """All steps, or those until a signal arrives; resumed from the newest checkpoint where there is one."""
    at, done = _resumed(begin(position, schedule=schedule), keeping)
    between = parse_every(keeping.every)
    pace, saved_at, saved = Pace(), time.monotonic(), done
    while done < schedule.steps and not request.signal:
        stop = min(done + pace.length, schedule.steps)
        if between[0] is not None:
            stop = min(stop, (done // between[0] + 1) * between[0])
        at = _advance(target, key, at, jnp.asarray(done), jnp.asarray(stop), schedule=schedule)
        newest = np.asarray(at.losses)[stop - 1 : stop]
        pace.made(stop - done)
        done = stop
        report(done, newest, np.isfinite(newest))
        if not np.isfinite(newest).all():
            raise ValueError(
                f"learning_rate: {schedule.learning_rate} made the loss {newest[0]} in optimiser step {done}; "
                "lower it by a factor of 10, or check the data for extreme values"
            )
        seconds = between[1]
        if done % between[0] == 0 if between[0] is not None else time.monotonic() - saved_at >= (seconds or 0):
            _save(at, done, keeping)
            saved_at, saved = time.monotonic(), done
    if done > saved:
        _save(at, done, keeping)
    return Optimised(at.position, np.asarray(at.losses, float)[:done], done == schedule.steps)


def _save(at: Progressed, done: int, keeping: Keeping) -> None:
    if keeping.folder is None:
        return
    arrays = [np.array(leaf) for leaf in jax.tree.leaves(at)]
    checkpoint.write(keeping.folder, Checkpoint(done, arrays, describe(keeping.settings)))


def _resumed(fresh: Progressed, keeping: Keeping) -> tuple[Progressed, int]:
    if keeping.folder is None:
        return fresh, 0
    keeping.folder.mkdir(parents=True, exist_ok=True)
    found = checkpoint.latest(keeping.folder)
    if found is None:
        return fresh, 0
    changed = differences(found.settings, describe(keeping.settings))
    if changed:
        listed = "\n  ".join(changed)
        raise ValueError(
            f"checkpoint: {keeping.folder} was begun with other settings:\n  {listed}\n"
            "use the same settings, or another folder"
        )
    leaves, structure = jax.tree.flatten(fresh)
    if [(x.shape, x.dtype) for x in leaves] != [(x.shape, x.dtype) for x in found.arrays]:
        raise ValueError(f"checkpoint: arrays in {keeping.folder} do not fit this network; use another folder")
    return jax.tree.unflatten(structure, [jnp.asarray(x) for x in found.arrays]), found.step
