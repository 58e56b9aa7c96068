"""Data, posteriors and samplers of the paper's regression with n = 100 and p = 200.

Neighbouring predictors have correlation 0.8^{1/4} = 0.946.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Vector
from ridgewalk.priors.base import gaussian_prior
from ridgewalk.priors.spike_slab import shared_noise, spike_and_slab
from ridgewalk.samplers import hasgld_sa, sgld
from ridgewalk.studies.framework.comparison import Contender
from ridgewalk.target import Posterior

PLAIN, SPARSE, OURS, PRINTED = "SGLD", "SGLD-SA", "HASGLD-SA", "HASGLD-SA, as printed"

CONTENDERS = (
    Contender(PLAIN, sgld, (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 8e-4), (2e-5, 5e-5, 1e-4)),
    Contender(SPARSE, sgld, (2e-4, 4e-4, 8e-4, 1.1e-3, 1.6e-3, 2.2e-3), (8e-4, 1.1e-3, 1.6e-3)),
    Contender(OURS, hasgld_sa, (0.05, 0.1, 0.15, 0.2, 0.3, 0.4), (0.1, 0.15, 0.2), gradients=2),
    Contender(
        PRINTED,
        lambda: hasgld_sa(form="as_printed", memory=2),
        (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1),
        (1e-3, 1e-2, 0.1),
        gradients=2,
    ),
)
"""Each grid brackets its optimum, except that of the as-printed variant. All but SGLD use the spike-and-slab prior."""

PAPER_STEP_SIZE = 0.1
"""The learning rate that the paper gives for all samplers."""


@dataclass(frozen=True)
class Settings:
    """Every seed is a data set, on which each sampler runs several chains from zero."""

    steps: int = 5_000
    burn_in: int = 100
    batch_size: int = 50
    """Of 100 training samples; the paper gives none."""
    seeds: int = 10
    chains: int = 4
    mark_every: int = 50
    """Errors are evaluated every so many steps."""
    every_step_size: bool = True


PREDICTORS, TRAINING, VALIDATION, TEST = 200, 100, 50, 50
NOISE_VARIANCE = 3.0

Samples: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Predictors (n, p) and responses (n,)."""


class Split(NamedTuple):
    """Independent samples: for the posterior, for the choice of step sizes, and for the reported errors."""

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
    """Cholesky factor of Σ_ij = 0.8^{|i−j|/4}."""
    places = np.arange(PREDICTORS)
    return np.linalg.cholesky(0.8 ** (np.abs(np.subtract.outer(places, places)) / 4))


@cache
def data_set(seed: int) -> Split:
    """The data of one seed: every seed has its own predictors and noise."""
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


# Module constants: `sample` recompiles for a new target function, but not for new data.
SPARSE_PRIOR = spike_and_slab(spike_scale=0.1, slab_variance=100.0, delta=0.5, a=1.0, b=PREDICTORS, nu=1.0, lam=1.0)
PLAIN_PRIOR = gaussian_prior(1.0)
SHARED = shared_noise(_residual)


def posterior(samples: Samples, *, sparse: bool) -> Posterior:
    """Spike-and-slab prior with unknown σ, or N(0, 1) prior with known noise variance."""
    data = tuple(jnp.asarray(part) for part in samples)
    return Posterior(SPARSE_PRIOR, SHARED, data) if sparse else Posterior(PLAIN_PRIOR, _known_noise, data)


def errors(weights: np.ndarray, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Mean squared and mean absolute error of the predictions of each row of weights (…, p)."""
    x, y = (part.astype(float) for part in samples)
    residuals = y - weights @ x.T
    return (residuals**2).mean(axis=-1), np.abs(residuals).mean(axis=-1)


def contender_named(name: str) -> Contender:
    """Return the contender of this name."""
    return next(contender for contender in CONTENDERS if contender.name == name)


def has_sparse_prior(contender: Contender) -> bool:
    """Whether a contender uses the spike-and-slab prior."""
    return contender.name != PLAIN


class RegressionRow(NamedTuple):
    """Results of one sampler at one step size; without errors if a chain diverged."""

    sampler: str
    step_size: float
    gradients: int
    """Minibatch gradients per step."""
    step: list[int]
    """Steps at which errors are evaluated."""
    diverged: bool
    validation_mse: Sequence[Sequence[float]] = ()
    """(seed, step), as `mse` and `mae` on test samples."""
    mse: Sequence[Sequence[float]] = ()
    mae: Sequence[Sequence[float]] = ()
    means: Sequence[Sequence[float]] = ()
    """Posterior mean at the end of the chain, (seed, weight)."""
    inclusion: Sequence[Sequence[float]] = ()
    """Inclusion probabilities (seed, weight); empty under the plain prior."""
    sigma: Sequence[float] = ()
    """σ at the end of the chain, by seed."""
