"""What is measured at the start of a seed's chains, once for all methods: scales of weights, and curvatures."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree, Scalar, Vector
from ridgewalk.precondition.gradient_scale import gradient_scale
from ridgewalk.precondition.identity import Identity
from ridgewalk.precondition.rescaled import rescaled
from ridgewalk.precondition.spectrum import largest_curvature
from ridgewalk.ravel import layout_of
from ridgewalk.studies.darcy_posterior import Task, warm_settings, warm_start, weights_of
from ridgewalk.studies.kept import Arrays, kept
from ridgewalk.target import Posterior

SCALE_GRADIENTS = 50
"""Gradients that the scales cost; methods that use scales pay for them."""
LEAST = 0.01
"""Share of the 99 % quantile that every curvature counts as at least: idle units of the start wake as chains move."""
CURVATURE_EXAMPLES = 200
"""Training samples in each Hessian product of the power iterations."""


class Look(NamedTuple):
    """Scales of the weights, and λ_max of the Hessian in the weights' own units and in units of their `scale`."""

    scale: PyTree
    second_moment: PyTree
    """E g² of a batch as the scales tell it: with the prior's curvature times N/n, and not below their least."""
    steepest: float
    steepest_rescaled: float


@partial(jax.jit, static_argnames="stride")
def _steepest(target: Posterior, position: PyTree, scale: Vector, *, stride: int) -> Scalar:
    form = layout_of(position)
    examples = jax.tree.map(lambda x: x[::stride], target.data)

    def gradient_at(vector: Vector) -> Vector:
        return scale * form.ravel(jax.grad(target.potential)(form.unravel(scale * vector), examples))

    return largest_curvature(gradient_at, form.ravel(position) / scale)


def look(task: Task, seed: int, folder: Path) -> Look:
    """Of the start of a seed; kept on disk with it."""
    start, settings = warm_start(task, seed, folder), task.settings
    about = warm_settings(settings) | {"mirror": task.mirror, "seed": seed, "data": task.data.label}
    about |= {"gradients": SCALE_GRADIENTS, "examples": CURVATURE_EXAMPLES, "least": LEAST}

    def make(_: Path) -> Arrays:
        key = jax.random.key(2_000 + seed)
        size, count = settings.batch_size, SCALE_GRADIENTS
        scale = gradient_scale(key, task.target, start, batch_size=size, batches=count, least=LEAST)
        flat = rescaled(Identity(), scale).scale
        stride = -(-task.target.size // CURVATURE_EXAMPLES)
        arrays = {f"{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(scale))}
        arrays["steepest"] = np.asarray(_steepest(task.target, start, jnp.ones_like(flat), stride=stride))
        arrays["steepest_rescaled"] = np.asarray(_steepest(task.target, start, flat, stride=stride))
        return arrays

    found = kept(folder, f"look-seed{seed}", about, make)
    numbers = [found.pop(name).item() for name in ("steepest", "steepest_rescaled")]
    scale = weights_of(task, found)
    batches = task.target.size / settings.batch_size
    return Look(scale, jax.tree.map(lambda s: batches * s**-4, scale), *numbers)
