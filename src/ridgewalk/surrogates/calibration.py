"""Is the uncertainty right? Scores, coverage and width of intervals, and how far coverage is from its level."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgewalk.surrogates.predictive import (
    Intervals,
    Predictive,
    checked_draws,
    checked_predictive,
    checked_targets,
    draw_intervals,
    gaussian_intervals,
)
from ridgewalk.surrogates.scores import crps, gaussian_crps, gaussian_nll

Array = NDArray[np.float64]

LEVELS = tuple(np.round(np.arange(0.05, 0.96, 0.05), 2))
"""Levels of a reliability curve unless others are given."""


class Assessment(NamedTuple):
    """How well a predictive distribution fits targets; all are means over examples and outputs.

    `levels` against `coverage` is the reliability curve.
    """

    levels: Array
    coverage: Array
    """Share of the targets inside the central interval of each level."""
    width: Array
    """Mean width of the intervals of each level: of two calibrated distributions the narrower is better."""
    calibration_error: float
    """Mean over the levels of |coverage − level|."""
    nll: float | None
    """Of the Gaussian with the same mean and spread; None where only intervals are known."""
    crps: float | None

    def __repr__(self) -> str:
        """The numbers in one line, and the level nearest to 0.9."""
        at = int(np.argmin(np.abs(self.levels - 0.9)))
        scores = "" if self.nll is None or self.crps is None else f"NLL {self.nll:.4g}, CRPS {self.crps:.4g}, "
        return (
            f"Assessment({scores}calibration error {self.calibration_error:.3f}, "
            f"coverage {self.coverage[at]:.3f} at {self.levels[at]:g}, width {self.width[at]:.4g})"
        )


def coverage(intervals: Intervals, targets: ArrayLike) -> Array:
    """Share of targets (example, output) inside the interval of each level, ends included."""
    wanted = checked_targets(targets, intervals.lower.shape[1:])[None]
    return np.mean((intervals.lower <= wanted) & (wanted <= intervals.upper), axis=(1, 2))


def width(intervals: Intervals) -> Array:
    """Mean width of the intervals of each level."""
    return np.mean(intervals.upper - intervals.lower, axis=(1, 2))


def calibration_error(levels: Array, covered: Array) -> float:
    """Mean of |coverage − level|: the area between the reliability curve and the diagonal, where levels are even."""
    return float(np.mean(np.abs(covered - levels)))


def assess_intervals(intervals: Intervals, targets: ArrayLike) -> Assessment:
    """Coverage and width of intervals."""
    covered = coverage(intervals, targets)
    error = calibration_error(intervals.levels, covered)
    return Assessment(intervals.levels, covered, width(intervals), error, None, None)


def assess(predictive: Predictive, targets: ArrayLike, levels: ArrayLike = LEVELS) -> Assessment:
    """All scores of a Gaussian with the mean and spread given."""
    known = checked_predictive(predictive)
    wanted = checked_targets(targets, known.mean.shape)
    shape = assess_intervals(gaussian_intervals(known, levels), wanted)
    nll, score = gaussian_nll(wanted, *known).mean(), gaussian_crps(wanted, *known).mean()
    return shape._replace(nll=float(nll), crps=float(score))


def assess_draws(draws: ArrayLike, targets: ArrayLike, levels: ArrayLike = LEVELS) -> Assessment:
    """All scores of draws (draw, example, output) of observations: intervals and CRPS from the draws themselves."""
    values = checked_draws(draws)
    wanted = checked_targets(targets, values.shape[1:])
    known = checked_predictive(Predictive(values.mean(0), values.std(0, ddof=1)))
    shape = assess_intervals(draw_intervals(values, levels), wanted)
    nll, score = gaussian_nll(wanted, *known).mean(), crps(values, wanted).mean()
    return shape._replace(nll=float(nll), crps=float(score))
