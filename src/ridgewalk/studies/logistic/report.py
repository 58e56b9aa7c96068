"""The report of the logistic regression study."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ridgewalk.studies.framework.schema import Cell, Number, Report, Section, Table, mark_against

CONTROL_VARIATES = ", control variates"
"""Suffix of the names of samplers with control-variate gradients."""
TRUTH = "true covariance"


@dataclass(frozen=True)
class Settings:
    """Minibatches of 100 of 10,000 examples; the chains are the seeds."""

    steps: int = 20_000
    burn_in: int = 2_000
    batch_size: int = 100
    seeds: int = 12
    seed: int = 0
    every_step_size: bool = True


class LogisticRow(NamedTuple):
    """Results of one sampler at one step size, over the seeds; NaN if a chain diverged."""

    sampler: str
    step_size: float
    gradients: int
    """Minibatch gradients of the whole chain."""
    diverged: int
    hessian_condition: float
    covariance_error: float = math.nan
    covariance_error_se: float = math.nan
    worst_condition: float = math.nan
    """The largest cond(G H) over the seeds, at the end of the chain."""


def _line(row: LogisticRow, reference: LogisticRow | None) -> tuple[Cell, ...]:
    mark = None
    if reference is not None:
        mark = mark_against(row.covariance_error, reference.covariance_error, error=0.1 * row.covariance_error)
    error = Number(row.covariance_error, row.covariance_error_se, ".3f", mark=mark)
    cond = Number(row.worst_condition, style=".3g")
    return row.sampler, f"{row.step_size:g}", error, cond, f"{row.gradients:,}"


def build_report(settings: Settings, best: Mapping[str, LogisticRow], hessian_condition: float) -> Report:
    """Build the report of the study."""

    def reference(name: str) -> LogisticRow | None:
        suffix = CONTROL_VARIATES if name.endswith(CONTROL_VARIATES) else ""
        return best.get(TRUTH + suffix) if name.startswith("HASGLD") else None

    table = Table(
        f"Each sampler at its best step size ({settings.steps:,} steps, {settings.seeds} seeds)",
        ("sampler", "step size", "covariance error", "worst cond(G H)", "minibatch gradients"),
        tuple(_line(row, reference(name)) for name, row in best.items()),
        "± one standard error over seeds. The covariance error is the mean absolute log eigenvalue of the whitened "
        "sample covariance. HASGLD-SA is marked against the true covariance as preconditioner: “equal” means within "
        "10 %.",
    )
    text = (
        f"50 weights, 10,000 examples, batches of {settings.batch_size}; the Hessian has condition number "
        f"{hessian_condition:.2g}. Not in the paper: this study shows the effect of gradient noise. The "
        "ideal is Langevin dynamics preconditioned with the true covariance.",
    )
    return Report("50-d logistic regression", text, (Section("Results", tables=(table,)),))
