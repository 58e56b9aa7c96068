"""Step sizes ω_k of stochastic approximation, the weights of new values in running averages."""

import jax.numpy as jnp

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import Adaptation, Scalar
from ridgewalk._validation import check_between, check_positive


@pytree_dataclass
class PowerDecay:
    """ω_k = c₁ (k + c₂)^{−α}, the paper's choice, with Σω = ∞ for α ≤ 1 (and Σω² < ∞ for α > 1/2)."""

    c1: float = 5.0
    c2: float = 10.0
    alpha: float = 0.9

    def __post_init__(self) -> None:
        """Check that ω_k is defined and Σω = ∞."""
        check_positive("c1", self.c1, "with ω = 0 nothing is averaged; the default is 5.0")
        check_between("c2", self.c2, 0, float("inf"), "[)", "ω_k must be defined for k ≥ 1; the default is 10.0")
        check_between(
            "alpha", self.alpha, 0, 1, "(]", "above 1, Σω is finite and averages need not converge; the default is 0.9"
        )

    def __call__(self, step: Scalar) -> Scalar:
        """ω_k."""
        return self.c1 * (step + self.c2) ** -self.alpha


def adaptation_weight(adaptation: Adaptation, step: Scalar, dtype: jnp.dtype) -> Scalar:
    """ω_k clipped to [0, 0.999], so that averages of positive definite matrices stay positive definite."""
    return jnp.clip(jnp.asarray(adaptation(step.astype(dtype)), dtype), 0.0, 0.999)


DEFAULT_ADAPTATION = PowerDecay()
"""ω_k = 5 (k + 10)^{−0.9}, which the paper uses for the hyper-parameters of its regression."""
