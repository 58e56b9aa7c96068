"""The figures of the regression: posterior means beside the truth, and errors as the chains run."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ridgewalk.studies.regression_samplers import OURS, PLAIN, SPARSE
from ridgewalk.studies.regression_verdict import over_seeds

Row = dict[str, Any]

LOOKS: dict[str, tuple[str, str]] = {
    PLAIN: ("tab:orange", "-."),
    SPARSE: ("tab:green", "--"),
    OURS: ("tab:blue", "-"),
}
SHOWN = tuple(LOOKS)
"""As printed the method leaves every scale on which these can be told apart."""

TICKS = (200, 500, 1_000, 2_000, 5_000)


def draw_means(chosen: dict[str, Row], truth: np.ndarray) -> Figure:
    """Posterior means of all weights, mean and range over the data sets; the weights lie on a logarithmic axis."""
    names = [name for name in SHOWN if name in chosen]
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    place = np.arange(1, len(truth) + 1)
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        means = np.asarray(chosen[name]["means"])
        low, middle, high = means.min(axis=0), means.mean(axis=0), means.max(axis=0)
        axes.vlines(place, low, high, color=LOOKS[name][0], alpha=0.35, linewidth=1.5, label="range over data sets")
        axes.plot(place, middle, "o", color=LOOKS[name][0], markersize=3.5, label="mean over data sets")
        axes.plot(place, truth, "_", color="black", markersize=9, markeredgewidth=1.2, label="truth")
        axes.set(xscale="log", xlabel="weight number j", title=f"{name}, step size {chosen[name]['step_size']:g}")
        axes.set_xticks([1, 2, 3, 10, 30, 100, 200], ["1", "2", "3", "10", "30", "100", "200"])
        axes.minorticks_off()
        axes.grid(alpha=0.3, linewidth=0.5)
        axes.legend(loc="upper right", fontsize="small")
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel(r"posterior mean of $\beta_j$")
    return figure


def draw_errors(chosen: dict[str, Row], least: dict[str, float], found: dict[str, Any]) -> Figure:
    """Test MSE and MAE against steps, and below them how far HASGLD-SA lies from SGLD-SA; bands are standard errors."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, height_ratios=(3, 2))
    for column, what in enumerate(("mse", "mae")):
        above, below = grid[0, column], grid[1, column]
        for name in (name for name in SHOWN if name in chosen):
            row, (colour, dashes) = chosen[name], LOOKS[name]
            mean, error = over_seeds(row, what)
            label = f"{name}, step size {row['step_size']:g}"
            above.plot(row["step"], mean, dashes, color=colour, linewidth=2, label=label)
            above.fill_between(row["step"], mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)
        above.axhline(least[what], color="black", linewidth=1, label="the true weights")
        above.set(ylabel=f"test {what.upper()}")
        if {OURS, SPARSE} <= set(chosen):
            _difference(below, chosen, what)
    _point_out(grid[0, 0], found)
    for axes in grid.flat:
        axes.set_xscale("log")
        axes.set_xticks(TICKS, [f"{tick:,}" for tick in TICKS])
        axes.minorticks_off()
        axes.grid(alpha=0.3, linewidth=0.5)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    return figure


def _difference(axes: Axes, chosen: dict[str, Row], what: str) -> None:
    """Seed by seed, so that the noise of the test samples that both share drops out."""
    step = np.asarray(chosen[OURS]["step"])
    apart = {"difference": (np.asarray(chosen[OURS][what]) - np.asarray(chosen[SPARSE][what])).tolist()}
    mean, error = over_seeds(apart, "difference")
    axes.axvspan(step[-1] / 2, step[-1], color="0.92", zorder=0)
    axes.text(0.98, 0.05, "second half", transform=axes.transAxes, ha="right", color="0.35")
    axes.axhline(0, color="black", linewidth=1)
    axes.plot(step, mean, color=LOOKS[OURS][0], linewidth=2)
    axes.fill_between(step, mean - error, mean + error, color=LOOKS[OURS][0], alpha=0.2, linewidth=0)
    axes.set(xlabel="steps", ylabel=f"{what.upper()}: HASGLD-SA\nminus SGLD-SA")


def _point_out(axes: Axes, found: dict[str, Any]) -> None:
    """Where HASGLD-SA reaches SGLD-SA's last MSE."""
    reached = found.get("reaches", {}).get("step")
    if reached is None:
        return
    level = found["reaches"]["mse"]
    axes.plot([reached, found["reaches"]["their_steps"]], [level, level], ":", color="0.3", linewidth=1)
    axes.annotate(
        f"HASGLD-SA at step {reached:,}:\nwhere SGLD-SA ends",
        (reached, level),
        xytext=(reached, level + 0.25 * (axes.get_ylim()[1] - level)),
        ha="center",
        arrowprops={"arrowstyle": "->", "color": "0.3"},
    )
