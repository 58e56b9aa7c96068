"""Rows and report of the Gaussian study: samplers at their best step sizes, and HASGLD-SA compared with the others."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ridgewalk._validation import requires_extra
from ridgewalk.studies.framework.comparison import BenchmarkPosterior, best_rows
from ridgewalk.studies.framework.study import Cell, Mark, Number, Picture, Report, Section, Table, mark_against

with requires_extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS = "HASGLD-SA, "
"""Prefix of the names of all forms of HASGLD-SA."""

PRINTED = OURS + "as printed"
ORACLE = "SGRLD, true covariance"
DENSE = OURS + "dense"
MOMENTUM = OURS + "dense, with momentum"

ALLOWANCE = 1.2
"""SGRLD is given the true covariance: HASGLD-SA need not beat it, but match it within this factor."""


class GaussianRow(NamedTuple):
    """Results of one sampler at one step size, over the seeds; NaN if all chains diverged."""

    sampler: str
    step_size: float
    gradients: int
    """Gradients per step."""
    diverged: int
    """Number of chains that diverged."""
    options: dict[str, Any]
    covariance_error: float = math.nan
    """Mean absolute error of the four entries of the sample covariance."""
    covariance_error_se: float = math.nan
    autocorrelation_time: float = math.nan
    """Of the slower coordinate, in steps."""
    autocorrelation_time_se: float = math.nan
    worst_condition: float = math.nan
    """The largest cond(G H) over the seeds, at the end of the chain."""
    first_draws: list[list[float]] | None = None
    """Draws of the first chain for figure (a)."""


Best = Mapping[str, GaussianRow]


class Ratio(NamedTuple):
    """A form of HASGLD-SA over another sampler, each at its best step size; both below `limit` is a win."""

    error_ratio: float
    error_ratio_se: float
    time_ratio: float
    time_ratio_se: float
    limit: float
    standing: str
    """below (both ratios), above (one, by more than two standard errors), or close."""


Comparison = dict[str, dict[str, Ratio]]
"""By form of HASGLD-SA and other sampler."""


def compare(best: Best) -> Comparison:
    """Ratios of two forms of HASGLD-SA to every other sampler, compared with 1 (with 1.2 for SGRLD)."""
    others = [name for name in best if not name.startswith(OURS)]
    forms = [name for name in (DENSE, MOMENTUM) if name in best]
    return {form: {other: _ratio(best[form], best[other]) for other in others} for form in forms}


def _ratio(ours: GaussianRow, theirs: GaussianRow) -> Ratio:
    """Standard errors are those of independent runs, slightly too large because seeds are shared."""
    limit = ALLOWANCE if theirs.sampler == ORACLE else 1.0
    error = ours.covariance_error / theirs.covariance_error
    error_se = error * math.hypot(
        ours.covariance_error_se / ours.covariance_error, theirs.covariance_error_se / theirs.covariance_error
    )
    time = ours.autocorrelation_time / theirs.autocorrelation_time
    time_se = time * math.hypot(
        ours.autocorrelation_time_se / ours.autocorrelation_time,
        theirs.autocorrelation_time_se / theirs.autocorrelation_time,
    )
    if error <= limit and time <= limit:
        standing = "below"
    else:
        standing = "above" if error - 2 * error_se > limit or time - 2 * time_se > limit else "close"
    return Ratio(error, error_se, time, time_se, limit, standing)


def wins(comparison: Comparison, form: str) -> bool:
    """Whether a form has at most the error and the autocorrelation time of every other sampler."""
    return all(ratio.standing == "below" for ratio in comparison[form].values())


def faster_at_no_more_error(rows: Sequence[GaussianRow], form: str = DENSE) -> dict[str, float]:
    """SGLD at its lowest error, and the fastest mixing of a form at that error or less."""
    reference = best_rows(rows, lambda row: row.covariance_error)["SGLD"]
    matching = [
        row
        for row in rows
        if row.sampler == form and not row.diverged and row.covariance_error <= reference.covariance_error
    ]
    if not matching:
        return {}
    ours = min(matching, key=lambda row: row.autocorrelation_time)
    return {
        "sgld_error": reference.covariance_error,
        "sgld_time": reference.autocorrelation_time,
        "hasgld_error": ours.covariance_error,
        "hasgld_time": ours.autocorrelation_time,
        "hasgld_step_size": ours.step_size,
        "ratio": reference.autocorrelation_time / ours.autocorrelation_time,
        "worst_condition": max(row.worst_condition for row in matching),
    }


def _step_size(row: GaussianRow) -> str:
    friction = f", friction {row.options['friction']:g}" if "friction" in row.options else ""
    return f"{row.step_size:.3g}{friction}"


def _error(row: GaussianRow) -> Number:
    return Number(row.covariance_error, row.covariance_error_se, ".4f")


def _time(row: GaussianRow) -> Number:
    time = row.autocorrelation_time
    return Number(time, row.autocorrelation_time_se, ".0f" if time >= 100 else ".1f")


def _diverged_everywhere(rows: Sequence[GaussianRow], name: str, seeds: int) -> Number:
    fewest = min((row.diverged for row in rows if row.sampler == name), default=seeds)
    chains = "all chains" if fewest == seeds else f"{fewest} or more of {seeds} chains"
    return Number(None, note=f"{chains} diverged at every step size")


def _best_table(best: Best, own: Sequence[GaussianRow], steps: int, seeds: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in dict.fromkeys(row.sampler for row in own):
        if name not in best:
            rows.append((name, "–", _diverged_everywhere(own, name, seeds), "–", "–", "–"))
            continue
        row = best[name]
        cond = Number(row.worst_condition, style=".3g")
        rows.append((name, _step_size(row), _error(row), _time(row), cond, str(row.gradients)))
    return Table(
        f"Every sampler at its best step size ({steps:,} steps, {seeds} seeds)",
        ("sampler", "step size", "covariance error", "autocorrelation time", "worst cond(G H)", "gradients per step"),
        tuple(rows),
        "± one standard error over seeds. The best step size has the lowest mean covariance error among those at which "
        "no chain diverged. The covariance error is the mean absolute error of the four entries of the sample "
        "covariance; the autocorrelation time is that of the slower coordinate, in steps.",
    )


def _ratio_cell(value: float, se: float, limit: float) -> Number:
    if limit > 1:  # a sampler that is given the true covariance: matching it is enough
        mark: Mark = "worse" if value - 2 * se > limit else "better" if value < 1 - 2 * se else "equal"
        return Number(value, se, ".2f", mark=mark)
    return Number(value, se, ".2g" if value < 0.095 else ".2f", mark=mark_against(value, 1.0, error=2 * se))


def _comparison_table(comparison: Comparison) -> Table:
    forms = list(comparison)
    columns = [f"{what}: {form.removeprefix(OURS)}" for form in forms for what in ("error", "time")]
    rows: list[tuple[Cell, ...]] = []
    for other in comparison[forms[0]]:
        cells = []
        for ratio in (comparison[form][other] for form in forms):
            cells.append(_ratio_cell(ratio.error_ratio, ratio.error_ratio_se, ratio.limit))
            cells.append(_ratio_cell(ratio.time_ratio, ratio.time_ratio_se, ratio.limit))
        rows.append((other, *cells))
    return Table(
        "Ratio of HASGLD-SA to each other sampler: below 1 is better",
        ("other sampler", *columns),
        tuple(rows),
        f"Ratios of the covariance errors and autocorrelation times above. “Equal” means within two standard errors of "
        f"1. {ORACLE}, is given what HASGLD-SA learns: for it, “equal” means below {ALLOWANCE:g} or within two "
        "standard errors of it.",
    )


def _paper_grid_table(rows: Sequence[GaussianRow], seeds: int) -> Table:
    sizes = sorted({row.step_size for row in rows}, reverse=True)
    lines = []
    for name in dict.fromkeys(row.sampler for row in rows):
        for what, show in (("error", _error), ("time", _time)):
            cells: list[Cell] = [f"{name}: {what}"]
            for size in sizes:
                row = next(r for r in rows if r.sampler == name and r.step_size == size)
                note = "all diverged" if row.diverged == seeds else f"{row.diverged} of {seeds} diverged"
                cells.append(Number(None, note=note) if row.diverged else show(row))
            lines.append(tuple(cells))
    return Table(
        "At the paper's step sizes, 0.02 · 0.8^j",
        ("sampler", *(f"{size:.4g}" for size in sizes)),
        tuple(lines),
        "These step sizes exceed SGLD's stability limit, 2/λ_max = 0.0028: SGLD is stable at them only if drift and "
        "noise are normalised to unit length, as in the paper. The algorithm as printed does not sample the posterior: "
        "the correlation time of its noise grows without bound and the chain drifts away.",
    )


def _findings(comparison: Comparison, best: Best) -> tuple[str, ...]:
    texts = []
    titles = ((DENSE, "HASGLD-SA (dense form)"), (MOMENTUM, "With momentum (the same G in SGHMC dynamics), HASGLD-SA"))
    for form, title in titles:
        if form not in comparison:
            continue
        ratios = comparison[form]
        names = {
            standing: ", ".join(other for other, ratio in ratios.items() if ratio.standing == standing)
            for standing in ("below", "close", "above")
        }
        text = f"has both lower error and lower autocorrelation time than {names['below'] or 'no other sampler'}"
        within_errors = [
            other
            for other, ratio in ratios.items()
            if ratio.standing == "below" and other != ORACLE and ratio.error_ratio + 2 * ratio.error_ratio_se > 1
        ]
        if within_errors:
            text += f" (in error by less than two standard errors: {', '.join(within_errors)})"
        if names["close"]:
            text += f"; the difference is not significant at this number of seeds for {names['close']}"
        if names["above"]:
            text += f"; it is worse in one of the two than {names['above']}"
        step_size = _step_size(best[form])
        texts.append(f"{title} at step size {step_size} {text}. ({ORACLE}, counts as matched within {ALLOWANCE:g}×.)")
    return tuple(texts)


def build_report(
    steps: int,
    seeds: int,
    best: Best,
    own: Sequence[GaussianRow],
    paper: Sequence[GaussianRow],
    comparison: Comparison,
) -> Report:
    """Build the report of the study."""
    pictures = (
        Picture(
            "samples.png",
            "Figure (a): the first samples after burn-in, over contours of the true density.",
            "Two panels over the contours of a narrow, tilted Gaussian. SGLD's samples cover a part of it, those of "
            "HASGLD-SA the whole.",
        ),
        Picture(
            "errors.png",
            "Figure (b): covariance error against autocorrelation time; lower left is better. Error bars are two "
            "standard errors over seeds. Left: every sampler on its own grid of step sizes, without the algorithm as "
            "printed, which is in the tables. Right: the paper's step sizes.",
            "Two plots on logarithmic axes. A curve for each sampler shows covariance error against autocorrelation "
            "time over step sizes; the numbers are in the tables.",
        ),
    )
    text = (
        "A Gaussian with standard deviations 0.12 and 1 and correlation −0.95; its Hessian has condition number "
        "731. The paper gives no numbers here, only the statement that HASGLD-SA has lower error and smaller "
        "autocorrelation time than SGLD.",
        *_findings(comparison, best),
        "The forms of HASGLD-SA compute a second gradient every step for the curvature pair (with a pair every ten "
        "steps the overhead would be a tenth). For HAMCMC the autocorrelation time is that of each of its M "
        "interleaved chains.",
    )
    results = Section(
        "Results",
        tables=(
            _best_table(best, own, steps, seeds),
            _comparison_table(comparison),
            _paper_grid_table(paper, seeds),
        ),
        pictures=pictures,
    )
    note = "" if PRINTED in best else " It diverged at every step size tried, these and much smaller ones."
    validity = Section(
        "Validity of the algorithm as printed",
        (f"{PRINTED}, is Algorithm 2 of the paper taken literally. It does not sample the posterior.{note}",),
    )
    return Report("2D Gaussian", text, (results, validity))


STYLES: dict[str, tuple[str, str]] = {
    "SGLD": ("tab:orange", "s"),
    "pSGLD": ("tab:brown", "v"),
    "HAMCMC": ("tab:pink", "P"),
    "SGHMC": ("tab:olive", "D"),
    ORACLE: ("black", "x"),
    DENSE: ("tab:blue", "o"),
    OURS + "low rank": ("tab:cyan", "^"),
    OURS + "limited": ("tab:purple", "<"),
    OURS + "dense, base γ⁻¹I": ("tab:gray", ">"),
    MOMENTUM: ("tab:green", "*"),
    PRINTED: ("tab:red", "X"),
}


def plot_samples(problem: BenchmarkPosterior, best: Mapping[str, GaussianRow], burn_in: int, last: int) -> Figure:
    """The first samples of SGLD and HASGLD-SA, each at its best step size."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("SGLD", DENSE), strict=True):
        if name in best:
            row = best[name]
            _scatter(axes, problem, np.asarray(row.first_draws), STYLES[name][0])
            axes.set_title(f"{name}, step size {row.step_size:.3g}:\nsteps {burn_in:,} to {last:,}")
    return figure


