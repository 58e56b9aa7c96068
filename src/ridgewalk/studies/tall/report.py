"""Rows, figures and report of the study of tall data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ridgewalk._validation import requires_extra
from ridgewalk.studies.framework.study import Cell, Number, Picture, Report, Section, Table, save_figure

with requires_extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RIDGEWALK, NUTS, DENSE_NUTS, HMCECS = "ridgewalk", "NUTS", "NUTS, dense mass matrix", "HMCECS"
SAMPLERS = (RIDGEWALK, NUTS, DENSE_NUTS, HMCECS)
COLOURS = dict(zip((*SAMPLERS, "Laplace"), ("#1b6ca8", "#b5442a", "#d98e04", "#4b8b3b", "#666666"), strict=True))
MARKERS = dict(zip((*SAMPLERS, "Laplace"), "os^Dx", strict=True))
TITLES = {"logistic": "Logistic regression", "robust": "Robust regression"}


@dataclass(frozen=True)
class Settings:
    """`sizes` are numbers of rows; NUTS is measured at `nuts_sizes`, and extrapolated to the others."""

    kinds: tuple[str, ...] = ("logistic", "robust")
    sizes: tuple[int, ...] = (10_000, 100_000, 500_000, 1_000_000)
    nuts_sizes: tuple[int, ...] = (10_000,)
    hmcecs_sizes: tuple[int, ...] = (10_000, 100_000, 500_000, 1_000_000)
    steps: int = 10_000
    """Of each chain of ridgewalk, warm-up included."""
    chains: int = 4
    batch_size: int = 500
    block_size: int = 250
    """Rows of ridgewalk's batches that are drawn together: of a million, 50 take a tenth longer a step."""
    seeds: int = 2
    warmup: int = 1_000
    draws: int = 2_000
    """Of NUTS and HMCECS."""
    subsample: int = 1_000
    blocks: int = 10
    """Rows of HMCECS, and the blocks in which they are exchanged."""
    target_error: float = 0.2
    """The covariance error to which times are given."""
    reference_work: int = 5 * 10**8
    """Rows times draws of the reference."""
    least_reference: int = 512
    most_reference: int = 65_536
    seed: int = 0


class PosteriorRow(NamedTuple):
    """A posterior, its reference, and Laplace's approximation of it."""

    kind: str
    size: int
    condition: float
    gradient_seconds: float
    """Of the potential and its gradient over all rows."""
    effective_draws: float
    """Of the reference."""
    reference_error: float
    """Half of the covariance error between two halves of the reference."""
    laplace_passes: int
    """Gradients and Hessians over all rows after `find_mode`."""
    laplace_seconds: float
    laplace_mean: float
    laplace_sd: float
    laplace_covariance: float


class Curve(NamedTuple):
    """Errors of the first draws of each chain."""

    draws: list[int]
    mean: list[float]
    sd: list[float]
    covariance: list[float]


class SamplerRow(NamedTuple):
    """Times and errors of one sampler on one posterior; times do not include compilation."""

    sampler: str
    kind: str
    size: int
    setup_seconds: float
    """Mode and centre of control variates."""
    warmup_seconds: float
    seconds_per_draw: float
    """For one draw of every chain."""
    compile_seconds: float
    row_gradients: float
    """Gradients of single rows, of warm-up and all draws."""
    curves: list[Curve]
    """One for each seed; lists where they were read from a record."""
    step_seconds: float
    """Of one step of all chains, or of one leapfrog step."""
    leapfrogs: float = math.nan
    """Per draw, of NUTS and HMCECS."""
    warmup_leapfrogs: int = 0

    def error_at(self, number: int) -> np.ndarray:
        """Mean, sd and covariance error at a point of the curves, over the seeds (−1: at the end)."""
        curves = [Curve(*curve) for curve in self.curves]
        return np.mean([[curve.mean[number], curve.sd[number], curve.covariance[number]] for curve in curves], axis=0)

    @property
    def lengths(self) -> list[int]:
        """The numbers of draws of each chain at which errors are known."""
        return Curve(*self.curves[0]).draws

    def draws_to(self, error: float) -> float:
        """Draws of each chain after which the covariance error is this one; infinite where it is not reached."""
        found = np.array([self.error_at(number)[2] for number in range(len(self.lengths))])
        below = np.flatnonzero(found <= error)
        if not below.size:
            return math.inf
        at = below[0]
        if at == 0:
            return float(self.lengths[0])
        # Linear in the logarithms between two points.
        part = math.log(found[at - 1] / error) / math.log(found[at - 1] / found[at])
        return float(self.lengths[at - 1] * (self.lengths[at] / self.lengths[at - 1]) ** part)


