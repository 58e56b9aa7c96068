"""The diagonal preconditioner of pSGLD (Li et al. 2016)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import GradientAt, Vector
from ridgewalk._validation import check_between, check_positive
from ridgewalk.preconditioners._curvature import check_first_curvature, initial_curvature
from ridgewalk.preconditioners.base import FactorMethods, Preconditioner, StepContext, Transition, UpdateInfo, no_update


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
