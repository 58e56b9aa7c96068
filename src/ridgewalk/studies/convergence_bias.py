"""The bias of a posterior average, against step size, batch size and memory, where the exact answer is known."""

import jax.numpy as jnp
import numpy as np

from ridgewalk.kernel import Sampler
from ridgewalk.result import Result
from ridgewalk.studies.chains import mean_and_error, operator_matrix, run_chains
from ridgewalk.studies.problems import Problem
from ridgewalk.studies.study import Values
from ridgewalk.target import Posterior

THIN = 5
"""Every fifth position is kept: those between say little more."""


def spread_bias(
    problem: Problem,
    sampler: Sampler,
    *,
    seed: int,
    step_size: float,
    steps: int,
    chains: int,
    batch_size: int | None = None,
) -> Values:
    """The bias of φ(θ) = (θ − μ)ᵀ H (θ − μ) / d, whose posterior mean is 1; the first quarter is burn-in."""
    result = run_chains(
        sampler,
        problem.target,
        jnp.asarray(problem.mode),
        seed=seed,
        steps=steps,
        step_size=step_size,
        chains=chains,
        burn_in=steps // 4,
        batch_size=batch_size,
        thin=THIN,
    )
    if result is None:
        return {"diverged": chains}
    away = np.asarray(result.positions, float)[result.alive] - problem.mode
    phi = np.sum((away @ np.linalg.cholesky(problem.hessian)) ** 2, axis=-1) / problem.mode.size
    averages = phi.mean(axis=1)
    mean, error = mean_and_error(averages)
    lost = chains - len(averages)
    return {"diverged": lost, "bias": mean - 1, "bias_se": error, "distance": operator_distance(result, problem)}


def start_bias(
    problem: Problem, sampler: Sampler, *, seed: int, step_size: float, steps: int, chains: int, away: float
) -> Values:
    """The bias of the mean of `steps` steps that start `away` standard deviations off along the flattest direction.

    In posterior standard deviations: how much of the start a chain of finite length has not forgotten.
    """
    values, axes = np.linalg.eigh(problem.hessian)
    scale = np.sqrt(values[0])
    result = run_chains(
        sampler,
        problem.target,
        jnp.asarray(problem.mode + away * axes[:, 0] / scale),
        seed=seed,
        steps=steps,
        step_size=step_size,
        chains=chains,
    )
    if result is None:
        return {"diverged": chains}
    away_now = np.asarray(result.positions, float)[result.alive] - problem.mode
    averages = scale * (away_now @ axes[:, 0]).mean(axis=1)
    mean, error = mean_and_error(averages)
    lost = chains - len(averages)
    return {"diverged": lost, "bias": abs(mean), "bias_se": error, "distance": operator_distance(result, problem)}


def operator_distance(result: Result, problem: Problem) -> float:
    """‖E G − Σ‖ / ‖Σ‖ in the whitened Frobenius norm: the error of the mean of the chains' last operators."""
    alive = zip(result.final_states, result.alive, strict=True)
    mean = np.mean([np.asarray(operator_matrix(state), float) for state, kept in alive if kept], axis=0)
    factor = np.linalg.cholesky(problem.hessian)
    return float(np.linalg.norm(factor.T @ mean @ factor - np.eye(len(mean))) / np.sqrt(len(mean)))


def predicted_spread_bias(step_size: float, gradient_noise: float = 0.0) -> float:
    """Of φ, for Langevin steps with G = Σ: (1 + ε v / 2) / (1 − ε / 2) − 1, v the whitened variance of the gradient."""
    return (1 + step_size * gradient_noise / 2) / (1 - step_size / 2) - 1


def whitened_gradient_noise(problem: Problem, batch_size: int) -> float:
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
