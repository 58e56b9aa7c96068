"""The report of the study with outlying Hessian eigenvalues."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ridgewalk.studies.framework.comparison import mean_and_se
from ridgewalk.studies.framework.schema import Number, Report, Section, Table


@dataclass(frozen=True)
class Settings:
    """One chain per seed and length, each from a cold start."""

    lengths: tuple[int, ...] = (250, 500, 1_000, 3_000)
    step_size: float = 0.05
    batch_size: int = 200
    seeds: int = 3


class OutliersRow(NamedTuple):
    """Results of one chain; NaN if it diverged."""

    steps: int
    seed: int
    diverged: int
    hessian_condition: float
    condition: float = math.nan
    """cond(G H) at the end of the chain."""
    largest_root_mean_square: float = math.nan
    """The largest root mean square of a position along the chain, in posterior standard deviations."""


def _over_seeds(values: Sequence[float], style: str) -> Number:
    finite = np.array([value for value in values if not math.isnan(value)])
    if not len(finite):
        return Number(None, note="diverged")
    mean, se = mean_and_se(finite)
    return Number(mean, se if len(finite) > 1 else None, style)


def build_report(settings: Settings, rows: Sequence[OutliersRow], hessian_condition: float) -> Report:
    """Build the report of the study."""
    lines = []
    for steps in settings.lengths:
        chains = [row for row in rows if row.steps == steps]
        conditions = _over_seeds([row.condition for row in chains], ".1f")
        excursions = _over_seeds([row.largest_root_mean_square for row in chains], ".2f")
        lines.append((f"{steps:,}", conditions, excursions))
    plural = "seed" if settings.seeds == 1 else "seeds"
    table = Table(
        f"Low-rank form, rank 20, batches of {settings.batch_size}, step size {settings.step_size:g}, "
        f"{settings.seeds} {plural}",
        ("steps", "cond(G H)", "largest whitened RMS along the chain"),
        tuple(lines),
        "The remaining eigenvalues alone have condition number 4, which no low-rank form can remove. Under the "
        "posterior the whitened root mean square is near 1; it would be much larger if the chain were unstable before "
        "the preconditioner is learnt.",
    )
    text = (
        f"20 eigenvalues from 10² to 10⁴, the others in [0.5, 2]: condition number {hessian_condition:,.0f}. Not in "
        "the paper: it tests the form intended for neural networks on a spectrum like theirs.",
    )
    return Report("1,000 parameters with 20 outliers", text, (Section("Results", tables=(table,)),))
