"""Posterior predictive distributions: mean, standard deviation, central intervals and densities, of draws and networks.

The predictive distribution of a network is the mixture, over draws of its weights, of the distributions of the
observations. Its density and quantiles are computed from all draws; of networks with very many outputs, and of cold
posteriors, only mean and standard deviation are used.

Leave-one-out predictions without fitting again: how good a fit is on examples it has not seen, none held out.

The posterior without example i has the importance weights 1 / p(y_i | θ) relative to the posterior, whose
largest values are smoothed by a generalised Pareto distribution (PSIS; Vehtari, Simpson, Gelman, Yao and Gabry 2024).
Its shape k tells where that works: above 0.7 the estimate for an example is unreliable.

Modes have no such weights. Leaving an example out by one Newton step, with the noise as it is, is too favourable to
them: by 0.1 in mean log density for a linear model with Gaussian noise and by 0.28 with Student's t, against fits
without the example. What sampling added over its modes is therefore said only where rows were not learnt from.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, logsumexp, ndtr, ndtri, stdtr, stdtrit

from ridgewalk._compilation import jit, quick_compilation
from ridgewalk._types import PyTree
from ridgewalk.diagnostics.mixing import ess, r_hat
from ridgewalk.neural.likelihoods import Categorical
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


# Mixtures over draws

BISECTIONS = 30


class Mixture(NamedTuple):
    """Location and scale (draw, example, output) and degrees of freedom (draw,), infinite for Gaussian components."""

    location: Array
    scale: Array
    degrees: Array

    @property
    def _nu(self) -> Array:
        return self.degrees[:, None, None]

    def predictive(self) -> Predictive:
        """Mean and standard deviation."""
        variance = self.location.var(axis=0, ddof=min(1, len(self.location) - 1)) + np.mean(self.variances(), axis=0)
        return with_least_std(self.location.mean(axis=0), variance)

    def variances(self) -> Array:
        """Those of the components, σ² ν / (ν − 2)."""
        heavy = np.isfinite(self.degrees)
        factor = np.ones_like(self.degrees)
        factor[heavy] = self.degrees[heavy] / (self.degrees[heavy] - 2)
        return self.scale**2 * factor[:, None, None]

    def _heavy(self) -> bool:
        return bool(np.isfinite(self.degrees).any())

    def component_cumulative(self, y: Array) -> Array:
        """The distribution functions of the components at y (example, output), (draw, example, output)."""
        z = (y[None] - self.location) / np.maximum(self.scale, SMALLEST_STD)
        return np.asarray(stdtr(self._nu, z) if self._heavy() else ndtr(z))

    def cumulative(self, y: Array) -> Array:
        """The distribution function at y (example, output)."""
        return np.mean(self.component_cumulative(y), axis=0)

    def quantile(self, level: float) -> Array:
        """By bisection between the least and the largest quantile of the components."""
        z = stdtrit(self._nu, level) if self._heavy() else ndtri(level)
        ends = self.location + z * np.maximum(self.scale, SMALLEST_STD)
        low, high = ends.min(axis=0), ends.max(axis=0)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            below = self.cumulative(middle) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)

    def log_components(self, y: Array) -> Array:
        """log density of y (example, output) under each component, (draw, example): outputs of an example together."""
        scale = np.maximum(self.scale, SMALLEST_STD)
        z = (y[None] - self.location) / scale
        if self._heavy():
            nu = self._nu
            constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
            return np.sum(constant - (nu + 1) / 2 * np.log1p(z**2 / nu) - np.log(scale), axis=2)
        return np.sum(-0.5 * z**2 - np.log(scale) - 0.5 * np.log(2 * np.pi), axis=2)

    def log_density(self, y: Array) -> Array:
        """log density of each example."""
        return np.asarray(logsumexp(self.log_components(y), axis=0)) - np.log(len(self.location))


# Of networks

EXAMPLES_AT_ONCE = 256

SMALL = 2**15
"""Weights of a network up to which predictions are always made of 256 examples, the last of which are padding."""

PROBES = 64
"""Examples whose predictions of every draw say how well the chains mix."""


class Mixing(NamedTuple):
    """Medians over some predictions: effective sample size and R-hat."""

    ess: float
    r_hat: float


def mixing(values: np.ndarray) -> Mixing:
    """Of predictions (chain, draw, …)."""
    flat = values.reshape(*values.shape[:2], -1).astype(float)
    if flat.shape[1] < 4:
        return Mixing(float("nan"), float("nan"))
    some = flat[:, :, np.unique(np.linspace(0, flat.shape[2] - 1, PROBES).astype(int))]
    sizes, ratios = ([measure(some[:, :, i]) for i in range(some.shape[2])] for measure in (ess, r_hat))
    known = [x for x in ratios if np.isfinite(x)], [x for x in sizes if np.isfinite(x)]
    return Mixing(*(float(np.median(part)) if part else float("nan") for part in known[::-1]))


def probe_rows(examples: int) -> np.ndarray:
    """Rows spread evenly, always `PROBES`: some twice where there are fewer."""
    return np.linspace(0, examples - 1, PROBES).astype(np.int32)


def predict_scaled(spec: PosteriorSpec, draws: PyTree, x: np.ndarray) -> Predictive:
    """μ and σ of observations in scaled units: σ² = Var_draws[f] + mean_draws[noise²]."""
    moments = _program(spec, "moments")
    parts = _in_parts(moments, draws, x)
    mean, variance = (np.concatenate([part[i] for part in parts])[: len(x)] for i in (0, 1))
    return with_least_std(mean, variance)


def predict_mixture(spec: PosteriorSpec, draws: PyTree, x: np.ndarray) -> Mixture:
    """The components of the predictive distribution, in scaled units."""
    parts = _in_parts(_program(spec, "components"), draws, x)
    location, scale = (np.concatenate([part[i] for part in parts], axis=1)[:, : len(x)] for i in (0, 1))
    return Mixture(location, scale, parts[0][2])


def predict_probabilities(spec: PosteriorSpec, draws: PyTree, x: np.ndarray) -> Array:
    """Probabilities of the classes (example, class), the mean over draws."""
    parts = _in_parts(_program(spec, "moments"), draws, x)
    mean = np.concatenate([part[0] for part in parts])[: len(x)]
    return np.asarray(mean / mean.sum(axis=1, keepdims=True))


def predictions_of_draws(spec: PosteriorSpec, draws: PyTree, x: np.ndarray) -> np.ndarray:
    """Locations, or probabilities of classes, (draw, example, output)."""
    parts = _in_parts(_program(spec, "components"), draws, x)
    return np.concatenate([part[0] for part in parts], axis=1)[:, : len(x)]


def _in_parts(program: Callable[..., Any], draws: PyTree, x: np.ndarray) -> list[tuple[Array, ...]]:
    """What a program gives for 256 examples at a time."""
    whole = count_weights(jax.tree.map(lambda leaf: leaf[0], draws)) <= SMALL
    with quick_compilation(whole):
        return [
            tuple(np.asarray(a, float) for a in program(draws, _padded(x[start : start + EXAMPLES_AT_ONCE], whole)))
            for start in range(0, len(x), EXAMPLES_AT_ONCE)
        ]


def _padded(x: np.ndarray, whole: bool) -> np.ndarray:
    """Examples repeated up to 256, or else up to a power of 2, so that few sizes are compiled."""
    wanted = EXAMPLES_AT_ONCE if whole else 1 << (len(x) - 1).bit_length()
    return np.concatenate([x, np.repeat(x[-1:], wanted - len(x), axis=0)])


Sums = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Number of draws, their mean, squared deviations from it, and variances of the noise."""

