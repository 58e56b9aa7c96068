"""The report of the convergence study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ridgewalk._validation import requires_extra
from ridgewalk.studies.convergence.measure import BiasRow
from ridgewalk.studies.framework.study import Cell, Number, Picture, Report, Section, Table

with requires_extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter, NullLocator


@dataclass(frozen=True)
class Settings:
    """Four experiments; the chains are the seeds."""

    chains: int = 256
    seed: int = 0
    memory: int = 2
    # E‖G_k − G_*‖²
    alphas: tuple[float, ...] = (0.6, 0.75, 0.9)
    averages: int = 20_000
    operator_step_size: float = 0.05
    operator_batch: int = 50
    # bias of a variance
    step_sizes: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4)
    step_size_steps: int = 40_000
    batch_sizes: tuple[int, ...] = (25, 50, 100, 200, 400, 800)
    batch_step_size: float = 0.05
    batch_steps: int = 20_000
    # bias of a mean that starts far off
    memories: tuple[int, ...] = (1, 2, 4, 8)
    memory_dimension: int = 10
    memory_condition: float = 1_000.0
    memory_step_size: float = 0.1
    memory_steps: int = 2_000
    away: float = 10.0


class Curve(NamedTuple):
    """E‖G_k − G_*‖² / d against k for one α, and its slope over the last decade of k."""

    alpha: float
    k: list[float]
    mean_square: list[float]
    mean_square_se: list[float]
    omega: list[float]
    slope: float
    slope_se: float
    predicted_slope: float
    """The slope of ω_k."""


def _slopes_table(curves: Sequence[Curve]) -> Table:
    rows = tuple(
        (
            f"{curve.alpha:g}",
            Number(curve.slope, curve.slope_se, ".2f"),
            Number(curve.predicted_slope, style=".2f"),
            Number(curve.mean_square[-1], curve.mean_square_se[-1], ".2g"),
        )
        for curve in curves
    )
    return Table(
        "Slope of E‖G_k − G_*‖² over the last decade of k",
        ("α", "measured", "slope of ω_k", "E‖G_k − G_*‖² / d at the end"),
        rows,
        "± one standard error (jackknife over chains). The theorem bounds the error by a multiple of ω_k.",
    )


def _bias_table(caption: str, first: str, rows: Sequence[BiasRow], predicted: bool) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for row in rows:
        diverged = Number(None, note="diverged")
        bias = diverged if row.diverged else Number(row.bias, row.bias_se, ".3f")
        distance = diverged if row.diverged else Number(row.distance, style=".2g")
        line: tuple[Cell, ...] = (f"{row.x:g}", bias)
        lines.append((*line, Number(row.predicted, style=".3f"), distance) if predicted else (*line, distance))
    columns = (first, "bias", "predicted for G = Σ", "‖E G − Σ‖") if predicted else (first, "bias", "‖E G − Σ‖")
    return Table(caption, columns, tuple(lines))


def build_report(
    settings: Settings, curves: Sequence[Curve], distance: float, biases: Mapping[str, Sequence[BiasRow]]
) -> Report:
    """Build the report; `distance` is that of the fixed point G_* from the exact covariance."""
    alphas = ", ".join(f"{alpha:g}" for alpha in settings.alphas)
    rate = Section(
        "Rate of convergence of the preconditioner",
        (
            f"HASGLD-SA (dense form, M = {settings.memory}) on a linear regression with 4 weights, 1,000 "
            f"examples and batches of {settings.operator_batch}; ω_k = 5 (k + 10)^−α for α = {alphas}; k counts "
            f"averages of G, one every {settings.memory} steps. G_* is the fixed point of the recursion, "
            f"estimated from all chains; noise in the curvature pairs shifts it by {distance:.1%} from "
            "the exact covariance Σ. With exact gradients of a Gaussian there is no such noise, G_* = Σ, "
            "and G converges faster than ω_k.",
        ),
        (_slopes_table(curves),),
        (
            Picture(
                "operator.png",
                "Mean square distance of G_k from its fixed point, with ω_k (dashed), rescaled. Error bars: two "
                "standard errors.",
                "Three falling curves on logarithmic axes, one for each α, each parallel to its dashed line ω_k "
                "over the last decade of k; the slopes are in the table.",
            ),
        ),
    )
    by_base = [
        (label, [row for row in biases["memory"] if row.base == base])
        for base, label in (("scaled_identity", "base γ⁻¹I"), ("running", "base G itself"))
    ]
    falls = Section(
        "Controllable bias",
        (
            "Step size and batch size: φ = (θ − μ)ᵀ H (θ − μ) / d has posterior mean 1, so the excess over 1 "
            "is bias. Dashed: the prediction for Langevin dynamics with G = Σ, (1 + ε v/2) / (1 − ε/2) − 1, where v is "
            "the whitened variance of the minibatch gradient.",
            f"Memory: chains of {settings.memory_steps:,} steps on a {settings.memory_dimension}-d Gaussian with "
            f"condition number {settings.memory_condition:,.0f} start {settings.away:g} standard deviations from the "
            "mode. The remaining influence of the start on their mean is the bias; the closer G is to Σ the faster it "
            "decays, until only the time for learning G remains.",
        ),
        (
            _bias_table(
                "Bias of the variance against step size (exact gradients)", "step size", biases["step_size"], True
            ),
            _bias_table(
                f"Bias of the variance against batch size (step size {settings.batch_step_size:g})",
                "batch size",
                biases["batch_size"],
                True,
            ),
            *(_bias_table(f"Bias of the mean against memory, {label}", "M", rows, False) for label, rows in by_base),
        ),
        (
            Picture(
                "biases.png",
                "The bias of a posterior average. Error bars: two standard errors over chains.",
                "Three plots on logarithmic axes: the bias decreases with the step size, with growing batch size, each "
                "along its dashed prediction, and with the memory; the numbers are in the tables.",
            ),
        ),
    )
    text = (
        "The paper proves that G_k converges to its fixed point at the rate ω_k, and that posterior averages have a "
        "bias that is controlled by the step size, the batch size n and the memory M. Here both are measured on "
        "targets with exact answers.",
    )
    return Report("Convergence theory", text, (rate, falls))


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
