"""The local Gaussian model of a chain: preconditioned curvature and gradient noise at probe points of the chain."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import Layout, layout_of
from ridgewalk._types import Key, PyTree, Scalar, Vector
from ridgewalk.data import DataPlaceholder
from ridgewalk.diagnostics.curvature import whitened_gradient
from ridgewalk.gradients import GradientEstimator
from ridgewalk.preconditioners._curvature import largest_eigenvalue, whitened_hessian_product
from ridgewalk.sampling.batching import BatchIndexer
from ridgewalk.target import Posterior
from ridgewalk.tuning.local_gaussian import LocalGaussian

MAX_DENSE = 400
"""Up to this many parameters the mean Hessian is formed; above, its spectrum is approximated by Lanczos."""

MAX_JOINT = 50
"""Without data, the joint covariance of at most this many parameters: more cannot be estimated by a run."""

LANCZOS_STEPS = 24

HESSIAN_EXAMPLES = 2048
"""Examples of the Hessian at each probe point; every point uses others."""

NOISE_GRADIENTS = 24
"""Minibatch gradients at each probe point, from which the noise covariance is estimated."""

SCORE_EXAMPLES = 128
"""Examples at each probe point whose score vectors are quantities of interest."""


class ProbePoints(NamedTuple):
    """Positions of chains (leading axis: point), and earlier positions of the same chains as anchors of SVRG."""

    positions: PyTree
    anchors: PyTree

    @property
    def layout(self) -> Layout:
        """Layout of one position."""
        return layout_of(jax.tree.map(lambda x: x[0], self.positions))

    @property
    def number(self) -> int:
        """Number of points."""
        return int(jax.tree.leaves(self.positions)[0].shape[0])


def fit_local_gaussian(
    key: Key, estimator: GradientEstimator, operator: Any, points: ProbePoints, rows: BatchIndexer
) -> LocalGaussian:
    """Mean A and V over the probe points, in the eigenvectors of A, and the quantities of interest.

    With data, the quantities are the score vectors ∇ log p(d_i | θ)ᵀ θ of some examples: for a network, its
    predictions. Without data they are the parameters. Each is in units of its posterior standard deviation.
    """
    fit = _fit_dense if points.layout.size <= MAX_DENSE else _fit_lanczos
    return fit(key, estimator, operator, points, rows)


def _fit_dense(
    key: Key, estimator: GradientEstimator, operator: Any, points: ProbePoints, rows: BatchIndexer
) -> LocalGaussian:
    d, target = points.layout.size, estimator.target
    curvature_key, score_key = jax.random.split(key)
    measured = preconditioned_hessians(curvature_key, estimator, operator, points, rows)
    matrices, prior, noise = (np.asarray(x, float) for x in measured)
    mean, every = matrices.mean(axis=0), jnp.eye(d, dtype=points.layout.dtype)
    if isinstance(target, Posterior):
        quantities = np.asarray(score_vectors(score_key, estimator, operator, points, every), float)
        fisher = target.size * quantities.T @ quantities / len(quantities)
        mean = _raise_to(prior + _likelihood_power(fisher, mean - prior) * fisher, mean)
    else:
        quantities = np.asarray(jax.vmap(operator.factor)(every), float).T
    values, axes = np.linalg.eigh(mean)
    a = _positive(values)
    # The median: the maximum would be that of the least favourable choice of examples.
    max_curvature = max(float(a.max()), float(np.median(np.linalg.eigvalsh(matrices)[:, -1])))
    max_joint = d if isinstance(target, Posterior) else MAX_JOINT
    scaled = _normalised(quantities @ axes, a)
    return LocalGaussian(a, axes.T @ noise @ axes, scaled, np.ones(d), max_joint, max_curvature)


def _fit_lanczos(
    key: Key, estimator: GradientEstimator, operator: Any, points: ProbePoints, rows: BatchIndexer
) -> LocalGaussian:
    curvature_key, score_key = jax.random.split(key)
    axes, *measured = lanczos_spectrum(curvature_key, estimator, operator, points, rows)
    values, weights, noise, max_curvature = (np.asarray(x, float) for x in measured)
    a = _positive(values)
    if not isinstance(estimator.target, Posterior):
        counts = np.maximum(weights * points.layout.size, 1e-6)
        return LocalGaussian(a, np.diag(noise), np.eye(a.size), counts, MAX_JOINT, float(max_curvature))
    quantities = np.asarray(score_vectors(score_key, estimator, operator, points, axes), float)
    scaled = _normalised(quantities, a)
    return LocalGaussian(a, np.diag(noise), scaled, np.ones(a.size), a.size, float(max_curvature))


def _normalised(quantities: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
    """Every quantity (a row) in units of the posterior standard deviations, scaled to length 1."""
    scaled = quantities / np.sqrt(curvatures)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    usable = np.isfinite(lengths[:, 0]) & (lengths[:, 0] > 0)
    return scaled[usable] / lengths[usable]


def _raise_to(floor: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The matrix, raised to the floor in the directions in which it is below.

    For a posterior with data the floor is prior plus Fisher information, the expectation of H. At a few points the
    other term of H, residuals times second derivatives, can make H too small in directions that the predictions of a
    network depend on.
    """
    values, axes = np.linalg.eigh(floor - matrix)
    return matrix + (axes * np.maximum(values, 0)) @ axes.T


