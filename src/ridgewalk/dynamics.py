"""Dynamics: how a chain moves, given a gradient, noise and a preconditioner. Each composes with any preconditioner.

Overdamped Langevin dynamics, and the delayed variant of HAMCMC (Şimşekli et al. 2016); with momentum, SGHMC (Chen et
al. 2014) and SGNHT, which adapts the friction (Ding et al. 2014); and the paper's Algorithm 2 as printed, with vectors
for operators, which does not sample the posterior.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from ridgewalk._pytree import apply_mask, pytree_dataclass
from ridgewalk._random import Noise
from ridgewalk._types import Adaptation, Scalar, Vector
from ridgewalk._validation import check_between, check_choice, check_whole
from ridgewalk.preconditioners.base import Operator, StepContext
from ridgewalk.schedules import PowerDecay, adaptation_weight


class Move(NamedTuple):
    """A displacement, and the covector v and noise z with `displacement = G v + S z` (both 0 in `AsPrinted`)."""

    displacement: Vector
    covector: Vector
    noise: Callable[[], Vector]
    temperature: Callable[[], Scalar]
    """The temperature estimate of this step: about T, more where gradient noise adds to it. Noise and temperature are
    functions, because they are not needed in every step."""


LEAST_NOISE = 0.25
"""The least part of its noise that a step injects itself, however large the gradient's noise."""


def injected_noise(total: Scalar, factor: Scalar, context: StepContext) -> Vector:
    """The noise of a step of variance `total`, less what the noise of the gradient contributes.

    That is `factor` times the variance of the gradient's noise, where warm-up has measured it.
    """
    noise, directions = context.noise, context.noise_directions
    if context.noise_variance is None:
        return jnp.sqrt(total) * noise

    def root(variance: Any) -> Any:
        return jnp.sqrt(jnp.maximum(total - factor * variance, LEAST_NOISE * total))

    if directions is None:
        return root(context.noise_variance) * noise
    others = root(directions.others)
    along = (root(directions.variances) - others) * (noise @ directions.vectors)
    return others * noise + directions.vectors @ along


class Dynamics(ABC):
    """The update rule of a chain; composes with any preconditioner, with momentum with any position-independent one."""

    noise: Noise
    temperature: float

    def __post_init__(self) -> None:
        """Check temperature and noise."""
        check_between(
            "temperature", self.temperature, 0, float("inf"), "[)", "1 samples the posterior, 0 minimises the potential"
        )
        check_choice("noise", self.noise, get_args(Noise))

    @property
    @abstractmethod
    def takes_correction(self) -> bool:
        """Whether adding ε T Γ to a step accounts for a position-dependent G(θ); with momentum it does not."""

    @abstractmethod
    def init(self, position: Vector) -> Any:
        """The state besides the position: momentum, friction, earlier positions."""

    def origin(self, state: Any, position: Vector, step: Scalar) -> Vector:
        """The point that step number `step` leaves from: by default the current position."""
        return position

    @abstractmethod
    def move(self, state: Any, operator: Operator, context: StepContext) -> tuple[Any, Move]:
        """The displacement of one step, without the drift correction Γ, and the state after it."""

    def arrive(self, state: Any, position: Vector, step: Scalar) -> Any:
        """The state after the step has ended at `position`: by default unchanged."""
        return state

    def reverse(self, state: Any) -> Any:
        """The state after a step that was undone: by default unchanged, with momentum its direction is reversed."""
        return state

    def prune(self, state: Any, mask: Vector) -> Any:
        """The state with zeros in pruned parameters."""
        raise ValueError(
            f"dynamics: {type(self).__name__} has no method prune(state, mask), which pruning needs; write one"
        )


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
        scaled = injected_noise(2 * context.step_size * self.temperature, context.step_size**2, context)
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


Friction = float | Literal["auto"]
"""α, or "auto": what warm-up chooses, and `DEFAULT_FRICTION` in a run without warm-up."""