Posteriors = Mapping[tuple[str, int], PosteriorRow]


class Cost(NamedTuple):
    """What a sampler needs at some number of rows."""

    seconds: float
    """To the covariance error of the settings; infinite if the run did not reach it."""
    extrapolated: bool
    """Whether the sampler was measured with fewer rows, and only a gradient at this number."""
    row: SamplerRow
    """The measurement."""
    posterior: PosteriorRow

    def times(self) -> np.ndarray:
        """The time after each number of draws at which errors are known."""
        return np.array([_seconds(self, length) for length in self.row.lengths])


def _seconds(cost: Cost, draws: float) -> float:
    row = cost.row
    if cost.extrapolated:
        return (row.warmup_leapfrogs + row.leapfrogs * draws) * cost.posterior.gradient_seconds
    return row.setup_seconds + row.warmup_seconds + row.seconds_per_draw * draws


def cost_of(
    sampler: str, kind: str, size: int, settings: Settings, posteriors: Posteriors, samplers: Sequence[SamplerRow]
) -> Cost | None:
    """The cost of a sampler; NUTS is extrapolated from the largest number of rows at which it was measured."""
    rows = {row.size: row for row in samplers if (row.sampler, row.kind) == (sampler, kind)}
    if not rows or (size not in rows and sampler not in (NUTS, DENSE_NUTS)):
        return None
    row = rows.get(size, rows[max(rows)])
    made = Cost(math.inf, size not in rows, row, posteriors[kind, size])
    return made._replace(seconds=_seconds(made, row.draws_to(settings.target_error)))


class Growth(NamedTuple):
    """How the cost of ridgewalk's steps grows from the least to the largest number of rows."""

    step: float
    """Of a step after warm-up."""
    run: float
    """Of `sample`, without the passes over the data that move the centre."""


def growth(kind: str, settings: Settings, posteriors: Posteriors, samplers: Sequence[SamplerRow]) -> Growth:
    """Ratios of times; passes are counted with the time of a gradient over all rows."""
    rows = {row.size: row for row in samplers if (row.sampler, row.kind) == (RIDGEWALK, kind)}

    def steps_only(size: int) -> float:
        row, passes = rows[size], 3 * settings.chains
        return _run_seconds(row, settings) - passes * posteriors[kind, size].gradient_seconds

    least, most = min(rows), max(rows)
    return Growth(rows[most].step_seconds / rows[least].step_seconds, steps_only(most) / steps_only(least))


def _run_seconds(row: SamplerRow, settings: Settings) -> float:
    return row.warmup_seconds + row.seconds_per_draw * row.lengths[-1]


