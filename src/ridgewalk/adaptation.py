"""How fast stochastic approximation forgets: the weights ω_k."""

from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp

from ridgewalk.settings import settings
from ridgewalk.types import Scalar

Adaptation: TypeAlias = Callable[[Scalar], Scalar | float]
"""ω_k as a function of k = 1, 2, …"""


@settings
class PowerDecay:
    """ω_k = c₁ (k + c₂)^{−α}, the paper's choice, with Σω = ∞ for α ≤ 1 (and Σω² < ∞ for α > 1/2)."""

    c1: float = 5.0
    c2: float = 10.0
    alpha: float = 0.9

    def __post_init__(self) -> None:
        """Check that ω is defined and that the weights add up to infinity."""
        if self.c1 <= 0:
            raise ValueError(f"c1: {self.c1} is not positive, so nothing would ever be learnt; try 5.0")
        if self.c2 < 0:
            raise ValueError(f"c2: {self.c2} is negative, so ω is not defined for small k; try 10.0")
        if not 0 < self.alpha <= 1:
            raise ValueError(
                f"alpha: {self.alpha} is not in (0, 1]; above 1 the weights sum to a finite number and the "
                "average stops short of its fixed point; try 0.9"
            )

    def __call__(self, step: Scalar) -> Scalar:
        """ω_k."""
        return self.c1 * (step + self.c2) ** -self.alpha


def weight(adaptation: Adaptation, step: Scalar, dtype: jnp.dtype) -> Scalar:
    """ω_k, held inside [0, 0.999] so that the average stays positive definite."""
    return jnp.clip(jnp.asarray(adaptation(step.astype(dtype)), dtype), 0.0, 0.999)


DEFAULT_ADAPTATION = PowerDecay()
"""ω_k = 5 (k + 10)^{−0.9}, which the paper uses for the hyper-parameters of its regression."""
