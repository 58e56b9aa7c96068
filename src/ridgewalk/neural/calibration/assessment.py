"""Calibration of predictive distributions: scores, coverage and width of intervals, and the evaluation of a model."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.table import Table

from ridgewalk._optional import requires_extra
from ridgewalk.neural.calibration.predictive import (
    Intervals,
    Predictive,
    checked_draws,
    checked_levels,
    checked_predictive,
    checked_targets,
    draw_intervals,
    gaussian_intervals,
)
from ridgewalk.neural.calibration.scores import crps, gaussian_crps, gaussian_nll, relative_errors

if TYPE_CHECKING:
    from ridgewalk.neural.regressor import SurrogateRegressor

Array = NDArray[np.float64]

LEVELS = tuple(np.round(np.arange(0.05, 0.96, 0.05), 2))
"""Default levels of a reliability curve, and those of the calibration error."""

EVALUATION_LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels whose coverage and width an evaluation shows."""


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
    """Of the Gaussian with the same mean and standard deviation; None where only intervals are known."""
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
    """All scores of a Gaussian with the mean and standard deviation given."""
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


class Evaluation(NamedTuple):
    """Scores of predictions; constant outputs count in the errors only."""

    examples: int
    outputs: int
    relative_error: float | None
    """Mean of ‖prediction − target‖/‖target‖ over examples, in per cent; None where a target is zero."""
    rmse: float
    r2: float | None
    """R² of the mean, averaged over outputs, as `SurrogateRegressor.score` gives it; None for a single example."""
    nll: float
    crps: float
    calibration_error: float
    levels: tuple[float, ...]
    coverage: tuple[float, ...]
    width: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return self._asdict()

    def table(self) -> Table:
        """The scores as a table for the terminal."""
        table = Table(title=f"{self.examples} examples, {self.outputs} outputs", title_justify="left")
        table.add_column("score")
        table.add_column("value", justify="right")
        if self.relative_error is not None:
            table.add_row("relative error", f"{self.relative_error:.3f} %")
        for name, value in (("RMSE", self.rmse), ("R²", self.r2), ("NLL", self.nll), ("CRPS", self.crps)):
            if value is not None:
                table.add_row(name, f"{value:.4g}")
        table.add_row("calibration error", f"{self.calibration_error:.3f}")
        for level, share, wide in zip(self.levels, self.coverage, self.width, strict=True):
            table.add_row(f"coverage at {level:g}, width", f"{share:.3f}, {wide:.4g}")
        return table


def evaluate(
    model: "SurrogateRegressor", inputs: ArrayLike, targets: ArrayLike, levels: ArrayLike = EVALUATION_LEVELS
) -> Evaluation:
    """Scores of a fitted model on data it was not fitted to."""
    with requires_extra("neural"):
        from sklearn.metrics import r2_score  # noqa: PLC0415

    wanted_levels = checked_levels(levels)
    true = np.asarray(targets, float)
    known = model._predictive(inputs)
    fitted = model._fitted
    if true.shape[1:] != fitted.output_shape or len(true) != len(known.mean):
        raise ValueError(
            f"targets: shape {true.shape} does not fit predictions of shape {(len(known.mean), *fitted.output_shape)}"
        )
    flat, outputs = true.reshape(len(true), -1), fitted.outputs
    varying = outputs.varying
    mean, std = outputs.mean(known.mean), outputs.std(fitted.correction.std(known))
    scores = flat[:, varying], mean[:, varying], std[:, varying]
    distance = np.abs(flat[:, varying] - mean[:, varying])

    def half(level: float) -> Array:
        return outputs.std(fitted.correction.half_width(known, level))[:, varying]

    curve = np.array([np.mean(distance <= half(level)) for level in LEVELS])
    halves = [half(float(level)) for level in wanted_levels]
    lengths = np.linalg.norm(flat, axis=1)
    return Evaluation(
        examples=len(true),
        outputs=int(outputs.centre.size),
        relative_error=100 * float(relative_errors(mean, flat).mean()) if np.all(lengths > 0) else None,
        rmse=float(np.sqrt(np.mean((mean - flat) ** 2))),
        r2=float(r2_score(flat, mean)) if len(flat) > 1 else None,
        nll=float(gaussian_nll(*scores).mean()),
        crps=float(gaussian_crps(*scores).mean()),
        calibration_error=calibration_error(np.asarray(LEVELS), curve),
        levels=tuple(wanted_levels.tolist()),
        coverage=tuple(float(np.mean(distance <= h)) for h in halves),
        width=tuple(float(np.mean(2 * h)) for h in halves),
    )
