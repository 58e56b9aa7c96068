"""Figures (a) and (b) of the Gaussian study."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ridgewalk.studies.gaussian_samplers import DENSE, MOMENTUM, ORACLE, OURS, PRINTED
from ridgewalk.studies.problems import Problem

Row = dict[str, Any]

LOOKS: dict[str, tuple[str, str]] = {
    "SGLD": ("tab:orange", "s"),
    "pSGLD": ("tab:brown", "v"),
    "HAMCMC": ("tab:pink", "P"),
    "SGHMC": ("tab:olive", "D"),
    ORACLE: ("black", "x"),
    DENSE: ("tab:blue", "o"),
    OURS + "low rank": ("tab:cyan", "^"),
    OURS + "limited": ("tab:purple", "<"),
    OURS + "dense, base γ⁻¹I": ("tab:gray", ">"),
    MOMENTUM: ("tab:green", "*"),
    PRINTED: ("tab:red", "X"),
}


def draw_samples(problem: Problem, best: dict[str, Row], burn_in: int, last: int) -> Figure:
    """The first samples of SGLD and of HASGLD-SA, each at its best step size."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("SGLD", DENSE), strict=True):
        if name in best:
            row = best[name]
            _scatter(axes, problem, np.asarray(row["first_draws"]), LOOKS[name][0])
            axes.set_title(f"{name}, step size {row['step_size']:.3g}:\nsteps {burn_in:,} to {last:,}")
    return figure


def _scatter(axes: Axes, problem: Problem, draws: np.ndarray, colour: str) -> None:
    x, y = np.meshgrid(np.linspace(-0.42, 0.42, 120), np.linspace(-3.4, 3.4, 120))
    points = np.stack([x, y], axis=-1)
    height = np.exp(-0.5 * np.einsum("...i,ij,...j", points, problem.hessian, points))
    axes.contour(x, y, height, levels=[0.011, 0.135, 0.607], colors="0.5", linewidths=1)
    axes.plot(draws[:, 0], draws[:, 1], ".", markersize=2, color=colour)
    axes.set(xlabel="x", ylabel="y", xlim=(-0.42, 0.42), ylim=(-3.4, 3.4))


def draw_errors(stable: list[Row], printed: list[Row]) -> Figure:
    """Covariance error against autocorrelation time, over step sizes."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True, width_ratios=(3, 2))
    _curves(left, [row for row in stable if row["sampler"] != PRINTED])  # its errors would set the scale
    left.set_title("every sampler on its own stable grid")
    _curves(right, printed)
    gone = [name for name in dict.fromkeys(row["sampler"] for row in printed) if _all_diverged(printed, name)]
    right.set_title(r"the paper's step sizes, $0.02 \cdot 0.8^j$")
    if gone:
        right.text(
            0.97, 0.97, "diverged at all four:\n" + "\n".join(gone), transform=right.transAxes, ha="right", va="top"
        )
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="autocorrelation time (steps)")
        axes.grid(alpha=0.3, which="both", linewidth=0.5)
    left.set_ylabel("covariance error")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _all_diverged(rows: list[Row], name: str) -> bool:
    return all(row["diverged"] for row in rows if row["sampler"] == name)


def _curves(axes: Axes, rows: list[Row]) -> None:
    """A line for every sampler and friction; the label stands at the first of them."""
    labelled: set[str] = set()
    for name, friction in dict.fromkeys((row["sampler"], row.get("friction")) for row in rows):
        kept = [r for r in rows if (r["sampler"], r.get("friction")) == (name, friction) and not r["diverged"]]
        if not kept:
            continue
        colour, marker = LOOKS[name]
        axes.errorbar(
            [row["autocorrelation_time"] for row in kept],
            [row["covariance_error"] for row in kept],
            [2 * row["covariance_error_se"] for row in kept],
            [2 * row["autocorrelation_time_se"] for row in kept],
            color=colour,
            marker=marker,
            markersize=8 if marker == "*" else 5,
            linewidth=1,
            elinewidth=0.7,
            capsize=2,
            label=None if name in labelled else name,
        )
        labelled.add(name)
