"""The optimiser phase of a fit: Adam from random weights to a mode, with checkpoints.

Adam on Ũ(θ) / (N m w), N examples of m outputs with likelihood power w (`data_weight`), with linear warm-up over the
first twentieth and cosine decay. Batch k of a start depends on its key and k only, so a resumed phase ends as an
uninterrupted one.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ridgewalk._compilation import jit
from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk.sampling import checkpoint
from ridgewalk.sampling.checkpoint import Checkpoint, config_snapshot, differences
from ridgewalk.sampling.runner import ChunkSizer, Report, StopFlag
from ridgewalk.schedules import Every, parse_interval
from ridgewalk.target import Posterior


class Schedule(NamedTuple):
    """Steps and learning rate of the optimiser, and the units of its loss."""

    steps: int
    learning_rate: float
    batch_size: int | None
    """None for all rows."""
    outputs: int
    data_weight: float
    """w: divided out, so that gradients are clipped at the same norm whatever it is."""
    examples: int | None = None
    """N, where it is not the number of rows."""
    epsilon: float = 1e-8
    """Added to the root mean square of a gradient, in units of the loss: weights whose gradients are smaller hardly
    move."""

    def optimiser(self) -> optax.GradientTransformation:
        """Adam, with gradients clipped at norm 1: the first ones may be large."""
        warm = max(self.steps // 20, 1)
        rate = optax.warmup_cosine_decay_schedule(0.0, self.learning_rate, warm, max(self.steps, warm + 1))
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, eps=self.epsilon))

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

    def loss(position: PyTree, batch: PyTree) -> Scalar:
        value = target.potential(position, batch)
        return value / units.astype(value.dtype)

    def batch(k: Scalar) -> PyTree:
        if schedule.batch_size is None:
            return target.data
        rows = jax.random.randint(jax.random.fold_in(key, k), (schedule.batch_size,), 0, target.size)
        return jax.tree.map(lambda x: x[rows], target.data)

    def step(k: Scalar, at: OptimiserState) -> OptimiserState:
        value, gradient = jax.value_and_grad(loss)(at.position, batch(k))
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
