"""The figures of the regression: posterior means beside the truth, and errors as the chains run."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ridgewalk.studies.regression_samplers import OURS, PLAIN, PRINTED, SPARSE
from ridgewalk.studies.regression_verdict import over_seeds

Row = dict[str, Any]

LOOKS: dict[str, tuple[str, str]] = {
    PLAIN: ("tab:orange", "-."),
    SPARSE: ("tab:green", "--"),
    OURS: ("tab:blue", "-"),
    PRINTED: ("tab:red", ":"),
}


def draw_means(chosen: dict[str, Row], truth: np.ndarray) -> Figure:
    """Posterior means of all weights, mean and range over the data sets; the weights lie on a logarithmic axis."""
    names = [name for name in (PLAIN, SPARSE, OURS) if name in chosen]
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
    """MSE and MAE on the test samples against steps: mean over seeds, the band one standard error to each side."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    for axes, what in zip(figure.subplots(1, 2), ("mse", "mae"), strict=True):
        for name, (colour, dashes) in LOOKS.items():
            if name not in chosen:
                continue
            row = chosen[name]
            step = np.asarray(row["step"])
            mean, error = over_seeds(row, what)
            label = f"{name}, step size {row['step_size']:g}"
            axes.plot(step, mean, dashes, color=colour, linewidth=2, label=label)
            axes.fill_between(step, mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)
        axes.axhline(least[what], color="black", linewidth=1, label="the true weights")
        axes.set(xlabel="steps", ylabel=f"test {what.upper()}", xscale="log")
        axes.grid(alpha=0.3, which="both", linewidth=0.5)
    _point_out(figure, chosen, found)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _point_out(figure: Figure, chosen: dict[str, Row], found: dict[str, Any]) -> None:
    """Where HASGLD-SA reaches SGLD-SA's last MSE."""
    reached = found.get("reaches", {}).get("step")
    if reached is None:
        return
    axes, level = figure.axes[0], found["reaches"]["mse"]
    axes.plot([reached, found["reaches"]["their_steps"]], [level, level], ":", color="0.3", linewidth=1)
    axes.annotate(
        f"SGLD-SA's last MSE,\nreached by step {reached:,}",
        (reached, level),
        xytext=(0.42, 0.62),
        textcoords="axes fraction",
        arrowprops={"arrowstyle": "->", "color": "0.3"},
    )
