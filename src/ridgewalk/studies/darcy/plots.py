"""Figures of the Darcy studies: errors of all methods, and predicted fields with their standard deviation."""

from collections.abc import Mapping

import numpy as np

from ridgewalk._optional import requires_extra
from ridgewalk.darcy.grid import Array, Grid, cell_velocity
from ridgewalk.studies.darcy.settings import ADAM, BEST, DIAGONAL, OURS, PRINTED, PSGLD, SGLD

with requires_extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import FuncFormatter

STYLES = {
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


def plot_error_bars(
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
            color=STYLES[name][0],
            hatch=STYLES[name][1],
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


def plot_fields(grid: Grid, predicted: Mapping[str, Mapping[str, list[float]]]) -> Figure:
    """Velocity along x: the truth, then for every method its prediction, error and standard deviation per cell."""
    # Constrained layout ignores the tick labels of the colour bars: leave a margin for them on the right.
    figure = Figure(figsize=(12, 2.9 * len(predicted)), layout=ConstrainedLayoutEngine(rect=(0, 0, 0.96, 1)))
    rows = figure.subplots(len(predicted), 4, squeeze=False)

    def velocity(name: str, what: str) -> Array:
        return cell_velocity(grid, np.asarray(predicted[name][what]))[0]

    true = velocity(next(iter(predicted)), "truth")
    shared = Normalize(float(true.min()), float(true.max()))
    means = {name: velocity(name, "mean") for name in predicted}
    stds = {name: velocity(name, "std") for name in predicted}
    errors = Normalize(0, max(float(np.abs(mean - true).max()) for mean in means.values()))
    deviations = Normalize(0, max(float(std.max()) for std in stds.values()))
    for line, name in zip(rows, predicted, strict=True):
        _show(figure, line[0], true, "true $u_x$", "viridis", shared)
        _show(figure, line[1], means[name], f"{name}:\npredicted $u_x$", "viridis", shared)
        _show(figure, line[2], np.abs(means[name] - true), "absolute error", "magma", errors)
        _show(figure, line[3], stds[name], "standard deviation\nof the draws", "magma", deviations)
    return figure


def _show(figure: Figure, axes: Axes, values: Array, title: str, colours: str, norm: Normalize) -> None:
    image = axes.imshow(values, origin="lower", extent=(0, 1, 0, 1), cmap=colours, norm=norm, interpolation="nearest")
    axes.set_title(title, fontsize=10)
    axes.set_xticks([0, 1])
    axes.set_yticks([0, 1])
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.formatter.set_powerlimits((-2, 3))  # type: ignore[attr-defined]
    bar.update_ticks()
