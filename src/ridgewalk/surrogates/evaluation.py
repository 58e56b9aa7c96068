"""How good a fitted model is on data it has not seen."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.table import Table

from ridgewalk._optional import requires_extra
from ridgewalk.surrogates.calibration import calibration_error
from ridgewalk.surrogates.errors import relative_errors
from ridgewalk.surrogates.estimator import SurrogateRegressor
from ridgewalk.surrogates.predictive import checked_levels
from ridgewalk.surrogates.scores import gaussian_crps, gaussian_nll

with requires_extra("neural"):
    from sklearn.metrics import r2_score

Array = NDArray[np.float64]

LEVELS = (0.5, 0.8, 0.9, 0.95)
CURVE = tuple(np.round(np.arange(0.05, 0.96, 0.05), 2))
"""Levels of the calibration error."""


class Evaluation(NamedTuple):
    """Scores of the predictions; of constant outputs, only their errors count."""

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
        """For the screen."""
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
    model: SurrogateRegressor, inputs: ArrayLike, targets: ArrayLike, levels: ArrayLike = LEVELS
) -> Evaluation:
    """All scores at once."""
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
    mean, spread = outputs.mean(known.mean), outputs.spread(fitted.correction.spread(known))
    scores = flat[:, varying], mean[:, varying], spread[:, varying]
    distance = np.abs(flat[:, varying] - mean[:, varying])

    def half(level: float) -> Array:
        return outputs.spread(fitted.correction.half_width(known, level))[:, varying]

    curve = np.array([np.mean(distance <= half(level)) for level in CURVE])
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
        calibration_error=calibration_error(np.asarray(CURVE), curve),
        levels=tuple(wanted_levels.tolist()),
        coverage=tuple(float(np.mean(distance <= h)) for h in halves),
        width=tuple(float(np.mean(2 * h)) for h in halves),
    )
