"""Gaussians whose kept coordinates have a known law once others are pruned."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import ridgewalk as rw

MEAN = np.array([0.02, 2.0, -0.04, 1.6, 0.03, -1.8, 0.05, 0.4])
"""Of the six weights three are far from zero and three near it, so that it is clear which go; then come two biases."""


class Conditional(NamedTuple):
    target: rw.Posterior | rw.Density
    mean: np.ndarray
    precision: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        return np.linalg.inv(self.precision)

    @property
    def steepest(self) -> float:
        return float(np.linalg.eigvalsh(self.precision)[-1])

    def given_zero(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the kept coordinates given that the others are zero."""
        covariance = np.linalg.inv(self.precision[np.ix_(mask, mask)])
        shift = self.precision[np.ix_(mask, ~mask)] @ self.mean[~mask]
        return self.mean[mask] + covariance @ shift, covariance


def start() -> dict[str, jax.Array]:
    return {"layer": {"weight": jnp.asarray(MEAN[:6].reshape(2, 3)), "zbias": jnp.asarray(MEAN[6:])}}


def flat(position) -> jax.Array:
    return jnp.concatenate([position["layer"]["weight"].ravel(), position["layer"]["zbias"]])


def _mixing() -> np.ndarray:
    """Correlations of up to 0.7, so that what is pruned shifts and narrows the others."""
    return np.eye(8) + 0.6 * np.random.default_rng(5).normal(size=(8, 8)) / np.sqrt(8)


def gaussian() -> Conditional:
    factor = 20 * _mixing()
    precision = factor.T @ factor
    weights, centre = jnp.asarray(precision), jnp.asarray(MEAN)

    def log_density(position):
        x = flat(position) - centre
        return -0.5 * x @ weights @ x

    return Conditional(rw.Density(log_density), MEAN, precision)


def regression(size: int = 400) -> Conditional:
    """Conjugate, with minibatches."""
    rng = np.random.default_rng(7)
    features = rng.normal(size=(size, 8)) @ _mixing()
    outcome = features @ MEAN + 0.2 * rng.normal(size=size)
    precision = 25 * features.T @ features + np.eye(8)
    mean = np.linalg.solve(precision, 25 * features.T @ outcome)

    def log_prior(position):
        return -0.5 * jnp.sum(flat(position) ** 2)

    def log_likelihood(position, batch):
        return -12.5 * (batch["y"] - batch["x"] @ flat(position)) ** 2

    data = {"x": jnp.asarray(features), "y": jnp.asarray(outcome)}
    return Conditional(rw.Posterior(log_prior, log_likelihood, data), mean, precision)


def draws_of(result: rw.Result) -> np.ndarray:
    """(chain, draw, d)."""
    return np.asarray(jax.vmap(jax.vmap(flat))(result.positions), float)
