"""The local model of a chain: curvature and gradient noise where it has been, and what is judged."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key
from ridgewalk.gradients import GradientEstimator
from ridgewalk.run.local_law import LocalModel
from ridgewalk.run.local_look import Places, hessians, lanczos, readings
from ridgewalk.run.rows import Rows
from ridgewalk.target import Posterior

MOST_DENSE = 400
"""Up to this many parameters the averaged Hessian is formed; above, Lanczos finds its extent."""

JUDGED = 50
"""Of more parameters than this the covariance of so many is judged: of a whole network no run estimates it."""


def fit(key: Key, estimator: GradientEstimator, operator: Any, places: Places, rows: Rows) -> LocalModel:
    """A and V averaged over the places, in the directions in which A is diagonal, and what is judged.

    With data, that is what the likelihood sees of the parameters: ∇ log p(d_i | θ)ᵀ θ of some examples, which for a
    network are its predictions, whatever its weights do. Without data it is the parameters. Each counts in units of
    its own posterior spread.
    """
    form = _fit_dense if places.layout.size <= MOST_DENSE else _fit_large
    return form(key, estimator, operator, places, rows)


def _fit_dense(key: Key, estimator: GradientEstimator, operator: Any, places: Places, rows: Rows) -> LocalModel:
    d, target = places.layout.size, estimator.target
    look, read = jax.random.split(key)
    matrices, prior, noise = (np.asarray(x, float) for x in hessians(look, estimator, operator, places, rows))
    mean, every = matrices.mean(axis=0), jnp.eye(d, dtype=places.layout.dtype)
    if isinstance(target, Posterior):
        judged = np.asarray(readings(read, estimator, operator, places, every), float)
        fisher = target.size * judged.T @ judged / len(judged)
        mean = _at_least(prior + _power(fisher, mean - prior) * fisher, mean)
    else:
        judged = np.asarray(jax.vmap(operator.factor)(every), float).T
    values, axes = np.linalg.eigh(mean)
    a = _positive(values)
    # The median: the largest would be that of the least lucky choice of examples.
    steepest = max(float(a.max()), float(np.median(np.linalg.eigvalsh(matrices)[:, -1])))
    together = d if isinstance(target, Posterior) else JUDGED
    return LocalModel(a, axes.T @ noise @ axes, _rows(judged @ axes, a), np.ones(d), together, steepest)


def _fit_large(key: Key, estimator: GradientEstimator, operator: Any, places: Places, rows: Rows) -> LocalModel:
    look, read = jax.random.split(key)
    axes, *found = lanczos(look, estimator, operator, places, rows)
    values, weights, noise, steepest = (np.asarray(x, float) for x in found)
    a = _positive(values)
    if not isinstance(estimator.target, Posterior):
        counts = np.maximum(weights * places.layout.size, 1e-6)
        return LocalModel(a, np.diag(noise), np.eye(a.size), counts, JUDGED, float(steepest))
    judged = np.asarray(readings(read, estimator, operator, places, axes), float)
    return LocalModel(a, np.diag(noise), _rows(judged, a), np.ones(a.size), a.size, float(steepest))


def _rows(judged: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
    """Every quantity (a row) spread over the directions in units of the posterior's spread, scaled to length one."""
    spread = judged / np.sqrt(curvatures)
    lengths = np.linalg.norm(spread, axis=1, keepdims=True)
    usable = np.isfinite(lengths[:, 0]) & (lengths[:, 0] > 0)
    return spread[usable] / lengths[usable]


def _at_least(floor: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The matrix, raised to the floor in the directions in which it lies below.

    Of a posterior with data the floor is prior plus Fisher information, which is what H averages to. At a few places
    the rest of H, residuals times second derivatives, can make a network look flat in directions that its predictions
    depend on.
    """
    values, axes = np.linalg.eigh(floor - matrix)
    return matrix + (axes * np.maximum(values, 0)) @ axes.T


def _power(fisher: np.ndarray, curvature: np.ndarray) -> float:
    """What the Fisher information must be multiplied with to be the likelihood's curvature: 1 for a likelihood.

    Of a likelihood to the power w (a cold posterior) the scores' variance is w² F and the curvature w F, so 1/w. Found
    by least squares, tr(F H) / tr(F²), in which the directions count that the data determine best.
    """
    squares = float(np.sum(fisher**2))
    return float(np.clip(np.sum(fisher * curvature) / squares, 0, 1)) if squares > 0 else 1.0


def _positive(values: np.ndarray) -> np.ndarray:
    """Curvatures of a posterior are positive on average; what bends the other way in a few places is nearly flat."""
    return np.maximum(np.abs(values), 1e-7 * np.abs(values).max())
