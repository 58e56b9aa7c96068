"""Posteriors whose moments are known exactly; the same objects in all modules, which share what is compiled."""

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import ridgewalk as rw


class Known(NamedTuple):
    target: rw.Posterior | rw.Density
    mean: np.ndarray
    covariance: np.ndarray

    @property
    def steepest(self) -> float:
        """The largest eigenvalue of the Hessian."""
        return float(1 / np.linalg.eigvalsh(self.covariance)[0])


@cache
def correlated_gaussian() -> Known:
    """Two parameters, correlation 0.8, standard deviations 0.5 and 1, away from the origin."""
    covariance = np.array([[0.25, 0.4], [0.4, 1.0]])
    mean = np.array([1.0, -2.0])
    precision = jnp.asarray(np.linalg.inv(covariance))

    def log_density(x):
        return -0.5 * (x - jnp.asarray(mean)) @ precision @ (x - jnp.asarray(mean))

    return Known(rw.Density(log_density), mean, covariance)


@cache
def linear_regression(size: int = 400) -> Known:
    """Conjugate regression with three correlated features; N = 400, so batches of 100 have N/n = 4."""
    rng = np.random.default_rng(7)
    mixing = np.array([[1.0, 0.0, 0.0], [0.4, 0.8, 0.0], [0.0, 0.3, 0.7]])
    features = rng.normal(size=(size, 3)) @ mixing.T
    outcome = features @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=size)
    precision = features.T @ features + np.eye(3) / 4
    mean = np.linalg.solve(precision, features.T @ outcome)

    def log_prior(theta):
        return -jnp.sum(theta**2) / 8

    def log_likelihood(theta, batch):
        return -0.5 * (batch["y"] - batch["x"] @ theta) ** 2

    data = {"x": jnp.asarray(features), "y": jnp.asarray(outcome)}
    return Known(rw.Posterior(log_prior, log_likelihood, data), mean, np.linalg.inv(precision))


@cache
def banana() -> Known:
    """x ~ N(0, 1), y | x ~ N(x²/4, 0.5²): bent, without a funnel. Mean and covariance by hand."""

    def log_density(p):
        return -0.5 * p[0] ** 2 - 0.5 * ((p[1] - p[0] ** 2 / 4) / 0.5) ** 2

    # E y = 1/4, Var y = 1/4 + Var(x²)/16 = 3/8, Cov(x, y) = E x³/4 = 0.
    return Known(rw.Density(log_density), np.array([0.0, 0.25]), np.diag([1.0, 0.375]))
