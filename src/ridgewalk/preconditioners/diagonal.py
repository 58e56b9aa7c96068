"""Diagonal preconditioners: G learnt from curvature pairs by stochastic approximation, and RMSProp of pSGLD.

Both are for scales that differ between parameters. pSGLD is by Li et al. (2016).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._compilation import every
from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import Adaptation, GradientAt, Scalar, Vector
from ridgewalk._validation import check_between, check_positive, check_whole
from ridgewalk.preconditioners.base import (
    AdaptivePreconditioner,
    FactorMethods,
    Preconditioner,
    StepContext,
    Transition,
    UpdateInfo,
    check_first_curvature,
    hessian_product,
    initial_curvature,
    is_usable,
    measure_pair,
    no_update,
    random_direction,
)
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

    def limit(
        self, operator: DiagonalOperator, gradient: Vector, variance: Scalar, largest: Scalar
    ) -> DiagonalOperator:
        """G_ii halved if |S_ii g_i| is above seven standard deviations of the direction of most noise."""
        large = (operator.root * gradient) ** 2 > 49 * largest
        return DiagonalOperator(jnp.where(large, 0.5**0.5, 1) * operator.root, operator.steps, operator.changes)

    def prune(
        self, operator: DiagonalOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> DiagonalOperator:
        """Unchanged: a diagonal does not mix parameters."""
        return operator


class _RMSPropFields(NamedTuple):
    second_moment: Vector
    root: Vector
    gamma: Vector


class RMSPropOperator(_RMSPropFields, FactorMethods):
    """G = diag(1 / (λ + √V)), with the running second moment V of the gradient and, if asked for, Γ."""


@pytree_dataclass
class RMSProp(Preconditioner):
    """G_k = diag(1 / (λ + √V_k)), V_k = α V_{k−1} + (1−α) g_k ⊙ g_k.

    G is computed from the gradient it multiplies, and by default without Γ, both as in the paper. Both bias the
    samples: a diagonal learnt from noisy gradients is for speed, not for exactness. V₀ is `first_curvature`, by default
    the largest curvature at the start, which squared gradients reach along the steepest direction of a posterior; with
    V₀ = 0 a chain that starts at a mode would leave it with G = 1/λ. V₀ is forgotten after ln(V₀/V) / (1−α) steps: in
    short runs, pass the `second_moment` at the start. With `curvature_correction`,
    Γ_i = ∂G_ii/∂θ_i = −G_ii² (1−α) g_i H_ii / √V_i, which costs d Hessian products a step: for small models, and to
    measure the effect of leaving it out.
    """

    decay: float = 0.99
    regularizer: float = 1e-5
    curvature_correction: bool = False
    first_curvature: float | None = None
    second_moment: jax.Array | None = array_field(default=None)
    """V₀ of each parameter, flat, instead of one value for all."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_between("decay", self.decay, 0, 1, "[)", "0.99 averages about 100 gradients")
        check_positive("regularizer", self.regularizer, "G may be infinite without it; the default is 1e-5")
        check_first_curvature(self.first_curvature)

    def init(self, position: Vector, gradient_at: GradientAt) -> RMSPropOperator:
        """V₀ as given, else λ_max for all parameters."""
        if self.second_moment is None:
            second_moment = jnp.full_like(position, initial_curvature(self.first_curvature, gradient_at, position))
        elif self.second_moment.shape == position.shape:
            second_moment = self.second_moment.astype(position.dtype)
        else:
            raise ValueError(
                f"second_moment: it has shape {self.second_moment.shape}, the flat position {position.shape}; give one "
                "number for each parameter"
            )
        root = 1 / jnp.sqrt(self.regularizer + jnp.sqrt(second_moment))
        return RMSPropOperator(second_moment, root, jnp.zeros_like(position))

    def prepare(self, operator: RMSPropOperator, context: StepContext) -> RMSPropOperator:
        """V with the current gradient."""
        g = context.gradient
        second_moment = self.decay * operator.second_moment + (1 - self.decay) * g**2
        root_v = jnp.sqrt(second_moment)
        diagonal = 1 / (self.regularizer + root_v)
        gamma = operator.gamma
        if self.curvature_correction:
            hessian_diagonal = jnp.diagonal(jax.jacfwd(context.gradient_at)(context.position))
            slope = (1 - self.decay) * g * hessian_diagonal / jnp.where(root_v > 0, root_v, 1)
            gamma = -(diagonal**2) * jnp.where(root_v > 0, slope, 0)
        return RMSPropOperator(second_moment, jnp.sqrt(diagonal), gamma)

    def correction(self, operator: RMSPropOperator) -> Vector | None:
        """Γ, if asked for."""
        return operator.gamma if self.curvature_correction else None

    def update(self, operator: RMSPropOperator, transition: Transition) -> tuple[RMSPropOperator, UpdateInfo]:
        """No update: V is updated before the step."""
        return operator, no_update(transition.before)

    def prune(
        self, operator: RMSPropOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> RMSPropOperator:
        """Unchanged: a diagonal does not mix parameters."""
        return operator
