"""What n steps of a chain estimate near one mode: a Gaussian posterior with Gaussian gradient noise, solved exactly.

In coordinates whitened by the preconditioner (θ = S u, S Sᵀ = G) the potential is ½ uᵀ A u with A = Sᵀ H S, and the
gradient noise has covariance V = Sᵀ Cov(g) S. A step is then linear, and its stationary covariance is known.
"""

from typing import Literal, NamedTuple

import numpy as np

from ridgewalk.dynamics.base import Dynamics
from ridgewalk.dynamics.delayed import Delayed
from ridgewalk.dynamics.hamiltonian import Hamiltonian
from ridgewalk.dynamics.thermostat import Thermostat

Judge = Literal["together", "each"]
"""What a run is for: the covariance matrix of the quantities of interest, or each one's own mean and variance."""


class LocalModel(NamedTuple):
    """Directions in which A is diagonal."""

    curvatures: np.ndarray
    """a, the eigenvalues of G H, all positive."""
    noise: np.ndarray
    """V in these directions, (m, m)."""
    judged: np.ndarray
    """Q, (r, m): rows are quantities of interest, spread over the directions in units of the posterior's, length 1."""
    counts: np.ndarray
    """How many directions of the posterior each stands for; 1 where all were looked at, else Q is the identity."""
    most: int
    """Of how many quantities at most the covariance is judged together."""
    steepest: float
    """The largest eigenvalue of G H at a single place, in the median: above that of the mean where H varies."""

    @property
    def limit(self) -> float:
        """2 / λ_max(G H), where it is steepest."""
        return 2 / self.steepest

    def settled(self) -> "LocalModel":
        """With a G that has learnt the flat directions: a below 1 becomes 1, as at the fixed point G = H⁻¹."""
        scale = np.sqrt(np.maximum(1, 1 / self.curvatures))
        return self._replace(
            curvatures=np.maximum(self.curvatures, 1),
            noise=self.noise * np.outer(scale, scale),
            steepest=max(self.steepest, 1),
        )

    def quiet(self) -> "LocalModel":
        """With exact gradients."""
        return self._replace(noise=np.zeros_like(self.noise))

    def at_steepest(self) -> "LocalModel":
        """All directions scaled to the place where G H is largest: what must still be stable."""
        return self._replace(curvatures=self.curvatures * self.steepest / self.curvatures.max())


class Law(NamedTuple):
    """The stationary covariance of u, and the factor by which a deviation shrinks in one step."""

    covariance: np.ndarray
    contraction: np.ndarray

    @property
    def stable(self) -> bool:
        """Whether deviations shrink in every direction."""
        return bool(np.all(self.contraction < 1))


def stationary_law(dynamics: Dynamics, step_size: float, model: LocalModel) -> Law:
    """Where the chain settles at a step size ε.

    Langevin: Σ = (I − εA) Σ (I − εA) + 2 ε T I + ε² V, so Σ_ij = (2 T δ_ij + ε V_ij) / (a_i + a_j − ε a_i a_j). A
    dynamics of the user's own is taken for Langevin.
    """
    if isinstance(dynamics, Hamiltonian):
        kick = dynamics.friction * dynamics.temperature - dynamics.gradient_noise
        return _with_momentum(dynamics.friction, kick, step_size, model)
    if isinstance(dynamics, Thermostat):
        # The thermostat's friction grows until it takes out what the gradient noise puts in, on average.
        per_direction = np.average(np.diag(model.noise), weights=model.counts)
        friction = dynamics.diffusion + step_size * per_direction / (2 * dynamics.temperature)
        return _with_momentum(min(friction, 1.0), dynamics.diffusion * dynamics.temperature, step_size, model)
    a = model.curvatures
    contraction = np.abs(1 - step_size * a)
    if np.any(contraction >= 1):
        return Law(np.diag(np.full(a.shape, np.inf)), contraction)
    pairs = a[:, None] + a[None, :] - step_size * np.outer(a, a)
    covariance = (2 * dynamics.temperature * np.eye(a.size) + step_size * model.noise) / pairs
    if isinstance(dynamics, Delayed):
        contraction = contraction ** (1 / dynamics.delay)
    return Law(covariance, contraction)


def _with_momentum(friction: float, kick: float, step_size: float, model: LocalModel) -> Law:
    """w' = (1−α) w − √ε (a u + ξ) + √(2 kick) z, u' = u + √ε w': P = F P Fᵀ + Q, two by two for every direction.

    Between directions gradient noise acts as in Langevin dynamics with V / α.
    """
    a, root = model.curvatures, np.sqrt(step_size)
    rest = np.full(a.shape, 1 - friction)
    f = np.array([[1 - step_size * a, root * rest], [-root * a, rest]]).transpose(2, 0, 1)
    contraction = np.abs(np.linalg.eigvals(f)).max(axis=1)
    if np.any(contraction >= 1):
        return Law(np.diag(np.full(a.shape, np.inf)), contraction)
    power = step_size * np.diag(model.noise) + 2 * kick
    shape = np.array([step_size, root, root, 1.0])
    system = np.eye(4) - np.einsum("nij,nkl->nikjl", f, f).reshape(-1, 4, 4)
    diagonal = np.linalg.solve(system, (power[:, None] * shape)[..., None])[:, 0, 0]
    covariance = step_size * model.noise / friction / (a[:, None] + a[None, :])
    np.fill_diagonal(covariance, diagonal)
    return Law(covariance, contraction)


