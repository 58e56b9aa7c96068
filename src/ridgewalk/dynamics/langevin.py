"""Overdamped Langevin dynamics."""

import jax.numpy as jnp

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._random import Noise
from ridgewalk._types import Scalar, Vector
from ridgewalk.dynamics.base import Dynamics, Move
from ridgewalk.precondition.base import Operator


@pytree_dataclass
class Langevin(Dynamics):
    """θ' = θ − ε (G g − T Γ) + √(2 ε T) S z (eq. 3, with T = 1/τ).

    The step size ε multiplies the whole gradient and the noise has variance 2ε, as in the paper and in
    BlackJAX; libraries that write ε/2 and ε need twice our ε.
    """

    temperature: float = 1.0
    noise: Noise = "gaussian"

    def __post_init__(self) -> None:
        """Check the settings."""
        self.check_common()

    @property
    def takes_correction(self) -> bool:
        """Yes."""
        return True

    def init(self, position: Vector) -> tuple[()]:
        """Nothing but the position."""
        return ()

    def origin(self, state: tuple[()], position: Vector, step: Scalar) -> Vector:
        """Where the chain is."""
        return position

    def move(
        self,
        state: tuple[()],
        operator: Operator,
        gradient: Vector,
        noise: Vector,
        step_size: Scalar,
        step: Scalar,
        degrees: Scalar | int,
    ) -> tuple[tuple[()], Move]:
        """One Euler step."""
        covector = -step_size * gradient
        scaled = jnp.sqrt(2 * step_size * self.temperature) * noise
        displacement = operator.displace(covector, scaled)

        def temperature() -> Scalar:
            return (scaled @ scaled + covector @ displacement) / (2 * step_size * degrees)

        return (), Move(displacement, covector, scaled, temperature)

    def arrive(self, state: tuple[()], position: Vector, step: Scalar) -> tuple[()]:
        """Nothing to remember."""
        return ()

    def restrict(self, state: tuple[()], mask: Vector) -> tuple[()]:
        """Nothing to restrict."""
        return ()