def _likelihood_power(fisher: np.ndarray, curvature: np.ndarray) -> float:
    """The factor between the Fisher information and the curvature of the likelihood: 1 for a likelihood.

    For a likelihood to the power w (a cold posterior) the variance of the scores is w² F and the curvature w F, so it
    is 1/w. Estimated by least squares, tr(F H) / tr(F²), in which the directions count that the data determine best.
    """
    squares = float(np.sum(fisher**2))
    return float(np.clip(np.sum(fisher * curvature) / squares, 0, 1)) if squares > 0 else 1.0


def _positive(values: np.ndarray) -> np.ndarray:
    """Absolute curvatures, bounded away from 0: the mean curvature of a posterior is positive."""
    return np.maximum(np.abs(values), 1e-7 * np.abs(values).max())


def _random_batch(key: Key, estimator: GradientEstimator, count: int, replace: bool) -> PyTree:
    """Random examples of the data in memory, or of the subsample of data on the host."""
    target = estimator.target
    if not isinstance(target, Posterior):
        return None
    data = target.data.examples if isinstance(target.data, DataPlaceholder) else target.data
    size = jax.tree.leaves(data)[0].shape[0]
    if count >= size and not replace:
        return data
    chosen = jax.random.randint(key, (count,), 0, size) if replace else jax.random.permutation(key, size)[:count]
    return jax.tree.map(lambda x: x[chosen], data)


def _hessian_products(
    estimator: GradientEstimator, operator: Any, point: tuple[Key, PyTree], directions: jax.Array, prior: bool = False
) -> jax.Array:
    """Sᵀ H S v at one probe point for the rows v of `directions`; with `prior`, H of the prior alone."""
    key, position = point
    form = layout_of(position)
    target = estimator.target
    batch = _random_batch(key, estimator, HESSIAN_EXAMPLES, replace=False)

    def gradient(vector: Vector) -> Vector:
        if prior and isinstance(target, Posterior):
            return form.ravel(target.prior_gradient(form.unravel(vector)))
        return form.ravel(jax.grad(target.potential)(form.unravel(vector), batch))

    product = whitened_hessian_product(operator, gradient, form.ravel(position))
    return jax.lax.map(product, directions, batch_size=32)


def _noise_covariance(
    key: Key, estimator: GradientEstimator, operator: Any, points: ProbePoints, rows: BatchIndexer, axes: Any
) -> Any:
    """V, the covariance of the whitened gradients over batches, averaged over points: (d, d), or (m,) along `axes`."""
    form = points.layout
    count = points.number

    def add_point(total: jax.Array, point: tuple[Key, PyTree, PyTree]) -> tuple[jax.Array, None]:
        key, position, anchor = point
        memory = estimator.init(anchor)

        def gradient(key: Key) -> Vector:
            batch = _random_batch(key, estimator, rows.batch_size, replace=True)
            flat = whitened_gradient(estimator, memory, operator, position, batch)
            return flat if axes is None else axes @ flat

        gradients = jax.lax.map(gradient, jax.random.split(key, NOISE_GRADIENTS))
        centred = gradients - jnp.mean(gradients, axis=0, keepdims=True)
        return total + (centred.T @ centred if axes is None else jnp.sum(centred**2, axis=0)), None

    width = form.size if axes is None else axes.shape[0]
    start = jnp.zeros((width, width) if axes is None else (width,), form.dtype)
    if rows.full:
        return start
    total, _ = jax.lax.scan(add_point, start, (jax.random.split(key, count), points.positions, points.anchors))
    return total / (count * (NOISE_GRADIENTS - 1))


