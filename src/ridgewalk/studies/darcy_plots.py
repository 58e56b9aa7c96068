"""Figures of the Darcy studies: errors of all methods, and predicted fields with their uncertainty."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter

from ridgewalk.darcy.grid import Array, Grid, cell_velocity
from ridgewalk.studies.darcy_names import ADAM, BEST, DIAGONAL, OURS, PRINTED, PSGLD, SGLD

LOOKS = {
    SGLD: ("tab:orange", ""),
    PSGLD: ("tab:brown", "//"),
    PRINTED.format(1): ("0.75", ".."),
    PRINTED.format(2): ("0.6", "xx"),
    DIAGONAL: ("tab:purple", "++"),
    OURS.format(1): ("lightskyblue", ""),
    BEST: ("tab:blue", ""),
    ADAM: ("tab:green", "\\\\"),
}
"""Colour and hatching of every method."""


def draw_error_bars(
    errors: Mapping[str, Mapping[float, tuple[float, float]]], paper: Mapping[float, Mapping[str, float]]
) -> Figure:
    """Mean relative error of every method (mean and standard error over seeds) at every sparsity, on a log scale."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    sparsities = sorted({sparsity for row in errors.values() for sparsity in row})
    wide = 0.8 / len(errors)
    for number, (name, row) in enumerate(errors.items()):
        places = [i + (number - (len(errors) - 1) / 2) * wide for i, s in enumerate(sparsities) if s in row]
        values = [row[s] for s in sparsities if s in row]
        axes.bar(
            places,
            [mean for mean, _ in values],
            wide,
            yerr=[error for _, error in values],
            label=name,
            color=LOOKS[name][0],
            hatch=LOOKS[name][1],
            edgecolor="white",
            error_kw={"elinewidth": 1},
        )
    for index, sparsity in enumerate(sparsities):
        if sparsity in paper:
            best = min(paper[sparsity].values())
            axes.plot([index - 0.45, index + 0.45], [best, best], "k--", lw=1.2, label="" if index else "paper's best")
    axes.set_yscale("log")
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks(range(len(sparsities)), ["no pruning" if s == 0 else f"{100 * s:.0f} % pruned" for s in sparsities])
    axes.set_ylabel("mean relative error on test samples (%)")
    axes.legend(fontsize=8, ncols=2)
    return figure


def draw_fields(grid: Grid, truth: Array, predicted: Mapping[str, tuple[Array, Array]]) -> Figure:
    """Velocity along x: the truth, then for every method its prediction, error and spread (mean of a cell's edges)."""
    # The layout does not see how far the bars' numbers reach: a margin on the right is for them.
    figure = Figure(figsize=(12, 2.9 * len(predicted)), layout=ConstrainedLayoutEngine(rect=(0, 0, 0.96, 1)))
    rows = figure.subplots(len(predicted), 4, squeeze=False)
    true = cell_velocity(grid, np.asarray(truth))[0]
    shared = Normalize(float(true.min()), float(true.max()))
    velocities = {name: cell_velocity(grid, flux)[0] for name, (flux, _) in predicted.items()}
    worst = max(float(np.abs(velocity - true).max()) for velocity in velocities.values())
    spreads = {name: cell_velocity(grid, spread)[0] for name, (_, spread) in predicted.items()}
    widest = max(float(spread.max()) for spread in spreads.values())
    for line, name in zip(rows, predicted, strict=True):
        _show(figure, line[0], true, "true $u_x$", "viridis", shared)
        _show(figure, line[1], velocities[name], f"{name}:\npredicted $u_x$", "viridis", shared)
        _show(figure, line[2], np.abs(velocities[name] - true), "absolute error", "magma", Normalize(0, worst))
        _show(figure, line[3], spreads[name], "standard deviation\nof the draws", "magma", Normalize(0, widest))
    return figure


def _show(figure: Figure, axes: Axes, values: Array, title: str, colours: str, norm: Normalize) -> None:
    image = axes.imshow(values, origin="lower", extent=(0, 1, 0, 1), cmap=colours, norm=norm, interpolation="nearest")
    axes.set_title(title, fontsize=10)
    axes.set_xticks([0, 1])
    axes.set_yticks([0, 1])
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.formatter.set_powerlimits((-2, 3))  # type: ignore[attr-defined]
    bar.update_ticks()
