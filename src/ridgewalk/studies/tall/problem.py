"""Logistic and robust regression with many rows, Laplace's approximation of their posteriors, and reference moments.

The models are written in NumPyro, so that all samplers have the same density. Reference moments are those of draws from
Laplace's approximation with importance weights: with many rows it is close to the posterior, and the weights to 1.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import layout_of
from ridgewalk._types import PyTree, Vector
from ridgewalk._validation import requires_extra
from ridgewalk.models.numpyro import from_numpyro
from ridgewalk.studies.framework.comparison import covariance_distance
from ridgewalk.target import Posterior

with requires_extra("numpyro"):
    import numpyro
    import numpyro.distributions as dist

FEATURES, CORRELATION, SMALLEST_SCALE, LARGEST_SCALE = 50, 0.95, 0.26, 3.2
"""Features have correlation 0.95^|i−j| and scales in geometric progression."""
DEGREES_OF_FREEDOM = 4.0
"""Of the errors of the robust regression."""
ROWS_AT_ONCE, DRAWS_AT_ONCE = 2**14, 2**10
"""Log likelihoods that are evaluated together; Hessians are of blocks of as many rows."""
NEWTON_STEPS, NEWTON_TOLERANCE = 10, 1e-7
"""Newton steps at most, and the Newton decrement gᵀ H⁻¹ g at which they end."""


def logistic(x: Any, y: Any, subsample: int | None = None) -> None:
    """Labels 0 and 1; `subsample` is for HMCECS."""
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("row", x.shape[0], subsample_size=subsample):
        features, labels = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=features @ w), obs=labels)


def robust(x: Any, y: Any, subsample: int | None = None) -> None:
    """Student-t errors with an unknown scale."""
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(5))
    with numpyro.plate("row", x.shape[0], subsample_size=subsample):
        features, outcome = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.StudentT(DEGREES_OF_FREEDOM, features @ w, scale), obs=outcome)


MODELS = {"logistic": logistic, "robust": robust}


class TallProblem(NamedTuple):
    """A model with its data, as NumPyro and as a target."""

    model: Any
    x: jax.Array
    y: jax.Array
    target: Posterior
    like: dict[str, jax.Array]
    """A position, unconstrained: all zeros."""

    def vectors(self, draws: dict[str, Any]) -> np.ndarray:
        """Unconstrained positions by site, with a leading axis of draws, as rows (draw, d)."""
        leaves = jax.tree.leaves({name: np.asarray(value, float) for name, value in draws.items()})
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    def unconstrained(self, draws: dict[str, Any]) -> dict[str, np.ndarray]:
        """What NumPyro returns, with the logarithm of the scale."""
        return {name: np.log(value) if name == "scale" else np.asarray(value) for name, value in draws.items()}


@cache
def tall_problem(kind: str, size: int, seed: int = 0) -> TallProblem:
    """Simulated data of a kind, with a Hessian of condition about 3e4."""
    rng = np.random.default_rng([seed, size])
    gaps = np.abs(np.subtract.outer(np.arange(FEATURES), np.arange(FEATURES)))
    scale = np.geomspace(SMALLEST_SCALE, LARGEST_SCALE, FEATURES)
    root = (scale[:, None] * np.linalg.cholesky(CORRELATION**gaps)).astype(np.float32)
    x = rng.standard_normal((size, FEATURES), dtype=np.float32) @ root.T
    mean = x @ (rng.normal(size=FEATURES) / scale / np.sqrt(FEATURES))
    if kind == "logistic":
        y = (rng.uniform(size=size) < 1 / (1 + np.exp(-mean))).astype(np.float32)
    else:
        y = (mean + rng.standard_t(DEGREES_OF_FREEDOM, size=size)).astype(np.float32)
    return as_problem(MODELS[kind], x, y)


def as_problem(model: Callable[..., None], x: np.ndarray, y: np.ndarray) -> TallProblem:
    """A model with its data as a target."""
    features, outcome = jnp.asarray(x), jnp.asarray(y)
    target = from_numpyro(model, features, outcome)
    start = target.model.start(jax.random.key(0), target)
    return TallProblem(model, features, outcome, target, jax.tree.map(jnp.zeros_like, start))


class Gaussian(NamedTuple):
    """Mean and covariance of a posterior, or of an approximation of it."""

    mean: np.ndarray
    covariance: np.ndarray


class Errors(NamedTuple):
    """Of means, standard deviations and covariance, against a reference."""

    mean: float
    """Root mean square over the parameters, in posterior standard deviations."""
    sd: float
    """Root mean square of the logarithms of the ratios."""
    covariance: float
    """Mean absolute log eigenvalue of the covariance, whitened by that of the reference."""


def errors_of(found: Gaussian, reference: Gaussian) -> Errors:
    """How far moments are from those of the reference."""
    sd = np.sqrt(np.diag(reference.covariance))
    return Errors(
        mean=float(np.sqrt(np.mean(((found.mean - reference.mean) / sd) ** 2))),
        sd=float(np.sqrt(np.mean(np.log(np.sqrt(np.diag(found.covariance)) / sd) ** 2))),
        covariance=covariance_distance(found.covariance, np.linalg.inv(reference.covariance)),
    )


def moments(draws: np.ndarray) -> Gaussian:
    """Of draws (chain, draw, d) or (draw, d), pooled."""
    flat = draws.reshape(-1, draws.shape[-1])
    return Gaussian(flat.mean(axis=0), np.cov(flat.T))


# Laplace's approximation


@jax.jit
def _derivatives(target: Posterior, like: PyTree, flat: Vector, rows: PyTree) -> tuple[Vector, jax.Array]:
    """Gradient and Hessian of −Σ log p(d_i | θ) over some rows; of −log p(θ) if they are None."""
    layout = layout_of(like)

    def potential(x: Vector) -> jax.Array:
        position = layout.unravel(x)
        return -(target.prior_value(position) if rows is None else jnp.sum(target.likelihood_values(position, rows)))

    return jax.grad(potential)(flat), jax.hessian(potential)(flat)


def _blocks(target: Posterior) -> list[PyTree]:
    sizes = range(0, target.size, ROWS_AT_ONCE)
    return [jax.tree.map(lambda leaf, at=at: leaf[at : at + ROWS_AT_ONCE], target.data) for at in sizes]


def derivatives(target: Posterior, like: PyTree, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian of the potential, over all rows, summed in double precision."""
    at, without_data = jnp.asarray(flat, jnp.float32), _without_data(target)
    parts = [_derivatives(without_data, like, at, rows) for rows in (None, *_blocks(target))]
    gradients, hessians = zip(*parts, strict=True)
    return np.sum(np.array(gradients, float), axis=0), np.sum(np.array(hessians, float), axis=0)


