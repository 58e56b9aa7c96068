"""The paper's Algorithm 2 as printed, with vectors for operators. It does not sample the posterior."""

from typing import NamedTuple

import jax.numpy as jnp

from ridgewalk._pytree import apply_mask, pytree_dataclass
from ridgewalk._random import Noise
from ridgewalk._types import Adaptation, Scalar, Vector
from ridgewalk.dynamics.base import Dynamics, Move
from ridgewalk.preconditioners.base import Operator, StepContext
from ridgewalk.schedules import PowerDecay, adaptation_weight


class Averages(NamedTuple):
    """The running vectors called G_k g_k and S_k z_k in Algorithm 2."""

    drift: Vector
    diffusion: Vector


def _unit(vector: Vector) -> Vector:
    length = jnp.linalg.norm(vector)
    return vector / jnp.where(length > 0, length, 1)


@pytree_dataclass
class AsPrinted(Dynamics):
    """ξ = (1−ω) ξ + ω G̃ g,  η = (1−ω) η + ω S̃ z,  θ' = θ − ε ξ/|ξ| + √(2 ε T) η/|η|.

    G_{k−1} g_k and S_{k−1} z_k of lines 5 and 6 need an operator that the algorithm does not store; it stores the
    vectors of the previous step, and these are averaged here.
    **This is not a posterior sampler.** (1) The averages are of vectors computed from past gradients and past noise,
    not of operators applied to the present ones: the noise persists for about 1/ω steps, ever longer as ω falls, and
    long chains drift away. (2) An average of factors is not a factor of the average. (3) Scaling both to unit length
    discards the size of the gradient, so the variance of the samples is unrelated to the posterior's.
    Use it to compare with the paper's tables, and `form="dense"`, `"low_rank"` or `"snapshot_lbfgs"` to sample.
    """

    adaptation: Adaptation = PowerDecay()
    temperature: float = 1.0
    noise: Noise = "gaussian"

    @property
    def takes_correction(self) -> bool:
        """Yes."""
        return True

    def init(self, position: Vector) -> Averages:
        """Filled in the first step."""
        return Averages(jnp.zeros_like(position), jnp.zeros_like(position))

    def move(self, state: Averages, operator: Operator, context: StepContext) -> tuple[Averages, Move]:
        """Lines 4 to 9 of Algorithm 2 (G₁ = I, so the averages start at g and z)."""
        g, z, epsilon = context.gradient, context.noise, context.step_size
        omega = adaptation_weight(self.adaptation, context.step + 1, g.dtype)
        first = context.step == 1
        drift = (1 - omega) * jnp.where(first, g, state.drift) + omega * operator.multiply(g)
        diffusion = (1 - omega) * jnp.where(first, z, state.diffusion) + omega * operator.factor(z)
        displacement = -epsilon * _unit(drift) + jnp.sqrt(2 * epsilon * self.temperature) * _unit(diffusion)
        zero = jnp.zeros_like(z)

        def temperature_per_parameter() -> Scalar:
            return jnp.asarray(self.temperature / context.degrees_of_freedom, z.dtype)

        return Averages(drift, diffusion), Move(displacement, zero, lambda: zero, temperature_per_parameter)

    def prune(self, state: Averages, mask: Vector) -> Averages:
        """The averages of the kept parameters."""
        return Averages(apply_mask(state.drift, mask), apply_mask(state.diffusion, mask))
