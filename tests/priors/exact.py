"""Spike-and-slab regressions solved without sampling: quadrature, closed forms and EM, in NumPy.

The model is that of `rw.spike_and_slab` with the likelihood N(y; Xβ, τ²), τ = σ where the noise is shared.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

V0, V1 = 0.1, 100.0


class Hyper(NamedTuple):
    sigma: float
    delta: float


class Moments(NamedTuple):
    """Posterior expectations at fixed σ and δ."""

    rho: np.ndarray
    spike: float  # Σ (1−γ)|β| / v₀
    slab: float  # Σ γβ² / v₁
    squares: float  # Σ r²


class Regression(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    noise: float | None  # None: the prior's σ
    b: float | None = None

    def tau(self, hyper: Hyper) -> float:
        return hyper.sigma if self.noise is None else self.noise


def orthogonal_regression(noise: float | None = None) -> Regression:
    """XᵀX = 40 I, so that the posterior factorises; clear, doubtful and absent effects.

    With a noise of its own there are two clear ones: with less, σ has a second good value, at which the spike alone is
    wide enough for all.
    """
    rng = np.random.default_rng(5)
    n, effects = 40, [2.0, 0.9, 0.4] if noise is None else [3.0, -3.0, 0.4]
    beta = np.array(effects + [0.0] * 5)
    x = np.linalg.qr(rng.normal(size=(n, len(beta))))[0] * np.sqrt(n)
    return Regression(x, x @ beta + rng.normal(size=n), noise)


def correlated_regression() -> Regression:
    """Two predictors with correlation 0.8, only the first with an effect: either can stand for it."""
    rng = np.random.default_rng(3)
    n = 30
    first = rng.normal(size=n)
    x = np.stack([first, 0.8 * first + 0.6 * rng.normal(size=n)], axis=1)
    return Regression(x, 1.5 * x[:, 0] + rng.normal(size=n), None)


def log_parts(beta: np.ndarray, hyper: Hyper) -> tuple[np.ndarray, np.ndarray]:
    """log δ N(β; 0, σ²v₁) and log (1−δ) Laplace(β; 0, σv₀)."""
    sigma, delta = hyper
    slab = np.log(delta) + norm.logpdf(beta, scale=sigma * np.sqrt(V1))
    return slab, np.log1p(-delta) - np.log(2 * sigma * V0) - np.abs(beta) / (sigma * V0)


def enumerate_models(case: Regression, hyper: Hyper) -> tuple[np.ndarray, float]:
    """P(γ_j = 1 | y, σ, δ) and log p(y | σ, δ) by the sum over all 2^p models; XᵀX diagonal, integrals closed."""
    tau, weights = case.tau(hyper), np.sum(case.x**2, axis=0)
    least_squares, s = case.x.T @ case.y / weights, tau / np.sqrt(weights)
    b, width = least_squares, hyper.sigma * V0
    log_slab = np.log(hyper.delta) + norm.logpdf(b, scale=np.sqrt(s**2 + hyper.sigma**2 * V1))
    sides = [sign * b / width + norm.logcdf(-sign * b / s - s / width) for sign in (1, -1)]
    log_spike = np.log1p(-hyper.delta) - np.log(2 * width) + s**2 / (2 * width**2) + np.logaddexp(*sides)
    models = np.array(list(product([0, 1], repeat=len(b))))
    evidence = models @ log_slab + (1 - models) @ log_spike
    weights_of = np.exp(evidence - evidence.max())
    # log N(y; Xβ, τ²) = rest + Σ_j log N(b_j; β_j, s_j²)
    rest = norm.logpdf(case.y - case.x @ b, scale=tau).sum() + 0.5 * np.log(2 * np.pi * s**2).sum()
    total = float(rest + evidence.max() + np.log(weights_of.sum()))
    return models.T @ weights_of / weights_of.sum(), total


def grid_of(case: Regression, hyper: Hyper, j: int, points: int) -> np.ndarray:
    """Points from −reach to reach, 0 among them: the prior has its kink there."""
    least = np.linalg.lstsq(case.x, case.y, rcond=None)[0]
    deviation = case.tau(hyper) * np.sqrt(np.linalg.inv(case.x.T @ case.x)[j, j])
    reach = abs(least[j]) + 9 * deviation
    return np.linspace(-reach, reach, 2 * (points // 2) + 1)


def factorised_moments(case: Regression, hyper: Hyper, averaged: np.ndarray | None = None) -> Moments:
    """One integral for each coefficient; with `averaged` ρ, under the penalty of Deng et al. in the prior's place."""
    weights, tau = np.sum(case.x**2, axis=0), case.tau(hyper)
    least_squares = case.x.T @ case.y / weights
    rho, spike, slab, excess = [], 0.0, 0.0, 0.0
    for j, b in enumerate(least_squares):
        beta = grid_of(case, hyper, j, 20_001)
        log_slab, log_spike = log_parts(beta, hyper)
        inside = 1 / (1 + np.exp(np.clip(log_spike - log_slab, -700, 700)))
        if averaged is None:
            log_prior, share = np.logaddexp(log_slab, log_spike), inside
        else:
            z, share = beta / hyper.sigma, averaged[j]
            log_prior = -(1 - share) * np.abs(z) / V0 - share * z**2 / (2 * V1)
        density = log_prior - weights[j] * (beta - b) ** 2 / (2 * tau**2)
        density = np.exp(density - density.max())
        density /= density.sum()
        rho.append(float(density @ inside))
        spike += density @ ((1 - share) * np.abs(beta)) / V0
        slab += density @ (share * beta**2) / V1
        excess += weights[j] * (density @ (beta - b) ** 2)
    return Moments(np.array(rho), spike, slab, excess + np.sum((case.y - case.x @ least_squares) ** 2))


def grid_moments(case: Regression, hyper: Hyper) -> Moments:
    """Two correlated coefficients on a grid."""
    first, second = np.meshgrid(*(grid_of(case, hyper, j, 801) for j in range(2)), indexing="ij")
    beta = np.stack([first, second], axis=-1)
    log_slab, log_spike = log_parts(beta, hyper)
    inside = 1 / (1 + np.exp(np.clip(log_spike - log_slab, -700, 700)))
    gram, moment = case.x.T @ case.x, case.x.T @ case.y
    squares = case.y @ case.y - 2 * beta @ moment + np.einsum("abi,ij,abj->ab", beta, gram, beta)
    density = np.logaddexp(log_slab, log_spike).sum(-1) - squares / (2 * case.tau(hyper) ** 2)
    density = np.exp(density - density.max())
    density /= density.sum()
    expect = [np.sum(density * value) for value in (((1 - inside) * np.abs(beta)).sum(-1), (inside * beta**2).sum(-1))]
    rho = np.einsum("ab,abj->j", density, inside)
    return Moments(rho, expect[0] / V0, expect[1] / V1, float(np.sum(density * squares)))


def best_sigma(case: Regression, spike: float, slab: float, squares: float) -> float:
    """The σ that maximises −A log σ − C/(2σ²) − B/σ, with ν = λ = 1."""
    n, p = case.x.shape
    shared = case.noise is None
    a, c = p + 3 + n * shared, slab + 1 + squares * shared
    return (spike + np.sqrt(spike**2 + 4 * a * c)) / (2 * a)


def em(case: Regression, moments=factorised_moments, averaged: bool = False, tolerance: float = 1e-9):
    """σ, δ and ρ where EM ends (or, with `averaged`, the fixed point of Deng et al.'s penalty)."""
    p = case.x.shape[1]
    b = p if case.b is None else case.b
    hyper, rho = Hyper(1.0, 0.5), np.full(p, 0.5)
    for _ in range(20_000):
        found = moments(case, hyper, rho) if averaged else moments(case, hyper)
        new = Hyper(best_sigma(case, *found[1:]), found.rho.sum() / (p + b - 1))
        change = max(abs(np.subtract(new, hyper)).max(), abs(found.rho - rho).max())
        hyper, rho = new, found.rho
        if change < tolerance:
            return hyper, rho
    raise AssertionError("EM has not converged")


def log_marginal_posterior(case: Regression, hyper: Hyper) -> float:
    """log p(y | σ, δ) + log p(σ²) + log p(δ), without constants: what EM climbs."""
    p = case.x.shape[1]
    b = p if case.b is None else case.b
    prior = -3 * np.log(hyper.sigma) - 1 / (2 * hyper.sigma**2) + (b - 1) * np.log1p(-hyper.delta)
    return enumerate_models(case, hyper)[1] + prior