DEFAULT_FRICTION = 0.1


class MomentumDynamics(Dynamics):
    """Dynamics with a whitened momentum w, which stays valid when the preconditioner changes: θ' = θ + √ε S w'."""

    @property
    def takes_correction(self) -> bool:
        """No: Γ would have to act on the momentum."""
        return False


@pytree_dataclass
class Hamiltonian(MomentumDynamics):
    """w' = (1−α) w − √ε Sᵀ g + √(2 (α T − β̂)) z,  θ' = θ + √ε S w'.

    With v = √ε S w this is eq. 15 of Chen et al. for G = I: step size ε is their η, α their friction and β̂ their
    estimate of the gradient's noise, ε V / 2 for a whitened gradient of variance V. At α = 1, β̂ = 0 it is Langevin
    dynamics with the same ε. With friction "auto", β̂ is ε V / 2 with the V that warm-up measured.
    """

    friction: Friction = "auto"
    gradient_noise: float = 0.0
    temperature: float = 1.0
    noise: Noise = "gaussian"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if isinstance(self.friction, str):
            check_choice("friction", self.friction, ("auto",), "a number in (0, 1]")
            if self.gradient_noise:
                raise ValueError(
                    f"gradient_noise: {self.gradient_noise} needs a given friction, of which it is a part; pass "
                    "friction= too, or leave it out"
                )
        else:
            hint = "0.1 is a good start, 1 is Langevin dynamics, 'auto' leaves it to warm-up"
            check_between("friction", self.friction, 0, 1, "(]", hint)
        highest = self.friction_without_warmup * self.temperature
        if self.gradient_noise and not 0 < self.gradient_noise < highest:
            raise ValueError(
                f"gradient_noise: {self.gradient_noise} is not in [0, friction x temperature = {highest:g}); 0 assumes "
                "none"
            )

    @property
    def friction_without_warmup(self) -> float:
        """α as given; 0.1 for "auto"."""
        return DEFAULT_FRICTION if isinstance(self.friction, str) else self.friction

    def init(self, position: Vector) -> Vector:
        """At rest."""
        return jnp.zeros_like(position)

    def _friction_and_kick(self, context: StepContext) -> tuple[Scalar | float, Vector]:
        """α, and the injected noise."""
        friction = self.friction_without_warmup
        if self.friction != "auto" or context.friction is None:
            return friction, math.sqrt(2 * (friction * self.temperature - self.gradient_noise)) * context.noise
        total = 2 * context.friction * self.temperature
        return context.friction, injected_noise(total, context.step_size, context)

    def move(self, state: Vector, operator: Operator, context: StepContext) -> tuple[Vector, Move]:
        """One step of the momentum, then of the position."""
        friction, kick = self._friction_and_kick(context)
        push = -jnp.sqrt(context.step_size) * operator.factor_transpose(context.gradient)
        momentum = (1 - friction) * state + push + kick

        def scaled() -> Vector:
            # Diagnostics compute it again: LLVM fuses multiplication and addition only where a product is used once.
            return jnp.sqrt(context.step_size) * momentum

        def temperature() -> Scalar:
            # In this scheme the momentum's variance is T / (1 − α/2) when positions have temperature T.
            return (1 - friction / 2) * (momentum @ momentum) / context.degrees_of_freedom

        return momentum, Move(operator.factor(scaled()), jnp.zeros_like(context.gradient), scaled, temperature)

    def reverse(self, state: Vector) -> Vector:
        """The opposite momentum."""
        return -state

    def prune(self, state: Vector, mask: Vector) -> Vector:
        """The momentum of the kept parameters."""
        return apply_mask(state, mask)


