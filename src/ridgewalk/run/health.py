"""Chains that diverge: noticed in the step where it happens, reported with the cause and a hint."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk._compilation import jit
from ridgewalk._step_count import WORD
from ridgewalk._types import PyTree, Scalar, Vector
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Info, Sampler, build_kernel
from ridgewalk.preconditioners._curvature import largest_eigenvalue, random_direction, whitened_hessian_product

EXPLODING = 1e4
"""A potential has exploded when it is above the first one by so many times its size and the number of parameters."""


class Health(NamedTuple):
    """For every chain: the first step that went wrong (−1: none), why, and the newest potential.

    `step` and `high` are the two words of its number (see `StepCount`).
    """

    step: Scalar
    cause: Scalar
    potential: Scalar
    limit: Scalar
    high: Scalar

    def since(self, before: "Health", high: Scalar) -> "Health":
        """With the high word of the steps made since `before`."""
        return self._replace(high=jnp.where((self.step >= 0) & (before.step < 0), high, self.high))

    def steps(self) -> np.ndarray:
        """The number of the first step that went wrong, on the host, as int64; −1: none."""
        step, high = np.asarray(self.step, np.int64), np.asarray(self.high, np.int64)
        return np.where(step < 0, -1, high * WORD + step)


CAUSES = (
    "healthy",
    "the potential became NaN",
    "the potential became infinite",
    "the potential exploded",
    "the gradient became NaN or infinite",
    "the position became NaN or infinite",
)
EXPLODED = 3
"""A cause that only finite data can have: NaN or infinity in them makes the potential NaN or infinite instead."""

ENDED_OUTSIDE = 5
"""The cause where potential and gradient of the last step were finite and the position it led to is not."""


def healthy(potentials: Scalar, dimension: int, temperature: float) -> Health:
    """Chains before their first step, at potentials (chain,)."""
    here = np.asarray(potentials)  # on the host: operations of JAX outside `jit` would each be compiled
    offset = here.dtype.type((1 + float(temperature)) * dimension)
    limit = here + here.dtype.type(EXPLODING) * (np.abs(here) + offset + here.dtype.type(10))
    nothing = np.zeros(here.shape, np.int32)
    step, cause, rounds = (jnp.array(x) for x in (nothing - 1, nothing, nothing))
    return Health(step, cause, potentials, jnp.array(limit.astype(here.dtype)), rounds)


def watch(health: Health, info: Info, k: Scalar) -> Health:
    """With what a step showed; `k` is the low word of its number."""
    u = info.potential
    cause = jnp.where(jnp.isfinite(info.gradient_norm), 0, 4)
    cause = jnp.where(u > health.limit, EXPLODED, cause)
    cause = jnp.where(jnp.isinf(u), 2, jnp.where(jnp.isnan(u), 1, cause)).astype(jnp.int32)
    first = (health.step < 0) & (cause > 0)
    return Health(
        step=jnp.where(first, k, health.step).astype(jnp.int32),
        cause=jnp.where(first, cause, health.cause),
        potential=u.astype(health.potential.dtype),
        limit=health.limit,
        high=health.high,
    )


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
        f"step_size {step_size:.3g} is below the limit there ({advice}), so the chain met steeper ground: try "
        f"{step_size / 10:.1g}, a start nearer the mode, or a prior with lighter tails"
    )
