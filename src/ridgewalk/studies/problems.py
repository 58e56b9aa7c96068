"""Posteriors with known curvature, on which samplers are compared.

Those that several pieces of a study use are made once: a chain compiles anew for every new target function.
"""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Vector
from ridgewalk.target import Density, Posterior


class Problem(NamedTuple):
    """A target, its mode and the Hessian of its potential there."""

    target: Posterior | Density
    mode: np.ndarray
    hessian: np.ndarray


@cache
def paper_gaussian() -> Problem:
    """The paper's 2D Gaussian: σ_x = 0.12, σ_y = 1, correlation −0.95."""
    covariance = np.array([[0.12**2, -0.95 * 0.12], [-0.95 * 0.12, 1.0]])
    hessian = np.linalg.inv(covariance)
    precision = jnp.asarray(hessian)
    return Problem(Density(lambda x: -0.5 * x @ precision @ x), np.zeros(2), hessian)


@cache
def logistic_regression(d: int = 50, size: int = 10_000, seed: int = 0) -> Problem:
    """Features with correlation 0.95^|i−j| and scales from 0.1 to 3: a Hessian of condition about 1.4e5."""
    rng = np.random.default_rng(seed)
    correlation = 0.95 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    scale = np.logspace(-1, 0.5, d)
    features = rng.multivariate_normal(np.zeros(d), correlation, size=size) * scale
    truth = rng.normal(size=d) / scale / np.sqrt(d)
    labels = (rng.uniform(size=size) < 1 / (1 + np.exp(-features @ truth))).astype(float)

    mode = np.zeros(d)
    for _ in range(30):
        chance = 1 / (1 + np.exp(-features @ mode))
        hessian = (features.T * (chance * (1 - chance))) @ features + np.eye(d) / 100
        mode = mode - np.linalg.solve(hessian, features.T @ (chance - labels) + mode / 100)

    def log_prior(weights: Vector) -> jax.Array:
        return -jnp.sum(weights**2) / 200

    def log_likelihood(weights: Vector, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = batch[0] @ weights
        return batch[1] * logits - jax.nn.softplus(logits)

    return Problem(Posterior(log_prior, log_likelihood, (jnp.asarray(features), jnp.asarray(labels))), mode, hessian)


@cache
def outlier_regression(d: int = 1_000, outliers: int = 20, size: int = 10_000, seed: int = 0) -> Problem:
    """A linear model whose Hessian has 20 eigenvalues from 10² to 10⁴ over a bulk in [0.5, 2]."""
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.normal(size=(d, d)))
    curvatures = np.concatenate([np.logspace(2, 4, outliers), rng.uniform(0.5, 2, d - outliers)])
    white = rng.normal(size=(size, d))
    white = np.linalg.solve(np.linalg.cholesky(white.T @ white / size), white.T).T
    features = jnp.asarray(white @ (axes * np.sqrt(curvatures)).T / np.sqrt(size))

    def log_likelihood(weights: Vector, batch: jax.Array) -> jax.Array:
        return -0.5 * (batch @ weights) ** 2

    hessian = axes @ np.diag(curvatures) @ axes.T
    return Problem(Posterior(lambda weights: jnp.zeros(()), log_likelihood, features), np.zeros(d), hessian)


def condition(g: jax.Array | np.ndarray, hessian: np.ndarray) -> float:
    """cond(G H): 1 for the perfect preconditioner."""
    values = np.linalg.eigvals(np.asarray(g, float) @ hessian).real
    return float(values.max() / values.min())


def covariance_error(draws: np.ndarray, hessian: np.ndarray) -> float:
    """Mean absolute log eigenvalue of the sample covariance, whitened with the Hessian: 0 for the exact one."""
    factor = np.linalg.cholesky(hessian).T
    return float(np.abs(np.log(np.linalg.eigvalsh(factor @ np.cov(draws.T) @ factor.T))).mean())


@cache
def conjugate_regression(d: int = 4, size: int = 1_000, condition_number: float = 100.0, seed: int = 0) -> Problem:
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

    return Problem(Posterior(log_prior, log_likelihood, (jnp.asarray(features), jnp.asarray(responses))), mode, hessian)


def quadratic(hessian: np.ndarray, mode: np.ndarray) -> Problem:
    """The Gaussian N(mode, H⁻¹), with exact gradients."""
    precision, centre = jnp.asarray(hessian), jnp.asarray(mode)
    return Problem(Density(lambda x: -0.5 * (x - centre) @ precision @ (x - centre)), mode, hessian)


@cache
def conjugate_gaussian() -> Problem:
    """The posterior of `conjugate_regression`, with exact gradients."""
    regression = conjugate_regression()
    return quadratic(regression.hessian, regression.mode)


@cache
def spread_gaussian(d: int, condition_number: float, seed: int = 0) -> Problem:
    """A Gaussian around 0 whose curvatures lie evenly in log from 1 to the condition number, axes at random."""
    axes, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))
    return quadratic(axes @ np.diag(np.logspace(0, np.log10(condition_number), d)) @ axes.T, np.zeros(d))
