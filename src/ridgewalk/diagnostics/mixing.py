"""Convergence of the draws: effective sample size, R-hat, autocorrelation time, and the kernelised Stein discrepancy.

Rank-normalised split R-hat, bulk and tail ESS are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), with
the same numbers as arviz-stats, and need NumPy and SciPy only. The Stein discrepancy between draws and the target needs
gradients only.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import fft
from scipy.special import ndtri

from ridgewalk._pytree import leaf_names
from ridgewalk._validation import check_between, check_choice
from ridgewalk.diagnostics.draw_access import MIN_DRAWS, map_gradients, pruning_masks, thinned_positions
from ridgewalk.result import Result

TAIL = (0.05, 0.95)
"""The quantiles whose indicator functions the tail ESS is of."""


def _split(values: np.ndarray) -> np.ndarray:
    """Both halves of every chain as chains of their own."""
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]])


def _rank_normalise(values: np.ndarray) -> np.ndarray:
    """Normal scores of the ranks over all chains; ties have their average rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(ndtri((ranks[inverse] - 3 / 8) / (values.size + 1 / 4))).reshape(values.shape)


def autocovariance(values: np.ndarray) -> np.ndarray:
    """Autocovariances of every row of (chain, draw) at all lags, by FFT."""
    n = values.shape[1]
    length = fft.next_fast_len(2 * n)
    spectrum = np.abs(fft.rfft(values - values.mean(axis=1, keepdims=True), n=length, axis=1)) ** 2
    return np.asarray(fft.irfft(spectrum, n=length, axis=1))[:, :n] / n


