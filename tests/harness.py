"""One judge for all samplers: do draws come from a known Gaussian-like posterior, within Monte Carlo error?

Draws are whitened with the exact mean and covariance; means, variances and correlations of the whitened draws are
then compared with 0, 1 and 0. The allowance is a multiple of the Monte Carlo standard error, from the effective
sample size, plus a stated bias of the discretisation.
"""

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

import ridgewalk as rw
from ridgewalk.diagnostics.mixing import ess

STANDARD_ERRORS = 4.0
FEWEST_EFFECTIVE_DRAWS = 150


def flat_draws(result: rw.Result) -> np.ndarray:
    """(chain, draw, d)."""
    return np.asarray(jax.vmap(jax.vmap(lambda p: ravel_pytree(p)[0]))(result.positions), float)


def complaints(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray, *, bias: float) -> list[str]:
    """What is wrong with the draws, in words; nothing if they pass."""
    if not np.all(np.isfinite(draws)):
        return ["draws are not finite"]
    white = np.linalg.solve(np.linalg.cholesky(covariance), (draws - mean).reshape(-1, len(mean)).T).T
    white = white.reshape(draws.shape)
    found = []
    d = len(mean)
    wanted = [(f"mean {i}", white[..., i], 0.0) for i in range(d)]
    wanted += [
        (f"second moment {i}{j}", white[..., i] * white[..., j], float(i == j)) for i in range(d) for j in range(i + 1)
    ]
    for name, values, expected in wanted:
        effective = ess(values)
        if effective < FEWEST_EFFECTIVE_DRAWS:
            found.append(f"{name}: only {effective:.0f} effective draws")
        allowed = STANDARD_ERRORS * values.std() / np.sqrt(effective) + bias
        if abs(values.mean() - expected) > allowed:
            found.append(f"{name}: {values.mean():.3f} instead of {expected:.0f}, allowed ±{allowed:.3f}")
    return found


def gaussian_kl(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    """KL(N(sample mean, sample covariance) ‖ N(mean, covariance))."""
    flat = draws.reshape(-1, draws.shape[-1])
    factor = np.linalg.inv(np.linalg.cholesky(covariance))
    shift, spread = factor @ (flat.mean(0) - mean), factor @ np.cov(flat.T) @ factor.T
    return float(0.5 * (np.trace(spread) + shift @ shift - len(mean) - np.linalg.slogdet(spread)[1]))
