"""The diagonal preconditioner of pSGLD (Li et al. 2016)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk.precondition.base import (
    Departure,
    GradientAt,
    Lesson,
    Preconditioner,
    Transition,
    Unravel,
    no_lesson,
)
from ridgewalk.settings import settings
from ridgewalk.types import Vector


class RMSPropOperator(NamedTuple):
    """G = diag(1 / (λ + √V)), with the running second moment V of the gradient and, where asked for, Γ."""

    second_moment: Vector
    root: Vector
    gamma: Vector

    def multiply(self, vector: Vector) -> Vector:
        """G v."""
        return self.root**2 * vector

    def factor(self, noise: Vector) -> Vector:
        """S z."""
        return self.root * noise

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v."""
        return self.root * vector

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z."""
        return self.root * (self.root * covector + noise)


@settings
class RMSProp(Preconditioner):
    """G_k = diag(1 / (λ + √V_k)), V_k = α V_{k−1} + (1−α) g_k ⊙ g_k, with V_1 = g_1 ⊙ g_1.

    G is computed from the gradient it multiplies, as in the paper, and by default without Γ, also as there.
    Both bias the samples: a diagonal learnt from noisy gradients is for speed, not for exactness.
    With `curvature_correction`, Γ_i = ∂G_ii/∂θ_i = −G_ii² (1−α) g_i H_ii / √V_i, which costs d Hessian
    products a step: for small models and for measuring what leaving it out does.
    """

    decay: float = 0.99
    regularizer: float = 1e-5
    curvature_correction: bool = False

    def __post_init__(self) -> None:
        """Refuse decays and regularizers for which G is not defined."""
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay: {self.decay} is not in [0, 1); 0.99 remembers about 100 gradients")
        if self.regularizer <= 0:
            raise ValueError(f"regularizer: {self.regularizer} is not positive, so G may be infinite; try 1e-5")

    def specialise(self, dimension: int, unravel: Unravel) -> "RMSProp":
        """Itself."""
        return self

    def init(self, position: Vector, gradient_at: GradientAt) -> RMSPropOperator:
        """V = 0 until the first gradient is seen."""
        zeros = jnp.zeros_like(position)
        return RMSPropOperator(zeros, jnp.ones_like(position), zeros)

    def prepare(self, operator: RMSPropOperator, departure: Departure) -> RMSPropOperator:
        """Take the current gradient into V."""
        g = departure.gradient
        decay = jnp.where(departure.step == 1, 0.0, self.decay).astype(g.dtype)
        second_moment = decay * operator.second_moment + (1 - decay) * g**2
        root_v = jnp.sqrt(second_moment)
        diagonal = 1 / (self.regularizer + root_v)
        gamma = operator.gamma
        if self.curvature_correction:
            hessian_diagonal = jnp.diagonal(jax.jacfwd(departure.gradient_at)(departure.position))
            slope = (1 - decay) * g * hessian_diagonal / jnp.where(root_v > 0, root_v, 1)
            gamma = -(diagonal**2) * jnp.where(root_v > 0, slope, 0)
        return RMSPropOperator(second_moment, jnp.sqrt(diagonal), gamma)

    def correction(self, operator: RMSPropOperator) -> Vector | None:
        """Γ, where asked for."""
        return operator.gamma if self.curvature_correction else None

    def learn(self, operator: RMSPropOperator, transition: Transition) -> tuple[RMSPropOperator, Lesson]:
        """Nothing: V is learnt before the step."""
        return operator, no_lesson(transition.before)
