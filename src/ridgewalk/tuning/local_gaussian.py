"""Error of a run on a local Gaussian approximation of the posterior, in closed form.

In coordinates whitened by the preconditioner (θ = S u, S Sᵀ = G) the potential is ½ uᵀ A u with A = Sᵀ H S, and the
gradient noise has covariance V = Sᵀ Cov(g) S. A step is then linear, so the stationary covariance and the
autocorrelations of the chain are known for every step size.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from ridgewalk.dynamics.base import Dynamics
from ridgewalk.dynamics.hamiltonian import Hamiltonian, NoseHoover
from ridgewalk.dynamics.langevin import DelayedLangevin

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
        return _with_momentum(dynamics.friction_without_warmup, injected, step_size, model)
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


def _with_momentum(friction: float, injected: float, step_size: float, model: LocalGaussian) -> StationaryDistribution:
    """w' = (1−α) w − √ε (a u + ξ) + √(2 injected) z, u' = u + √ε w': P = F P Fᵀ + Q, 2 × 2 for every direction.

    Between directions gradient noise acts as in Langevin dynamics with V / α.
    """
    a, root = model.curvatures, np.sqrt(step_size)
    rest = np.full(a.shape, 1 - friction)
    f = np.array([[1 - step_size * a, root * rest], [-root * a, rest]]).transpose(2, 0, 1)
    contraction = np.abs(np.linalg.eigvals(f)).max(axis=1)
    if np.any(contraction >= 1):
        return StationaryDistribution(np.diag(np.full(a.shape, np.inf)), contraction)
    power = step_size * np.diag(model.noise) + 2 * injected
    shape = np.array([step_size, root, root, 1.0])
    system = np.eye(4) - np.einsum("nij,nkl->nikjl", f, f).reshape(-1, 4, 4)
    diagonal = np.linalg.solve(system, (power[:, None] * shape)[..., None])[:, 0, 0]
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
