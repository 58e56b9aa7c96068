"""Who wins on the Gaussian: every sampler at its step size of least covariance error."""

import math
from typing import Any

from ridgewalk.studies.gaussian_samplers import DENSE, MOMENTUM, ORACLE, OURS, PRINTED

ALLOWANCE = 1.2
"""The sampler that is handed the true covariance need not be beaten, but matched within this factor."""

Row = dict[str, Any]


def best_rows(rows: list[Row]) -> dict[str, Row]:
    """By sampler, the row of least covariance error among those where no chain diverged."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["diverged"]:
            continue
        name = row["sampler"]
        if name not in best or row["covariance_error"] < best[name]["covariance_error"]:
            best[name] = row
    return best


def ratio(ours: Row, theirs: Row, what: str) -> tuple[float, float]:
    """Ours over theirs, with its standard error as of independent runs: a little too large, as seeds are shared."""
    value = ours[what] / theirs[what]
    parts = [row[f"{what}_se"] / row[what] for row in (ours, theirs)]
    return value, value * math.hypot(*parts)


def _standing(error: tuple[float, float], time: tuple[float, float], limit: float) -> str:
    """Below the limit on both counts, "above" it on one by more than two standard errors, else "close"."""
    if error[0] <= limit and time[0] <= limit:
        return "below"
    return "above" if any(value - 2 * spread > limit for value, spread in (error, time)) else "close"


def verdict(best: dict[str, Row]) -> dict[str, Any]:
    """Ratios of two forms of HASGLD-SA to every other sampler, and where they stand to 1 (1.2 for SGRLD)."""
    others = [name for name in best if not name.startswith(OURS)]
    forms = [name for name in (DENSE, MOMENTUM) if name in best]
    comparisons: dict[str, Any] = {}
    for form in forms:
        comparisons[form] = {}
        for other in others:
            limit = ALLOWANCE if other == ORACLE else 1.0
            error, error_se = ratio(best[form], best[other], "covariance_error")
            time, time_se = ratio(best[form], best[other], "autocorrelation_time")
            comparisons[form][other] = {
                "error_ratio": error,
                "error_ratio_se": error_se,
                "time_ratio": time,
                "time_ratio_se": time_se,
                "limit": limit,
                "standing": _standing((error, error_se), (time, time_se), limit),
            }
    return {
        "comparisons": comparisons,
        "wins": {form: all(row["standing"] == "below" for row in comparisons[form].values()) for form in forms},
        "invalid": PRINTED,
    }


def faster_at_no_more_error(rows: list[Row], form: str = DENSE) -> dict[str, float]:
    """SGLD at its least error, and the fastest mixing of a form at that error or less."""
    reference = best_rows(rows)["SGLD"]
    matching = [
        row
        for row in rows
        if row["sampler"] == form and not row["diverged"] and row["covariance_error"] <= reference["covariance_error"]
    ]
    if not matching:
        return {}
    ours = min(matching, key=lambda row: row["autocorrelation_time"])
    return {
        "sgld_error": reference["covariance_error"],
        "sgld_time": reference["autocorrelation_time"],
        "hasgld_error": ours["covariance_error"],
        "hasgld_time": ours["autocorrelation_time"],
        "hasgld_step_size": ours["step_size"],
        "ratio": reference["autocorrelation_time"] / ours["autocorrelation_time"],
        "worst_condition": max(row["worst_condition"] for row in matching),
    }
