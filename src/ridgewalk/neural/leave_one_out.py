"""Leave-one-out predictions without fitting again: how good a fit is on examples it has not seen, none held out.

**Draws.** The posterior without example i has the importance weights 1 / p(y_i | θ) relative to the posterior, whose
largest values are smoothed by a generalised Pareto distribution (PSIS; Vehtari, Simpson, Gelman, Yao and Gabry 2024).
Its shape k tells where that works: above 0.7 the estimate for an example is unreliable.

**Modes.** `approximations.jackknife` gives the outputs that a mode would have without each example, by one Newton step.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ridgewalk.neural.predictive import Mixture, Predictive, with_least_std

Array = NDArray[np.float64]

UNRELIABLE = 0.7
"""k above which the estimate for an example is not to be trusted."""

MOST_EXAMPLES = 1_000
"""Examples, spread evenly, that estimates are made on."""


class LeaveOneOut(NamedTuple):
    """Estimates for examples, each predicted from the others."""

    log_density: Array
    """(example,)."""
    cumulative: Array
    """The predictive distribution function at the target, (example, output)."""
    predictive: Predictive
    shape: Array
    """k of each example."""

    @property
    def unreliable(self) -> float:
        """The share of examples with k > 0.7."""
        return float(np.mean(self.shape > UNRELIABLE))


def some_examples(count: int) -> NDArray[np.intp]:
    """The rows that estimates are made on."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_EXAMPLES)).astype(np.intp))


def leave_one_out(mixture: Mixture, y: Array) -> LeaveOneOut:
    """From the components of the predictive distributions at the examples, and their targets (example, output)."""
    densities = mixture.log_components(y)
    weights, shape = smoothed_weights(-densities)
    share = np.exp(weights)[:, :, None]
    mean = np.sum(share * mixture.location, axis=0)
    variance = np.sum(share * (mixture.variances() + (mixture.location - mean[None]) ** 2), axis=0)
    return LeaveOneOut(
        np.asarray(logsumexp(weights + densities, axis=0)),
        np.sum(share * mixture.component_cumulative(y), axis=0),
        with_least_std(mean, variance),
        shape,
    )


def smoothed_weights(log_ratios: Array) -> tuple[Array, Array]:
    """Normalised log weights (draw, example), and the Pareto shape k of each example."""
    draws, examples = log_ratios.shape
    weights = log_ratios - log_ratios.max(axis=0, keepdims=True)
    shape = np.full(examples, np.inf)
    tail = int(np.ceil(min(draws / 5, 3 * np.sqrt(draws))))
    if tail >= 5:
        for example in range(examples):
            weights[:, example], shape[example] = _smooth_tail(weights[:, example], tail)
    return weights - logsumexp(weights, axis=0, keepdims=True), shape


def _smooth_tail(logs: Array, tail: int) -> tuple[Array, float]:
    """The largest weights replaced by quantiles of the Pareto distribution fitted to them."""
    order = np.argsort(logs)
    largest = order[-tail:]
    cutoff = logs[order[-tail - 1]]
    excess = np.exp(logs[largest]) - np.exp(cutoff)
    if not excess[-1] > 10 * np.finfo(float).tiny or excess[0] <= 0:
        return logs, -np.inf  # all weights of the tail are equal
    k, sigma = _fit_pareto(excess)
    if not np.isfinite(k):
        return logs, k
    p = (np.arange(tail) + 0.5) / tail
    quantiles = sigma * (np.expm1(-k * np.log1p(-p)) / k if k != 0 else -np.log1p(-p))
    smoothed = logs.copy()
    smoothed[largest] = np.minimum(np.log(quantiles + np.exp(cutoff)), 0.0)
    return smoothed, k


def _fit_pareto(x: Array) -> tuple[float, float]:
    """Shape and scale of sorted positive numbers by the empirical Bayes estimate of Zhang and Stephens (2009)."""
    count = len(x)
    grid = 30 + int(np.sqrt(count))
    b = 1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    b = b / (3 * x[int(count / 4 + 0.5) - 1]) + 1 / x[-1]
    k = np.log1p(-b[:, None] * x[None]).mean(axis=1)
    score = count * (np.log(-b / k) - k - 1)
    share = np.exp(score - logsumexp(score))
    b_mean = float(np.sum(b * share))
    k_mean = float(np.log1p(-b_mean * x).mean())
    return (count * k_mean + 5.0) / (count + 10), -k_mean / b_mean
