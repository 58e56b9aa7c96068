"""Which step size each sampler of the regression takes, and whether HASGLD-SA errs less than SGLD-SA."""

from typing import Any

import numpy as np

from ridgewalk.studies.chains import mean_and_error
from ridgewalk.studies.regression_samplers import OURS, SPARSE

Row = dict[str, Any]


def late(row: Row, steps: int) -> np.ndarray:
    """Which marks lie in the second half of the chain."""
    return np.asarray(row["step"]) >= steps / 2


def score(row: Row, steps: int) -> float:
    """What a step size is chosen by: the validation MSE over the second half of the chain, mean over seeds."""
    return float(np.asarray(row["validation_mse"])[:, late(row, steps)].mean())


def steps_chosen(rows: list[Row], steps: int) -> dict[str, Row]:
    """By sampler, the row of least score among those where no chain diverged. Test samples play no part."""
    chosen: dict[str, Row] = {}
    for row in rows:
        name = row["sampler"]
        if not row["diverged"] and (name not in chosen or score(row, steps) < score(chosen[name], steps)):
            chosen[name] = row
    return chosen


def over_seeds(row: Row, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds at every mark, and its standard error."""
    values = np.asarray(row[what])
    pairs = [mean_and_error(column) for column in values.T]
    mean, error = np.array(pairs).T
    return mean, error


def mean_curve(row: Row, steps: int | None = None) -> Row:
    """A row with means over seeds in place of every seed's numbers; with `steps` only where the curves end."""
    kept = {key: row[key] for key in ("sampler", "step_size", "gradients", "diverged")}
    if row["diverged"]:
        return kept
    if steps is not None:
        kept["score"] = score(row, steps)
    else:
        kept["step"] = row["step"]
    for what in ("validation_mse", "mse", "mae"):
        mean, error = over_seeds(row, what)
        if steps is None:
            kept |= {what: mean.round(5).tolist(), f"{what}_se": error.round(5).tolist()}
        else:
            kept |= {what: float(mean[-1]), f"{what}_se": float(error[-1])}
    if steps is None:
        weights = {what: np.mean(row[what] or [[]], axis=0).round(4).tolist() for what in ("means", "inclusion")}
        kept |= {"mean_weights": weights["means"], "mean_inclusion": weights["inclusion"], "sigma": row["sigma"]}
    return kept


def _stays_below(curve: np.ndarray, level: float) -> int | None:
    """The first mark from which a curve is at or below a level to its end; None where it ends above."""
    above = np.flatnonzero(curve > level)
    first = 0 if not len(above) else int(above[-1]) + 1
    return first if first < len(curve) else None


def _excess(ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """How far ours (seed, mark) is above theirs where that is most, and in the end, seed by seed."""
    difference = ours - theirs
    mean = difference.mean(axis=0)
    worst = int(mean.argmax())
    last, error = mean_and_error(difference[:, -1])
    return {
        "largest": float(mean[worst]),
        "largest_se": mean_and_error(difference[:, worst])[1],
        "mean": float(mean.mean()),
        "mean_se": mean_and_error(difference.mean(axis=1))[1],
        "last": last,
        "last_se": error,
        "holds": bool(mean[worst] <= 0),
    }


def verdict(chosen: dict[str, Row], steps: int) -> dict[str, Any]:
    """HASGLD-SA beside SGLD-SA: the errors of the second half, and when it reaches the other's last MSE for good.

    At equal gradients a step of HASGLD-SA, which takes two, stands beside two of SGLD-SA.
    """
    if not {OURS, SPARSE} <= set(chosen):
        return {"holds": False, "missing": sorted({OURS, SPARSE} - set(chosen))}
    ours, theirs = chosen[OURS], chosen[SPARSE]
    step, half = np.asarray(ours["step"]), late(ours, steps)
    found: dict[str, Any] = {}
    for what in ("mse", "mae"):
        found[what] = _excess(np.asarray(ours[what])[:, half], np.asarray(theirs[what])[:, half])
    cost = ours["gradients"] // theirs["gradients"]
    pairs = [(i, j) for i, k in enumerate(step) for j in np.flatnonzero(step == cost * k) if cost * k >= steps / 2]
    mine, other = (list(places) for places in zip(*pairs, strict=True))
    for what in ("mse", "mae"):
        found[f"{what}_at_equal_gradients"] = _excess(
            np.asarray(ours[what])[:, mine], np.asarray(theirs[what])[:, other]
        )
    level = float(over_seeds(theirs, "mse")[0][-1])
    reached = _stays_below(over_seeds(ours, "mse")[0], level)
    at = None if reached is None else int(step[reached])
    found["reaches"] = {
        "mse": level,
        "step": at,
        "gradients": None if at is None else at * ours["gradients"],
        "their_steps": steps,
        "their_gradients": steps * theirs["gradients"],
        "holds": at is not None and at <= steps / 2,
    }
    found["holds"] = all(found[part]["holds"] for part in ("mse", "mae", "reaches"))
    return found