@pytree_dataclass
class BAOAB(Hamiltonian):
    """u = w − √ε Sᵀ g / (1 − α/2),  w' = (1−α) u + √(2 (α T − β̂)) z,  θ' = θ + √ε S (u + w') / 2.

    `Hamiltonian` with the noise between two halves of the drift, the splitting BAOAB of Leimkuhler and Matthews (2013),
    for as many gradients: friction and step size mean the same, but on a Gaussian target positions have no step-size
    bias up to the limit of stability. At α = 1 it is their scheme without momentum. Metropolis's rule does not apply to
    it; `reversible` is the scheme for that.
    """

    def move(self, state: Vector, operator: Operator, context: StepContext) -> tuple[Vector, Move]:
        """One step: momentum, half of the drift, friction and noise, the other half."""
        friction, kick = self._friction_and_kick(context)
        root = jnp.sqrt(context.step_size)
        pushed = state - root / (1 - friction / 2) * operator.factor_transpose(context.gradient)
        momentum = (1 - friction) * pushed + kick

        def scaled() -> Vector:
            return root * (pushed + momentum) / 2

        def temperature() -> Scalar:
            return (1 - friction / 2) * (momentum @ momentum) / context.degrees_of_freedom

        return momentum, Move(operator.factor(scaled()), jnp.zeros_like(context.gradient), scaled, temperature)

    @property
    def reversible(self) -> Hamiltonian:
        """`Hamiltonian` with these settings."""
        return Hamiltonian(self.friction, self.gradient_noise, self.temperature, self.noise)


class NoseHooverState(NamedTuple):
    """The whitened momentum, and the friction that holds it at the target temperature."""

    momentum: Vector
    friction: Scalar


@pytree_dataclass
class NoseHoover(MomentumDynamics):
    """w' = (1−ξ) w − √ε Sᵀ g + √(2 a T) z,  θ' = θ + √ε S w',  ξ' = ξ + ε ((1 − ξ/2) |w'|²/d − T).

    With v = √ε S w this is the algorithm of Ding et al. for G = I, their η = ε and their a the injected
    `diffusion`. The friction ξ starts at a and grows until positions have temperature T, which absorbs
    the noise of minibatch gradients when it is the same in all whitened directions. The factor 1 − ξ/2 is ours: in
    this scheme positions have temperature T when the momentum's variance is T / (1 − ξ/2); as printed there,
    without it, variances come out low by ξ/2 (11 % measured at ξ = 0.2).
    """

    diffusion: float = 0.1
    temperature: float = 1.0
    noise: Noise = "gaussian"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_between("diffusion", self.diffusion, 0, 1, "(]", "0.1 is a good start")

    def init(self, position: Vector) -> NoseHooverState:
        """At rest, with the friction that the injected noise alone needs."""
        return NoseHooverState(jnp.zeros_like(position), jnp.asarray(self.diffusion, position.dtype))

    def move(self, state: NoseHooverState, operator: Operator, context: StepContext) -> tuple[NoseHooverState, Move]:
        """One step of the momentum, the position and the friction."""
        kick = math.sqrt(2 * self.diffusion * self.temperature)
        push = -jnp.sqrt(context.step_size) * operator.factor_transpose(context.gradient)
        momentum = (1 - state.friction) * state.momentum + push + kick * context.noise
        temperature = (1 - state.friction / 2) * (momentum @ momentum) / context.degrees_of_freedom
        scaled = jnp.sqrt(context.step_size) * momentum
        moved = NoseHooverState(momentum, state.friction + context.step_size * (temperature - self.temperature))
        covector = jnp.zeros_like(context.gradient)
        return moved, Move(operator.factor(scaled), covector, lambda: scaled, lambda: temperature)

    def reverse(self, state: NoseHooverState) -> NoseHooverState:
        """The opposite momentum."""
        return state._replace(momentum=-state.momentum)

    def prune(self, state: NoseHooverState, mask: Vector) -> NoseHooverState:
        """The momentum of the kept parameters."""
        return state._replace(momentum=apply_mask(state.momentum, mask))


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
