"""The preconditioned curvature G H, the gradient noise relative to it, and the state of the preconditioner."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._compilation import jit
from ridgewalk._pytree import apply_mask, layout_of
from ridgewalk._types import Mask, PyTree, Scalar, Vector
from ridgewalk.data import Batches
from ridgewalk.diagnostics.draw_access import IndependentBatches, alive_info, weighted_step_size
from ridgewalk.dynamics import LEAST_NOISE, Hamiltonian, NoseHoover
from ridgewalk.gradients import GradientEstimator, estimator_on_device, with_prior
from ridgewalk.kernel import State, preconditioner_matrix
from ridgewalk.preconditioners.base import (
    POWER_STEPS,
    AdaptivePreconditioner,
    Preconditioner,
    random_direction,
    whitened_hessian_product,
)
from ridgewalk.pruning import degrees_of_freedom
from ridgewalk.result import Result
from ridgewalk.sampling.tuned_steps import phase_spec
from ridgewalk.target import Density, Posterior, Target, on_device

MAX_DENSE = 512
"""Up to this many parameters G is formed as a matrix; above, its traces are estimated from random probes."""

PROBES = 64
TRACE_PROBES = 16
MAX_CHAINS = 4
"""Chains at whose final states curvature and noise are measured."""

BATCHES = 64


class CurvaturePairStats(NamedTuple):
    """Curvature pairs seen at the draws: their number, the damped and rejected fractions, and the mean damping θ_d."""

    pairs: int
    damped: float
    rejected: float
    mean_damping: float


class PreconditionedCurvature(NamedTuple):
    """Eigenvalues of G H at the chains' final states: largest and mean, as medians over chains."""

    largest: float
    mean: float


def resolved_preconditioner(result: Result) -> Preconditioner:
    """The preconditioner that the sampler used for these parameters."""
    form = layout_of(result.final_states[0].position)
    return result.sampler.resolve(form)


def curvature_pair_stats(result: Result, *, chain: int | None = None) -> CurvaturePairStats:
    """Fractions of damped (θ_d < 1) and rejected pairs among the draws whose step had a curvature pair.

    Of all chains that did not diverge, or of one of those.
    """
    rule = resolved_preconditioner(result).unwrapped
    due = (
        result.draw_steps % rule.interval == 0
        if isinstance(rule, AdaptivePreconditioner)
        else np.zeros(result.draws, bool)
    )
    damping, rejected = alive_info(result, "damping")[:, due], alive_info(result, "rejected")[:, due]
    if chain is not None:
        damping, rejected = damping[[chain]], rejected[[chain]]
    if damping.size == 0:
        return CurvaturePairStats(0, 0.0, 0.0, 1.0)
    used = damping[rejected == 0]
    mean = float(used.mean()) if used.size else float("nan")
    return CurvaturePairStats(damping.size, float((used < 1).sum() / damping.size), float(rejected.mean()), mean)


@jax.jit
def _traces(state: State) -> tuple[Scalar, Scalar]:
    """tr G and tr G², by Hutchinson's ±1 probes."""
    form = layout_of(state.position)
    probes = jax.random.rademacher(jax.random.key(0), (PROBES, form.size), form.dtype)

    def one(probe: Vector) -> tuple[Scalar, Scalar]:
        image = apply_mask(state.preconditioner.multiply(apply_mask(probe, state.mask)), state.mask)
        return jnp.vdot(probe, image), jnp.vdot(image, image)

    first, second = jax.lax.map(one, probes)
    return jnp.mean(first), jnp.mean(second)


def effective_rank(result: Result) -> np.ndarray:
    """(tr G)² / tr(G²) of every chain's final G: d for a multiple of the identity, 1 for a rank-one matrix.

    From G itself up to 512 parameters, above from 64 random probes; NaN for a chain that diverged.
    """
    ranks = []
    for state, alive in zip(result.final_states, result.alive, strict=True):
        if not alive:
            ranks.append(np.nan)
        elif result.dimension <= MAX_DENSE:
            matrix = np.asarray(preconditioner_matrix(state), float)
            ranks.append(np.trace(matrix) ** 2 / (matrix**2).sum())
        else:
            first, second = map(float, _traces(state))
            ranks.append(first**2 / second)
    return np.array(ranks)


