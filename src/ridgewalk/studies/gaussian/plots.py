"""Figures (a) and (b) of the Gaussian study."""

from collections.abc import Mapping, Sequence

import numpy as np

from ridgewalk._optional import requires_extra
from ridgewalk.studies.framework.comparison import BenchmarkPosterior
from ridgewalk.studies.gaussian.contenders import DENSE, MOMENTUM, ORACLE, OURS, PRINTED, GaussianRow

with requires_extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES: dict[str, tuple[str, str]] = {
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


def plot_samples(problem: BenchmarkPosterior, best: Mapping[str, GaussianRow], burn_in: int, last: int) -> Figure:
    """The first samples of SGLD and HASGLD-SA, each at its best step size."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("SGLD", DENSE), strict=True):
        if name in best:
            row = best[name]
            _scatter(axes, problem, np.asarray(row.first_draws), STYLES[name][0])
            axes.set_title(f"{name}, step size {row.step_size:.3g}:\nsteps {burn_in:,} to {last:,}")
    return figure


def _scatter(axes: Axes, problem: BenchmarkPosterior, draws: np.ndarray, colour: str) -> None:
    x, y = np.meshgrid(np.linspace(-0.42, 0.42, 120), np.linspace(-3.4, 3.4, 120))
    points = np.stack([x, y], axis=-1)
    height = np.exp(-0.5 * np.einsum("...i,ij,...j", points, problem.hessian, points))
    axes.contour(x, y, height, levels=[0.011, 0.135, 0.607], colors="0.5", linewidths=1)
    axes.plot(draws[:, 0], draws[:, 1], ".", markersize=2, color=colour)
    axes.set(xlabel="x", ylabel="y", xlim=(-0.42, 0.42), ylim=(-3.4, 3.4))


def plot_errors(own: Sequence[GaussianRow], paper: Sequence[GaussianRow]) -> Figure:
    """Covariance error against autocorrelation time, over step sizes."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True, width_ratios=(3, 2))
    _curves(left, [row for row in own if row.sampler != PRINTED])  # its errors would determine the scale
    left.set_title("each sampler on its own grid of step sizes")
    _curves(right, paper)
    names = dict.fromkeys(row.sampler for row in paper)
    diverged = [name for name in names if all(row.diverged for row in paper if row.sampler == name)]
    right.set_title(r"the paper's step sizes, $0.02 \cdot 0.8^j$")
    if diverged:
        text = "diverged at all four:\n" + "\n".join(diverged)
        right.text(0.97, 0.97, text, transform=right.transAxes, ha="right", va="top")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="autocorrelation time (steps)")
        axes.grid(alpha=0.3, which="both", linewidth=0.5)
    left.set_ylabel("covariance error")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _curves(axes: Axes, rows: Sequence[GaussianRow]) -> None:
    """A line for every sampler and friction, labelled once per sampler."""
    labelled: set[str] = set()
    for name, friction in dict.fromkeys((row.sampler, row.options.get("friction")) for row in rows):
        shown = [r for r in rows if (r.sampler, r.options.get("friction")) == (name, friction) and not r.diverged]
        if not shown:
            continue
        colour, marker = STYLES[name]
        axes.errorbar(
            [row.autocorrelation_time for row in shown],
            [row.covariance_error for row in shown],
            [2 * row.covariance_error_se for row in shown],
            [2 * row.autocorrelation_time_se for row in shown],
            color=colour,
            marker=marker,
            markersize=8 if marker == "*" else 5,
            linewidth=1,
            elinewidth=0.7,
            capsize=2,
            label=None if name in labelled else name,
        )
        labelled.add(name)