def _without_data(target: Posterior) -> Posterior:
    """The target with a single row of data, so that compiled code does not depend on their number."""
    return Posterior(
        target.log_prior, target.log_likelihood, jax.tree.map(lambda leaf: leaf[:1], target.data), model=target.model
    )


class Laplace(NamedTuple):
    """The Gaussian at a mode."""

    gaussian: Gaussian
    passes: int
    """Passes over the data for gradient and Hessian."""


def laplace(problem: TallProblem, start: PyTree) -> Laplace:
    """Newton's method from near the mode, with gradients and Hessians over all rows."""
    flat, passes = problem.vectors(jax.tree.map(lambda leaf: np.asarray(leaf)[None], start))[0], 0
    while True:
        gradient, hessian = derivatives(problem.target, problem.like, flat)
        step, passes = np.linalg.solve(hessian, gradient), passes + 1
        if gradient @ step < NEWTON_TOLERANCE or passes > NEWTON_STEPS:
            return Laplace(Gaussian(flat, np.linalg.inv(hessian)), passes)
        flat = flat - step


# Reference moments


class Reference(NamedTuple):
    """Posterior moments by importance sampling."""

    gaussian: Gaussian
    effective_draws: float
    """(Σ w)² / Σ w² of the importance weights."""
    split_error: float
    """Half of the covariance error between the moments of two halves of the draws: about that of the reference."""


@partial(jax.jit, static_argnames=("prior",))
def _log_density_ratios(
    target: Posterior, like: PyTree, centre: Vector, positions: jax.Array, rows: PyTree, prior: bool
) -> jax.Array:
    """log p(d | θ) − log p(d | c) over some rows, or log p(θ) − log p(c), for every position θ (draw, d)."""
    layout = layout_of(like)

    def at(flat: Vector) -> jax.Array:
        position = layout.unravel(flat)
        return target.prior_value(position)[None] if prior else target.likelihood_values(position, rows)

    return jnp.sum(jax.vmap(at)(positions) - at(centre), axis=1)


def importance_reference(problem: TallProblem, approximation: Gaussian, draws: int, seed: int = 1) -> Reference:
    """Posterior moments from `draws` weighted draws of an approximation, in pairs c ± s.

    Moments of the unweighted draws are known, so that only the difference that the weights make has to be estimated.
    """
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((draws // 2, len(approximation.mean)))
    white = np.stack([half, -half], 1).reshape(-1, len(approximation.mean))
    root = np.linalg.cholesky(approximation.covariance)
    positions = (approximation.mean + white @ root.T).astype(np.float32)
    white = np.linalg.solve(root, (positions.astype(float) - approximation.mean).T).T  # of the rounded positions
    target, like, centre = _without_data(problem.target), problem.like, jnp.asarray(approximation.mean, jnp.float32)
    log_weights = 0.5 * np.sum(white**2, axis=1)
    for first in range(0, len(white), DRAWS_AT_ONCE):
        part = slice(first, first + DRAWS_AT_ONCE)
        log_weights[part] += np.asarray(_log_density_ratios(target, like, centre, positions[part], None, True), float)
        for rows in _blocks(problem.target):
            ratios = _log_density_ratios(target, like, centre, positions[part], rows, False)
            log_weights[part] += np.asarray(ratios, float)
    weights = np.exp(log_weights - log_weights.max())

    def weighted(part: slice) -> Gaussian:
        share = weights[part] / weights[part].sum()
        mean = share @ white[part]
        difference = (white[part].T * (share - 1 / len(share))) @ white[part]
        covariance = np.eye(len(mean)) + difference - np.outer(mean, mean)
        return Gaussian(approximation.mean + root @ mean, root @ covariance @ root.T)

    middle = len(white) // 4 * 2
    halves = weighted(slice(0, middle)), weighted(slice(middle, None))
    return Reference(
        weighted(slice(None)),
        float(weights.sum() ** 2 / np.sum(weights**2)),
        errors_of(*halves).covariance / 2,
    )