@jit
def _eigenvalues(target: Target, state: State) -> tuple[Scalar, Scalar]:
    """Largest and mean eigenvalue of Sᵀ H S, which has the eigenvalues of G H."""
    form = layout_of(state.position)
    flat, subsample = form.ravel(state.position), target.subsample()
    target = target if state.prior is None else target.frozen(state.prior)

    def gradient_at(vector: Vector) -> Vector:
        return form.ravel(jax.grad(target.potential)(form.unravel(vector), subsample))

    product = whitened_hessian_product(state.preconditioner, gradient_at, flat, state.mask)

    def multiply(carry: tuple[Vector, Scalar, Scalar], number: Scalar) -> tuple[Any, None]:
        """Random probes for the trace, then power iterations: in one loop, so that H is compiled once."""
        direction, trace, largest = carry
        probing = number < TRACE_PROBES
        probe = jax.random.rademacher(jax.random.fold_in(jax.random.key(0), number), (form.size,), form.dtype)
        vector = jnp.where(probing, probe, direction)
        image = product(vector)
        trace = trace + jnp.where(probing, jnp.vdot(vector, image) / TRACE_PROBES, 0)
        length = jnp.linalg.norm(image)
        usable = ~probing & jnp.isfinite(length) & (length > 0)
        direction = jnp.where(usable, image / jnp.where(usable, length, 1), direction)
        return (direction, trace, jnp.where(usable, jnp.maximum(largest, length), largest)), None

    nothing = jnp.zeros((), form.dtype)
    products = jnp.arange(TRACE_PROBES + POWER_STEPS)
    (_, trace, largest), _ = jax.lax.scan(multiply, (random_direction(flat), nothing, nothing), products)
    return jnp.where(largest > 0, largest, 1), trace / degrees_of_freedom(state.mask, form.size)


def preconditioned_curvature(result: Result, *, max_chains: int = MAX_CHAINS) -> PreconditionedCurvature:
    """Eigenvalues of G H at the final states, on at most 1,024 examples: all 1 for G = H⁻¹."""
    target = on_device(result.estimator.target)
    pairs = np.array([[float(x) for x in _eigenvalues(target, state)] for state in result.alive_states[:max_chains]])
    return PreconditionedCurvature(*(float(x) for x in np.median(pairs, axis=0)))


def stability_bound(result: Result) -> float:
    """The largest ε λ_max(G H) at which the dynamics are stable: 2, or with friction α, 2 (2 − α).

    On a Gaussian the variance along a direction with eigenvalue λ is too large by the factor 1 / (1 − ε λ / bound),
    except with `BAOAB`.
    """
    dynamics = result.sampler.dynamics
    if isinstance(dynamics, Hamiltonian):
        return 2 * (2 - dynamics.friction_without_warmup)
    if isinstance(dynamics, NoseHoover):
        friction = np.mean([float(state.dynamics.friction) for state in result.alive_states])
        return 2 * (2 - float(np.clip(friction, 0, 1)))
    return 2.0


def is_metropolis_adjusted(result: Result) -> bool:
    """Whether the steps of a run were accepted by Metropolis's rule, so that the step size causes no bias."""
    target = result.estimator.target
    exact = result.batch_size is None and not (isinstance(target, Posterior) and isinstance(target.data, Batches))
    return bool(result.warmup) and phase_spec(result.sampler, result.estimator, result.dimension, exact).adjusted


def stability_fraction(result: Result, curvature: PreconditionedCurvature) -> float:
    """ε λ_max(G H) relative to the stability bound; 0 with Metropolis's rule, to which it does not matter."""
    if is_metropolis_adjusted(result):
        return 0.0
    return weighted_step_size(result) * curvature.largest / stability_bound(result)