def build_report(
    settings: Settings, posteriors: Posteriors, samplers: Sequence[SamplerRow]
) -> tuple[Report, dict[str, Any]]:
    """The report, and the numbers of its claims."""
    sections, claims = [], {}
    for kind in settings.kinds:
        costs = {
            (sampler, size): cost
            for sampler in SAMPLERS
            for size in settings.sizes
            if (cost := cost_of(sampler, kind, size, settings, posteriors, samplers)) is not None
        }
        grown = growth(kind, settings, posteriors, samplers)
        claims[kind] = {
            "growth_of_a_step": grown.step,
            "growth_of_a_run": grown.run,
            "seconds": {f"{name}, {size}": _finite(cost.seconds) for (name, size), cost in costs.items()},
            "extrapolated": [f"{name}, {size}" for (name, size), cost in costs.items() if cost.extrapolated],
        }
        tables = (
            _times(kind, settings, costs, posteriors),
            _errors(kind, settings, costs, posteriors),
            _parts(kind, settings, costs, posteriors),
        )
        pictures = (
            Picture(
                f"{kind}.png",
                f"{TITLES[kind]}. Left: time to a covariance error of {settings.target_error:g}, without compilation. "
                f"Right: covariance error against time with {_shown_size(settings):,} rows. Dashed: extrapolated.",
                f"Two graphs with logarithmic axes, of {', '.join(SAMPLERS)} and Laplace's approximation.",
            ),
        )
        text = (_growth_text(settings, grown),)
        sections.append(Section(TITLES[kind], text, tables, pictures))
    return Report("Tall data", _introduction(settings, posteriors), tuple(sections)), claims


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _introduction(settings: Settings, posteriors: Posteriors) -> tuple[str, ...]:
    condition = max(row.condition for row in posteriors.values())
    error = max(row.reference_error for row in posteriors.values())
    measured = " and ".join(f"{size:,}" for size in settings.nuts_sizes)
    return (
        f"50 features, up to {max(settings.sizes):,} rows; posterior covariances have condition numbers up to "
        f"{condition:.2g}. Labels are 0 and 1, or outcomes with Student-t errors of four degrees of freedom and "
        "unknown scale. Not in the paper. All samplers have the same model, written in NumPyro.",
        f"ridgewalk: find_mode with batches of {settings.batch_size}, control_variates there, and rw.auto() with "
        f"batches of {settings.batch_size}, {settings.chains} chains of {settings.steps:,} steps, a fifth of them "
        f"warm-up; block_size={settings.block_size}, which puts the rows in a random order once and then reads "
        f"{settings.block_size} in a row; everything else by default. NUTS and HMCECS are NumPyro's, one chain from "
        f"the mode (HMCECS from its own start), {settings.warmup:,} steps of warm-up and {settings.draws:,} draws; "
        "NUTS with the diagonal mass "
        f"matrix, its default, and with a dense one; HMCECS with a dense one, {settings.subsample:,} rows in "
        f"{settings.blocks} blocks and the Taylor proxy at the mode. Laplace: find_mode, and Newton steps with "
        "gradients and Hessians over all rows.",
        f"NUTS was run with {measured} rows. With more rows its time is extrapolated, not measured: its leapfrog "
        "steps, of warm-up and per draw, times the measured time of one gradient over all rows. Whitened by an adapted "
        "mass matrix these posteriors differ little, so that the number of leapfrog steps does not depend on the "
        "number of rows. Times are CPU seconds of one core, without compilation, which is a column of its own.",
        "The covariance error is the mean absolute log eigenvalue of the covariance, whitened by that of a reference: "
        "draws from Laplace's approximation with importance weights. Two halves of the reference differ by "
        f"{2 * error:.2g} at most. The error of means is the root mean square over the parameters, in posterior "
        "standard deviations; that of standard deviations is the root mean square of log ratios.",
        "With so many rows these posteriors are close to Gaussian, and Laplace's approximation is more accurate than "
        "any of the samplers, in less time: use it where a single mode and few parameters allow it. The samplers do "
        "not rely on that.",
    )


def _shown_size(settings: Settings) -> int:
    return 500_000 if 500_000 in settings.sizes else max(settings.sizes)


def _growth_text(settings: Settings, grown: Growth) -> str:
    return (
        f"From {min(settings.sizes):,} to {max(settings.sizes):,} rows the time of a step of ridgewalk grows by a "
        f"factor of {grown.step:.2f}, that of a whole run by {grown.run:.2f}, without the passes over the data that "
        "centre the control variates, and with the one that puts the rows in a random order."
    )


Costs = Mapping[tuple[str, int], Cost]


def _time(cost: Cost | None) -> Number:
    if cost is None:
        return Number(None, note="not measured")
    if not math.isfinite(cost.seconds):
        return Number(None, note="not reached")
    return Number(cost.seconds, style=".3g", note="extrapolated" if cost.extrapolated else "")


def _times(kind: str, settings: Settings, costs: Costs, posteriors: Posteriors) -> Table:
    def line(size: int) -> tuple[Cell, ...]:
        ours, nuts = costs.get((RIDGEWALK, size)), costs.get((NUTS, size))
        ratio = nuts.seconds / ours.seconds if ours and nuts else math.nan
        laplace = posteriors[kind, size]
        return (
            f"{size:,}",
            *(_time(costs.get((sampler, size))) for sampler in SAMPLERS),
            Number(laplace.laplace_seconds, style=".3g", note=f"error {laplace.laplace_covariance:.2g}"),
            Number(ratio, style=".3g") if math.isfinite(ratio) else Number(None, note="–"),
        )

    return Table(
        f"{TITLES[kind]}: seconds to a covariance error of {settings.target_error:g}",
        ("rows", *SAMPLERS, "Laplace", "NUTS / ridgewalk"),
        tuple(line(size) for size in settings.sizes),
        "Mode, centring and warm-up are included, compilation is not. Laplace's approximation has one error, in "
        "brackets.",
    )


