"""Error of a run on a local Gaussian approximation of the posterior, in closed form, and the measurement of that
approximation: preconditioned curvature and gradient noise at probe points of a chain.

In coordinates whitened by the preconditioner (θ = S u, S Sᵀ = G) the potential is ½ uᵀ A u with A = Sᵀ H S, and the
gradient noise has covariance V = Sᵀ Cov(g) S. A step is then linear, so the stationary covariance and the
autocorrelations of the chain are known for every step size.
"""

import math
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import Layout, layout_of
from ridgewalk._types import Key, PyTree, Scalar, Vector
from ridgewalk.data import DataPlaceholder
from ridgewalk.diagnostics.curvature import whitened_gradient
from ridgewalk.dynamics import BAOAB, DelayedLangevin, Dynamics, Hamiltonian, NoseHoover
from ridgewalk.gradients import GradientEstimator
from ridgewalk.preconditioners.base import largest_eigenvalue, whitened_hessian_product
from ridgewalk.sampling.batching import BatchIndexer
from ridgewalk.target import Posterior

Criterion = Literal["joint", "marginal"]
"""The error of a run: of the joint covariance of the quantities of interest, or of each one's mean and variance."""

STABILITY_MARGIN = 1.25
"""The optimal step size is stable by this factor, since the curvature varies."""


class LocalGaussian(NamedTuple):
    """A and V in the eigenvectors of A, and the quantities whose error is predicted."""

    curvatures: np.ndarray
    """a, the eigenvalues of G H, all positive."""
    noise: np.ndarray
    """V in the eigenvectors, (m, m)."""
    quantities: np.ndarray
    """Q, (r, m): each row is a quantity of interest in units of the posterior standard deviations, of length 1."""
    counts: np.ndarray
    """Number of directions of the posterior that each eigenvector represents; if not 1, Q is the identity."""
    max_joint: int
    """Maximum number of quantities of the joint criterion."""
    max_curvature: float
    """Median over probe points of λ_max(G H): above the largest eigenvalue of the mean if H varies."""

    @property
    def limit(self) -> float:
        """2 / λ_max(G H)."""
        return 2 / self.max_curvature

    def at_fixed_point(self) -> "LocalGaussian":
        """With a fully adapted G: curvatures below 1 become 1, their value at the fixed point G = H⁻¹."""
        scale = np.sqrt(np.maximum(1, 1 / self.curvatures))
        return self._replace(
            curvatures=np.maximum(self.curvatures, 1),
            noise=self.noise * np.outer(scale, scale),
            max_curvature=max(self.max_curvature, 1),
        )

    def without_noise(self) -> "LocalGaussian":
        """With exact gradients."""
        return self._replace(noise=np.zeros_like(self.noise))

    def at_max_curvature(self) -> "LocalGaussian":
        """With all curvatures scaled to the probe points of largest curvature, for stability."""
        return self._replace(curvatures=self.curvatures * self.max_curvature / self.curvatures.max())


class StationaryDistribution(NamedTuple):
    """The stationary covariance of u, and the factor by which a deviation contracts in one step."""

    covariance: np.ndarray
    contraction: np.ndarray

    @property
    def stable(self) -> bool:
        """Whether deviations contract in every direction."""
        return bool(np.all(self.contraction < 1))


def stationary_distribution(dynamics: Dynamics, step_size: float, model: LocalGaussian) -> StationaryDistribution:
    """The stationary distribution of the chain at step size ε.

    Langevin: Σ = (I − εA) Σ (I − εA) + 2 ε T I + ε² V, so Σ_ij = (2 T δ_ij + ε V_ij) / (a_i + a_j − ε a_i a_j).
    User-defined dynamics are treated as Langevin.
    """
    if isinstance(dynamics, Hamiltonian):
        injected = dynamics.friction_without_warmup * dynamics.temperature - dynamics.gradient_noise
        split = isinstance(dynamics, BAOAB)
        return _with_momentum(dynamics.friction_without_warmup, injected, step_size, model, split=split)
    if isinstance(dynamics, NoseHoover):
        # The thermostat's friction balances the mean gradient noise.
        per_direction = np.average(np.diag(model.noise), weights=model.counts)
        friction = dynamics.diffusion + step_size * per_direction / (2 * dynamics.temperature)
        return _with_momentum(min(friction, 1.0), dynamics.diffusion * dynamics.temperature, step_size, model)
    a = model.curvatures
    contraction = np.abs(1 - step_size * a)
    if np.any(contraction >= 1):
        return StationaryDistribution(np.diag(np.full(a.shape, np.inf)), contraction)
    pairs = a[:, None] + a[None, :] - step_size * np.outer(a, a)
    covariance = (2 * dynamics.temperature * np.eye(a.size) + step_size * model.noise) / pairs
    if isinstance(dynamics, DelayedLangevin):
        contraction = contraction ** (1 / dynamics.delay)
    return StationaryDistribution(covariance, contraction)