def is_finite(state: State) -> bool:
    """Whether every number of a chain's G is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(state.preconditioner) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in leaves)  # on the host: nothing is compiled


def is_isotropic(state: State) -> bool:
    """Whether G is still its initial value, a multiple of the identity, on the coordinates that are not pruned."""
    form = layout_of(state.position)
    probe = apply_mask(jax.random.normal(jax.random.key(3), (form.size,), form.dtype), state.mask)
    image = apply_mask(state.preconditioner.multiply(probe), state.mask)
    scale = jnp.vdot(probe, image) / jnp.vdot(probe, probe)
    distance = jnp.linalg.norm(image - scale * probe) / jnp.linalg.norm(image)
    return bool(distance < 100 * jnp.finfo(form.dtype).eps)


def whitened_gradient(
    estimator: GradientEstimator, memory: Any, operator: Any, position: PyTree, batch: PyTree, mask: Mask = None
) -> Vector:
    """Sᵀ times the gradient estimate at a position, as a flat vector; zero in pruned parameters."""
    form = layout_of(position)
    gradient = form.ravel(jax.grad(estimator.target.potential)(position, batch))
    correction = estimator.correction(memory, batch)
    if correction is not None:
        gradient = gradient + form.ravel(correction)
    return apply_mask(operator.factor_transpose(apply_mask(gradient, mask)), mask)


@jit
def _noise_variance(estimator: GradientEstimator, state: State, batches: PyTree) -> Scalar:
    """tr(G V) / d at a state, V the covariance of the gradient estimate over batches."""
    form = layout_of(state.position)
    estimator = with_prior(estimator, state.prior)

    def add(carry: tuple[jax.Array, Scalar, Scalar], batch: PyTree) -> tuple[Any, None]:
        mean, squares, count = carry  # Welford's algorithm
        vector = whitened_gradient(estimator, state.estimator, state.preconditioner, state.position, batch, state.mask)
        count = count + 1
        change = vector - mean
        mean = mean + change / count
        return (mean, squares + jnp.vdot(change, vector - mean), count), None

    nothing = jnp.zeros((), form.dtype)
    (_, squares, count), _ = jax.lax.scan(add, (jnp.zeros(form.size, form.dtype), nothing, nothing), batches)
    return squares / (count - 1) / degrees_of_freedom(state.mask, form.size)


def _injected_noise(result: Result) -> tuple[float, float]:
    """Noise of a step in units of 2 ε G: T, or α T with friction α; and the part that it expects from gradients."""
    dynamics, tuned = result.sampler.dynamics, result.alive_states[0].tuning
    measured = 0.0 if tuned is None else weighted_step_size(result) * float(tuned.noise_variance) / 2
    if isinstance(dynamics, Hamiltonian):
        injected = dynamics.friction_without_warmup * dynamics.temperature
        return injected, max(dynamics.gradient_noise, min(measured, (1 - LEAST_NOISE) * injected))
    if isinstance(dynamics, NoseHoover):
        return dynamics.diffusion * dynamics.temperature, 0.0
    return dynamics.temperature, min(measured, (1 - LEAST_NOISE) * dynamics.temperature)


def gradient_noise_fraction(
    result: Result, *, batches: int = BATCHES, max_chains: int = MAX_CHAINS, seed: int = 0
) -> float:
    """Variance of the minibatch noise relative to the injected noise: ε tr(G V) / (2 T d), with friction α over α.

    V is the covariance of the gradient estimate over batches, at the chains' final states with the final G. The
    `gradient_noise` that SGHMC was given, or the noise that warm-up measured, is subtracted, so the result can be
    negative. Without a thermostat the
    variances of the draws are too large by about this fraction.
    """
    target, dynamics = result.estimator.target, result.sampler.dynamics
    if isinstance(target, Density) or (result.batch_size is None and not isinstance(target.data, Batches)):
        return 0.0
    if not dynamics.temperature > 0:
        return float("inf")
    estimator = estimator_on_device(result.estimator)
    source = IndependentBatches(target, result.batch_size or 0, seed)
    states = result.alive_states[:max_chains]
    variance = np.mean([float(_noise_variance(estimator, state, source.take(batches))) for state in states])
    injected, expected = _injected_noise(result)
    return float((weighted_step_size(result) * variance / 2 - expected) / injected)
