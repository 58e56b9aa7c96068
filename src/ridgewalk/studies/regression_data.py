"""The paper's large-p-small-n regression: n = 100, p = 200, neighbouring predictors correlated at 0.8^{1/4} = 0.946."""

from functools import cache
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Vector
from ridgewalk.priors.shared_noise import shared_noise
from ridgewalk.priors.simple import gaussian_prior
from ridgewalk.priors.spike_slab import spike_and_slab
from ridgewalk.target import Posterior

PREDICTORS, TRAINING, VALIDATION, TEST = 200, 100, 50, 50
NOISE_VARIANCE = 3.0

Samples: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Predictors (n, p) and responses (n,)."""


class Split(NamedTuple):
    """Independent samples: to sample the posterior of, to choose step sizes with, and to measure errors on."""

    training: Samples
    validation: Samples
    test: Samples


def true_weights() -> np.ndarray:
    """β = (3, 1, 0, …, 0)."""
    weights = np.zeros(PREDICTORS)
    weights[:2] = 3, 1
    return weights


@cache
def _factor() -> np.ndarray:
    """Of Σ_ij = 0.8^{|i−j|/4}."""
    places = np.arange(PREDICTORS)
    return np.linalg.cholesky(0.8 ** (np.abs(np.subtract.outer(places, places)) / 4))


@cache
def data_set(seed: int) -> Split:
    """The samples of one seed: every seed has its own predictors and noise."""
    rng = np.random.default_rng([seed, 6])

    def samples(size: int) -> Samples:
        x = rng.normal(size=(size, PREDICTORS)) @ _factor().T
        y = x @ true_weights() + np.sqrt(NOISE_VARIANCE) * rng.normal(size=size)
        return x.astype(np.float32), y.astype(np.float32)

    return Split(samples(TRAINING), samples(VALIDATION), samples(TEST))


def _residual(weights: Vector, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    return batch[1] - batch[0] @ weights


def _known_noise(weights: Vector, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    return -0.5 * _residual(weights, batch) ** 2 / NOISE_VARIANCE


# Made once: a chain compiles anew for every new target function, but not for new data.
SPARSE_PRIOR = spike_and_slab(spike_scale=0.1, slab_variance=100.0, delta=0.5, a=1.0, b=PREDICTORS, nu=1.0, lam=1.0)
PLAIN_PRIOR = gaussian_prior(1.0)
SHARED = shared_noise(_residual)


def posterior(samples: Samples, *, sparse: bool) -> Posterior:
    """Under the spike-and-slab prior with σ learnt, or under N(0, 1) with the noise variance given."""
    data = tuple(jnp.asarray(part) for part in samples)
    return Posterior(SPARSE_PRIOR, SHARED, data) if sparse else Posterior(PLAIN_PRIOR, _known_noise, data)


def errors(weights: np.ndarray, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Mean squared and mean absolute error of the predictions of each row of weights (…, p)."""
    x, y = (part.astype(float) for part in samples)
    away = y - weights @ x.T
    return (away**2).mean(axis=-1), np.abs(away).mean(axis=-1)
