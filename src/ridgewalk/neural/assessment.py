"""Assessment of predictive distributions: scoring rules, coverage and width of intervals, and the reliability figure.

Scoring rules give one number per target; lower is better.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.table import Table
from scipy.special import ndtr

from ridgewalk._validation import requires_extra
from ridgewalk.neural.predictive import (
    NUMBERS_AT_ONCE,
    Intervals,
    Predictive,
    checked_draws,
    checked_levels,
    checked_pair,
    checked_targets,
    draw_intervals,
    gaussian_intervals,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ridgewalk.neural.regressor import NeuralRegressor

Array = NDArray[np.float64]

LEVELS = tuple(np.round(np.arange(0.05, 0.96, 0.05), 2))
"""Default levels of a reliability curve, and those of the calibration error."""

EVALUATION_LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels whose coverage and width an evaluation shows."""


def gaussian_nll(targets: Array, mean: Array, std: Array) -> Array:
    """−log N(y; μ, σ²) = ½ log 2πσ² + ½ ((y − μ)/σ)²."""
    return 0.5 * np.log(2 * np.pi * std**2) + 0.5 * ((targets - mean) / std) ** 2


def gaussian_crps(targets: Array, mean: Array, std: Array) -> Array:
    """CRPS of N(μ, σ²): σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π], z = (y − μ)/σ (Gneiting and Raftery 2007, eq. 21)."""
    z = (targets - mean) / std
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))


