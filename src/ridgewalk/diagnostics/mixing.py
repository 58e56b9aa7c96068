"""Effective sample size and autocorrelation time, by ArviZ."""

import warnings

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk.diagnostics.draws import Draws


def _ess(values: np.ndarray) -> float:
    """ArviZ's bulk ESS of (chain, draw)."""
    with warnings.catch_warnings():
        # ArviZ 0.x announces its 1.0 on import; that is not the user's concern.
        warnings.simplefilter("ignore", FutureWarning)
        import arviz  # noqa: PLC0415  (slow to import, and only needed here)
    return float(arviz.ess(values))


def _flat(result: Draws) -> np.ndarray:
    """Draws as (chain, draw, d)."""
    return np.asarray(jax.vmap(jax.vmap(lambda position: ravel_pytree(position)[0]))(result.kept_positions()), float)


def effective_sample_size(result: Draws) -> np.ndarray:
    """The effective sample size of every parameter over all chains, in the order of `ravel_pytree(position)`."""
    draws = _flat(result)
    return np.array([_ess(draws[:, :, i]) for i in range(draws.shape[2])])


def autocorrelation_time(result: Draws) -> np.ndarray:
    """Draws per effective draw, for every parameter: all draws over the sum of each chain's own effective size.

    (The mean of the chains' own times would be ruled by the few chains whose effective size comes out tiny.)
    """
    draws = _flat(result)
    chains, count, d = draws.shape
    sizes = [[_ess(draws[c : c + 1, :, i]) for c in range(chains)] for i in range(d)]
    return chains * count / np.sum(sizes, axis=1)
