"""Figures of Darcy problems, and of the multiscale method: its error by number of functions, and where it lies.

They are `Figure` objects, drawn without pyplot and its global state.
"""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ridgewalk._io import refuse_existing, write_atomically
from ridgewalk._validation import requires_extra
from ridgewalk.darcy.datasets import DataSet, load
from ridgewalk.darcy.grid import Array, Boundary, Grid, cell_velocity
from ridgewalk.darcy.multiscale import energy_error, multiscale_basis, solve_multiscale
from ridgewalk.darcy.solver import solve

with requires_extra("darcy"):
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm, Normalize, TwoSlopeNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator

HIGH_CONTRAST = 100.0


class Panel(NamedTuple):
    """One picture: values per cell, what they are, how they are coloured."""

    values: Array
    title: str
    label: str
    colours: str = "viridis"
    norm: Normalize | None = None


def sample_panels(data: DataSet, sample: int) -> list[Panel]:
    """Permeability, source, pressure and the two velocity components of one sample."""
    arrays = {name: values[sample] if _has_samples(data, name) else values for name, values in data.arrays.items()}
    velocity_x, velocity_y = cell_velocity(data.grid, arrays["flux"])
    return [
        _permeability_panel(arrays["permeability"]),
        _source_panel(arrays["source"]),
        Panel(arrays["pressure"], "Pressure", "p", "cividis"),
        Panel(np.abs(velocity_x), "Velocity magnitude in x", r"$|u_x|$", "magma"),
        Panel(np.abs(velocity_y), "Velocity magnitude in y", r"$|u_y|$", "magma"),
    ]


def _has_samples(data: DataSet, name: str) -> bool:
    return name in ("flux", "pressure") or data.arrays[name].ndim == 3


def _permeability_panel(values: Array) -> Panel:
    low, high = float(values.min()), float(values.max())
    if high > HIGH_CONTRAST * low:
        return Panel(values, "Permeability (log scale)", "κ", norm=LogNorm(low, high))
    return Panel(values, "Permeability", "κ")


def _source_panel(values: Array) -> Panel:
    low, high = float(values.min()), float(values.max())
    if low < 0 < high:
        most = max(-low, high)
        return Panel(values, "Source", "f", "RdBu_r", TwoSlopeNorm(0.0, -most, most))
    spread = 0.0 if high > low else 0.5  # a constant needs some range for its colour bar
    return Panel(values, "Source", "f", "Reds", Normalize(low - spread, high + spread))


def draw_panel(figure: Figure, axes: Axes, panel: Panel, grid: Grid) -> None:
    """Draw one picture with x to the right and y upwards, and its colour bar."""
    image = axes.imshow(
        panel.values,
        origin="lower",
        extent=(0.0, grid.width, 0.0, grid.height),
        cmap=panel.colours,
        norm=panel.norm,
        interpolation="nearest",
    )
    axes.set(title=panel.title, xlabel="x", ylabel="y")
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.04)
    bar.ax.set_title(panel.label, fontsize=11)  # upright, and clearly of this bar
    if isinstance(panel.norm, LogNorm):
        bar.locator = LogLocator(numticks=6)
        bar.update_ticks()


def draw_sample(data: DataSet, sample: int, number: int | None = None) -> Figure:
    """The five pictures of one sample; `number` is its number in the file if that is not `sample`."""
    panels = sample_panels(data, sample)
    figure = Figure(figsize=(12.0, 7.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(2, 3).flat)
    for place, panel in zip(axes, panels, strict=False):
        draw_panel(figure, place, panel, data.grid)
    axes[-1].set_axis_off()
    axes[-1].text(0.0, 0.95, _caption(data), va="top", fontsize=10, wrap=True, transform=axes[-1].transAxes)
    label = data.attributes["permeability_label"]
    figure.suptitle(f"Sample {sample if number is None else number}: {label}", fontsize=13)
    return figure


def _caption(data: DataSet) -> str:
    about = data.attributes
    return "\n".join(
        [
            f"{data.grid.nx}×{data.grid.ny} cells on the unit square"
            if data.grid.width == data.grid.height == 1
            else f"{data.grid.nx}×{data.grid.ny} cells on {data.grid.width:g}×{data.grid.height:g}",
            *_folded("Boundary: " + about["boundary"]),
            *_folded("Source: " + about["source"]),
            f"Seed {about['seed']}; all quantities dimensionless",
        ]
    )


def _folded(text: str, width: int = 44) -> Sequence[str]:
    return textwrap.wrap(text, width, subsequent_indent="   ")


def show_sample(path: str | Path, sample: int, out: str | Path, overwrite: bool = False) -> Path:
    """Draw one sample of a data set into a PNG file."""
    whole = load(path, slice(0, 0))
    count = int(whole.attributes["samples"])
    if not 0 <= sample < count:
        raise ValueError(f"sample = {sample}: the file has samples 0 to {count - 1}")
    return save_figure(draw_sample(load(path, slice(sample, sample + 1)), 0, sample), out, overwrite)


def save_figure(figure: Figure, out: str | Path, overwrite: bool = False) -> Path:
    """Write a PNG atomically; a file that exists is kept unless `overwrite`."""
    out = Path(out)
    refuse_existing(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_atomically(out, content.getvalue())
    return out


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
