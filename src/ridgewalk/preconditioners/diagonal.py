"""A diagonal G learnt from curvature pairs by stochastic approximation, for scales that differ between parameters."""

from typing import NamedTuple

import jax.numpy as jnp

from ridgewalk._control_flow import every
from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import Adaptation, GradientAt, Scalar, Vector
from ridgewalk._validation import check_between, check_whole
from ridgewalk.preconditioners._curvature import (
    check_first_curvature,
    hessian_product,
    initial_curvature,
    is_usable,
    measure_pair,
    random_direction,
)
from ridgewalk.preconditioners.base import AdaptivePreconditioner, FactorMethods, Transition, UpdateInfo
from ridgewalk.schedules import DEFAULT_ADAPTATION, adaptation_weight

LEAST_GRADIENT = 1e-3
"""Relative to the root mean square: what counts as the smallest gradient of a parameter in the first G of warm-up."""


class _DiagonalFields(NamedTuple):
    root: Vector
    steps: Vector
    changes: Vector


class DiagonalOperator(_DiagonalFields, FactorMethods):
    """G = diag(root²), and the sums of s² and y² over the pairs of the current window."""

    @property
    def diagonal(self) -> Vector:
        """The diagonal of G."""
        return self.root**2


def _operator(diagonal: Vector) -> DiagonalOperator:
    nothing = jnp.zeros_like(diagonal)
    return DiagonalOperator(jnp.sqrt(diagonal), nothing, nothing)


@pytree_dataclass
class Diagonal(AdaptivePreconditioner):
    """log G_ii = (1−ω_k) log G_ii + ω_k log √(Σ s_i² / Σ y_i²), sums over windows of `memory` curvature pairs (s, y).

    On a Gaussian target with Hessian H and pairs in random directions, Σ y_i² / Σ s_i² is (H²)_ii: G is the inverse
    root of the row sums of squares, 1/H_ii if H is diagonal. No window changes an entry by more than `growth`^ω_k.
    Pairs cost one gradient each, every `curvature_every` steps; a product with G costs O(d).
    """

    memory: int = 10
    adaptation: Adaptation = DEFAULT_ADAPTATION
    curvature_every: int = 1
    growth: float = 100.0
    first_curvature: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_whole("memory", self.memory, 1, "the default is 10")
        check_whole("curvature_every", self.curvature_every, 1, "use 1 for a pair in every step")
        check_between("growth", self.growth, 1, float("inf"), "()", "at 1 G could not change; the default is 100")
        check_first_curvature(self.first_curvature)

    @property
    def interval(self) -> int:
        """Every `curvature_every`-th step gives a pair."""
        return self.curvature_every

    def init(self, position: Vector, gradient_at: GradientAt) -> DiagonalOperator:
        """G₀ = I / λ_max."""
        curvature = initial_curvature(self.first_curvature, gradient_at, position)
        return _operator(jnp.full_like(position, 1 / curvature))

    def init_from_diagonal(self, position: Vector, gradient_at: GradientAt, diagonal: Vector) -> DiagonalOperator:
        """G₀ = diag(diagonal)."""
        return _operator(diagonal)

    def init_from_gradient(self, position: Vector, gradient_at: GradientAt) -> DiagonalOperator:
        """G₀ = diag(1/|g|): the first step moves every parameter by about ε, whatever the scale of its gradient.

        At a stationary point the gradient says nothing; there a hundredth of the size of H v, v random signs, bounds G.
        """
        signs = jnp.sign(random_direction(position)).astype(position.dtype)
        curvature = jnp.abs(hessian_product(gradient_at, position)(signs))
        curvature = jnp.where(jnp.isfinite(curvature), curvature, 0)
        size = jnp.maximum(jnp.abs(gradient_at(position)), 0.01 * curvature)
        least = LEAST_GRADIENT * jnp.sqrt(jnp.mean(size**2))
        return _operator(1 / jnp.where(least > 0, jnp.maximum(size, least), 1))

    def adapt(self, operator: DiagonalOperator, transition: Transition) -> tuple[DiagonalOperator, UpdateInfo]:
        """Add the pair of this step; after `memory` pairs, average."""
        s, y = measure_pair(transition)
        good = is_usable(s @ s, s @ y, y @ y)
        now = operator._replace(
            steps=operator.steps + jnp.where(good, s**2, 0), changes=operator.changes + jnp.where(good, y**2, 0)
        )
        pairs = transition.step // self.curvature_every
        hot = None if transition.hot_until is None else transition.hot_until // self.interval // self.memory
        after = every(self.memory, pairs, self._average, now, (pairs // self.memory, hot))
        return DiagonalOperator(*after), UpdateInfo(jnp.ones((), s.dtype), ~good)

    def _average(self, now: DiagonalOperator, windows: tuple[Scalar, Scalar | None]) -> DiagonalOperator:
        omega = adaptation_weight(self.adaptation, windows[0], now.root.dtype, windows[1])
        change = jnp.sqrt(now.steps / now.changes) / now.root**2
        usable = jnp.isfinite(change) & (change > 0)
        change = jnp.clip(jnp.where(usable, change, 1), 1 / self.growth, self.growth)
        return _operator(now.root**2 * change**omega)

    def limit(self, operator: DiagonalOperator, gradient: Vector, variance: Scalar) -> DiagonalOperator:
        """G_ii halved if |S_ii g_i| is above seven standard deviations."""
        large = (operator.root * gradient) ** 2 > 49 * variance
        return DiagonalOperator(jnp.where(large, 0.5**0.5, 1) * operator.root, operator.steps, operator.changes)

    def prune(
        self, operator: DiagonalOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> DiagonalOperator:
        """Unchanged: a diagonal does not mix parameters."""
        return operator
