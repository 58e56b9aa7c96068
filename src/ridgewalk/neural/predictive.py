"""Posterior predictive distributions: mean, standard deviation and central intervals, of draws and of networks."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from ridgewalk._compilation import jit, quick_compilation
from ridgewalk._types import PyTree
from ridgewalk.diagnostics.mixing import ess, r_hat
from ridgewalk.neural.networks import count_weights
from ridgewalk.neural.posterior import NetworkPosterior, PosteriorSpec, build

Array = NDArray[np.float64]

NUMBERS_AT_ONCE = 2**24
"""How many draws are sorted at a time."""


class Predictive(NamedTuple):
    """Mean μ and standard deviation σ of the posterior predictive distribution, both (example, output)."""

    mean: Array
    std: Array


SMALLEST_STD = 1e-6
"""In units of an output's own standard deviation: intervals have a positive width even where all draws agree."""


def with_least_std(mean: np.ndarray, variance: np.ndarray) -> Predictive:
    """μ and σ from a variance in scaled units."""
    return Predictive(mean, np.sqrt(np.maximum(variance, SMALLEST_STD**2)))


class Intervals(NamedTuple):
    """Central intervals, (level, example, output), one pair of ends per level."""

    levels: Array
    lower: Array
    upper: Array


def summarise(draws: ArrayLike, noise: ArrayLike = 0.0) -> Predictive:
    """Mean and standard deviation of predictive draws (draw, example, output).

    Draws of the network's outputs do not include observation noise; its standard deviation `noise`, a number or
    (output,), is added: σ² = Var[f] + noise². Leave it at 0 for draws that include it.
    """
    values = checked_draws(draws)
    deviation = np.asarray(noise, float)
    if deviation.ndim > 1 or np.any(deviation < 0) or not np.all(np.isfinite(deviation)):
        raise ValueError(f"noise: {noise!r} is not a standard deviation; give a number ≥ 0, or one for each output")
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
    half = ndtri(0.5 * (1 + wanted))[:, None, None] * predictive.std[None]
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
    """A predictive distribution whose standard deviation is positive everywhere."""
    if predictive.mean.shape != predictive.std.shape or predictive.mean.ndim != 2:
        raise ValueError(
            f"predictive: mean {predictive.mean.shape} and std {predictive.std.shape}; both must be (example, output)"
        )
    if not np.all(predictive.std > 0):
        raise ValueError(
            f"predictive: the standard deviation is zero for {int(np.sum(predictive.std <= 0))} outputs, whose draws "
            "are all equal; pass the observations' noise to summarise, or leave these outputs out"
        )
    return predictive


def checked_pair(predictive: Predictive, targets: ArrayLike) -> tuple[Predictive, Array]:
    """A predictive distribution and targets of its shape."""
    known = checked_predictive(predictive)
    return known, checked_targets(targets, known.mean.shape)


EXAMPLES_AT_ONCE = 256

SMALL = 2**15
"""Weights of a network up to which predictions are always made of 256 examples, the last of which are padding."""

PROBES = 8
"""Examples whose predictions of every draw a fit keeps, for the effective sample size."""


class HeldOut(NamedTuple):
    """Predictions of a fit's held-out examples, and how well predictions mixed."""

    predictive: Predictive
    ess: float
    """Median effective sample size of some predictions, over examples and outputs."""
    r_hat: float


def predict_scaled(spec: PosteriorSpec, draws: PyTree, x: np.ndarray) -> Predictive:
    """μ and σ of observations in scaled units: σ² = Var_draws[f] + mean_draws[noise²]."""
    weights = count_weights(jax.tree.map(lambda leaf: leaf[0], draws))
    return _predict(spec, draws, x, always_whole=weights <= SMALL)[0]


def predict_held_out(spec: PosteriorSpec, draws: PyTree, x: np.ndarray, chains: int) -> HeldOut:
    """`predict_scaled`, and the mixing of some predictions. The number of examples does not change what is compiled."""
    predictive, values = _predict(spec, draws, x, always_whole=True)
    flat = values.reshape(chains, -1, values.shape[1] * values.shape[2])
    if flat.shape[1] < 4:
        return HeldOut(predictive, float("nan"), float("nan"))
    some = flat[:, :, np.unique(np.linspace(0, flat.shape[2] - 1, 2 * PROBES).astype(int))].astype(float)
    sizes, ratios = ([measure(some[:, :, i]) for i in range(some.shape[2])] for measure in (ess, r_hat))
    return HeldOut(predictive, float(np.median(sizes)), float(np.median(ratios)))


def _predict(spec: PosteriorSpec, draws: PyTree, x: np.ndarray, *, always_whole: bool) -> tuple[Predictive, np.ndarray]:
    """μ and σ, and the outputs (draw, probe, output) of some examples, spread evenly."""
    parts = []
    probes = np.linspace(0, len(x) - 1, PROBES).astype(np.int32)
    kept = []
    moments = _moments_of(spec)
    with quick_compilation(always_whole):
        for start in range(0, len(x), EXAMPLES_AT_ONCE):
            inside = (probes >= start) & (probes < start + EXAMPLES_AT_ONCE)
            rows = np.where(inside, probes - start, 0)
            mean, variance, values = moments(draws, _padded(x[start : start + EXAMPLES_AT_ONCE], always_whole), rows)
            parts.append((np.asarray(mean, float), np.asarray(variance, float)))
            kept.append(np.asarray(values)[:, inside])
    centre, squares = (np.concatenate([part[i] for part in parts])[: len(x)] for i in (0, 1))
    return with_least_std(centre, squares), np.concatenate(kept, axis=1)


def _padded(x: np.ndarray, whole: bool) -> np.ndarray:
    """Examples repeated up to 256, or else up to a power of 2, so that few sizes are compiled."""
    wanted = EXAMPLES_AT_ONCE if whole else 1 << (len(x) - 1).bit_length()
    return np.concatenate([x, np.repeat(x[-1:], wanted - len(x), axis=0)])


Sums = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Number of draws, their mean, squared deviations from it, and squares of the noise."""

Moments = Callable[[PyTree, Any, Any], tuple[jax.Array, jax.Array, jax.Array]]


def _moments_of(spec: PosteriorSpec) -> Moments:
    try:
        return _cached_moments(spec)
    except TypeError:  # a network or prior that cannot be hashed
        return _compile(build(spec))


@lru_cache(maxsize=32)
def _cached_moments(spec: PosteriorSpec) -> Moments:
    return _compile(build(spec))


def _compile(posterior: NetworkPosterior) -> Moments:
    def moments(draws: PyTree, x: jax.Array, probes: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Welford's recursion over the draws: the array of all predictions is not formed."""
        first = jax.tree.map(lambda leaf: leaf[0], draws)
        shape = jax.eval_shape(posterior.outputs, first, x)
        nothing = jnp.zeros(shape.shape, shape.dtype)

        def add(seen: Sums, draw: PyTree) -> tuple[Sums, jax.Array]:
            count, mean, squares, noise = seen
            value, count = posterior.outputs(draw, x), count + 1
            change = value - mean
            mean = mean + change / count
            sigma = jnp.broadcast_to(posterior.noise(draw), shape.shape[1:]).astype(shape.dtype)
            return (count, mean, squares + change * (value - mean), noise + sigma**2), value[probes]

        start = (jnp.zeros((), shape.dtype), nothing, nothing, jnp.zeros(shape.shape[1:], shape.dtype))
        (count, mean, squares, noise), kept = jax.lax.scan(add, start, draws)
        return mean, squares / jnp.maximum(count - 1, 1) + (noise / count)[None], kept

    return jit(moments)
