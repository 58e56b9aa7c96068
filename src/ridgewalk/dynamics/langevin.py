"""Overdamped Langevin dynamics, and the delayed variant of HAMCMC (Şimşekli et al. 2016)."""

from typing import Any

import jax
import jax.numpy as jnp

from ridgewalk._pytree import apply_mask, pytree_dataclass
from ridgewalk._random import Noise
from ridgewalk._types import Scalar, Vector
from ridgewalk._validation import check_whole
from ridgewalk.dynamics.base import Dynamics, Move, remaining_noise
from ridgewalk.preconditioners.base import Operator, StepContext


@pytree_dataclass
class Langevin(Dynamics):
    """θ' = θ − ε (G g − T Γ) + √(2 ε T) S z (eq. 3, with T = 1/τ).

    The step size ε multiplies the whole gradient and the noise has variance 2ε, as in the paper and in
    BlackJAX; libraries that write ε/2 and ε need twice our ε. After a warm-up that measured the variance V of the
    gradient's noise in whitened coordinates, the injected noise has variance 2 ε T − ε² V (Vollmer et al. 2016).
    """

    temperature: float = 1.0
    noise: Noise = "gaussian"

    @property
    def takes_correction(self) -> bool:
        """Yes."""
        return True

    def init(self, position: Vector) -> Any:
        """No state besides the position."""
        return ()

    def move(self, state: Any, operator: Operator, context: StepContext) -> tuple[Any, Move]:
        """One Euler step."""
        covector = -context.step_size * context.gradient
        variance = 2 * context.step_size * self.temperature
        if context.noise_variance is not None:
            variance = remaining_noise(variance, context.step_size**2 * context.noise_variance)
        scaled = jnp.sqrt(variance) * context.noise
        displacement = operator.drift_plus_noise(covector, scaled)

        def temperature() -> Scalar:
            return (scaled @ scaled + covector @ displacement) / (2 * context.step_size * context.degrees_of_freedom)

        return state, Move(displacement, covector, lambda: scaled, temperature)

    def prune(self, state: Any, mask: Vector) -> Any:
        """No state to prune."""
        return state


@pytree_dataclass
class DelayedLangevin(Langevin):
    """θ_k = θ_{k−M} − ε G g(θ_{k−M}) + √(2 ε T) S z: Langevin steps of M interleaved positions, M = `delay`.

    With a window of M − 1 pairs `(θ_j − θ_{j−M})`, j = k−M+1 … k−1, G depends on θ_{k−2M+1} … θ_{k−1} except
    θ_{k−M}: not on the point that the step leaves from, and Γ is left out. That point still acts through the later
    ones (and through the γ before, if that bounds the new one), so a bias remains; it decreases with M.
    """

    delay: int = 2

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_whole("delay", self.delay, 2, "with 1 this is Langevin dynamics")

    def init(self, position: Vector) -> jax.Array:
        """All M positions start at one point."""
        return jnp.tile(position, (self.delay, 1))

    def origin(self, state: jax.Array, position: Vector, step: Scalar) -> Vector:
        """θ_{k−M}."""
        return state[step % self.delay]

    def arrive(self, state: jax.Array, position: Vector, step: Scalar) -> jax.Array:
        """θ_k replaces θ_{k−M}."""
        return state.at[step % self.delay].set(position)

    def prune(self, state: jax.Array, mask: Vector) -> jax.Array:
        """All M positions are pruned alike."""
        return apply_mask(state, mask)