@partial(jax.jit, static_argnames=("rows",))
def preconditioned_hessians(
    key: Key, estimator: GradientEstimator, operator: Any, points: ProbePoints, rows: BatchIndexer
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sᵀ H S at every probe point, its mean for the prior alone, and V."""
    form = points.layout
    first, second = jax.random.split(key)
    every = jnp.eye(form.size, dtype=form.dtype)
    keyed = (jax.random.split(first, points.number), points.positions)
    matrices = jax.lax.map(lambda point: _hessian_products(estimator, operator, point, every), keyed)
    symmetric = (matrices + jnp.swapaxes(matrices, 1, 2)) / 2
    prior = jnp.zeros_like(symmetric[0])
    if isinstance(estimator.target, Posterior):

        def of_prior(point: tuple[Key, PyTree]) -> jax.Array:
            return _hessian_products(estimator, operator, point, every, prior=True)

        prior = jnp.mean(jax.lax.map(of_prior, keyed), axis=0)
        prior = (prior + prior.T) / 2
    return symmetric, prior, _noise_covariance(second, estimator, operator, points, rows, None)


@partial(jax.jit, static_argnames=("rows",))
def lanczos_spectrum(
    key: Key, estimator: GradientEstimator, operator: Any, points: ProbePoints, rows: BatchIndexer
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, Scalar]:
    """Ritz vectors and values of the mean Sᵀ H S, their spectral weights, the noise along them, and λ_max.

    Every product uses the same examples, so that all come from one matrix.
    """
    form = points.layout
    first, second, third = jax.random.split(key, 3)
    start = jax.random.normal(first, (form.size,), form.dtype)
    count = points.number
    keyed = (jax.random.split(second, count), points.positions)

    def grow(basis: jax.Array, k: Scalar) -> tuple[jax.Array, Vector]:
        def add(total: Vector, point: tuple[Key, PyTree]) -> tuple[Vector, None]:
            return total + _hessian_products(estimator, operator, point, basis[k][None])[0] / count, None

        image, _ = jax.lax.scan(add, jnp.zeros_like(start), keyed)
        column = basis @ image
        rest = image - column @ basis
        rest = rest - (basis @ rest) @ basis
        length = jnp.linalg.norm(rest)
        return basis.at[k + 1].set(rest / jnp.where(length > 0, length, 1), mode="drop"), column

    empty = jnp.zeros((LANCZOS_STEPS, form.size), form.dtype)
    initial = empty.at[0].set(start / jnp.linalg.norm(start))
    basis, columns = jax.lax.scan(grow, initial, jnp.arange(LANCZOS_STEPS))
    # Column k is known against the vectors up to k; the rest follows by symmetry.
    upper = jnp.triu(columns.T)
    values, vectors = jnp.linalg.eigh(upper + jnp.triu(upper, 1).T)
    axes = vectors.T @ basis

    def max_eigenvalue(point: tuple[Key, PyTree]) -> Scalar:
        """Power iteration from the leading Ritz vector of the mean."""

        def product(direction: Vector) -> Vector:
            return _hessian_products(estimator, operator, point, direction[None])[0]

        return largest_eigenvalue(product, axes[-1], steps=3)

    if isinstance(estimator.target, Posterior):
        one = jax.tree.map(lambda x: x[0], points.positions)
        prior = _hessian_products(estimator, operator, (second, one), axes, prior=True)
        values = jnp.maximum(values, jnp.sum(prior * axes, axis=1))
    max_curvature = jnp.maximum(jnp.max(jnp.abs(values)), jnp.median(jax.lax.map(max_eigenvalue, keyed)))
    noise = _noise_covariance(third, estimator, operator, points, rows, axes)
    return axes, values, vectors[0] ** 2, noise, max_curvature


@jax.jit
def score_vectors(
    key: Key, estimator: GradientEstimator, operator: Any, points: ProbePoints, axes: jax.Array
) -> jax.Array:
    """Sᵀ ∇ log p(d_i | θ) along the rows of `axes`, for some examples at every probe point: (score, direction)."""
    form = points.layout

    def at_point(point: tuple[Key, PyTree]) -> jax.Array:
        batch = _random_batch(point[0], estimator, SCORE_EXAMPLES, replace=True)

        def score(example: PyTree) -> Vector:
            one = jax.tree.map(lambda x: x[None], example)
            gradient = estimator.target.likelihood_gradient(point[1], one)  # type: ignore[union-attr]
            return axes @ operator.factor_transpose(form.ravel(gradient))

        return jax.lax.map(score, batch)

    keys = jax.random.split(key, points.number)
    return jax.lax.map(at_point, (keys, points.positions)).reshape(-1, axes.shape[0])
