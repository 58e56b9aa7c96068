"""Settings, rows and report of the regression: errors at the chosen step sizes, and HASGLD-SA compared with SGLD-SA."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ridgewalk._validation import requires_extra
from ridgewalk.studies.framework.comparison import mean_and_se
from ridgewalk.studies.framework.study import Cell, Mark, Number, Picture, Report, Section, Table, mark_against

with requires_extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAMPLERS = PLAIN, SPARSE, OURS, PRINTED = "SGLD", "SGLD-SA", "HASGLD-SA", "HASGLD-SA, as printed"

PAPER_STEP_SIZE = 0.1
"""The learning rate that the paper gives for all samplers."""


@dataclass(frozen=True)
class Settings:
    """Every seed is a data set, on which each sampler runs several chains from zero."""

    steps: int = 5_000
    burn_in: int = 100
    batch_size: int = 50
    """Of 100 training samples; the paper gives none."""
    seeds: int = 10
    chains: int = 4
    mark_every: int = 50
    """Errors are evaluated every so many steps."""
    every_step_size: bool = True


class RegressionRow(NamedTuple):
    """Results of one sampler at one step size; without errors if a chain diverged."""

    sampler: str
    step_size: float
    gradients: int
    """Minibatch gradients per step."""
    step: list[int]
    """Steps at which errors are evaluated."""
    diverged: bool
    validation_mse: Sequence[Sequence[float]] = ()
    """(seed, step), as `mse` and `mae` on test samples."""
    mse: Sequence[Sequence[float]] = ()
    mae: Sequence[Sequence[float]] = ()
    means: Sequence[Sequence[float]] = ()
    """Posterior mean at the end of the chain, (seed, weight)."""
    inclusion: Sequence[Sequence[float]] = ()
    """Inclusion probabilities (seed, weight); empty under the plain prior."""
    sigma: Sequence[float] = ()
    """σ at the end of the chain, by seed."""


Best = Mapping[str, RegressionRow]

DIVERGED = Number(None, note="diverged")


class Excess(NamedTuple):
    """Error of HASGLD-SA minus that of SGLD-SA in the second half of the chain; means over seeds."""

    largest: float
    largest_se: float
    mean: float
    mean_se: float
    last: float
    last_se: float

    @property
    def holds(self) -> bool:
        """Whether the mean difference is nowhere above 0."""
        return self.largest <= 0


class Reach(NamedTuple):
    """When the mean MSE of HASGLD-SA falls to SGLD-SA's final one and stays there."""

    mse: float
    step: int | None
    gradients: int | None
    their_steps: int
    their_gradients: int

    @property
    def holds(self) -> bool:
        """Whether that takes at most half of SGLD-SA's steps."""
        return self.step is not None and self.step <= self.their_steps / 2


class Comparison(NamedTuple):
    """HASGLD-SA compared with SGLD-SA; `reach` is None if one of them diverged at every step size (`missing`)."""

    missing: tuple[str, ...] = ()
    excess: Mapping[str, Excess] = MappingProxyType({})
    """By error, mse and mae, at equal steps; with the suffix _at_equal_gradients at equal numbers of gradients."""
    reach: Reach | None = None

    @property
    def holds(self) -> bool:
        """Whether all three of the paper's claims hold."""
        return self.reach is not None and self.reach.holds and self.excess["mse"].holds and self.excess["mae"].holds

    def numbers(self) -> dict[str, Any]:
        """For metrics.json."""
        if self.reach is None:
            return {"holds": False, "missing": list(self.missing)}
        excess = {name: {**part._asdict(), "holds": part.holds} for name, part in self.excess.items()}
        return excess | {"reaches": {**self.reach._asdict(), "holds": self.reach.holds}, "holds": self.holds}


def second_half(row: RegressionRow, steps: int) -> np.ndarray:
    """Which evaluation steps are in the second half of the chain."""
    return np.asarray(row.step) >= steps / 2


def validation_score(row: RegressionRow, steps: int) -> float:
    """Criterion for the step size: validation MSE over the second half of the chain, mean over seeds."""
    return float(np.asarray(row.validation_mse)[:, second_half(row, steps)].mean())