def _ess(values: np.ndarray) -> float:
    """ESS of (chain, draw) by Geyer's initial monotone sequence of the autocorrelations over all chains."""
    values = np.asarray(values, float)
    chains, n = values.shape
    if np.ptp(values) < np.finfo(float).resolution:
        return float(values.size)
    covariance = autocovariance(values).mean(axis=0)
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + (values.mean(axis=1).var(ddof=1) if chains > 1 else 0.0)
    correlation = 1 - (within - covariance) / total
    correlation[0] = 1
    pairs = correlation[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    # The sequence ends with the first pair whose sum is not positive, or with the last pair that has two more lags.
    longest = max(0, -(-(n - 4) // 2))
    stops = np.flatnonzero(pairs[:longest] <= 0)
    end = int(stops[0]) if stops.size else longest
    last = correlation[2 * end]
    last = last if last > 0 or pairs[end] >= 0 else 0.0
    time = -1 + 2 * np.minimum.accumulate(pairs[:end]).sum() + last
    return float(values.size / max(time, 1 / np.log10(values.size)))


def ess(values: np.ndarray, method: Literal["bulk", "tail", "mean"] = "bulk") -> float:
    """Effective sample size of (chain, draw); NaN if draws are too few, constant or not finite."""
    values = np.asarray(values, float)
    if values.size == 0 or values.shape[1] < MIN_DRAWS:
        return float("nan")
    if not np.all(np.isfinite(values)) or np.all(values == values.flat[0]):
        return float("nan")
    if method == "tail":
        return min(_ess(_split(values <= quantile)) for quantile in np.quantile(values, TAIL))
    split = _split(values)
    return _ess(split if method == "mean" else _rank_normalise(split))


def r_hat_from_moments(
    means: np.ndarray, variances: np.ndarray, draws: int, mask: np.ndarray | None = None
) -> np.ndarray:
    """R-hat = √((n − 1)/n + B/W) from every chain's mean and variance, arrays (chain, …).

    NaN for one chain; with a mask, only chains that kept a parameter count.
    """
    counted = np.ones(means.shape, bool) if mask is None else mask
    chains = counted.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = np.where(counted, means, 0).sum(0) / chains
        between = np.where(counted, (means - centre) ** 2, 0).sum(0) / (chains - 1)
        within = np.where(counted, variances, 0).sum(0) / chains
        found = np.sqrt((draws - 1) / draws + between / within)
    return np.where(chains > 1, found, np.nan)


def r_hat(values: np.ndarray) -> float:
    """Rank-normalised split R-hat of (chain, draw), the larger of bulk and tail; NaN for a single chain."""
    values = np.asarray(values, float)
    if values.shape[0] < 2 or values.shape[1] < MIN_DRAWS or not np.all(np.isfinite(values)):
        return float("nan")
    split = _split(values)
    n = split.shape[1]
    scores = [_rank_normalise(x) for x in (split, np.abs(split - np.median(split)))]
    return float(max(r_hat_from_moments(z.mean(axis=1), z.var(axis=1, ddof=1), n) for z in scores))


def standard_error(values: np.ndarray) -> float:
    """Monte Carlo standard error of the mean of (chain, draw); NaN without draws."""
    if values.size == 0:
        return float("nan")
    return float(values.std() / np.sqrt(ess(values, "mean")))


class LeafMoments(NamedTuple):
    """One leaf of a run that kept moments: mean and variance of every chain that did not diverge, and R-hat."""

    name: str
    shape: tuple[int, ...]
    means: np.ndarray
    """(chain, parameter), as are the variances."""
    variances: np.ndarray
    r_hat: np.ndarray
    mask: np.ndarray | None
    """Which parameters each chain kept, after pruning."""


def leaf_moments(result: Result) -> Iterator[LeafMoments]:
    """The running moments of a run, leaf by leaf."""
    kept, alive, masks = result.moments, result.alive, pruning_masks(result)
    if kept is None:
        return
    leaves = zip(leaf_names(kept.mean), jax.tree.leaves(kept.mean), jax.tree.leaves(kept.squares), strict=True)
    for name, mean, squares in leaves:
        means, sums = (np.asarray(x, float)[alive].reshape(int(alive.sum()), -1) for x in (mean, squares))
        variances, mask = sums / float(kept.weight), None if masks is None else masks[name]
        hats = r_hat_from_moments(means, variances, result.draws, mask)
        yield LeafMoments(name, mean.shape[1:], means, variances, hats, mask)


def interleaved_chains(result: Result, every: int = 1) -> int:
    """Number of independent chains interleaved in every `every`-th draw of one chain; 1 except for HAMCMC.

    In HAMCMC θ_k depends on θ_{k−M}, so one chain consists of M interleaved chains. With t steps between draws,
    M / gcd(M, t) of them are interleaved in the draws.
    """
    steps = result.draw_steps[::every]
    if result.delay == 1 or len(steps) < 2:
        return 1
    return result.delay // math.gcd(result.delay, int(steps[1] - steps[0]))


def deinterleave(values: np.ndarray, count: int) -> np.ndarray:
    """(chain, draw, …) as (chain × count, draw / count, …), without an incomplete last round.

    Analysed as one chain, interleaved chains have no correlation at lag 1; the ESS estimate stops summing there and is
    far too large.
    """
    if count == 1:
        return values
    chains, rounds = values.shape[0], values.shape[1] // count
    cut = values[:, : rounds * count].reshape(chains, rounds, count, *values.shape[2:])
    return cut.swapaxes(1, 2).reshape(chains * count, rounds, *values.shape[2:])


def deinterleave_draws(result: Result, values: np.ndarray, every: int = 1) -> np.ndarray:
    """Values (chain, draw, …) of every `every`-th draw, interleaved chains separated."""
    return deinterleave(values, interleaved_chains(result, every))


def _flat(result: Result) -> np.ndarray:
    """Draws as (chain, draw, d)."""
    return np.asarray(jax.vmap(jax.vmap(lambda position: ravel_pytree(position)[0]))(result.kept_positions()), float)


def effective_sample_size(result: Result) -> np.ndarray:
    """The bulk ESS of every parameter over all chains, in the order of `ravel_pytree(position)`."""
    draws = deinterleave_draws(result, _flat(result))
    return np.array([ess(draws[:, :, i]) for i in range(draws.shape[2])])


def ess_by_chain(draws: np.ndarray, interleaved: int = 1) -> np.ndarray:
    """The bulk ESS (chain, d) of each chain of draws (chain, draw, d) on its own, summed over interleaved chains."""
    chains, _, d = draws.shape
    parts = deinterleave(draws, interleaved)
    sizes = np.array([[ess(part[None, :, i]) for i in range(d)] for part in parts])
    return sizes.reshape(chains, interleaved, d).sum(axis=1)


def autocorrelation_time(result: Result) -> np.ndarray:
    """Integrated autocorrelation time in draws, for every parameter: all draws over the sum of each chain's own ESS.

    The mean of the chains' own times would be dominated by chains whose ESS estimate is very small.
    """
    draws, interleaved = _flat(result), interleaved_chains(result)
    used = draws.shape[1] // interleaved * interleaved
    return draws.shape[0] * used / ess_by_chain(draws, interleaved).sum(axis=0)


Scaling = Literal["none", "diagonal", "covariance"]

ROW_BLOCK = 256


def _stein_sum(x: np.ndarray, score: np.ndarray, others: np.ndarray, other_scores: np.ndarray, beta: float) -> float:
    """Σ k_p(x_i, y_j), with k = (1 + |x − y|²)^β.

    k_p(x, y) = s_x·s_y k + s_x·∇_y k + s_y·∇_x k + tr ∇_x ∇_y k.
    """
    d = x.shape[1]
    # |x−y|² and s·(x−y) as matrix products: no array of (rows, draws, d).
    squares = (x**2).sum(1)[:, None] + (others**2).sum(1)[None, :] - 2 * x @ others.T
    base = 1 + np.maximum(squares, 0)
    along = (score * x).sum(1)[:, None] - score @ others.T  # s_x·(x − y)
    back = x @ other_scores.T - (others * other_scores).sum(1)[None, :]  # s_y·(x − y)
    slope = 2 * beta * base ** (beta - 1)
    trace = -d * slope - 4 * beta * (beta - 1) * base ** (beta - 2) * (base - 1)
    return float((score @ other_scores.T * base**beta + slope * (back - along) + trace).sum())


def _check(positions: np.ndarray, gradients: np.ndarray, scaling: str, beta: float) -> None:
    if positions.ndim != 2 or gradients.shape != positions.shape:
        raise ValueError(
            f"gradients: shapes {positions.shape} of positions and {gradients.shape} of gradients are not both "
            "(draws, d); pass one gradient of the potential for each draw"
        )
    if not (np.all(np.isfinite(positions)) and np.all(np.isfinite(gradients))):
        raise ValueError("gradients: positions or gradients are not finite; leave out draws of diverged chains")
    check_choice("scaling", scaling, get_args(Scaling))
    check_between("beta", beta, -1, 0, hint="where the discrepancy detects non-convergence; use -0.5")
    if scaling == "covariance" and positions.shape[0] <= positions.shape[1]:
        raise ValueError(
            f"scaling: 'covariance' of {positions.shape[1]} parameters needs more draws than {positions.shape[0]}; "
            "raise max_draws, or use scaling='diagonal'"
        )


def stein_discrepancy_of(
    positions: np.ndarray,
    gradients: np.ndarray,
    *,
    temperature: float = 1.0,
    scaling: Scaling = "none",
    beta: float = -0.5,
) -> float:
    """√(mean over pairs of k_p) of draws (n, d) with gradients (n, d) of the potential at them.

    The kernel is the inverse multiquadric (1 + |x − y|²)^β, whose discrepancy vanishes in the limit only for draws
    of the target (Gorham and Mackey 2017); the score is −∇U / T. `scaling` measures distances in units of the draws'
    standard deviations ("diagonal") or in whitened coordinates ("covariance").
    It is of order n^{−1/2} for exact draws: compare sets of equal size.
    """
    positions, gradients = np.asarray(positions, float), np.asarray(gradients, float)
    _check(positions, gradients, scaling, beta)
    x, score = positions - positions.mean(0), -gradients / temperature
    if scaling == "diagonal":
        std = x.std(0)
        std = np.where(std > 0, std, 1)
        x, score = x / std, score * std
    elif scaling == "covariance":
        lower = np.linalg.cholesky(x.T @ x / len(x))
        x, score = np.linalg.solve(lower, x.T).T, score @ lower
    total = sum(
        _stein_sum(x[i : i + ROW_BLOCK], score[i : i + ROW_BLOCK], x, score, beta) for i in range(0, len(x), ROW_BLOCK)
    )
    return float(np.sqrt(max(total, 0.0)) / len(x))


def stein_discrepancy(
    result: Result,
    *,
    max_draws: int = 1000,
    examples: int | None = None,
    scaling: Scaling = "none",
    beta: float = -0.5,
) -> float:
    """The kernelised Stein discrepancy of a run's draws, `max_draws` of them evenly spaced.

    Gradients use all data, or with `examples` an independent batch of that size for each draw, which adds noise but no
    bias beyond the diagonal of the sum. See `stein_discrepancy_of` for the formula.
    """
    temperature = result.sampler.dynamics.temperature
    if not temperature > 0:
        raise ValueError(f"temperature: {temperature} must be positive; at 0 the chain does not sample a distribution")
    if result.sampler.pruning is not None:
        raise ValueError(
            "result: its chains are pruned, so each has its own target, the posterior given its zeros; call "
            "stein_discrepancy_of with the kept coordinates of one chain and their gradients"
        )
    positions = thinned_positions(result, max_draws, "the Stein discrepancy")
    both = map_gradients(result, positions, lambda position, gradient: jnp.stack([position, gradient]), examples)
    both = both.reshape(-1, 2, both.shape[-1])
    return stein_discrepancy_of(both[:, 0], both[:, 1], temperature=temperature, scaling=scaling, beta=beta)