class Prediction(NamedTuple):
    """Errors that n steps would show: root mean squares of log ratios of variances."""

    bias: float
    monte_carlo: float

    @property
    def total(self) -> float:
        """√(bias² + Monte Carlo variance)."""
        return float(np.hypot(self.bias, self.monte_carlo))


def predict(
    dynamics: Dynamics, step_size: float, model: LocalModel, steps: int, chains: int = 1, judge: Judge = "together"
) -> Prediction:
    """The error of a run, in logarithms, so that too wide and too narrow count alike.

    With E = A^½ E[Σ̂] A^½ / T, the expected sample covariance relative to the posterior's, and c_ij the relative Monte
    Carlo variance of Σ̂_ij:
    together: the covariance matrix of what is judged. With K = log E and N = Qᵀ Q,
    error² = (tr N K N K + Σ_ij c_ij (N_ii N_jj + N_ij²)) / tr N².
    each: mean and variance of every quantity q on its own, on average
    error² = (log qᵀ E q)² + 2 Σ_ij c_ij q_i² q_j² + 2 Var(mean), about four times the divergence of the normal laws.
    """
    law = stationary_law(dynamics, step_size, model)
    if not law.stable:
        return Prediction(np.inf, np.inf)
    time = -np.log(np.maximum(law.contraction, np.exp(-2.0))) * steps
    lost = _mean_variance(time)
    spread = np.sqrt(model.curvatures / dynamics.temperature)
    relative = law.covariance * np.outer(spread, spread)
    score = _together if judge == "together" else _each
    squared_bias, variance = score(relative, lost, _pair_variance(time, lost), model)
    pooled = chains * (dynamics.delay if isinstance(dynamics, Delayed) else 1)  # M positions that take turns
    return Prediction(float(np.sqrt(squared_bias)), float(np.sqrt(variance / pooled)))


def _together(relative: np.ndarray, lost: np.ndarray, pairs: np.ndarray, model: LocalModel) -> tuple[float, float]:
    kept = np.outer(np.sqrt(1 - lost), np.sqrt(1 - lost))
    values, axes = np.linalg.eigh(relative * kept)
    bias = (axes * np.log(np.maximum(values, np.finfo(float).tiny))) @ axes.T
    n, counts = model.judged.T @ model.judged, np.sqrt(np.outer(model.counts, model.counts))
    weighted = n @ bias
    each = np.diag(n) * model.counts
    share = min(1.0, model.most / model.counts.sum())
    size = np.sum(n**2 * counts)
    variance = np.sum(pairs / kept**2 * (share * np.outer(each, each) + n**2 * counts)) / size
    return max(float(np.sum(weighted * weighted.T * counts) / size), 0.0), float(variance)


def _each(relative: np.ndarray, lost: np.ndarray, pairs: np.ndarray, model: LocalModel) -> tuple[float, float]:
    q, wide = model.judged, np.diag(relative)
    kept = relative * np.outer(np.sqrt(1 - lost), np.sqrt(1 - lost))
    expected = np.maximum(np.einsum("ri,ij,rj->r", q, kept, q), np.finfo(float).tiny)
    parts = q**2 * wide
    of_variance = 2 * np.einsum("ri,ij,rj->r", parts, pairs, parts) / expected**2
    of_mean = 2 * parts @ lost
    weights = model.counts if len(q) == model.counts.size else None
    return float(np.average(np.log(expected) ** 2, weights=weights)), float(
        np.average(of_variance + of_mean, weights=weights)
    )


def excess_potential(dynamics: Dynamics, step_size: float, model: LocalModel, steps: int) -> float:
    """E U at ε over that at ε/2 after `steps` steps from one start: ½ Σ a_i (Σ_ii(ε) − Σ_ii(ε/2)) of what has mixed."""
    here, half = (stationary_law(dynamics, e, model) for e in (step_size, step_size / 2))
    if not here.stable:
        return float("inf")
    mixed = 1 - here.contraction ** (2 * steps)
    difference = np.diag(here.covariance) - np.diag(half.covariance)
    return float(0.5 * np.sum(model.counts * mixed * model.curvatures * difference))


NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


def _mean_variance(time: np.ndarray) -> np.ndarray:
    """Var(mean) / variance of an autocorrelation e^{−x t} over a run of unit length; 1 where nothing mixed."""
    x = np.maximum(time, 1e-3)
    return np.where(time < 1e-3, 1 - time / 3, 2 / x - 2 * -np.expm1(-x) / x**2)


def _pair_variance(time: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """Var(Σ̂_ij) / (Σ_ii Σ_jj) of centred draws: tr(C_i P C_j P) with the exponential autocorrelations C."""
    x = np.maximum(time, 1e-3)
    at, weight = (NODES + 1) / 2, WEIGHTS / 2
    row = (2 - np.exp(-np.outer(at, x)) - np.exp(-np.outer(1 - at, x))) / x
    both = row.T @ (weight[:, None] * row)
    return np.clip(_mean_variance(x[:, None] + x[None, :]) - 2 * both + np.outer(lost, lost), 0, None)
