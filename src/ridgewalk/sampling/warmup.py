"""Warm-up: from any start to the posterior, with step size, friction and preconditioner found on the way.

Three phases, none of whose positions are kept:

- *arrive*: momentum dynamics with a diagonal G that is learnt from the chain's own curvature pairs;
- *settle*: the sampler's preconditioner, started from that diagonal, adapts with a constant weight; Langevin dynamics
  still have a momentum, which moves farther in as many steps;
- *refine*: the preconditioner adapts with its decaying weights, while the statistics are collected that ε and the
  friction of the run are chosen from.

The steps are those of `tuned_steps`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._compilation import count_numbers, jit
from ridgewalk._pytree import Layout, layout_of
from ridgewalk._types import GradientAt, Mask, PyTree, Scalar, Vector
from ridgewalk.dynamics import BAOAB, Dynamics, Hamiltonian, NoseHoover
from ridgewalk.gradients import ControlVariates, GradientEstimator, with_prior
from ridgewalk.kernel import Sampler, State, Tuned
from ridgewalk.preconditioners.base import (
    NoiseDirections,
    Operator,
    largest_eigenvalue,
    random_direction,
    whitened_hessian_product,
)
from ridgewalk.preconditioners.diagonal import Diagonal
from ridgewalk.sampling.batching import BatchIndexer, batch_shapes
from ridgewalk.sampling.tuned_steps import (
    PhaseSpec,
    WarmupState,
    first_noise,
    is_momentum,
    settling_sampler,
    subtracts_noise,
    unit_step,
)
from ridgewalk.target import Density, Target

ARRIVED, SETTLED = 0.25, 0.6
"""The parts of warm-up after which the sampler's own preconditioner starts, and after which it adapts less and less."""

REMAINING_NOISE, MOST_HEAT = 0.5, 0.5
"""The part of the gradient noise that is not corrected for, because it differs between directions; and the largest
gradient noise, relative to the noise of a step, that is corrected for."""

BIAS_WEIGHT = 2.0
"""Bias counts twice: Monte Carlo errors are reported, and fall with longer runs, bias does neither."""

JOINT_DIMENSION = 50
"""Parameters whose joint covariance a run should estimate: of more it cannot."""

MAX_STABILITY, MAX_STABILITY_OF_SPLITTING = 0.5, 0.7
"""The largest fraction of the stability limit of ε, at the largest curvature of the last positions; and for BAOAB,
where variances are right up to the limit."""

FIRST_STEP = 0.1
"""The first h."""


# Plan

SHORTEST = 100
"""The least number of steps of a warm-up."""

SHORT_WARMUP = 5e8
"""A warm-up in which the log likelihood of a chain computes at most so many numbers is compiled with less optimisation:
compiling takes a quarter of the time, and steps up to 2.6 times as long (full-batch logistic regression; others 0.6 to
1.2 times)."""

MOST_PASSES = 10
"""The largest number of passes over the data within phases."""


