"""Recalibration on held-out data: one factor on all standard deviations, or conformal quantiles with a guarantee; of
probabilities of classes, one power.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import ndtri, softmax

from ridgewalk.neural import RecalibrationName
from ridgewalk.neural.assessment import LEVELS, Assessment, assess, assess_intervals
from ridgewalk.neural.predictive import (
    Intervals,
    Predictive,
    checked_draws,
    checked_levels,
    checked_pair,
    checked_predictive,
)

Array = NDArray[np.float64]


def conformal_rank(levels: ArrayLike, examples: int, outputs: int = 1) -> NDArray[np.int64]:
    """⌈level (n + 1) m⌉, the rank of the conformal quantile among n m scores.

    The scores of the next example count as infinite: a rank above n m means that n examples are too few for the level.
    Rounded before it is rounded up: 0.9 · 10 must be 9, not 9.000000000000002.
    """
    return np.ceil(np.round(np.asarray(levels, float) * (examples + 1) * outputs, 9)).astype(np.int64)


@dataclass(frozen=True)
class Temperature:
    """One factor s on all standard deviations."""

    scale: float

    def apply(self, predictive: Predictive) -> Predictive:
        """N(μ, s² σ²)."""
        return Predictive(predictive.mean, self.scale * predictive.std)

    def apply_to_draws(self, draws: ArrayLike) -> Array:
        """μ + s (draw − μ)."""
        values = checked_draws(draws)
        mean = values.mean(0, keepdims=True)
        return mean + self.scale * (values - mean)


def fit_temperature(predictive: Predictive, targets: ArrayLike) -> Temperature:
    """The scale of least Gaussian NLL on held-out data: s² = mean ((y − μ)/σ)²."""
    known, wanted = checked_pair(predictive, targets)
    scale = float(np.sqrt(np.mean(((wanted - known.mean) / known.std) ** 2)))
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"targets: they give the temperature {scale}; they must be finite and differ from the mean")
    return Temperature(scale)


@dataclass(frozen=True)
class Conformal:
    """Intervals μ ± q σ, with q for each level from the scores |y − μ|/σ of held-out data."""

    levels: Array
    quantiles: Array
    """q, (level, output); of one column where all outputs share it."""

    def intervals(self, predictive: Predictive) -> Intervals:
        """The intervals of other predictions."""
        known = checked_predictive(predictive)
        if self.quantiles.shape[1] not in (1, known.mean.shape[1]):
            raise ValueError(
                f"predictive: {known.mean.shape[1]} outputs; the quantiles were fitted for {self.quantiles.shape[1]}"
            )
        half = self.quantiles[:, None, :] * known.std[None]
        return Intervals(self.levels, known.mean[None] - half, known.mean[None] + half)


def fit_conformal(
    predictive: Predictive, targets: ArrayLike, levels: ArrayLike = LEVELS, *, per_output: bool = False
) -> Conformal:
    """Split-conformal quantiles: coverage of at least the level, whatever the model, on exchangeable examples.

    With scores of n held-out examples of m outputs each, q is the k-th smallest of the n m scores,
    k = ⌈level (n + 1) m⌉: the scores of the example to come count as infinite. Then an output picked at random of a new
    example is covered with probability at least the level; outputs of one example may be
    dependent (Lee, Barber and Willett 2023). `per_output` gives each output its own q, m = 1, and each the guarantee.
    """
    known, wanted = checked_pair(predictive, targets)
    wanted_levels = checked_levels(levels)
    scores = np.abs(wanted - known.mean) / known.std
    examples, outputs = scores.shape
    ranked = np.sort(scores, axis=0) if per_output else np.sort(scores, axis=None)[:, None]
    each = 1 if per_output else outputs
    ranks = conformal_rank(wanted_levels, examples, each)
    if ranks.max() > len(ranked):
        fewest = int(np.ceil(np.round(wanted_levels.max() / (1 - wanted_levels.max()), 9)))
        raise ValueError(
            f"targets: level {wanted_levels.max():g} needs at least {fewest} held-out examples, not {examples}; "
            "hold out more, or lower the level"
        )
    return Conformal(wanted_levels, ranked[np.maximum(ranks, 1) - 1])


class Recalibration(NamedTuple):
    """Corrections fitted on one half of held-out data, and what they do on the other."""

    temperature: Temperature
    conformal: Conformal
    before: Assessment
    after_temperature: Assessment
    after_conformal: Assessment


def recalibrate(
    predictive: Predictive,
    targets: ArrayLike,
    levels: ArrayLike = LEVELS,
    *,
    share: float = 0.5,
    seed: int = 0,
    per_output: bool = False,
) -> Recalibration:
    """Fit both corrections on a random `share` of held-out examples; assess before and after on the others."""
    known, wanted = checked_pair(predictive, targets)
    examples = len(wanted)
    fitted = round(share * examples)
    if not 0 < fitted < examples:
        raise ValueError(f"share: {share} of {examples} examples leaves none to fit on or none to check on; use 0.5")
    order = np.random.default_rng(seed).permutation(examples)
    fit, check = order[:fitted], order[fitted:]
    seen, unseen = (Predictive(known.mean[rows], known.std[rows]) for rows in (fit, check))
    temperature = fit_temperature(seen, wanted[fit])
    conformal = fit_conformal(seen, wanted[fit], levels, per_output=per_output)
    return Recalibration(
        temperature,
        conformal,
        before=assess(unseen, wanted[check], levels),
        after_temperature=assess(temperature.apply(unseen), wanted[check], levels),
        after_conformal=assess_intervals(conformal.intervals(unseen), wanted[check]),
    )


class Correction(NamedTuple):
    """A factor on all standard deviations, and the scores |y − μ|/σ of which conformal quantiles are taken."""

    kind: RecalibrationName
    scale: float
    scores: Array
    """(held-out example, output); without rows where nothing was held out or the kind is "temperature"."""

    def std(self, predictive: Predictive) -> Array:
        """s σ."""
        return self.scale * predictive.std

    def half_width(self, predictive: Predictive, level: float) -> Array:
        """Half of the central interval: q σ, q the conformal quantile; s σ Φ⁻¹ where too few examples were held out."""
        wanted = float(checked_levels(level)[0])
        if self.conformal_at(wanted):
            centred = Predictive(np.zeros(self.scores.shape), np.ones(self.scores.shape))
            return fit_conformal(centred, self.scores, wanted).quantiles[0][None] * predictive.std
        return ndtri(0.5 * (1 + wanted)) * self.std(predictive)

    def conformal_at(self, level: float) -> bool:
        """Whether enough examples were held out for a level: ⌈level (n + 1)⌉ ≤ n."""
        count = len(self.scores)
        return count > 0 and bool(conformal_rank(level, count) <= count)


class IntervalCalibration(NamedTuple):
    """The correction, and scores on held-out data without it and with it (None where they are too few to tell)."""

    correction: Correction
    before: Assessment | None
    after: Assessment | None


def no_correction(outputs: int) -> IntervalCalibration:
    """No recalibration."""
    return IntervalCalibration(Correction("none", 1.0, np.empty((0, outputs))), None, None)


def correct(predictive: Predictive, targets: Array, kind: RecalibrationName, seed: int) -> IntervalCalibration:
    """Fit the correction on all held-out data; before and after are measured on a half that the other half corrects."""
    count, outputs = targets.shape
    if kind == "none" or count == 0:
        return no_correction(outputs)
    scale = fit_temperature(predictive, targets).scale
    conformal = kind == "conformal"
    scores = np.abs(targets - predictive.mean) / predictive.std if conformal else np.empty((0, outputs))
    correction = Correction(kind, scale, scores)
    half = count // 2
    levels = [level for level in LEVELS if half > 1 and conformal_rank(level, half) <= half]
    if not levels:
        return IntervalCalibration(correction, None, None)
    checked = recalibrate(predictive, targets, levels, share=half / count, seed=seed)
    after = checked.after_temperature
    if conformal:
        after = checked.after_conformal._replace(nll=after.nll, crps=after.crps)
    return IntervalCalibration(correction, checked.before, after)


# Classes

TEMPERATURES = 0.2, 5.0
"""Least and largest temperature of probabilities."""


def powered(probabilities: ArrayLike, temperature: float) -> Array:
    """p^(1/T), normalised over the classes (example, class): below T = 1 more confident."""
    known = np.asarray(probabilities, float)
    return np.asarray(softmax(np.log(np.maximum(known, np.finfo(float).tiny)) / temperature, axis=1))


class ClassTemperature(NamedTuple):
    """The temperature of largest mean log probability of labels, and by how much it is larger than at T = 1."""

    temperature: float
    gain: float
    error: float
    """Standard error of the gain, paired over the examples."""


def fit_class_temperature(probabilities: ArrayLike, codes: ArrayLike, weights: ArrayLike) -> ClassTemperature:
    """From probabilities (example, class) of examples that were not learnt from, their labels, and their weights."""
    known, label = np.asarray(probabilities, float), np.asarray(codes)
    share = np.asarray(weights, float) / np.sum(weights)
    rows = np.arange(len(label))

    def log_probability(temperature: float) -> Array:
        return np.log(np.maximum(powered(known, temperature)[rows, label], np.finfo(float).tiny))

    bounds = tuple(np.log(TEMPERATURES))
    found = minimize_scalar(lambda t: -float(share @ log_probability(np.exp(t))), bounds=bounds, method="bounded")
    temperature = float(np.exp(found.x))
    gains = log_probability(temperature) - log_probability(1.0)
    gain = float(share @ gains)
    return ClassTemperature(temperature, gain, float(np.sqrt(np.sum(share**2 * (gains - gain) ** 2))))
