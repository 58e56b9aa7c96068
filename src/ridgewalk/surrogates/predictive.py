"""What the posterior predicts: mean and spread of predictive draws, and central intervals."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from ridgewalk.surrogates.scores import NUMBERS_AT_ONCE

Array = NDArray[np.float64]


class Predictive(NamedTuple):
    """Mean μ and spread σ of the posterior predictive distribution, both (example, output)."""

    mean: Array
    spread: Array


SMALLEST_SPREAD = 1e-6
"""In units of an output's own spread: intervals never collapse to a point, however equal the draws are."""


def with_least_spread(mean: np.ndarray, variance: np.ndarray) -> Predictive:
    """μ and σ from a variance in scaled units."""
    return Predictive(mean, np.sqrt(np.maximum(variance, SMALLEST_SPREAD**2)))


class Intervals(NamedTuple):
    """Central intervals, (level, example, output), one pair of ends per level."""

    levels: Array
    lower: Array
    upper: Array


def summarise(draws: ArrayLike, noise: ArrayLike = 0.0) -> Predictive:
    """Mean and spread of predictive draws (draw, example, output).

    Draws of the network's outputs know nothing of the noise of the observations; its standard deviation `noise`, a
    number or (output,), is added: σ² = Var[f] + noise². Leave it at 0 for draws that contain it.
    """
    values = checked_draws(draws)
    deviation = np.asarray(noise, float)
    if deviation.ndim > 1 or np.any(deviation < 0) or not np.all(np.isfinite(deviation)):
        raise ValueError(f"noise: {noise!r} is no standard deviation; give a number ≥ 0, or one for each output")
    variance = values.var(axis=0, ddof=1, dtype=np.float64) + deviation**2
    return Predictive(values.mean(axis=0, dtype=np.float64), np.sqrt(variance))


def with_noise(draws: ArrayLike, noise: ArrayLike, seed: int) -> Array:
    """Draws of observations: draws of outputs, each with fresh Gaussian noise of standard deviation `noise`.

    `noise` is a number, (output,), or (draw, 1, 1) where it was sampled with the parameters.
    """
    values = checked_draws(draws)
    return values + np.asarray(noise, float) * np.random.default_rng(seed).standard_normal(values.shape)


def gaussian_intervals(predictive: Predictive, levels: ArrayLike) -> Intervals:
    """μ ± σ Φ⁻¹((1 + level)/2)."""
    wanted = checked_levels(levels)
    half = ndtri(0.5 * (1 + wanted))[:, None, None] * predictive.spread[None]
    return Intervals(wanted, predictive.mean[None] - half, predictive.mean[None] + half)


def draw_intervals(draws: ArrayLike, levels: ArrayLike) -> Intervals:
    """Quantiles (1 ∓ level)/2 of predictive draws.

    The p-quantile of m draws is the p (m + 1)-th smallest: so one more draw from the same distribution lies between
    two of them with just the probability asked for, however few draws there are.
    """
    wanted, values = checked_levels(levels), checked_draws(draws)
    fewest = int(np.ceil(np.round((1 + wanted.max()) / (1 - wanted.max()), 9)))
    if len(values) < fewest:
        raise ValueError(
            f"draws: the ends of an interval of level {wanted.max():g} need at least {fewest} draws, "
            f"not {len(values)}; keep more draws, lower the level, or use gaussian_intervals"
        )
    points = np.concatenate([0.5 * (1 - wanted), 0.5 * (1 + wanted)])
    flat = values.reshape(len(values), -1)
    ends = np.empty((len(points), flat.shape[1]))
    step = max(1, NUMBERS_AT_ONCE // len(values))
    for start in range(0, flat.shape[1], step):
        part = slice(start, start + step)
        ends[:, part] = np.quantile(flat[:, part], points, axis=0, method="weibull")
    lower, upper = ends.reshape(2, len(wanted), *values.shape[1:])
    return Intervals(wanted, lower, upper)


def checked_draws(draws: ArrayLike) -> Array:
    """Draws as an array (draw, example, output) of at least two finite draws."""
    values = np.asarray(draws)
    if values.ndim != 3 or values.shape[0] < 2:
        raise ValueError(f"draws: shape {values.shape}; give predictions (draw, example, output) of at least 2 draws")
    if not np.all(np.isfinite(values)):
        raise ValueError("draws: some are not finite; leave out chains that diverged")
    return values


def checked_targets(targets: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Targets as an array of the shape of the predictions."""
    values = np.asarray(targets, float)
    if values.shape != shape:
        raise ValueError(f"targets: shape {values.shape} is not that of the predictions, {shape}")
    return values


def checked_levels(levels: ArrayLike) -> Array:
    """Levels as a vector of numbers between 0 and 1."""
    values = np.atleast_1d(np.asarray(levels, float))
    if values.ndim != 1 or values.size == 0 or not np.all((values > 0) & (values < 1)):
        raise ValueError(f"levels: {levels!r}; give probabilities between 0 and 1, such as (0.5, 0.9)")
    return values


def checked_predictive(predictive: Predictive) -> Predictive:
    """A predictive distribution whose spread is positive everywhere."""
    if predictive.mean.shape != predictive.spread.shape or predictive.mean.ndim != 2:
        raise ValueError(
            f"predictive: mean {predictive.mean.shape} and spread {predictive.spread.shape}; "
            "both must be (example, output)"
        )
    if not np.all(predictive.spread > 0):
        raise ValueError(
            f"predictive: the spread is zero for {int(np.sum(predictive.spread <= 0))} outputs, whose draws are all "
            "equal; pass the observations' noise to summarise, or leave these outputs out"
        )
    return predictive
