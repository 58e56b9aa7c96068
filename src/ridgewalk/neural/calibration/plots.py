"""The reliability figure: coverage against level, and width against level."""

from collections.abc import Mapping

import numpy as np

from ridgewalk._optional import requires_extra
from ridgewalk.neural.calibration.assessment import Assessment

with requires_extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#56B4E9", "v"))
"""Colours that remain distinct for colour-blind readers, each with its own marker."""


def draw_reliability(assessments: Mapping[str, Assessment], examples: int | None = None) -> Figure:
    """Reliability curves side by side with the widths of the intervals, one of each for every name.

    With `examples`, the number of independent examples, the band shows where 95 % of the coverages of a calibrated
    model would lie, if all outputs of an example were covered or missed together: ± 1.96 √(level (1 − level)/examples).
    """
    if not 0 < len(assessments) <= len(STYLES):
        raise ValueError(f"assessments: {len(assessments)} curves; give 1 to {len(STYLES)} for a readable figure")
    figure = Figure(figsize=(10.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_diagonal(left, examples)
    for (name, assessment), (colour, marker) in zip(assessments.items(), STYLES, strict=False):
        style = {"color": colour, "marker": marker, "markersize": 4.5, "linewidth": 1.5}
        label = f"{name}: error {100 * assessment.calibration_error:.1f} %"
        left.plot(assessment.levels, assessment.coverage, label=label, **style)
        right.plot(assessment.levels, assessment.width, label=name, **style)
    left.set(title="Reliability", xlabel="level of the central interval", ylabel="share of targets inside")
    left.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    right.set(title="Width", xlabel="level of the central interval", ylabel="mean width, units of the target")
    right.set(xlim=(0, 1), ylim=(0, None))
    for axes in (left, right):
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9, loc="upper left")
    left.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def _draw_diagonal(axes: Axes, examples: int | None) -> None:
    levels = np.linspace(0, 1, 101)
    axes.plot(levels, levels, color="0.35", linewidth=1.0, linestyle="--", label="calibrated")
    if examples:
        half = 1.96 * np.sqrt(levels * (1 - levels) / examples)
        axes.fill_between(levels, levels - half, levels + half, color="0.85", label=f"95 % band, {examples} examples")