def crps(draws: Array, targets: Array) -> Array:
    """CRPS of the distribution that the draws (draw, …) come from: E|X − y| − ½ E|X − X'|.

    Both expectations are estimated without bias, the second over pairs of different draws (the "fair" score), so that
    the score does not depend on their number: ½ E|X − X'| = Σ_i (2i − m − 1) x_(i) / (m (m − 1)), with x sorted.
    """
    count = draws.shape[0]
    if count < 2:
        raise ValueError(f"draws: {count} draws give no variance; pass at least 2 along the first axis")
    flat, wanted = draws.reshape(count, -1), targets.reshape(-1)
    weights = (2.0 * np.arange(1, count + 1) - count - 1) / (count * (count - 1))
    scores = np.empty(wanted.size)
    step = max(1, NUMBERS_AT_ONCE // count)
    for start in range(0, wanted.size, step):
        part = slice(start, start + step)
        near = np.abs(flat[:, part] - wanted[None, part]).mean(0)
        scores[part] = near - weights @ np.sort(flat[:, part], axis=0)
    return scores.reshape(targets.shape)


def relative_errors(predictions: ArrayLike, targets: ArrayLike) -> Array:
    """‖F(f_i) − u_i‖₂ / ‖u_i‖₂ for each example; axes after the first belong to one field."""
    guessed, true = np.asarray(predictions, float), np.asarray(targets, float)
    if guessed.shape != true.shape or true.ndim < 2:
        raise ValueError(
            f"predictions: shape {guessed.shape} does not fit targets {true.shape}; give both as (example, output)"
        )
    lengths = np.linalg.norm(true.reshape(len(true), -1), axis=1)
    if np.any(lengths == 0):
        raise ValueError(
            f"targets: example {int(np.argmin(lengths))} is zero everywhere and has no relative error; leave it out"
        )
    return np.linalg.norm((guessed - true).reshape(len(true), -1), axis=1) / lengths


def mean_relative_error(predictions: ArrayLike, targets: ArrayLike) -> float:
    """The mean of the relative errors over examples, in per cent, as the paper's tables report it."""
    return 100 * float(relative_errors(predictions, targets).mean())


class Assessment(NamedTuple):
    """How well a predictive distribution fits targets; all are means over examples and outputs.

    `levels` against `coverage` is the reliability curve.
    """

    levels: Array
    coverage: Array
    """Share of the targets inside the central interval of each level."""
    width: Array
    """Mean width of the intervals of each level: of two calibrated distributions the narrower is better; NaN where only
    the distribution function at the targets is known."""
    calibration_error: float
    """Mean over the levels of |coverage − level|."""
    nll: float | None
    """Of the mixture over draws, or of the Gaussian with the same moments; None where only intervals are known."""
    crps: float | None

    def __repr__(self) -> str:
        """The numbers in one line, and the level nearest to 0.9."""
        at = int(np.argmin(np.abs(self.levels - 0.9)))
        scores = "" if self.nll is None or self.crps is None else f"NLL {self.nll:.4g}, CRPS {self.crps:.4g}, "
        return (
            f"Assessment({scores}calibration error {self.calibration_error:.3f}, "
            f"coverage {self.coverage[at]:.3f} at {self.levels[at]:g}"
            + ("" if np.isnan(self.width[at]) else f", width {self.width[at]:.4g}")
            + ")"
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
    known, wanted = checked_pair(predictive, targets)
    shape = assess_intervals(gaussian_intervals(known, levels), wanted)
    nll, score = gaussian_nll(wanted, *known).mean(), gaussian_crps(wanted, *known).mean()
    return shape._replace(nll=float(nll), crps=float(score))


def assess_cumulative(cumulative: Array, log_density: Array, levels: ArrayLike = LEVELS) -> Assessment:
    """Coverage from the predictive distribution functions at the targets (example, output), and log densities."""
    wanted = checked_levels(levels)
    distance = 2 * np.abs(cumulative - 0.5)
    covered = np.array([np.mean(distance <= level) for level in wanted])
    nll = -float(log_density.mean()) / cumulative.shape[1]
    return Assessment(wanted, covered, np.full(len(wanted), np.nan), calibration_error(wanted, covered), nll, None)


def assess_draws(draws: ArrayLike, targets: ArrayLike, levels: ArrayLike = LEVELS) -> Assessment:
    """All scores of draws (draw, example, output) of observations: intervals and CRPS from the draws themselves."""
    values = checked_draws(draws)
    known, wanted = checked_pair(Predictive(values.mean(0), values.std(0, ddof=1)), targets)
    shape = assess_intervals(draw_intervals(values, levels), wanted)
    nll, score = gaussian_nll(wanted, *known).mean(), crps(values, wanted).mean()
    return shape._replace(nll=float(nll), crps=float(score))


STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#56B4E9", "v"))
"""Colours that remain distinct for colour-blind readers, each with its own marker."""


def draw_reliability(assessments: Mapping[str, Assessment], examples: int | None = None) -> "Figure":
    """Reliability curves side by side with the widths of the intervals, one of each for every name.

    With `examples`, the number of independent examples, the band shows where 95 % of the coverages of a calibrated
    model would lie, if all outputs of an example were covered or missed together: ± 1.96 √(level (1 − level)/examples).
    """
    with requires_extra("plots"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - optional
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.ticker import PercentFormatter  # noqa: PLC0415

    if not 0 < len(assessments) <= len(STYLES):
        raise ValueError(f"assessments: {len(assessments)} curves; give 1 to {len(STYLES)} for a readable figure")
    figure = Figure(figsize=(10.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_diagonal(left, examples)
    for (name, assessment), (colour, marker) in zip(assessments.items(), STYLES, strict=False):
        style = {"color": colour, "marker": marker, "markersize": 4.5, "linewidth": 1.5}
        label = f"{name}: error {100 * assessment.calibration_error:.1f} %"
        left.plot(assessment.levels, assessment.coverage, label=label, **style)
        right.plot(assessment.levels, assessment.width, label=name, **style)
    left.set(title="Reliability", xlabel="level of the central interval", ylabel="share of targets inside")
    left.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    right.set(title="Width", xlabel="level of the central interval", ylabel="mean width, units of the target")
    right.set(xlim=(0, 1), ylim=(0, None))
    for axes in (left, right):
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9, loc="upper left")
    left.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def _draw_diagonal(axes: "Axes", examples: int | None) -> None:
    levels = np.linspace(0, 1, 101)
    axes.plot(levels, levels, color="0.35", linewidth=1.0, linestyle="--", label="calibrated")
    if examples:
        half = 1.96 * np.sqrt(levels * (1 - levels) / examples)
        axes.fill_between(levels, levels - half, levels + half, color="0.85", label=f"95 % band, {examples} examples")


class Evaluation(NamedTuple):
    """Scores of predictions; constant outputs count in the errors only."""

    examples: int
    outputs: int
    relative_error: float | None
    """Mean of ‖prediction − target‖/‖target‖ over examples, in per cent; None where a target is zero."""
    rmse: float
    r2: float | None
    """R² of the mean, averaged over outputs, as `NeuralRegressor.score` gives it; None for a single example."""
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
    model: "NeuralRegressor", inputs: ArrayLike, targets: ArrayLike, levels: ArrayLike = EVALUATION_LEVELS
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
    nll = float(gaussian_nll(*scores).mean())
    if fitted.mixture:
        nll = -float(model.log_density(inputs, targets).mean()) / int(varying.sum())

    if model._raw_mixture():
        mixture, wanted = model._mixture(inputs), outputs.forward(flat)
        curve = assess_cumulative(mixture.cumulative(wanted), mixture.log_density(wanted)).coverage
        scale = outputs.scale[None, varying]
        sides = [[mixture.quantile(0.5 * (1 + sign * level)) for sign in (-1, 1)] for level in wanted_levels]
        shares = [np.mean((lower <= wanted) & (wanted <= upper)) for lower, upper in sides]
        widths = [np.mean(scale * (upper - lower)) for lower, upper in sides]
    else:
        distance = np.abs(flat[:, varying] - mean[:, varying])

        def half(level: float) -> Array:
            return outputs.std(fitted.correction.half_width(known, level))[:, varying]

        curve = np.array([np.mean(distance <= half(level)) for level in LEVELS])
        halves = [half(float(level)) for level in wanted_levels]
        shares, widths = [np.mean(distance <= h) for h in halves], [np.mean(2 * h) for h in halves]
    lengths = np.linalg.norm(flat, axis=1)
    return Evaluation(
        examples=len(true),
        outputs=int(outputs.centre.size),
        relative_error=100 * float(relative_errors(mean, flat).mean()) if np.all(lengths > 0) else None,
        rmse=float(np.sqrt(np.mean((mean - flat) ** 2))),
        r2=float(r2_score(flat, mean)) if len(flat) > 1 else None,
        nll=nll,
        crps=float(gaussian_crps(*scores).mean()),
        calibration_error=calibration_error(np.asarray(LEVELS), curve),
        levels=tuple(wanted_levels.tolist()),
        coverage=tuple(map(float, shares)),
        width=tuple(map(float, widths)),
    )


# Classes


class ClassAssessment(NamedTuple):
    """How well probabilities of classes fit labels."""

    examples: int
    accuracy: float
    nll: float
    """Mean of −log probability of the label."""
    brier: float
    """Mean squared distance of the probabilities from the label's indicator."""
    ece: float
    """Expected calibration error: mean over examples of |share right − confidence| in their bin of confidence."""
    confidence: Array
    """Mean confidence of each bin that has examples."""
    right: Array
    """Share of right predictions in these bins."""
    counts: Array

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in self._asdict().items()}

    def table(self) -> Table:
        """The scores as a table for the terminal."""
        table = Table(title=f"{self.examples} examples", title_justify="left")
        table.add_column("score")
        table.add_column("value", justify="right")
        for name, value in (("accuracy", self.accuracy), ("NLL", self.nll), ("Brier", self.brier), ("ECE", self.ece)):
            table.add_row(name, f"{value:.4f}")
        return table


def assess_classes(probabilities: ArrayLike, codes: ArrayLike, bins: int = 15) -> ClassAssessment:
    """Scores of probabilities (example, class) of labels by their numbers; `bins` of confidence, evenly spaced."""
    known, label = np.asarray(probabilities, float), np.asarray(codes)
    if known.ndim != 2 or label.shape != known.shape[:1] or len(label) == 0:
        raise ValueError(
            f"codes: shape {label.shape} does not fit probabilities {known.shape}; give one number for each row of "
            "(example, class)"
        )
    if label.min() < 0 or label.max() >= known.shape[1]:
        raise ValueError(
            f"codes: class indices must be between 0 and {known.shape[1] - 1}, got {label.min()} to {label.max()}"
        )
    if not np.allclose(known.sum(axis=1), 1, atol=1e-3) or known.min() < 0:
        raise ValueError("probabilities: rows are not probabilities; they must not be negative and must sum to 1")
    confidence, right = known.max(axis=1), known.argmax(axis=1) == label
    at = np.minimum((confidence * bins).astype(int), bins - 1)
    counts = np.bincount(at, minlength=bins)
    used = counts > 0
    sure = np.bincount(at, confidence, bins)[used] / counts[used]
    share = np.bincount(at, right, bins)[used] / counts[used]
    tiny = np.finfo(float).tiny
    return ClassAssessment(
        examples=len(label),
        accuracy=float(right.mean()),
        nll=-float(np.log(np.maximum(known[np.arange(len(label)), label], tiny)).mean()),
        brier=float(np.mean(np.sum((known - np.eye(known.shape[1])[label]) ** 2, axis=1))),
        ece=float(np.sum(counts[used] * np.abs(share - sure)) / len(label)),
        confidence=sure,
        right=share,
        counts=counts[used].astype(float),
    )


def draw_class_reliability(assessments: Mapping[str, ClassAssessment]) -> "Figure":
    """The reliability diagram: share of right predictions against confidence, one curve for every name."""
    with requires_extra("plots"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - optional
        from matplotlib.figure import Figure  # noqa: PLC0415

    if not 0 < len(assessments) <= len(STYLES):
        raise ValueError(f"assessments: {len(assessments)} curves; give 1 to {len(STYLES)} for a readable figure")
    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _draw_diagonal(axes, None)
    for (name, known), (colour, marker) in zip(assessments.items(), STYLES, strict=False):
        label = f"{name}: ECE {100 * known.ece:.1f} %"
        axes.plot(known.confidence, known.right, label=label, color=colour, marker=marker, markersize=4.5)
    axes.set(title="Reliability", xlabel="confidence", ylabel="share of predictions that are right")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure
