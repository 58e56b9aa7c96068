"""The figures of the regression: posterior means and the truth, and errors along the chain."""

from collections.abc import Mapping

import numpy as np

from ridgewalk._optional import requires_extra
from ridgewalk.studies.regression.data import OURS, PLAIN, SPARSE, RegressionRow
from ridgewalk.studies.regression.report import Comparison, over_seeds

with requires_extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES: dict[str, tuple[str, str]] = {
    PLAIN: ("tab:orange", "-."),
    SPARSE: ("tab:green", "--"),
    OURS: ("tab:blue", "-"),
}
SHOWN = tuple(STYLES)
"""Without the as-printed variant, whose errors would determine the scale."""

TICKS = (200, 500, 1_000, 2_000, 5_000)


def plot_means(best: Mapping[str, RegressionRow], truth: np.ndarray) -> Figure:
    """Posterior means of all weights, mean and range over the data sets; logarithmic axis."""
    names = [name for name in SHOWN if name in best]
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    place = np.arange(1, len(truth) + 1)
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        means = np.asarray(best[name].means)
        low, middle, high = means.min(axis=0), means.mean(axis=0), means.max(axis=0)
        axes.vlines(place, low, high, color=STYLES[name][0], alpha=0.35, linewidth=1.5, label="range over data sets")
        axes.plot(place, middle, "o", color=STYLES[name][0], markersize=3.5, label="mean over data sets")
        axes.plot(place, truth, "_", color="black", markersize=9, markeredgewidth=1.2, label="truth")
        axes.set(xscale="log", xlabel="weight number j", title=f"{name}, step size {best[name].step_size:g}")
        axes.set_xticks([1, 2, 3, 10, 30, 100, 200], ["1", "2", "3", "10", "30", "100", "200"])
        axes.minorticks_off()
        axes.grid(alpha=0.3, linewidth=0.5)
        axes.legend(loc="upper right", fontsize="small")
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel(r"posterior mean of $\beta_j$")
    return figure


def plot_errors(best: Mapping[str, RegressionRow], truth: Mapping[str, float], found: Comparison) -> Figure:
    """Test MSE and MAE against steps; below, HASGLD-SA minus SGLD-SA. Bands are standard errors."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, height_ratios=(3, 2))
    for column, what in enumerate(("mse", "mae")):
        above, below = grid[0, column], grid[1, column]
        for name in (name for name in SHOWN if name in best):
            row, (colour, dashes) = best[name], STYLES[name]
            mean, error = over_seeds(getattr(row, what))
            label = f"{name}, step size {row.step_size:g}"
            above.plot(row.step, mean, dashes, color=colour, linewidth=2, label=label)
            above.fill_between(row.step, mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)
        above.axhline(truth[what], color="black", linewidth=1, label="true weights")
        above.set(ylabel=f"test {what.upper()}")
        if {OURS, SPARSE} <= set(best):
            _difference(below, best, what)
    _annotate_reach(grid[0, 0], found)
    for axes in grid.flat:
        axes.set_xscale("log")
        axes.set_xticks(TICKS, [f"{tick:,}" for tick in TICKS])
        axes.minorticks_off()
        axes.grid(alpha=0.3, linewidth=0.5)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    return figure


def _difference(axes: Axes, best: Mapping[str, RegressionRow], what: str) -> None:
    """Paired over seeds, so that the noise of the shared test samples cancels."""
    step = np.asarray(best[OURS].step)
    mean, error = over_seeds(np.asarray(getattr(best[OURS], what)) - np.asarray(getattr(best[SPARSE], what)))
    axes.axvspan(step[-1] / 2, step[-1], color="0.92", zorder=0)
    axes.text(0.98, 0.05, "second half", transform=axes.transAxes, ha="right", color="0.35")
    axes.axhline(0, color="black", linewidth=1)
    axes.plot(step, mean, color=STYLES[OURS][0], linewidth=2)
    axes.fill_between(step, mean - error, mean + error, color=STYLES[OURS][0], alpha=0.2, linewidth=0)
    axes.set(xlabel="steps", ylabel=f"{what.upper()}: HASGLD-SA\nminus SGLD-SA")


def _annotate_reach(axes: Axes, found: Comparison) -> None:
    """Mark where HASGLD-SA reaches SGLD-SA's final MSE."""
    if found.reach is None or found.reach.step is None:
        return
    step, level = found.reach.step, found.reach.mse
    axes.plot([step, found.reach.their_steps], [level, level], ":", color="0.3", linewidth=1)
    axes.annotate(
        f"HASGLD-SA at step {step:,}:\nSGLD-SA's final MSE",
        (step, level),
        xytext=(step, level + 0.25 * (axes.get_ylim()[1] - level)),
        ha="center",
        arrowprops={"arrowstyle": "->", "color": "0.3"},
    )
