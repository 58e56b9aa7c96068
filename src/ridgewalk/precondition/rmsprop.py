"""The diagonal preconditioner of pSGLD (Li et al. 2016)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import GradientAt, Unravel, Vector
from ridgewalk.precondition.base import Departure, Lesson, Preconditioner, Transition, no_lesson
from ridgewalk.precondition.spectrum import check_first_curvature, first_scale


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


@pytree_dataclass
class RMSProp(Preconditioner):
    """G_k = diag(1 / (λ + √V_k)), V_k = α V_{k−1} + (1−α) g_k ⊙ g_k.

    G is computed from the gradient it multiplies, as in the paper, and by default without Γ, also as there.
    Both bias the samples: a diagonal learnt from noisy gradients is for speed, not for exactness. V₀ is
    `first_curvature`, by default the largest at the start, which is what squared gradients come to along the steepest
    direction of a posterior; from V₀ = 0 a chain that starts at a mode would leave it with G = 1/λ. It takes 1/(1−α)
    times ln(V₀/V) steps to forget it: where runs are short, give the `second_moment` as it is at the start.
    With `curvature_correction`, Γ_i = ∂G_ii/∂θ_i = −G_ii² (1−α) g_i H_ii / √V_i, which costs d Hessian
    products a step: for small models and for measuring what leaving it out does.
    """

    decay: float = 0.99
    regularizer: float = 1e-5
    curvature_correction: bool = False
    first_curvature: float | None = None
    second_moment: jax.Array | None = array_field(default=None)
    """V₀ of every parameter, flat, in place of one for all."""

    def __post_init__(self) -> None:
        """Refuse decays and regularizers for which G is not defined."""
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay: {self.decay} is not in [0, 1); 0.99 remembers about 100 gradients")
        if self.regularizer <= 0:
            raise ValueError(f"regularizer: {self.regularizer} is not positive, so G may be infinite; try 1e-5")
        check_first_curvature(self.first_curvature)

    def specialise(self, dimension: int, unravel: Unravel) -> "RMSProp":
        """Itself."""
        return self

    def init(self, position: Vector, gradient_at: GradientAt) -> RMSPropOperator:
        """V₀ as given, else λ_max for all."""
        if self.second_moment is None:
            second_moment = jnp.full_like(position, first_scale(self.first_curvature, gradient_at, position))
        elif self.second_moment.shape == position.shape:
            second_moment = self.second_moment.astype(position.dtype)
        else:
            raise ValueError(
                f"second_moment: it has shape {self.second_moment.shape}, the flat position {position.shape}; give one "
                "number for each parameter"
            )
        root = 1 / jnp.sqrt(self.regularizer + jnp.sqrt(second_moment))
        return RMSPropOperator(second_moment, root, jnp.zeros_like(position))

    def prepare(self, operator: RMSPropOperator, departure: Departure) -> RMSPropOperator:
        """Take the current gradient into V."""
        g = departure.gradient
        second_moment = self.decay * operator.second_moment + (1 - self.decay) * g**2
        root_v = jnp.sqrt(second_moment)
        diagonal = 1 / (self.regularizer + root_v)
        gamma = operator.gamma
        if self.curvature_correction:
            hessian_diagonal = jnp.diagonal(jax.jacfwd(departure.gradient_at)(departure.position))
            slope = (1 - self.decay) * g * hessian_diagonal / jnp.where(root_v > 0, root_v, 1)
            gamma = -(diagonal**2) * jnp.where(root_v > 0, slope, 0)
        return RMSPropOperator(second_moment, jnp.sqrt(diagonal), gamma)

    def correction(self, operator: RMSPropOperator) -> Vector | None:
        """Γ, where asked for."""
        return operator.gamma if self.curvature_correction else None

    def learn(self, operator: RMSPropOperator, transition: Transition) -> tuple[RMSPropOperator, Lesson]:
        """Nothing: V is learnt before the step."""
        return operator, no_lesson(transition.before)

    def restrict(
        self, operator: RMSPropOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> RMSPropOperator:
        """As it is: a diagonal does not mix coordinates."""
        return operator
