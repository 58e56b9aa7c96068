"""Plots of a run with matplotlib: traces, autocorrelations, pairs, marginals and step statistics."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde

from ridgewalk._validation import check_whole, requires_extra
from ridgewalk.diagnostics.draw_access import named_coordinates, select_coordinates
from ridgewalk.diagnostics.mixing import autocovariance
from ridgewalk.result import Result

INTERVAL = 0.94
"""Probability of the interval of highest density, ArviZ's default."""


def _subplots(rows: int, columns: int, size: tuple[float, float], **options: Any) -> Any:
    """A grid of axes, always (rows, columns)."""
    with requires_extra("plots"):
        import matplotlib.pyplot as plt  # noqa: PLC0415
    return plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)[1]


def _chosen(result: Result, parameters: Sequence[str] | None, limit: int) -> dict[str, np.ndarray]:
    """Label → draws (chain, draw) of the requested parameters, or of some parameters of every leaf."""
    check_whole("max_parameters", limit)
    parts = (
        select_coordinates(result, limit, constrained=True)
        if parameters is None
        else named_coordinates(result, parameters)
    )
    labelled = ((label, part, i) for part in parts for i, label in enumerate(part.labels))
    return {label: part.values[:, :, i] for label, part, i in islice(labelled, limit)}


def _plot_density(axis: Any, values: np.ndarray, **options: Any) -> None:
    """A kernel density estimate; a vertical line for constant values."""
    if np.ptp(values) == 0:
        axis.axvline(values[0], **options)
        return
    grid = np.linspace(values.min(), values.max(), 200)
    axis.plot(grid, gaussian_kde(values)(grid), **options)
    axis.set_yticks([])


def highest_density_interval(values: np.ndarray, probability: float = INTERVAL) -> tuple[float, float]:
    """The shortest interval with a given share of the values."""
    ordered = np.sort(np.ravel(values))
    inside = min(max(int(np.floor(probability * len(ordered))), 1), len(ordered) - 1)
    start = int(np.argmin(ordered[inside:] - ordered[: len(ordered) - inside]))
    return float(ordered[start]), float(ordered[start + inside])


def plot_trace(result: Result, parameters: Sequence[str] | None = None, *, max_parameters: int = 8) -> Any:
    """Marginal densities on the left, traces on the right, one line per chain. Returns the axes (parameter, 2)."""
    chosen = _chosen(result, parameters, max_parameters)
    axes = _subplots(len(chosen), 2, (11, 1.8 * len(chosen) + 0.6))
    for (density, trace), (label, values) in zip(axes, chosen.items(), strict=True):
        for chain in values:
            _plot_density(density, chain, linewidth=0.9)
            trace.plot(chain, linewidth=0.5, alpha=0.8)
        density.set_title(label)
        trace.set_title(label)
    axes[-1, 1].set_xlabel("draw")
    return axes


def plot_autocorrelation(
    result: Result, parameters: Sequence[str] | None = None, *, max_parameters: int = 8, max_lag: int | None = None
) -> Any:
    """Autocorrelation of the draws, averaged over chains; lags count draws, not steps. Returns the axes."""
    chosen = _chosen(result, parameters, max_parameters)
    lags = min(max_lag or 100, result.draws - 1)
    columns = min(4, len(chosen))
    rows = -(-len(chosen) // columns)
    axes = _subplots(rows, columns, (3.4 * columns, 2.6 * rows))
    for axis, (label, values) in zip(axes.flat, chosen.items(), strict=False):
        covariance = autocovariance(values).mean(axis=0)[: lags + 1]
        axis.vlines(np.arange(lags + 1), 0, covariance / (covariance[0] or 1.0), linewidth=1)
        axis.axhline(0, color="black", linewidth=0.5)
        axis.set_title(label)
        axis.set_xlabel("lag (draws)")
    _hide_unused(axes, len(chosen))
    return axes


def plot_pairs(result: Result, parameters: Sequence[str] | None = None, *, max_parameters: int = 5) -> Any:
    """Scatter plots of every pair of parameters, marginal densities on the diagonal. Returns the axes."""
    chosen = _chosen(result, parameters, max_parameters)
    if len(chosen) < 2:
        raise ValueError(f"parameters: pairs need at least two, got {', '.join(chosen)}; use plot_posterior")
    count, size = len(chosen), 2.2 * len(chosen) + 1
    axes = _subplots(count, count, (size, size))
    labels, columns = list(chosen), [values.ravel() for values in chosen.values()]
    for i, row in enumerate(axes):
        for j, axis in enumerate(row):
            if i == j:
                _plot_density(axis, columns[i])
            elif i > j:
                axis.scatter(columns[j], columns[i], s=4, alpha=0.3, linewidths=0)
            else:
                axis.set_visible(False)
            if i == count - 1:
                axis.set_xlabel(labels[j])
            if j == 0 and i > 0:
                axis.set_ylabel(labels[i])
    return axes


def plot_posterior(result: Result, parameters: Sequence[str] | None = None, *, max_parameters: int = 8) -> Any:
    """Marginal densities with mean and 94 % interval of highest density. Returns the axes."""
    chosen = _chosen(result, parameters, max_parameters)
    columns = min(4, len(chosen))
    rows = -(-len(chosen) // columns)
    axes = _subplots(rows, columns, (3.4 * columns, 2.8 * rows))
    for axis, (label, values) in zip(axes.flat, chosen.items(), strict=False):
        low, high = highest_density_interval(values)
        _plot_density(axis, values.ravel())
        axis.plot([low, high], [0, 0], color="black", linewidth=3, solid_capstyle="butt")
        axis.axvline(values.mean(), color="black", linestyle="--", linewidth=0.8)
        axis.set_title(label)
        axis.set_xlabel(f"mean {values.mean():.3g}, {INTERVAL:.0%} in [{low:.3g}, {high:.3g}]", fontsize="small")
    _hide_unused(axes, len(chosen))
    return axes


def _hide_unused(axes: Any, used: int) -> None:
    for axis in axes.flat[used:]:
        axis.set_visible(False)


def plot_steps(result: Result) -> Any:
    """Potential, gradient norm and temperature against the step number, one line per chain. Returns the axes."""
    axes = _subplots(3, 1, (9, 6), sharex=True)[:, 0]
    for axis, name in zip(axes, ("potential", "gradient_norm", "temperature"), strict=True):
        for chain, values in enumerate(np.asarray(getattr(result.info, name), float)):
            axis.plot(result.draw_steps, values, linewidth=0.8, label=f"chain {chain}")
        axis.set_ylabel(name.replace("_", " "))
    axes[2].axhline(result.sampler.dynamics.temperature, color="black", linestyle="--", linewidth=0.8)
    axes[2].set_xlabel("step")
    if 1 < len(result.status) <= 8:
        axes[0].legend(fontsize="small", ncols=4)
    return axes