Program = Callable[[PyTree, Any], tuple[jax.Array, ...]]


def _program(spec: PosteriorSpec, name: str) -> Program:
    try:
        return _cached_programs(spec)[name]
    except TypeError:  # a network or prior that cannot be hashed
        return _programs(build(spec))[name]


@lru_cache(maxsize=32)
def _cached_programs(spec: PosteriorSpec) -> dict[str, Program]:
    return _programs(build(spec))


def _programs(posterior: NetworkPosterior) -> dict[str, Program]:
    likelihood: Any = posterior.likelihood

    def observe(draw: PyTree, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Location, scale and degrees of freedom of observations; for classes their probabilities."""
        raw = posterior.raw(draw, x)
        if isinstance(likelihood, Categorical):
            location = jnp.exp(likelihood.log_probabilities(raw))
            return location, jnp.zeros_like(location), jnp.asarray(jnp.inf, raw.dtype)
        location, scale, degrees = likelihood.observe(draw, raw)
        return location, scale, degrees

    def moments(draws: PyTree, x: jax.Array) -> tuple[jax.Array, ...]:
        """Welford's recursion over the draws: the array of all predictions is not formed."""
        first = jax.tree.map(lambda leaf: leaf[0], draws)
        shape = jax.eval_shape(lambda draw: observe(draw, x)[0], first)
        nothing = jnp.zeros(shape.shape, shape.dtype)

        def add(seen: Sums, draw: PyTree) -> tuple[Sums, None]:
            count, mean, squares, noise = seen
            (value, sigma, nu), count = observe(draw, x), count + 1
            change = value - mean
            mean = mean + change / count
            spread = sigma**2 * jnp.where(jnp.isfinite(nu), nu / (nu - 2), 1.0)
            return (count, mean, squares + change * (value - mean), noise + spread), None

        start = (jnp.zeros((), shape.dtype), nothing, nothing, nothing)
        (count, mean, squares, noise), _ = jax.lax.scan(add, start, draws)
        return mean, squares / jnp.maximum(count - 1, 1) + noise / count

    def components(draws: PyTree, x: jax.Array) -> tuple[jax.Array, ...]:
        return jax.lax.map(lambda draw: observe(draw, x), draws)

    return {"moments": jit(moments), "components": jit(components)}


UNRELIABLE = 0.7
"""k above which the estimate for an example is not to be trusted."""

MOST_UNRELIABLE = 0.2
"""The share of examples whose leave-one-out estimate may be unreliable."""

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