def _errors(kind: str, settings: Settings, costs: Costs, posteriors: Posteriors) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for size in settings.sizes:
        for sampler in SAMPLERS:
            cost = costs.get((sampler, size))
            if cost is None or cost.extrapolated:
                continue
            mean, sd, covariance = (Number(float(value), style=".3f") for value in cost.row.error_at(-1))
            seconds = cost.times()[-1]
            rows.append((
                f"{size:,}", sampler, mean, sd, covariance, Number(seconds, style=".3g"),
                Number(cost.row.compile_seconds, style=".2g"), Number(cost.row.row_gradients, style=".2g"),
            ))  # fmt: skip
        row = posteriors[kind, size]
        rows.append((
            f"{size:,}", "Laplace", Number(row.laplace_mean, style=".3f"), Number(row.laplace_sd, style=".3f"),
            Number(row.laplace_covariance, style=".3f"), Number(row.laplace_seconds, style=".3g"),
            Number(None, note="–"), Number(float(row.laplace_passes * size), style=".2g"),
        ))  # fmt: skip
    return Table(
        f"{TITLES[kind]}: errors after the whole run",
        ("rows", "sampler", "means", "standard deviations", "covariance", "seconds", "compilation", "row gradients"),
        tuple(rows),
        f"Means over {settings.seeds} seeds for ridgewalk, one run of the others. Row gradients are those of single "
        "rows, without find_mode; of Laplace's approximation each comes with a Hessian.",
    )


def _parts(kind: str, settings: Settings, costs: Costs, posteriors: Posteriors) -> Table:
    def line(size: int) -> tuple[Cell, ...]:
        row, posterior = costs[RIDGEWALK, size].row, posteriors[kind, size]
        return (
            f"{size:,}",
            Number(1e6 * row.step_seconds, style=".3g"),
            Number(_run_seconds(row, settings), style=".3g"),
            Number(3 * settings.chains * posterior.gradient_seconds, style=".3g"),
            Number(row.setup_seconds, style=".3g"),
            Number(1e3 * posterior.gradient_seconds, style=".3g"),
        )

    return Table(
        f"{TITLES[kind]}: where the time of ridgewalk goes",
        ("rows", "µs a step", "sample, s", "of it passes, s", "find_mode and centring, s", "full gradient, ms"),
        tuple(line(size) for size in settings.sizes),
        f"A step is one of all {settings.chains} chains. Passes over the data move the centres during warm-up, three "
        "for each chain.",
    )


# Figures


def save_figures(folder: Path, settings: Settings, posteriors: Posteriors, samplers: Sequence[SamplerRow]) -> None:
    """A figure for each kind: time against rows, and error against time."""
    for kind in settings.kinds:
        figure = Figure(figsize=(9.5, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_times(left, kind, settings, posteriors, samplers)
        _draw_errors(right, kind, settings, posteriors, samplers)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
        save_figure(folder, f"{kind}.png", figure)


def _draw_times(
    axes: "Axes", kind: str, settings: Settings, posteriors: Posteriors, samplers: Sequence[SamplerRow]
) -> None:
    for sampler in SAMPLERS:
        found = [(size, cost_of(sampler, kind, size, settings, posteriors, samplers)) for size in settings.sizes]
        points = [(size, cost) for size, cost in found if cost is not None and math.isfinite(cost.seconds)]
        if not points:
            continue
        x, y = [size for size, _ in points], [cost.seconds for _, cost in points]
        dashed = any(cost.extrapolated for _, cost in points)
        axes.plot(x, y, "--" if dashed else "-", color=COLOURS[sampler], lw=1.4)
        measured = [(size, cost.seconds) for size, cost in points if not cost.extrapolated]
        axes.plot(*zip(*measured, strict=True), MARKERS[sampler], color=COLOURS[sampler], label=sampler, ms=5)
    seconds = [posteriors[kind, size].laplace_seconds for size in settings.sizes]
    axes.plot(settings.sizes, seconds, "x-", color=COLOURS["Laplace"], label="Laplace", lw=1.2)
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel=f"seconds to covariance error {settings.target_error:g}")
    axes.set_title("Time", fontsize=10)
    axes.grid(alpha=0.25)


def _draw_errors(
    axes: "Axes", kind: str, settings: Settings, posteriors: Posteriors, samplers: Sequence[SamplerRow]
) -> None:
    size = _shown_size(settings)
    for sampler in SAMPLERS:
        cost = cost_of(sampler, kind, size, settings, posteriors, samplers)
        if cost is None:
            continue
        errors = [cost.row.error_at(number)[2] for number in range(len(cost.row.lengths))]
        axes.plot(cost.times(), errors, "--" if cost.extrapolated else "-", color=COLOURS[sampler], lw=1.4)
    row = posteriors[kind, size]
    axes.plot([row.laplace_seconds], [row.laplace_covariance], "x", color=COLOURS["Laplace"])
    axes.axhline(settings.target_error, color="0.6", lw=0.8)
    axes.set(xscale="log", yscale="log", xlabel="seconds", ylabel="covariance error")
    axes.set_title(f"{size:,} rows", fontsize=10)
    axes.grid(alpha=0.25)
