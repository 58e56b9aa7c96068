"""Delayed Langevin dynamics: HAMCMC (Şimşekli et al. 2016)."""

import jax
import jax.numpy as jnp

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._random import Noise
from ridgewalk._types import Scalar, Vector
from ridgewalk.dynamics.base import Dynamics, Move
from ridgewalk.dynamics.langevin import Langevin
from ridgewalk.precondition.base import Operator
from ridgewalk.pruning import apply_mask


@pytree_dataclass
class Delayed(Dynamics):
    """θ_k = θ_{k−M} − ε G g(θ_{k−M}) + √(2 ε T) S z: M positions take turns.

    With a window of M − 1 pairs `(θ_j − θ_{j−M})`, j = k−M+1 … k−1, G uses θ_{k−2M+1} … θ_{k−1} without
    θ_{k−M}: it is computed without the point the step leaves from, and Γ is left out. That point still acts through the
    later ones (and through the γ before, where that bounds the new one), so a bias remains; it falls with M.
    """

    delay: int = 2
    temperature: float = 1.0
    noise: Noise = "gaussian"

    def __post_init__(self) -> None:
        """Check the settings."""
        self.check_common()
        if self.delay < 2:
            raise ValueError(f"delay: {self.delay} is below 2; with 1 this is Langevin dynamics")

    @property
    def takes_correction(self) -> bool:
        """Yes."""
        return True

    def init(self, position: Vector) -> jax.Array:
        """All M positions start at one point."""
        return jnp.tile(position, (self.delay, 1))

    def origin(self, state: jax.Array, position: Vector, step: Scalar) -> Vector:
        """θ_{k−M}."""
        return state[step % self.delay]

    def move(
        self,
        state: jax.Array,
        operator: Operator,
        gradient: Vector,
        noise: Vector,
        step_size: Scalar,
        step: Scalar,
        degrees: Scalar | int,
    ) -> tuple[jax.Array, Move]:
        """One Langevin step from θ_{k−M}."""
        rule = Langevin(self.temperature, self.noise)
        return state, rule.move((), operator, gradient, noise, step_size, step, degrees)[1]

    def arrive(self, state: jax.Array, position: Vector, step: Scalar) -> jax.Array:
        """θ_k takes the place of θ_{k−M}."""
        return state.at[step % self.delay].set(position)

    def restrict(self, state: jax.Array, mask: Vector) -> jax.Array:
        """All M positions are pruned alike."""
        return apply_mask(state, mask)
