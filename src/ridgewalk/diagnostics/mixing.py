"""Effective sample size, R-hat and autocorrelation time, by ArviZ."""

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.library import arviz, quiet
from ridgewalk.diagnostics.turns import separated


def ess(values: np.ndarray, method: str = "bulk") -> float:
    """ArviZ's effective sample size of (chain, draw); NaN where draws are none, too few, constant or not finite."""
    if values.size == 0 or not np.all(np.isfinite(values)) or np.all(values == values.flat[0]):
        return float("nan")
    with quiet():
        return float(arviz().ess(values, method=method))


def r_hat(values: np.ndarray) -> float:
    """ArviZ's rank-normalised split R̂ of (chain, draw); NaN for a single chain."""
    if values.shape[0] < 2 or not np.all(np.isfinite(values)):
        return float("nan")
    with quiet():
        return float(arviz().rhat(values))


def classical_r_hat(means: np.ndarray, variances: np.ndarray, draws: int, kept: np.ndarray | None = None) -> np.ndarray:
    """R̂ = √((n−1)/n + B/W) from every chain's mean and variance, (chain, …), W being the mean of the variances.

    NaN where there is one chain; of chains that were pruned, only those count that have `kept` a parameter.
    """
    share = np.ones(means.shape, bool) if kept is None else kept
    chains = share.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = np.where(share, means, 0).sum(0) / chains
        between = np.where(share, (means - centre) ** 2, 0).sum(0) / (chains - 1)
        within = np.where(share, variances, 0).sum(0) / chains
        found = np.sqrt((draws - 1) / draws + between / within)
    return np.where(chains > 1, found, np.nan)


def standard_error(values: np.ndarray) -> float:
    """Monte Carlo standard error of the mean of (chain, draw); NaN where there are no draws."""
    if values.size == 0:
        return float("nan")
    return float(values.std() / np.sqrt(ess(values, "mean")))


def _flat(result: Draws) -> np.ndarray:
    """Draws as (chain, draw, d), chains that take turns as chains of their own."""
    flat = jax.vmap(jax.vmap(lambda position: ravel_pytree(position)[0]))(result.kept_positions())
    return separated(result, np.asarray(flat, float))


def effective_sample_size(result: Draws) -> np.ndarray:
    """The effective sample size of every parameter over all chains, in the order of `ravel_pytree(position)`."""
    draws = _flat(result)
    return np.array([ess(draws[:, :, i]) for i in range(draws.shape[2])])


def autocorrelation_time(result: Draws) -> np.ndarray:
    """Draws per effective draw, for every parameter: all draws over the sum of each chain's own effective size.

    (The mean of the chains' own times would be ruled by the few chains whose effective size comes out tiny.) Each of
    the M positions that take turns in HAMCMC counts as a chain.
    """
    draws = _flat(result)
    chains, count, d = draws.shape
    sizes = [[ess(draws[c : c + 1, :, i]) for c in range(chains)] for i in range(d)]
    return chains * count / np.sum(sizes, axis=1)
