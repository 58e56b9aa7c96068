"""Underdamped Langevin dynamics: SGHMC (Chen et al. 2014)."""

import math

import jax.numpy as jnp

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._random import Noise
from ridgewalk._types import Scalar, Vector
from ridgewalk._validation import check_between
from ridgewalk.dynamics.base import Dynamics, Move
from ridgewalk.preconditioners.base import Operator, StepContext
from ridgewalk.pruning import apply_mask


@pytree_dataclass
class Hamiltonian(Dynamics):
    """w' = (1−α) w − √ε Sᵀ g + √(2 (α T − β̂)) z,  θ' = θ + √ε S w'.

    With v = √ε S w this is eq. 15 of Chen et al. for G = I: step size ε is their η, α their friction and β̂ their
    estimate of the gradient's noise, ε V / 2 for a whitened gradient of variance V. At α = 1, β̂ = 0 it is Langevin
    dynamics with the same ε. The momentum w is whitened, so it stays valid when the preconditioner changes.
    """

    friction: float = 0.1
    gradient_noise: float = 0.0
    temperature: float = 1.0
    noise: Noise = "gaussian"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_between("friction", self.friction, 0, 1, "(]", "0.1 is a good start, 1 is Langevin dynamics")
        if self.gradient_noise and not 0 < self.gradient_noise < self.friction * self.temperature:
            raise ValueError(
                f"gradient_noise: {self.gradient_noise} is not in [0, friction x temperature = "
                f"{self.friction * self.temperature:g}); 0 assumes none"
            )

    @property
    def takes_correction(self) -> bool:
        """No: Γ would have to act on the momentum."""
        return False

    def init(self, position: Vector) -> Vector:
        """At rest."""
        return jnp.zeros_like(position)

    def move(self, state: Vector, operator: Operator, context: StepContext) -> tuple[Vector, Move]:
        """One step of the momentum, then of the position."""
        kick = math.sqrt(2 * (self.friction * self.temperature - self.gradient_noise))
        push = -jnp.sqrt(context.step_size) * operator.factor_transpose(context.gradient)
        momentum = (1 - self.friction) * state + push + kick * context.noise
        scaled = jnp.sqrt(context.step_size) * momentum

        def temperature() -> Scalar:
            # In this scheme the momentum's variance is T / (1 − α/2) when positions have temperature T.
            return (1 - self.friction / 2) * (momentum @ momentum) / context.degrees_of_freedom

        return momentum, Move(operator.factor(scaled), jnp.zeros_like(context.gradient), scaled, temperature)

    def prune(self, state: Vector, mask: Vector) -> Vector:
        """The momentum of the kept parameters."""
        return apply_mask(state, mask)