def over_seeds(values: Sequence[Sequence[float]] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds of (seed, step), and its standard error."""
    mean, se = np.array([mean_and_se(column) for column in np.asarray(values).T]).T
    return mean, se


def summary_of(row: RegressionRow, steps: int | None = None) -> dict[str, Any]:
    """Means over seeds for metrics.json: the whole curves, or with `steps` their last values and the score."""
    kept: dict[str, Any] = {name: getattr(row, name) for name in ("sampler", "step_size", "gradients", "diverged")}
    if row.diverged:
        return kept
    if steps is not None:
        kept["score"] = validation_score(row, steps)
    else:
        kept["step"] = row.step
    for what in ("validation_mse", "mse", "mae"):
        mean, se = over_seeds(getattr(row, what))
        if steps is None:
            kept |= {what: mean.round(5).tolist(), f"{what}_se": se.round(5).tolist()}
        else:
            kept |= {what: float(mean[-1]), f"{what}_se": float(se[-1])}
    if steps is None:
        means, inclusion = (np.mean(values or [[]], axis=0).round(4).tolist() for values in (row.means, row.inclusion))
        kept |= {"mean_weights": means, "mean_inclusion": inclusion, "sigma": row.sigma}
    return kept


def _stays_below(curve: np.ndarray, level: float) -> int | None:
    """The first index from which a curve is at or below a level to its end; None if it ends above."""
    above = np.flatnonzero(curve > level)
    first = 0 if not len(above) else int(above[-1]) + 1
    return first if first < len(curve) else None


def _excess(ours: np.ndarray, theirs: np.ndarray) -> Excess:
    """Differences of (seed, step), seed by seed."""
    difference = ours - theirs
    mean = difference.mean(axis=0)
    worst = int(mean.argmax())
    last, last_se = mean_and_se(difference[:, -1])
    return Excess(
        largest=float(mean[worst]),
        largest_se=mean_and_se(difference[:, worst])[1],
        mean=float(mean.mean()),
        mean_se=mean_and_se(difference.mean(axis=1))[1],
        last=last,
        last_se=last_se,
    )


def compare(best: Best, steps: int) -> Comparison:
    """HASGLD-SA and SGLD-SA: errors in the second half, and when HASGLD-SA reaches the other's final MSE for good.

    At equal numbers of gradients a step of HASGLD-SA, which takes two, is compared with two steps of SGLD-SA.
    """
    if not {OURS, SPARSE} <= set(best):
        return Comparison(missing=tuple(sorted({OURS, SPARSE} - set(best))))
    ours, theirs = best[OURS], best[SPARSE]
    step, half = np.asarray(ours.step), second_half(ours, steps)
    cost = ours.gradients // theirs.gradients
    pairs = [(i, j) for i, k in enumerate(step) for j in np.flatnonzero(step == cost * k) if cost * k >= steps / 2]
    mine, other = (list(places) for places in zip(*pairs, strict=True))
    excess = {}
    for what in ("mse", "mae"):
        a, b = np.asarray(getattr(ours, what)), np.asarray(getattr(theirs, what))
        excess[what] = _excess(a[:, half], b[:, half])
        excess[f"{what}_at_equal_gradients"] = _excess(a[:, mine], b[:, other])
    level = float(over_seeds(theirs.mse)[0][-1])
    reached = _stays_below(over_seeds(ours.mse)[0], level)
    at = None if reached is None else int(step[reached])
    gradients = None if at is None else at * ours.gradients
    return Comparison(excess=excess, reach=Reach(level, at, gradients, steps, steps * theirs.gradients))


def _final(row: RegressionRow, what: str, reference: RegressionRow | None = None) -> Number:
    values = np.asarray(getattr(row, what))
    mean, se = mean_and_se(values[:, -1])
    mark = None
    if reference is not None:
        difference, difference_se = mean_and_se(values[:, -1] - np.asarray(getattr(reference, what))[:, -1])
        mark = mark_against(difference, 0.0, error=2 * difference_se)
    return Number(mean, se, ".3f", mark=mark)


def _errors_table(settings: Settings, best: Best, truth: Mapping[str, float]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in SAMPLERS:
        if name not in best:
            rows.append((name, "–", DIVERGED, DIVERGED, "–", "–"))
            continue
        row = best[name]
        reference = best.get(SPARSE) if name == OURS else None
        cells = (_final(row, "mse", reference), _final(row, "mae", reference))
        cost = f"{settings.steps * row.gradients:,}"
        rows.append((name, f"{row.step_size:g}", *cells, f"{settings.steps:,}", cost))
    exact = (Number(truth[what], style=".3f") for what in ("mse", "mae"))
    rows.append(("the true weights", "–", *exact, "–", "–"))
    return Table(
        f"Errors on 50 test samples at the end of the chain ({settings.seeds} data sets)",
        ("sampler", "step size", "MSE", "MAE", "steps", "minibatch gradients"),
        tuple(rows),
        "± one standard error over the data sets, mostly noise of the test samples, which all samplers share. "
        "HASGLD-SA is marked against SGLD-SA by paired differences over the data sets: “equal” means within two "
        "standard errors. The paper shows curves only and gives no values to compare with.",
    )


def _throughout(part: Excess) -> Mark:
    """Compare the largest difference with 0: equal within two standard errors."""
    return mark_against(part.largest, 0.0, error=2 * part.largest_se)


def _excess_row(label: str, part: Excess) -> tuple[Cell, ...]:
    mark = mark_against(part.mean, 0.0, error=2 * part.mean_se)
    return (
        label,
        Number(part.mean, part.mean_se, ".3f", mark=mark),
        Number(part.largest, part.largest_se, ".3f", mark=_throughout(part)),
        Number(part.last, part.last_se, ".3f"),
    )


def _comparison_table(excess: Mapping[str, Excess]) -> Table:
    rows = [
        _excess_row("MSE, steps", excess["mse"]),
        _excess_row("MAE, steps", excess["mae"]),
        _excess_row("MSE, gradients", excess["mse_at_equal_gradients"]),
        _excess_row("MAE, gradients", excess["mae_at_equal_gradients"]),
    ]
    return Table(
        "HASGLD-SA minus SGLD-SA in the second half of the chain: below 0 is better",
        ("error, compared at equal", "mean", "maximum over steps", "at the end"),
        tuple(rows),
        "Means over data sets; ± one standard error of the paired differences. The maximum tests “at or below "
        "throughout”: it is better if the mean difference is nowhere above 0, and equal if it exceeds 0 by at most two "
        "standard errors. At equal numbers of gradients HASGLD-SA makes half the steps, because each curvature pair "
        "costs a second gradient.",
    )


def _reach_table(reach: Reach) -> Table:
    ours: tuple[Cell, ...] = (OURS, Number(None, note="not reached"), "–")
    if reach.step is not None and reach.gradients is not None:
        mark: Mark = "better" if reach.holds else "worse"
        ours = (OURS, Number(reach.step, style=",.0f", mark=mark), Number(reach.gradients, style=",.0f"))
    theirs = (SPARSE, Number(reach.their_steps, style=",.0f"), Number(reach.their_gradients, style=",.0f"))
    return Table(
        f"Cost to reach SGLD-SA's final MSE of {reach.mse:.3f}",
        ("sampler", "steps", "minibatch gradients"),
        (theirs, ours),
        "The first evaluation from which the mean curve stays at or below it; “better” means at most half the steps.",
    )


def _weights_table(best: Best) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, row in best.items():
        means = np.asarray(row.means)
        cells = [Number(*mean_and_se(means[:, j]), ".2f") for j in (0, 1)]
        cells.append(Number(*mean_and_se(np.abs(means[:, 2:]).mean(axis=1)), ".3f"))
        if not row.inclusion:
            rows.append((name, *cells, "–", "–", "–", "–"))
            continue
        rho = np.asarray(row.inclusion)
        included = [Number(*mean_and_se(rho[:, j]), ".2f") for j in (0, 1)]
        false_positives = Number(float((rho[:, 2:] > 0.5).sum(axis=1).mean()), style=".1f")
        rows.append((name, *cells, *included, false_positives, Number(*mean_and_se(np.asarray(row.sigma)), ".2f")))
    return Table(
        "Posterior mean (truth: 3, 1, 0, …, 0) and inclusion probabilities",
        ("sampler", "β₁", "β₂", "mean |β_j|, j ≥ 3", "P(β₁ ≠ 0)", "P(β₂ ≠ 0)", "false positives", "σ"),
        tuple(rows),
        "Predictors 1 and 2 have correlation 0.946 and β₂ = 1 is small compared with its standard error, so a sparse "
        "posterior assigns most of β₁ + β₂ to one of the two, on some data sets to the second. The paper's remark that "
        "HASGLD-SA identifies the weights better is not confirmed at full scale (docs/results): it selects β₁ more "
        "often, and misses β₂. σ is the final value of the prior's state; step sizes chosen by prediction error are "
        "large enough to inflate it, by a different amount for each sampler, so the two do not sample exactly the same "
        "posterior.",
    )


def _tried_table(rows: Sequence[RegressionRow], best: Best, steps: int) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for row in rows:
        name, size = row.sampler, f"{row.step_size:g}"
        if row.diverged:
            lines.append((f"{name}, {size}", DIVERGED, DIVERGED, DIVERGED, ""))
            continue
        notes = ["chosen" if row is best[name] else "", "the paper's" if row.step_size == PAPER_STEP_SIZE else ""]
        cells = (Number(validation_score(row, steps), style=".3f"), _final(row, "mse"), _final(row, "mae"))
        lines.append((f"{name}, {size}", *cells, ", ".join(filter(None, notes))))
    return Table(
        "All step sizes tried",
        ("sampler and step size", "validation MSE, second half", "test MSE", "test MAE", ""),
        tuple(lines),
        "The same number of step sizes for every sampler, and the paper's 0.1. The one with the lowest validation MSE, "
        "averaged over the second half of the chain and all data sets, is chosen for all data sets; the 50 validation "
        "samples of each data set are not test samples.",
    )


def _below(part: Excess) -> str:
    """Whether the mean curve is below throughout, and whether that is significant."""
    significant = _throughout(part) != "equal"
    if part.holds:
        return "throughout" if significant else "throughout (at the closest point by less than two standard errors)"
    return "not throughout" if significant else "not throughout (above by less than two standard errors)"


def _findings(found: Comparison) -> str:
    if found.reach is None:
        return f"No comparison: {', '.join(found.missing)} diverged at every step size."
    reach = found.reach
    when = "never reaches" if reach.step is None else f"by step {reach.step:,} has permanently reached"
    return (
        f"In the second half of the chain the mean MSE of HASGLD-SA is at or below that of SGLD-SA "
        f"{_below(found.excess['mse'])}, and its mean MAE {_below(found.excess['mae'])}; it {when} the final MSE of "
        f"SGLD-SA after {reach.their_steps:,} steps. "
        f"{'All three claims hold.' if found.holds else 'Not all three claims hold.'}"
    )


def build_report(
    settings: Settings,
    rows: Sequence[RegressionRow],
    best: Best,
    truth: Mapping[str, float],
    found: Comparison,
) -> Report:
    """Build the report of the study."""
    text = (
        "100 samples of 200 predictors whose neighbours have correlation 0.946, β = (3, 1, 0, …, 0), noise "
        "variance 3. SGLD has an N(0, 1) prior and is given the noise variance; SGLD-SA and HASGLD-SA estimate noise "
        "and sparsity under the spike-and-slab prior (v₀ = 0.1, v₁ = 100, ω_k = 5 (10 + k)^−0.9). Chains start at "
        f"zero. The batch size is {settings.batch_size}; the paper gives neither batch size nor number of steps.",
        "The paper plots the errors of “the estimated posterior mean in each step”. Here this is the mean of a chain's "
        f"positions from step {settings.burn_in} on; the errors of {settings.chains} chains are averaged.",
        _findings(found),
    )
    tables = [_errors_table(settings, best, truth)]
    if found.reach is not None:
        tables += [_comparison_table(found.excess), _reach_table(found.reach)]
    errors = Picture(
        "errors.png",
        "Top: test errors of the running posterior mean, each sampler at its chosen step size; mean over data sets, "
        "with a band of one standard error, mostly test noise that all share. Bottom: HASGLD-SA minus SGLD-SA, paired "
        "over data sets; below 0 is better. The errors of the as-printed variant are off the scale.",
        "Four plots against steps on a logarithmic axis. Test MSE and MAE of the sparse samplers fall towards the "
        "line of the true weights, HASGLD-SA's a little before SGLD-SA's, and SGLD stays far above; differences "
        "of the two sparse samplers are plotted below, their values are in the tables.",
    )
    means = Picture(
        "means.png",
        "Posterior means at the end of the chain and the true weights. The axis is logarithmic, so that the two "
        "non-zero weights are visible.",
        "Three panels, SGLD, SGLD-SA and HASGLD-SA. SGLD distributes β₁ and β₂ over their neighbours; the sparse "
        "samplers put almost all on the first, on some data sets on the second, and leave the rest near zero.",
    )
    weights = Section("Weights", tables=(_weights_table(best),), pictures=(means,))
    tuning = Section(
        "Step sizes, and the paper's 0.1",
        (
            f"At the paper's learning rate {PAPER_STEP_SIZE:g} SGLD and SGLD-SA are unstable: their stability limit "
            "is about 0.002. Only a preconditioner, or steps normalised to unit length as printed, allow it. As "
            "printed HASGLD-SA does not sample the posterior; it is included for completeness.",
            "On some data sets it is partly chance whether a chain keeps β₁ or β₂, which changes mean errors by a few "
            "hundredths, also between neighbouring step sizes: at some step sizes that were not chosen the claims "
            "would not hold.",
        ),
        (_tried_table(rows, best, settings.steps),),
    )
    return Report(
        "Regression, p = 200, n = 100", text, (Section("Results", (), tuple(tables), (errors,)), weights, tuning)
    )


STYLES: dict[str, tuple[str, str]] = {
    PLAIN: ("tab:orange", "-."),
    SPARSE: ("tab:green", "--"),
    OURS: ("tab:blue", "-"),
}
SHOWN = tuple(STYLES)
"""Without the as-printed variant, whose errors would determine the scale."""

TICKS = (200, 500, 1_000, 2_000, 5_000)


def plot_means(best: Mapping[str, RegressionRow], truth: np.ndarray) -> Figure:
    """Posterior means of all weights, mean and range over the data sets; logarithmic axis."""
    names = [name for name in SHOWN if name in best]
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    place = np.arange(1, len(truth) + 1)
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        means = np.asarray(best[name].means)
        low, middle, high = means.min(axis=0), means.mean(axis=0), means.max(axis=0)
        axes.vlines(place, low, high, color=STYLES[name][0], alpha=0.35, linewidth=1.5, label="range over data sets")
        axes.plot(place, middle, "o", color=STYLES[name][0], markersize=3.5, label="mean over data sets")
        axes.plot(place, truth, "_", color="black", markersize=9, markeredgewidth=1.2, label="truth")
        axes.set(xscale="log", xlabel="weight number j", title=f"{name}, step size {best[name].step_size:g}")
        axes.set_xticks([1, 2, 3, 10, 30, 100, 200], ["1", "2", "3", "10", "30", "100", "200"])
        axes.minorticks_off()
        axes.grid(alpha=0.3, linewidth=0.5)
        axes.legend(loc="upper right", fontsize="small")
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel(r"posterior mean of $\beta_j$")
    return figure


def plot_errors(best: Mapping[str, RegressionRow], truth: Mapping[str, float], found: Comparison) -> Figure:
    """Test MSE and MAE against steps; below, HASGLD-SA minus SGLD-SA. Bands are standard errors."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, height_ratios=(3, 2))
    for column, what in enumerate(("mse", "mae")):
        above, below = grid[0, column], grid[1, column]
        for name in (name for name in SHOWN if name in best):
            row, (colour, dashes) = best[name], STYLES[name]
            mean, error = over_seeds(getattr(row, what))
            label = f"{name}, step size {row.step_size:g}"
            above.plot(row.step, mean, dashes, color=colour, linewidth=2, label=label)
            above.fill_between(row.step, mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)
        above.axhline(truth[what], color="black", linewidth=1, label="true weights")
        above.set(ylabel=f"test {what.upper()}")
        if {OURS, SPARSE} <= set(best):
            _difference(below, best, what)
    _annotate_reach(grid[0, 0], found)
    for axes in grid.flat:
        axes.set_xscale("log")
        axes.set_xticks(TICKS, [f"{tick:,}" for tick in TICKS])
        axes.minorticks_off()
        axes.grid(alpha=0.3, linewidth=0.5)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    return figure


def _difference(axes: Axes, best: Mapping[str, RegressionRow], what: str) -> None:
    """Paired over seeds, so that the noise of the shared test samples cancels."""
    step = np.asarray(best[OURS].step)
    mean, error = over_seeds(np.asarray(getattr(best[OURS], what)) - np.asarray(getattr(best[SPARSE], what)))
    axes.axvspan(step[-1] / 2, step[-1], color="0.92", zorder=0)
    axes.text(0.98, 0.05, "second half", transform=axes.transAxes, ha="right", color="0.35")
    axes.axhline(0, color="black", linewidth=1)
    axes.plot(step, mean, color=STYLES[OURS][0], linewidth=2)
    axes.fill_between(step, mean - error, mean + error, color=STYLES[OURS][0], alpha=0.2, linewidth=0)
    axes.set(xlabel="steps", ylabel=f"{what.upper()}: HASGLD-SA\nminus SGLD-SA")


def _annotate_reach(axes: Axes, found: Comparison) -> None:
    """Mark where HASGLD-SA reaches SGLD-SA's final MSE."""
    if found.reach is None or found.reach.step is None:
        return
    step, level = found.reach.step, found.reach.mse
    axes.plot([step, found.reach.their_steps], [level, level], ":", color="0.3", linewidth=1)
    axes.annotate(
        f"HASGLD-SA at step {step:,}:\nSGLD-SA's final MSE",
        (step, level),
        xytext=(step, level + 0.25 * (axes.get_ylim()[1] - level)),
        ha="center",
        arrowprops={"arrowstyle": "->", "color": "0.3"},
    )