def _scatter(axes: Axes, problem: BenchmarkPosterior, draws: np.ndarray, colour: str) -> None:
    x, y = np.meshgrid(np.linspace(-0.42, 0.42, 120), np.linspace(-3.4, 3.4, 120))
    points = np.stack([x, y], axis=-1)
    height = np.exp(-0.5 * np.einsum("...i,ij,...j", points, problem.hessian, points))
    axes.contour(x, y, height, levels=[0.011, 0.135, 0.607], colors="0.5", linewidths=1)
    axes.plot(draws[:, 0], draws[:, 1], ".", markersize=2, color=colour)
    axes.set(xlabel="x", ylabel="y", xlim=(-0.42, 0.42), ylim=(-3.4, 3.4))


def plot_errors(own: Sequence[GaussianRow], paper: Sequence[GaussianRow]) -> Figure:
    """Covariance error against autocorrelation time, over step sizes."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True, width_ratios=(3, 2))
    _curves(left, [row for row in own if row.sampler != PRINTED])  # its errors would determine the scale
    left.set_title("each sampler on its own grid of step sizes")
    _curves(right, paper)
    names = dict.fromkeys(row.sampler for row in paper)
    diverged = [name for name in names if all(row.diverged for row in paper if row.sampler == name)]
    right.set_title(r"the paper's step sizes, $0.02 \cdot 0.8^j$")
    if diverged:
        text = "diverged at all four:\n" + "\n".join(diverged)
        right.text(0.97, 0.97, text, transform=right.transAxes, ha="right", va="top")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="autocorrelation time (steps)")
        axes.grid(alpha=0.3, which="both", linewidth=0.5)
    left.set_ylabel("covariance error")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _curves(axes: Axes, rows: Sequence[GaussianRow]) -> None:
    """A line for every sampler and friction, labelled once per sampler."""
    labelled: set[str] = set()
    for name, friction in dict.fromkeys((row.sampler, row.options.get("friction")) for row in rows):
        shown = [r for r in rows if (r.sampler, r.options.get("friction")) == (name, friction) and not r.diverged]
        if not shown:
            continue
        colour, marker = STYLES[name]
        axes.errorbar(
            [row.autocorrelation_time for row in shown],
            [row.covariance_error for row in shown],
            [2 * row.covariance_error_se for row in shown],
            [2 * row.autocorrelation_time_se for row in shown],
            color=colour,
            marker=marker,
            markersize=8 if marker == "*" else 5,
            linewidth=1,
            elinewidth=0.7,
            capsize=2,
            label=None if name in labelled else name,
        )
        labelled.add(name)
