"""Convergence of the preconditioner, E‖G_k − G_*‖², and bias of posterior averages, on targets with exact answers."""

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, Scalar, Vector
from ridgewalk.gradients import as_estimator
from ridgewalk.kernel import Sampler, State, build_kernel
from ridgewalk.result import Result
from ridgewalk.sampling.loop import CHAIN_AXES, init_chains
from ridgewalk.schedules import PowerDecay
from ridgewalk.studies.framework.comparison import BenchmarkPosterior, mean_and_se, operator_matrix, run_chains
from ridgewalk.target import Density, Posterior

THIN = 5
"""Every fifth position is kept: those between add little information."""


class ChainSettings(NamedTuple):
    """Seed, step size, length and number of the chains of a measurement."""

    seed: int
    step_size: float
    steps: int
    chains: int


class OperatorRow(NamedTuple):
    """G of every chain, whitened, at several k."""

    k: list[int]
    traces: list[list[list[list[float]]]]
    """(k, chain, d, d)."""


class BiasRow(NamedTuple):
    """The bias of a posterior average at one value `x` of the parameter that is varied; NaN if all chains diverged."""

    x: float
    diverged: int
    bias: float = math.nan
    bias_se: float = math.nan
    distance: float = math.nan
    """‖E G − Σ‖ / ‖Σ‖ in the whitened Frobenius norm."""
    predicted: float = math.nan
    """The bias of Langevin dynamics with G = Σ."""
    base: str = ""
    """The base matrix of HASGLD-SA, where it is varied."""


@cache
def conjugate_regression(
    d: int = 4, size: int = 1_000, condition_number: float = 100.0, seed: int = 0
) -> BenchmarkPosterior:
    """Linear regression with unit noise and prior N(0, 100 I): the posterior is Gaussian, its Hessian exact."""
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.normal(size=(d, d)))
    features = rng.normal(size=(size, d)) * np.logspace(0, 0.5 * np.log10(condition_number), d) @ axes.T
    responses = features @ rng.normal(size=d) + rng.normal(size=size)
    hessian = features.T @ features + np.eye(d) / 100
    mode = np.linalg.solve(hessian, features.T @ responses)

    def log_prior(weights: Vector) -> jax.Array:
        return -jnp.sum(weights**2) / 200

    def log_likelihood(weights: Vector, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        return -0.5 * (batch[1] - batch[0] @ weights) ** 2

    data = (jnp.asarray(features), jnp.asarray(responses))
    return BenchmarkPosterior(Posterior(log_prior, log_likelihood, data), mode, hessian)


def quadratic(hessian: np.ndarray, mode: np.ndarray) -> BenchmarkPosterior:
    """The Gaussian N(mode, H⁻¹), with exact gradients."""
    precision, centre = jnp.asarray(hessian), jnp.asarray(mode)
    target = Density(lambda x: -0.5 * (x - centre) @ precision @ (x - centre))
    return BenchmarkPosterior(target, mode, hessian)


@cache
def conjugate_gaussian() -> BenchmarkPosterior:
    """The posterior of `conjugate_regression`, with exact gradients."""
    regression = conjugate_regression()
    return quadratic(regression.hessian, regression.mode)


@cache
def ill_conditioned_gaussian(d: int, condition_number: float, seed: int = 0) -> BenchmarkPosterior:
    """A Gaussian with mean 0, random axes and log-spaced curvatures from 1 to the condition number."""
    axes, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))
    return quadratic(axes @ np.diag(np.logspace(0, np.log10(condition_number), d)) @ axes.T, np.zeros(d))


def trace_operator(
    problem: BenchmarkPosterior,
    sampler: Sampler,
    *,
    seed: int,
    step_size: float,
    batch_size: int,
    chains: int,
    at_steps: Sequence[int],
) -> np.ndarray:
    """G of every chain after each of the steps `at_steps`, whitened: Lᵀ G L with H = L Lᵀ, (step, chain, d, d).

    Chains start at the mode. `sample` does not store preconditioners, so this calls the kernel directly.
    """
    assert isinstance(problem.target, Posterior)
    kernel = build_kernel(sampler, problem.target, problem.mode)
    data = problem.target.data
    size = jax.tree.leaves(data)[0].shape[0]

    @partial(jax.jit, donate_argnums=0)
    def advance(states: State, keys: Key, start: Scalar, stop: Scalar) -> State:
        def one(key: Key, state: State, k: Scalar) -> State:
            noise_key, batch_key = jax.random.split(jax.random.fold_in(key, k))
            rows = jax.random.randint(batch_key, (batch_size,), 0, size)
            batch = jax.tree.map(lambda x: x[rows], data)
            return kernel.step(noise_key, state, batch, step_size)[0]

        def body(k: Scalar, states: State) -> State:
            return jax.vmap(one, in_axes=(0, CHAIN_AXES, None), out_axes=CHAIN_AXES)(keys, states, k)

        return jax.lax.fori_loop(start, stop, body, states)

    starts = jnp.broadcast_to(jnp.asarray(problem.mode), (chains, problem.mode.size))
    states = init_chains(sampler, as_estimator(problem.target), starts)
    keys = jax.random.split(jax.random.key(seed), chains)
    factor = np.linalg.cholesky(problem.hessian)
    done, found = 0, []
    for stop in at_steps:
        states = advance(states, keys, jnp.asarray(done), jnp.asarray(stop))
        done = stop
        found.append(factor.T @ np.asarray(_matrices(states), float) @ factor)
    return np.stack(found)