def _with_momentum(
    friction: float, injected: float, step_size: float, model: LocalGaussian, *, split: bool = False
) -> StationaryDistribution:
    """w' = (1−α) w − √ε (a u + ξ) + √(2 injected) z, u' = u + √ε w': P = F P Fᵀ + Q, 2 × 2 for every direction.

    `split`: the scheme of BAOAB. Between directions gradient noise acts as in Langevin dynamics with V / α.
    """
    a, root = model.curvatures, np.sqrt(step_size)
    kept, of_push, of_noise = 1 - friction, np.array([step_size, root]), np.array([root, 1.0])
    drift = root * kept
    if split:
        drift = root * (1 - friction / 2)
        of_push, of_noise = np.array([step_size, root * kept / (1 - friction / 2)]), np.array([root / 2, 1.0])
    ones = np.ones_like(a)
    f = np.array([[1 - of_push[0] * a, drift * ones], [-of_push[1] * a, kept * ones]]).transpose(2, 0, 1)
    contraction = np.abs(np.linalg.eigvals(f)).max(axis=1)
    if np.any(contraction >= 1):
        return StationaryDistribution(np.diag(np.full(a.shape, np.inf)), contraction)
    injected_noise = 2 * injected * np.outer(of_noise, of_noise).ravel()
    power = np.diag(model.noise)[:, None] * np.outer(of_push, of_push).ravel() + injected_noise
    system = np.eye(4) - np.einsum("nij,nkl->nikjl", f, f).reshape(-1, 4, 4)
    diagonal = np.linalg.solve(system, power[..., None])[:, 0, 0]
    covariance = step_size * model.noise / friction / (a[:, None] + a[None, :])
    np.fill_diagonal(covariance, diagonal)
    return StationaryDistribution(covariance, contraction)


class PredictedError(NamedTuple):
    """Root mean square errors of log variances after n steps: bias and Monte Carlo error."""

    bias: float
    monte_carlo: float

    @property
    def total(self) -> float:
        """√(bias² + Monte Carlo variance)."""
        return float(np.hypot(self.bias, self.monte_carlo))


class IntendedRun(NamedTuple):
    """The run that is tuned: its steps, its chains, whose draws are pooled, and the criterion."""

    steps: int
    chains: int = 1
    criterion: Criterion = "joint"


def predict_error(dynamics: Dynamics, step_size: float, model: LocalGaussian, run: IntendedRun) -> PredictedError:
    """The error of a run, in logarithms, so that too large and too small count alike.

    With E = A^½ E[Σ̂] A^½ / T, the expected sample covariance relative to the posterior's, and c_ij the relative Monte
    Carlo variance of Σ̂_ij:
    joint: the covariance matrix of the quantities Q. With K = log E and N = Qᵀ Q,
    error² = (tr N K N K + Σ_ij c_ij (N_ii N_jj + N_ij²)) / tr N².
    marginal: mean and variance of every quantity q, averaged over quantities,
    error² = (log qᵀ E q)² + 2 Σ_ij c_ij q_i² q_j² + 2 Var(mean), about four times the KL divergence of the normals.
    """
    stationary = stationary_distribution(dynamics, step_size, model)
    if not stationary.stable:
        return PredictedError(np.inf, np.inf)
    time = -np.log(np.maximum(stationary.contraction, np.exp(-2.0))) * run.steps
    mean_variance = _relative_mean_variance(time)
    scale = np.sqrt(model.curvatures / dynamics.temperature)
    relative = stationary.covariance * np.outer(scale, scale)
    errors = _joint_errors if run.criterion == "joint" else _marginal_errors
    squared_bias, variance = errors(relative, mean_variance, _covariance_variance(time, mean_variance), model)
    pooled = run.chains * (dynamics.delay if isinstance(dynamics, DelayedLangevin) else 1)  # M interleaved chains
    return PredictedError(float(np.sqrt(squared_bias)), float(np.sqrt(variance / pooled)))


