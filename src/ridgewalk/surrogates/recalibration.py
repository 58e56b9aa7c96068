"""Spreads corrected on held-out data: by one temperature, or by conformal quantiles with a guarantee."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgewalk.surrogates.calibration import LEVELS, Assessment, assess, assess_intervals
from ridgewalk.surrogates.predictive import (
    Intervals,
    Predictive,
    checked_draws,
    checked_levels,
    checked_predictive,
    checked_targets,
)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Temperature:
    """One scale s on all spreads."""

    scale: float

    def apply(self, predictive: Predictive) -> Predictive:
        """N(μ, s² σ²)."""
        return Predictive(predictive.mean, self.scale * predictive.spread)

    def apply_to_draws(self, draws: ArrayLike) -> Array:
        """μ + s (draw − μ): each draw moved away from, or towards, the mean."""
        values = checked_draws(draws)
        mean = values.mean(0, keepdims=True)
        return mean + self.scale * (values - mean)


def fit_temperature(predictive: Predictive, targets: ArrayLike) -> Temperature:
    """The scale of least Gaussian NLL on held-out data: s² = mean ((y − μ)/σ)²."""
    known = checked_predictive(predictive)
    wanted = checked_targets(targets, known.mean.shape)
    scale = float(np.sqrt(np.mean(((wanted - known.mean) / known.spread) ** 2)))
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
        half = self.quantiles[:, None, :] * known.spread[None]
        return Intervals(self.levels, known.mean[None] - half, known.mean[None] + half)


def fit_conformal(
    predictive: Predictive, targets: ArrayLike, levels: ArrayLike = LEVELS, *, per_output: bool = False
) -> Conformal:
    """Split-conformal quantiles: coverage of at least the level, whatever the model, on exchangeable examples.

    With scores of n held-out examples of m outputs each, q is the k-th smallest of the n m scores,
    k = ⌈level (n + 1) m⌉: the scores of the example to come count as infinite. Then an output picked at random of a new
    example is covered with probability at least the level; outputs of one example may depend on each other as
    they like (Lee, Barber and Willett 2023). `per_output` gives each output its own q, m = 1, and each the guarantee.
    """
    known, wanted_levels = checked_predictive(predictive), checked_levels(levels)
    wanted = checked_targets(targets, known.mean.shape)
    scores = np.abs(wanted - known.mean) / known.spread
    examples, outputs = scores.shape
    ranked = np.sort(scores, axis=0) if per_output else np.sort(scores, axis=None)[:, None]
    each = 1 if per_output else outputs
    # Rounded before it is rounded up: 0.9 · 10 must be 9, not 9.000000000000002.
    ranks = np.ceil(np.round(wanted_levels * (examples + 1) * each, 9)).astype(int)
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
    known = checked_predictive(predictive)
    wanted = checked_targets(targets, known.mean.shape)
    examples = len(wanted)
    fitted = round(share * examples)
    if not 0 < fitted < examples:
        raise ValueError(f"share: {share} of {examples} examples leaves none to fit on or none to check on; use 0.5")
    order = np.random.default_rng(seed).permutation(examples)
    fit, check = order[:fitted], order[fitted:]
    seen, unseen = (Predictive(known.mean[rows], known.spread[rows]) for rows in (fit, check))
    temperature = fit_temperature(seen, wanted[fit])
    conformal = fit_conformal(seen, wanted[fit], levels, per_output=per_output)
    return Recalibration(
        temperature,
        conformal,
        before=assess(unseen, wanted[check], levels),
        after_temperature=assess(temperature.apply(unseen), wanted[check], levels),
        after_conformal=assess_intervals(conformal.intervals(unseen), wanted[check]),
    )
