"""Pictures of a run by ArviZ: traces, autocorrelations, pairs, marginals. Matplotlib is imported when one is drawn."""

import warnings
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.library import arviz, quiet
from ridgewalk.diagnostics.select import coordinates, named_coordinates

_TIGHT = {"layout": "constrained"}


def _chosen(result: Draws, parameters: Sequence[str] | None, most: int) -> dict[str, np.ndarray]:
    """Draws (chain, draw) of the parameters asked for by label or leaf, or of some of every leaf."""
    if not isinstance(most, int) or most < 1:
        raise ValueError(f"max_parameters: {most!r} is not a positive number of parameters")
    parts = coordinates(result, most) if parameters is None else named_coordinates(result, parameters)
    labelled = ((label, part, i) for part in parts for i, label in enumerate(part.labels))
    return {label: part.values[:, :, i] for label, part, i in islice(labelled, most)}


def _draw(function: str, data: Any, **options: Any) -> Any:
    """One of ArviZ's plots, without the announcements of the libraries below it."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", UserWarning)
        return getattr(arviz(), function)(data, **options)


def plot_trace(result: Draws, parameters: Sequence[str] | None = None, *, max_parameters: int = 8) -> Any:
    """Marginals on the left, draws over time on the right; a line per chain. Returns the axes (parameter, 2)."""
    chosen = _chosen(result, parameters, max_parameters)
    size = (11, 1.8 * len(chosen) + 0.6)
    axes = _draw("plot_trace", chosen, compact=False, figsize=size, backend_kwargs=_TIGHT)
    axes[-1, 1].set_xlabel("draw")
    return axes


def plot_autocorrelation(
    result: Draws, parameters: Sequence[str] | None = None, *, max_parameters: int = 8, max_lag: int | None = None
) -> Any:
    """Autocorrelation of the draws, chains joined; lags count draws, not steps. Returns the axes."""
    chosen = _chosen(result, parameters, max_parameters)
    lag = max_lag or min(100, result.draws - 1)
    columns = min(4, len(chosen))
    rows = -(-len(chosen) // columns)
    size = (3.4 * columns, 2.6 * rows)
    axes = _draw("plot_autocorr", chosen, max_lag=lag, combined=True, grid=(rows, columns), figsize=size)
    for axis in np.ravel(axes)[-columns:]:
        axis.set_xlabel("lag (draws)")
    return axes


def plot_pairs(result: Draws, parameters: Sequence[str] | None = None, *, max_parameters: int = 5) -> Any:
    """Scatter of every two parameters, with marginals on the diagonal. Returns the axes."""
    chosen = _chosen(result, parameters, max_parameters)
    if len(chosen) < 2:
        raise ValueError(f"parameters: a plot of pairs needs two, there is {', '.join(chosen)}; use plot_posterior")
    size = 2.2 * len(chosen) + 1
    return _draw("plot_pair", chosen, marginals=True, figsize=(size, size), scatter_kwargs={"alpha": 0.3, "s": 4})


def plot_posterior(result: Draws, parameters: Sequence[str] | None = None, *, max_parameters: int = 8) -> Any:
    """Marginal densities with mean and 94 % interval. Returns the axes."""
    chosen = _chosen(result, parameters, max_parameters)
    columns = min(4, len(chosen))
    rows = -(-len(chosen) // columns)
    return _draw("plot_posterior", chosen, grid=(rows, columns), figsize=(3.4 * columns, 2.8 * rows), textsize=10)


def plot_steps(result: Draws) -> Any:
    """Potential, gradient norm and temperature over the steps, a line per chain. Returns the axes."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  (slow to import, and only needed here)

    _, axes = plt.subplots(3, 1, sharex=True, figsize=(9, 6), layout="constrained")
    for axis, name in zip(axes, ("potential", "gradient_norm", "temperature"), strict=True):
        for chain, values in enumerate(np.asarray(getattr(result.info, name), float)):
            axis.plot(result.draw_steps, values, linewidth=0.8, label=f"chain {chain}")
        axis.set_ylabel(name.replace("_", " "))
    axes[2].axhline(result.sampler.dynamics.temperature, color="black", linestyle="--", linewidth=0.8)
    axes[2].set_xlabel("step")
    if 1 < len(result.status) <= 8:
        axes[0].legend(fontsize="small", ncols=4)
    return axes
