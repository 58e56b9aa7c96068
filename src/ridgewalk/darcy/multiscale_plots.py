"""One figure about the multiscale method: how its error falls as functions are added, and what it misses."""

from typing import NamedTuple

import numpy as np

from ridgewalk._optional import requires_extra
from ridgewalk.darcy.boundary import Boundary
from ridgewalk.darcy.grid import Array, cell_velocity
from ridgewalk.darcy.multiscale import energy_error, solve_multiscale
from ridgewalk.darcy.multiscale_basis import multiscale_basis
from ridgewalk.darcy.plots import Panel, draw_panel
from ridgewalk.darcy.solver import solve

with requires_extra("darcy"):
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator


class ErrorCurve(NamedTuple):
    """Relative energy errors with 1, 2, … functions per coarse edge, and the fluxes they belong to."""

    blocks: int
    counts: list[int]
    errors: list[float]
    fluxes: list[Array]


def error_curve(permeability: Array, source: Array, boundary: Boundary, blocks: int) -> ErrorCurve:
    """Errors against the fine solution on `blocks × blocks` blocks, from one function an edge to all."""
    exact = solve(permeability, source, boundary)
    complete = max(exact.grid.nx, exact.grid.ny) // blocks
    whole = multiscale_basis(permeability, boundary, (blocks, blocks), per_edge=None)
    counts, errors, fluxes = list(range(1, complete + 1)), [], []
    for count in counts:
        basis = whole.truncated(count)
        flux = solve_multiscale(basis, source, boundary).flux
        errors.append(energy_error(basis, flux, exact.flux))
        fluxes.append(flux)
    return ErrorCurve(blocks, counts, errors, fluxes)


def draw_multiscale(
    permeability: Array, source: Array, boundary: Boundary, label: str, curves: list[ErrorCurve]
) -> Figure:
    """Left the error against the number of functions; right the speed, fine and with 1, 3, all functions."""
    exact = solve(permeability, source, boundary)
    figure = Figure(figsize=(12.0, 7.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subfigures(1, 2, width_ratios=(1.0, 1.35), squeeze=False)[0]
    upper, lower = left.subplots(2, 1, sharex=True)
    _draw_curves(upper, lower, curves)
    shown = curves[0]
    third = min(3, len(shown.counts))
    speeds = [
        ("Fine solution", exact.flux),
        ("1 function (Chen–Hou)", shown.fluxes[0]),
        (f"{third} functions", shown.fluxes[third - 1]),
        (f"All {shown.counts[-1]} functions", shown.fluxes[-1]),
    ]
    magnitudes = [np.hypot(*cell_velocity(exact.grid, flux)) for _, flux in speeds]
    high = float(magnitudes[0].max())
    for axes, (title, _), speed in zip(right.subplots(2, 2).flat, speeds, magnitudes, strict=True):
        clipped = np.clip(speed, 1e-4 * high, high)
        panel = Panel(clipped, title, "|u|", "magma", LogNorm(1e-4 * high, high))
        draw_panel(figure, axes, panel, exact.grid)
    right.suptitle(f"Speed, with functions per coarse edge of {shown.blocks}×{shown.blocks} blocks")
    figure.suptitle(f"Mixed multiscale method, {label}", fontsize=13)
    return figure


def _draw_curves(incomplete: Axes, complete: Axes, curves: list[ErrorCurve]) -> None:
    """Above the bases that leave something out; below all, down to rounding."""
    for curve, marker in zip(curves, "os^v", strict=False):
        name = f"{curve.blocks}×{curve.blocks} blocks"
        incomplete.semilogy(curve.counts[:-1], curve.errors[:-1], marker=marker, label=name)
        complete.semilogy(curve.counts, curve.errors, marker=marker, label=name)
    incomplete.set(title="Incomplete bases")
    complete.set(title="With the complete basis: the fine solution", xlabel="velocity functions per coarse edge")
    for axes in (incomplete, complete):
        axes.set(ylabel=r"energy error $\|u_{ms} - u_h\|_A \,/\, \|u_h\|_A$")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(True, which="both", alpha=0.25)
        axes.legend()