@dataclass(frozen=True)
class WarmupPlan:
    """A warm-up of so many steps, and what is fixed beforehand."""

    steps: int
    step_size: bool
    """Whether ε is chosen; False if the user gave it."""
    passes: int = 0
    """Passes over the data, for every chain, within phases: to centre control variates anew."""
    short: bool = False
    """Whether its programs are compiled with less optimisation, which takes longer to compile than it saves."""

    @property
    def ends(self) -> tuple[int, int, int]:
        """The number of steps after which each phase ends."""
        return int(ARRIVED * self.steps), int(SETTLED * self.steps), self.steps

    def phase(self, step: int) -> int:
        """The phase that step number `step`, from 1, belongs to: 0, 1 or 2; 3 after warm-up."""
        return sum(step > end for end in self.ends)

    @property
    def centred(self) -> tuple[int, ...]:
        """The steps, within phases, after which control variates are centred anew.

        Most are in the first phase: far from their centre they are worse than none.
        """
        arrived, inside = self.ends[0], self.window_ends[::2]
        if self.passes < len(inside):
            return ()
        parts = self.passes - len(inside) + 1
        return *(arrived * part // parts for part in range(1, parts)), *inside

    @property
    def window_ends(self) -> tuple[int, int, int, int]:
        """The steps at which statistics are renewed: twice in each of the last two phases."""
        arrived, settled, end = self.ends
        return (arrived + settled) // 2, settled, settled + int(0.45 * (end - settled)), end


def plan_warmup(
    estimator: GradientEstimator, position: PyTree, steps: int, step_size: bool, indexer: BatchIndexer
) -> WarmupPlan | None:
    """The plan of a warm-up, which does not depend on the chains; None for no steps.

    The passes over the data that control variates are centred with cost at most a quarter of its gradients.
    """
    if not steps:
        return None
    passes = 0
    if isinstance(estimator, ControlVariates) and not indexer.full:
        passes = min(MOST_PASSES, steps * indexer.batch_size // (4 * indexer.size))
    short = steps * _likelihood_numbers(estimator.target, position, indexer.batch_size) <= SHORT_WARMUP
    return WarmupPlan(steps, step_size, passes, short)


def _likelihood_numbers(target: Target, position: PyTree, batch_size: int) -> int:
    """How many numbers the log likelihood of a batch, or the log density, computes."""
    if isinstance(target, Density):
        return count_numbers(target.log_density, position)

    def log_likelihood(position: PyTree, batch: PyTree) -> jax.Array:
        return target.at_first_prior(position).likelihood_values(position, batch)

    return count_numbers(log_likelihood, position, batch_shapes(target.data, batch_size))


# From phase to phase


def _potential_on_subsample(estimator: GradientEstimator, prior: Any, layout: Layout) -> Callable[[Vector], Any]:
    """Ũ and ∇Ũ as a function of the flat position, on all data or a subsample."""
    target = with_prior(estimator, prior).target
    subsample = target.subsample()

    def evaluate(vector: Vector) -> tuple[Scalar, Vector]:
        value, gradient = jax.value_and_grad(target.potential)(layout.unravel(vector), subsample)
        return value, layout.ravel(gradient)

    return evaluate


def _first_state(
    position: Vector,
    diagonal: Vector,
    hot_until: Scalar,
    root_step: Scalar,
    evaluation: tuple[Scalar, Vector] | None,
    directions: int,
) -> WarmupState:
    dtype = jnp.promote_types(position.dtype, jnp.float32)
    zero, nothing, count = jnp.zeros((), dtype), jnp.zeros_like(position), jnp.zeros((), jnp.int32)
    h = root_step.astype(dtype)
    noise = first_noise(position.shape[0], directions, dtype)
    along = None if noise.vectors is None else NoiseDirections(noise.vectors, jnp.zeros(directions, dtype), zero)
    tuned = Tuned(h**2 / 2, jnp.ones((), dtype), zero, hot_until, count, evaluation, along)
    return WarmupState(
        tuned=tuned,
        root_step=h,
        excess=zero,
        weight=zero,
        failures=count,
        noise=noise,
        diagonal=diagonal,
        travelled=nothing,
        window_steps=count,
        mean=nothing,
        squares=nothing,
        mean_log_step=jnp.log(h),
        centre=nothing,
        last_centre=position,
        last_log_step=jnp.log(h),
        scale=jnp.ones((), dtype),
        slow_scale=jnp.ones((), dtype),
    )


def begin_arrival(
    sampler: Sampler,
    estimator: GradientEstimator,
    data: PyTree,
    state: State,
    hot_until: Scalar,
    cached: bool,
    directions: int,
) -> State:
    """The state before the first step of warm-up, from that of a kernel for the sampler of the first phase.

    `data` is the batch of every step where gradients are exact; `directions` is that of `noise_directions`.
    """
    layout = layout_of(state.position)
    flat = layout.ravel(state.position)
    evaluate = _potential_on_subsample(estimator, state.prior, layout)
    operator = Diagonal().init_from_gradient(flat, lambda vector: evaluate(vector)[1])
    evaluation = None
    if cached:
        value, gradient = jax.value_and_grad(estimator.target.potential)(state.position, data)
        evaluation = value, layout.ravel(gradient)
    warm = _first_state(flat, operator.diagonal, hot_until, jnp.asarray(FIRST_STEP), evaluation, directions)
    return state._replace(preconditioner=operator, tuning=warm)


def begin_settling(sampler: Sampler, estimator: GradientEstimator, state: State, energy_error: float) -> State:
    """The sampler itself at the position that the first phase arrived at."""
    layout = layout_of(state.position)
    flat, arrived = layout.ravel(state.position), state.tuning.tuned
    evaluate = _potential_on_subsample(estimator, state.prior, layout)

    def gradient_at(vector: Vector) -> Vector:
        return evaluate(vector)[1]

    preconditioner, diagonal = sampler.resolve(layout), state.preconditioner.diagonal
    operator = preconditioner.init_from_diagonal(flat, gradient_at, diagonal)
    if state.mask is not None:
        operator = preconditioner.prune(operator, state.mask, flat, gradient_at)
    curvature = _largest_curvature(operator, gradient_at, flat, state.mask)
    root_step = 0.5 * jnp.minimum(unit_step(energy_error), 1 / jnp.sqrt(jnp.maximum(curvature, 1e-12)))
    directions = 0 if arrived.noise_directions is None else arrived.noise_directions.vectors.shape[1]
    warm = _first_state(flat, diagonal, arrived.hot_until, root_step, arrived.evaluation, directions)
    warm = warm._replace(tuned=warm.tuned._replace(undone=arrived.undone))
    return state._replace(dynamics=sampler.dynamics.init(flat), preconditioner=operator, tuning=warm)


WORST_SCALE = 6.0
"""Root mean square standard deviation in whitened coordinates, 1 if G is the posterior covariance, above which G does
not describe the posterior."""


def begin_refining(sampler: Sampler, estimator: GradientEstimator, state: State) -> State:
    """The third phase with another preconditioner than the second."""
    layout = layout_of(state.position)
    flat, warm = layout.ravel(state.position), state.tuning
    evaluate = _potential_on_subsample(estimator, state.prior, layout)

    def gradient_at(vector: Vector) -> Vector:
        return evaluate(vector)[1]

    operator = sampler.resolve(layout).init(flat, gradient_at)
    curvature = _largest_curvature(operator, gradient_at, flat, state.mask)
    h = (0.5 / jnp.sqrt(jnp.maximum(curvature, 1e-12))).astype(warm.root_step.dtype)
    zero = jnp.zeros_like(warm.excess)
    noise = warm.noise._replace(spread=None if warm.noise.spread is None else jnp.ones_like(warm.noise.spread))
    changed = warm._replace(
        noise=noise,
        root_step=h,
        excess=zero,
        weight=zero,
        tuned=warm.tuned._replace(step_size=h**2 / 2),
        slow_scale=zero + 1,
    )
    return state._replace(preconditioner=operator, dynamics=sampler.dynamics.init(flat), tuning=changed)


def begin_sampling(sampler: Sampler, state: State, measured: "Measured") -> State:
    """The dynamics of the run in place of those of warm-up, if they are others; `measured` is filled in later."""
    tuned = state.tuning.tuned._replace(measured=measured)
    if settling_sampler(sampler) is sampler:
        return state._replace(tuning=tuned)
    dynamics = sampler.dynamics.init(layout_of(state.position).ravel(state.position))
    return state._replace(dynamics=dynamics, tuning=tuned)


def _largest_curvature(operator: Operator, gradient_at: GradientAt, position: Vector, mask: Mask) -> Scalar:
    """λ_max(G H)."""
    product = whitened_hessian_product(operator, gradient_at, position, mask)
    return largest_eigenvalue(product, random_direction(position))


@jit
def largest_preconditioned_curvature(estimator: GradientEstimator, state: State) -> Scalar:
    """λ_max(G H) at the position of a chain."""
    layout = layout_of(state.position)
    evaluate = _potential_on_subsample(estimator, state.prior, layout)
    position = layout.ravel(state.position)
    return _largest_curvature(state.preconditioner, lambda vector: evaluate(vector)[1], position, state.mask)


class Measured(NamedTuple):
    """What warm-up measured, over the chains that did not diverge: floats, or arrays (chain,)."""

    root_step: Any
    """h of the energy error that was aimed at."""
    scale: Any
    """Root mean square posterior standard deviation in whitened coordinates."""
    slow_scale: Any
    """The same over the hundredth of the coordinates that varied most."""
    noise: Any
    """Mean variance of the gradient noise in whitened coordinates."""
    largest_noise: Any
    """The same in the direction of most noise."""
    curvature: Any
    """λ_max(G H)."""
    dimension: Any


class Choice(NamedTuple):
    """ε and friction of a run, and the predicted errors of log variances that they have."""

    step_size: float
    friction: float
    bias: float
    monte_carlo: float


def curvature_scale(spec: PhaseSpec, measured: Measured) -> float:
    """κ: discretisation errors are those of curvature κ² in all whitened directions.

    It follows from the energy error; with minibatches from λ_max, because their noise is in the energy error too.
    """
    if spec.exact:
        return float(unit_step(spec.energy_error) / measured.root_step)
    return math.sqrt(max(measured.curvature, 1e-30))


def at_fixed_point(spec: PhaseSpec, measured: Measured) -> Measured:
    """What would be measured with an adaptive G that has converged, where it still has to grow: curvature 1."""
    kappa = min(curvature_scale(spec, measured), 1.0)
    return Measured(
        root_step=measured.root_step * kappa,
        scale=max(measured.scale * kappa, 1.0),
        slow_scale=max(measured.slow_scale * kappa, 1.0),
        noise=measured.noise / kappa**2,
        largest_noise=measured.largest_noise / kappa**2,
        curvature=max(measured.curvature / kappa**2, 1.0),
        dimension=measured.dimension,
    )


def choose(dynamics: Dynamics, spec: PhaseSpec, measured: Measured, steps: int, chains: int) -> Choice:
    """The ε and friction of least predicted error: bias² + Monte Carlo variance of the log covariance.

    With curvature scale κ, standard deviation σ and largest gradient noise V in whitened coordinates, log variances
    have the bias κ² h²/4 + ε V / (2 α T), and their autocorrelation time is α σ²/ε + 1/α with momentum;
    κ² ε/2 + ε V / (2 T) and σ²/ε without. The Monte Carlo error of the covariance of m parameters is
    ((m + 1) × autocorrelation time / steps)^½. Metropolis's rule removes the bias, BAOAB its first term.
    """
    kappa = curvature_scale(spec, measured)
    scale = max(measured.scale, 1 / kappa)
    noise = 0.0 if isinstance(dynamics, NoseHoover) else measured.largest_noise / dynamics.temperature
    remaining = REMAINING_NOISE if subtracts_noise(dynamics) else 1.0
    factor = (min(measured.dimension, JOINT_DIMENSION) + 1) / (steps * chains)
    tunable = isinstance(dynamics, Hamiltonian) and dynamics.friction == "auto"
    longest = measured.root_step if spec.exact else 1 / kappa
    h = longest * 2.0 ** -np.arange(0, 80 / 8, 1 / 8)
    if tunable:
        multiples = np.array([1.0]) if noise == 0 else 2.0 ** np.arange(0, 14, 0.5)
        h, alpha = (x.ravel() for x in np.meshgrid(h, multiples))
        alpha = np.clip(spec.friction * h / max(measured.slow_scale, scale) * alpha, 1e-4, 1.0)
    else:
        given = dynamics.friction_without_warmup if isinstance(dynamics, Hamiltonian) else 1.0
        alpha = np.full(h.shape, dynamics.diffusion if isinstance(dynamics, NoseHoover) else given)
    epsilon = h**2 * (1 - alpha / 2)
    split = isinstance(dynamics, BAOAB)
    stability = 2 * (2 - alpha if is_momentum(dynamics) else 1.0) / max(measured.curvature, 1e-30)
    limit = (MAX_STABILITY_OF_SPLITTING if split else MAX_STABILITY) * stability
    epsilon = np.minimum(epsilon, limit)
    h = np.sqrt(epsilon / (1 - alpha / 2))
    if is_momentum(dynamics):
        heat = epsilon * noise / (2 * alpha)
        bias = (0.0 if split else kappa**2 * h**2 / 4) + remaining * heat
        time = alpha * scale**2 / epsilon + 1 / alpha
    else:
        heat = epsilon * noise / 2
        bias = kappa**2 * epsilon / 2 + remaining * heat
        time = scale**2 / epsilon
    if spec.adjusted:
        bias = np.zeros_like(bias)
    variance = factor * time
    best = int(np.argmin((BIAS_WEIGHT * np.log1p(bias)) ** 2 + variance + np.where(heat > MOST_HEAT, heat, 0)))
    return Choice(float(epsilon[best]), float(alpha[best]), float(bias[best]), math.sqrt(variance[best]))