def _joint_errors(
    relative: np.ndarray, mean_variance: np.ndarray, pairs: np.ndarray, model: LocalGaussian
) -> tuple[float, float]:
    """Squared bias and Monte Carlo variance of the joint criterion."""
    kept = np.outer(np.sqrt(1 - mean_variance), np.sqrt(1 - mean_variance))
    values, axes = np.linalg.eigh(relative * kept)
    bias = (axes * np.log(np.maximum(values, np.finfo(float).tiny))) @ axes.T
    n, counts = model.quantities.T @ model.quantities, np.sqrt(np.outer(model.counts, model.counts))
    weighted = n @ bias
    each = np.diag(n) * model.counts
    share = min(1.0, model.max_joint / model.counts.sum())
    size = np.sum(n**2 * counts)
    variance = np.sum(pairs / kept**2 * (share * np.outer(each, each) + n**2 * counts)) / size
    return max(float(np.sum(weighted * weighted.T * counts) / size), 0.0), float(variance)


def _marginal_errors(
    relative: np.ndarray, mean_variance: np.ndarray, pairs: np.ndarray, model: LocalGaussian
) -> tuple[float, float]:
    """Squared bias and Monte Carlo variance of the marginal criterion."""
    q, wide = model.quantities, np.diag(relative)
    kept = relative * np.outer(np.sqrt(1 - mean_variance), np.sqrt(1 - mean_variance))
    expected = np.maximum(np.einsum("ri,ij,rj->r", q, kept, q), np.finfo(float).tiny)
    parts = q**2 * wide
    of_variance = 2 * np.einsum("ri,ij,rj->r", parts, pairs, parts) / expected**2
    of_mean = 2 * parts @ mean_variance
    weights = model.counts if len(q) == model.counts.size else None
    return float(np.average(np.log(expected) ** 2, weights=weights)), float(
        np.average(of_variance + of_mean, weights=weights)
    )


def excess_potential(dynamics: Dynamics, step_size: float, model: LocalGaussian, steps: int) -> float:
    """E U at ε minus E U at ε/2 after `steps` steps from one start: ½ Σ a_i (Σ_ii(ε) − Σ_ii(ε/2)) of what has mixed."""
    full, half = (stationary_distribution(dynamics, e, model) for e in (step_size, step_size / 2))
    if not full.stable:
        return float("inf")
    mixed = 1 - full.contraction ** (2 * steps)
    difference = np.diag(full.covariance) - np.diag(half.covariance)
    return float(0.5 * np.sum(model.counts * mixed * model.curvatures * difference))


NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


def _relative_mean_variance(time: np.ndarray) -> np.ndarray:
    """Var(mean) / variance of an autocorrelation e^{−x t} over a run of unit length; 1 if nothing mixed."""
    x = np.maximum(time, 1e-3)
    return np.where(time < 1e-3, 1 - time / 3, 2 / x - 2 * -np.expm1(-x) / x**2)


def _covariance_variance(time: np.ndarray, mean_variance: np.ndarray) -> np.ndarray:
    """Var(Σ̂_ij) / (Σ_ii Σ_jj) of centred draws: tr(C_i P C_j P) with the exponential autocorrelations C."""
    x = np.maximum(time, 1e-3)
    at, weight = (NODES + 1) / 2, WEIGHTS / 2
    row = (2 - np.exp(-np.outer(at, x)) - np.exp(-np.outer(1 - at, x))) / x
    both = row.T @ (weight[:, None] * row)
    centred = _relative_mean_variance(x[:, None] + x[None, :]) - 2 * both + np.outer(mean_variance, mean_variance)
    return np.clip(centred, 0, None)


def optimal_step_size(dynamics: Dynamics, models: list[LocalGaussian], run: IntendedRun) -> float:
    """The step size of least predicted error, stable for every model.

    With several models (chains whose preconditioners adapted differently) it is the geometric mean of their optima,
    lowered until it is stable for all.
    """
    each = [_optimum(dynamics, model, run) for model in models]
    value = math.exp(np.mean(np.log(each)))
    while value > min(each) and not all(_is_stable(dynamics, value, model) for model in models):
        value /= 2**0.125
    return max(value, min(each))


def _is_stable(dynamics: Dynamics, step_size: float, model: LocalGaussian) -> bool:
    """Whether steps larger by the margin are stable at the largest curvature."""
    return stationary_distribution(dynamics, STABILITY_MARGIN * step_size, model.at_max_curvature()).stable


def _optimum(dynamics: Dynamics, model: LocalGaussian, run: IntendedRun) -> float:
    """The ε of least predicted error: a grid of factors 2, then of factors 2^(1/8)."""

    def error(step_size: float) -> float:
        if not _is_stable(dynamics, step_size, model):
            return math.inf
        return predict_error(dynamics, step_size, model, run).total

    coarse = 4 * model.limit * 2.0 ** -np.arange(1, 28.0)
    best = coarse[int(np.argmin([error(e) for e in coarse]))]
    fine = best * 2.0 ** np.linspace(-1, 1, 17)
    return float(fine[int(np.argmin([error(e) for e in fine]))])


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
