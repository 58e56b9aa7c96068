"""The figures of the convergence study."""

from collections.abc import Mapping, Sequence

import numpy as np

from ridgewalk._optional import requires_extra
from ridgewalk.studies.convergence.measure import BiasRow
from ridgewalk.studies.convergence.report import Curve

with requires_extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter, NullLocator

COLOURS = ("tab:blue", "tab:orange", "tab:green")
MARKERS = ("o", "s", "^")


def plot_operator(curves: Sequence[Curve]) -> Figure:
    """E‖G_k − G_*‖² against k, and ω_k rescaled to match it over the last decade of k."""
    figure = Figure(figsize=(7, 4.8), layout="constrained")
    axes = figure.subplots()
    for curve, colour, marker in zip(curves, COLOURS, MARKERS, strict=False):
        k, mean = np.asarray(curve.k), np.asarray(curve.mean_square)
        label = f"α = {curve.alpha:g}: slope {curve.slope:.2f} ± {curve.slope_se:.2f}"
        axes.errorbar(k, mean, 2 * np.asarray(curve.mean_square_se), color=colour, marker=marker, ms=4, label=label)
        omega = np.asarray(curve.omega)
        late = k >= k[-1] / 10
        shift = np.exp(np.mean(np.log(mean[late] / omega[late])))
        label = rf"$\omega_k$, rescaled: slope {curve.predicted_slope:.2f}"
        axes.plot(k[k >= k[-1] / 30], shift * omega[k >= k[-1] / 30], "--", color=colour, lw=2, alpha=0.6, label=label)
    axes.set(xscale="log", yscale="log", xlabel="k, number of averages of G")
    axes.set_ylabel(r"$E\,\|G_k - G_*\|^2 / d$, whitened")
    axes.set_title(r"Convergence of G at the rate $\omega_k = 5\,(k + 10)^{-\alpha}$")
    axes.grid(alpha=0.3, which="both", linewidth=0.5)
    handles, labels = axes.get_legend_handles_labels()
    lines = len(curves)  # dashed lines come first: put each next to its curve
    order = [place for i in range(lines) for place in (lines + i, i)]
    axes.legend([handles[i] for i in order], [labels[i] for i in order])
    return figure


def plot_biases(biases: Mapping[str, Sequence[BiasRow]]) -> Figure:
    """The bias of a posterior average against step size, batch size and memory."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _measured(left, biases["step_size"], "relative bias of the variance")
    left.set(xlabel="step size ε", title="step size, exact gradients")
    _measured(middle, biases["batch_size"], "relative bias of the variance")
    middle.set(xlabel="batch size n (of 1,000)", title="batch size, ε fixed")
    for base, label, colour, marker in (
        ("scaled_identity", "base γ⁻¹I (as in the paper)", "tab:orange", "s"),
        ("running", "base G itself (the default)", "tab:blue", "o"),
    ):
        rows = [row for row in biases["memory"] if row.base == base and not row.diverged]
        _points(right, rows, colour, marker, label)
    right.set(xlabel="memory M", ylabel="bias of the mean (standard deviations)", title="memory, fixed chain length")
    for axes in (left, middle, right):
        axes.set(xscale="log", yscale="log")
        axes.grid(alpha=0.3, which="both", linewidth=0.5)
        axes.legend()
    right.legend(loc="lower left", bbox_to_anchor=(0.0, 0.3))  # between the two curves
    memories = sorted({row.x for row in biases["memory"]})
    right.set_xticks(memories, [f"{m:g}" for m in memories])
    batches = sorted({row.x for row in biases["batch_size"]})
    middle.set_xticks(batches, [f"{n:g}" for n in batches])
    sizes = sorted({row.x for row in biases["step_size"]})
    left.set_xticks(sizes, [f"{e:g}" for e in sizes])
    for axes in (left, middle, right):
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    return figure


def _measured(axes: Axes, rows: Sequence[BiasRow], what: str) -> None:
    kept = [row for row in rows if not row.diverged]
    _points(axes, kept, "tab:blue", "o", "HASGLD-SA, measured")
    axes.plot([row.x for row in kept], [row.predicted for row in kept], "--", color="0.4", label="predicted for G = Σ")
    axes.set_ylabel(what)


def _points(axes: Axes, rows: Sequence[BiasRow], colour: str, marker: str, label: str) -> None:
    x, bias = [row.x for row in rows], [row.bias for row in rows]
    axes.errorbar(x, bias, [2 * row.bias_se for row in rows], color=colour, marker=marker, capsize=3, label=label)