@jax.jit
def _matrices(states: State) -> jax.Array:
    def matrix(state: State) -> jax.Array:
        eye = jnp.eye(state.position.shape[0], dtype=state.position.dtype)
        return jax.vmap(state.preconditioner.multiply)(eye)

    return jax.vmap(matrix, in_axes=(CHAIN_AXES,))(states)


def square_distances(traces: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """‖G_k − G_*‖² / d in the whitened Frobenius norm, for (k, chain)."""
    return np.sum((traces - centre) ** 2, axis=(2, 3)) / traces.shape[2]


def slope(k: np.ndarray, values: np.ndarray) -> float:
    """Slope of log values against log k, by least squares."""
    return float(np.polyfit(np.log(k), np.log(values), 1)[0])


def slope_with_se(k: np.ndarray, squares: np.ndarray, groups: int = 8) -> tuple[float, float]:
    """The slope of the mean over chains of (k, chain), and its jackknife standard error over groups of chains."""
    parts = np.array_split(np.arange(squares.shape[1]), groups)
    left_out = [slope(k, np.delete(squares, part, axis=1).mean(axis=1)) for part in parts]
    error = np.sqrt((groups - 1) / groups * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
    return slope(k, squares.mean(axis=1)), float(error)


def predicted_slope(k: np.ndarray, adaptation: PowerDecay) -> float:
    """The slope of ω_k over the same k: −α for k much larger than c₂."""
    return slope(k, np.array([float(adaptation(jnp.asarray(float(value)))) for value in k]))


def variance_bias(
    problem: BenchmarkPosterior, sampler: Sampler, run: ChainSettings, *, x: float, batch_size: int | None = None
) -> BiasRow:
    """The bias of φ(θ) = (θ − μ)ᵀ H (θ − μ) / d, whose posterior mean is 1; the first quarter is burn-in."""
    result = run_chains(
        sampler,
        problem.target,
        jnp.asarray(problem.mode),
        **run._asdict(),
        burn_in=run.steps // 4,
        batch_size=batch_size,
        thin=THIN,
    )
    if result is None:
        return BiasRow(x, run.chains)
    deviations = np.asarray(result.positions, float)[result.alive] - problem.mode
    phi = np.sum((deviations @ np.linalg.cholesky(problem.hessian)) ** 2, axis=-1) / problem.mode.size
    averages = phi.mean(axis=1)
    mean, se = mean_and_se(averages)
    return BiasRow(x, run.chains - len(averages), mean - 1, se, operator_distance(result, problem))


def start_bias(problem: BenchmarkPosterior, sampler: Sampler, run: ChainSettings, *, x: float, away: float) -> BiasRow:
    """The bias of the mean of chains that start `away` standard deviations off along the flattest direction.

    In posterior standard deviations: the transient bias of a chain of finite length.
    """
    values, axes = np.linalg.eigh(problem.hessian)
    scale = np.sqrt(values[0])
    start = jnp.asarray(problem.mode + away * axes[:, 0] / scale)
    result = run_chains(sampler, problem.target, start, **run._asdict())
    if result is None:
        return BiasRow(x, run.chains)
    deviations = np.asarray(result.positions, float)[result.alive] - problem.mode
    averages = scale * (deviations @ axes[:, 0]).mean(axis=1)
    mean, se = mean_and_se(averages)
    return BiasRow(x, run.chains - len(averages), abs(mean), se, operator_distance(result, problem))


def operator_distance(result: Result, problem: BenchmarkPosterior) -> float:
    """‖E G − Σ‖ / ‖Σ‖ in the whitened Frobenius norm, for the mean of the chains' final preconditioners."""
    alive = zip(result.final_states, result.alive, strict=True)
    mean = np.mean([np.asarray(operator_matrix(state), float) for state, kept in alive if kept], axis=0)
    factor = np.linalg.cholesky(problem.hessian)
    return float(np.linalg.norm(factor.T @ mean @ factor - np.eye(len(mean))) / np.sqrt(len(mean)))


def predicted_variance_bias(step_size: float, gradient_noise: float = 0.0) -> float:
    """Bias of φ for Langevin dynamics with G = Σ: (1 + ε v / 2) / (1 − ε / 2) − 1, v the whitened gradient variance."""
    return (1 + step_size * gradient_noise / 2) / (1 - step_size / 2) - 1


def whitened_gradient_noise(problem: BenchmarkPosterior, batch_size: int) -> float:
    """v: the mean variance of a whitened coordinate of the minibatch gradient, averaged over the exact posterior.

    For unit-noise regression, g_i = −x_i r_i with E r_i² = r̂_i² + x_iᵀ Σ x_i, and batches drawn with replacement.
    """
    assert isinstance(problem.target, Posterior)
    features, responses = (np.asarray(part, float) for part in problem.target.data)
    covariance = np.linalg.inv(problem.hessian)
    leverage = np.einsum("ni,ij,nj->n", features, covariance, features)
    residuals = (responses - features @ problem.mode) ** 2 + leverage
    size, d = features.shape
    second = size * np.sum(residuals * leverage) / d
    first = np.trace((np.eye(d) - covariance / 100) @ (np.eye(d) - covariance / 100)) / d  # of the mean gradient
    return float((second - first) / batch_size)
