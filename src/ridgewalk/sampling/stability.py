"""The stability limit of the step size, and hints after a divergence (`loop.DivergenceMonitor` detects it)."""

import math

import jax
from jax.flatten_util import ravel_pytree

from ridgewalk._compilation import jit
from ridgewalk._types import PyTree, Scalar, Vector
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Sampler, build_kernel
from ridgewalk.preconditioners._curvature import largest_eigenvalue, random_direction, whitened_hessian_product


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
        f"step_size {step_size:.3g} is below the limit there ({advice}), so curvature along the chain exceeds that at "
        f"the start: try {step_size / 10:.1g}, a start nearer the mode, or a prior with lighter tails"
    )
