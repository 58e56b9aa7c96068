"""The Gaussian study in words and tables."""

from typing import Any

from ridgewalk.studies.gaussian_samplers import DENSE, ENTRANTS, MOMENTUM, ORACLE, OURS, PRINTED
from ridgewalk.studies.gaussian_verdict import ALLOWANCE
from ridgewalk.studies.schema import Cell, Number, Picture, Report, Section, Table, judge

Row = dict[str, Any]


def _settings(row: Row) -> str:
    friction = f", friction {row['friction']:g}" if "friction" in row else ""
    return f"{row['step_size']:.3g}{friction}"


def _error(row: Row) -> Number:
    return Number(row["covariance_error"], row["covariance_error_se"], ".4f")


def _time(row: Row) -> Number:
    time = row["autocorrelation_time"]
    return Number(time, row["autocorrelation_time_se"], ".0f" if time >= 100 else ".1f")


def _gone(rows: list[Row], name: str, seeds: int) -> Number:
    fewest = min((row["diverged"] for row in rows if row["sampler"] == name), default=seeds)
    chains = "all chains" if fewest == seeds else f"{fewest} or more of {seeds} chains"
    return Number(None, note=f"{chains} diverged at every step size")


def _best_table(best: dict[str, Row], stable: list[Row], steps: int, seeds: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in dict.fromkeys(entrant.name for entrant in ENTRANTS):
        if name not in best:
            rows.append((name, "–", _gone(stable, name, seeds), "–", "–", "–"))
            continue
        row = best[name]
        cond = Number(row["worst_condition"], style=".3g")
        rows.append((name, _settings(row), _error(row), _time(row), cond, str(row["gradients"])))
    return Table(
        f"Every sampler at its own best step size ({steps:,} steps, {seeds} seeds)",
        ("sampler", "step size", "covariance error", "autocorrelation time", "worst cond(G H)", "gradients a step"),
        tuple(rows),
        "± one standard error over seeds. “Best” is the step size of least mean covariance error among those tried at "
        "which no chain diverged. The covariance error is the mean absolute error of the four entries of the sample "
        "covariance; the autocorrelation time is that of the slower coordinate, in steps.",
    )


def _ratio(comparison: dict[str, Any], what: str) -> Number:
    value, error = comparison[f"{what}_ratio"], comparison[f"{what}_ratio_se"]
    if comparison["limit"] > 1:  # handed the truth: matched is enough
        above = value - 2 * error > comparison["limit"]
        mark = "worse" if above else "better" if value < 1 - 2 * error else "equal"
        return Number(value, error, ".2f", mark=mark)  # type: ignore[arg-type]
    return Number(value, error, ".2g" if value < 0.095 else ".2f", mark=judge(value, 1.0, error=2 * error))


def _verdict_table(comparison: dict[str, Any]) -> Table:
    forms = list(comparison["comparisons"])
    others = list(comparison["comparisons"][forms[0]])
    columns = [f"{what}: {form.removeprefix(OURS)}" for form in forms for what in ("error", "time")]
    rows = []
    for other in others:
        cells = [_ratio(comparison["comparisons"][form][other], what) for form in forms for what in ("error", "time")]
        rows.append((other, *cells))
    return Table(
        "HASGLD-SA over each other sampler: below 1 is better",
        ("other sampler", *columns),
        tuple(rows),
        f"Covariance errors and autocorrelation times of the table above, divided. “Equal” is within two standard "
        f"errors of 1. {ORACLE}, cannot be beaten by learning: “equal” there is within two standard errors of "
        f"{ALLOWANCE:g}, or below.",
    )


def _printed_table(rows: list[Row], seeds: int) -> Table:
    sizes = sorted({row["step_size"] for row in rows}, reverse=True)
    lines = []
    for name in dict.fromkeys(row["sampler"] for row in rows):
        for what, show in (("error", _error), ("time", _time)):
            cells: list[Cell] = [f"{name}: {what}"]
            for size in sizes:
                row = next(r for r in rows if r["sampler"] == name and r["step_size"] == size)
                gone = "all diverged" if row["diverged"] == seeds else f"{row['diverged']} of {seeds} diverged"
                cells.append(Number(None, note=gone) if row["diverged"] else show(row))
            lines.append(tuple(cells))
    return Table(
        "At the paper's step sizes, 0.02 · 0.8^j",
        ("sampler", *(f"{size:.4g}" for size in sizes)),
        tuple(lines),
        "These step sizes lie above SGLD's limit of stability, 2/λ_max = 0.0028: without the paper's scaling of "
        "drift and noise to unit length SGLD cannot be run at them. The algorithm as printed does not sample the "
        "posterior: its noise persists for ever longer and the chain wanders off.",
    )


def _said(comparison: dict[str, Any], best: dict[str, Row]) -> tuple[str, ...]:
    said = []
    for form, title in ((DENSE, "HASGLD-SA (dense form)"), (MOMENTUM, "With momentum (its G under SGHMC's dynamics)")):
        if form not in comparison["wins"]:
            continue
        against = comparison["comparisons"][form]
        names = {
            kind: ", ".join(other for other, row in against.items() if row["standing"] == kind)
            for kind in ("below", "close", "above")
        }
        outcome = f"has both lower error and lower autocorrelation time than: {names['below'] or 'none'}"
        unsure = [
            other
            for other, row in against.items()
            if row["standing"] == "below" and other != ORACLE and row["error_ratio"] + 2 * row["error_ratio_se"] > 1
        ]
        if unsure:
            outcome += f" (in error by less than two standard errors: {', '.join(unsure)})"
        if names["close"]:
            outcome += f"; not to be told apart at this number of seeds from: {names['close']}"
        if names["above"]:
            outcome += f"; worse in one of the two than: {names['above']}"
        at = f"step size {_settings(best[form])}"
        said.append(f"{title}, at {at}, {outcome}. ({ORACLE}, counts as beaten within {ALLOWANCE:g}×.)")
    return tuple(said)


def tell(
    steps: int,
    seeds: int,
    best: dict[str, Row],
    stable: list[Row],
    printed: list[Row],
    comparison: dict[str, Any],
) -> Report:
    """The report of the study."""
    pictures = (
        Picture(
            "samples.png",
            "Figure (a): the first samples after burn-in, over contours of the true density.",
            "Two panels over the contours of a narrow, tilted Gaussian. SGLD's samples cover a part of it, those of "
            "HASGLD-SA the whole.",
        ),
        Picture(
            "errors.png",
            "Figure (b): covariance error against autocorrelation time; lower left is better. Bars are two standard "
            "errors over seeds. Left: every sampler on its own stable grid, the algorithm as printed aside, which "
            "the tables show. Right: the paper's step sizes.",
            "Two plots on logarithmic axes. A curve for each sampler shows covariance error against autocorrelation "
            "time over step sizes; the numbers are in the tables.",
        ),
    )
    text = (
        "A Gaussian with standard deviations 0.12 and 1 and correlation −0.95; its Hessian has condition number "
        "731. The paper gives no numbers here, only the statement that HASGLD-SA shows lower error and smaller "
        "autocorrelation time than SGLD.",
        *_said(comparison, best),
        "The forms of HASGLD-SA take a second gradient every step for curvature (a pair every ten steps would make "
        "that a tenth). HAMCMC's autocorrelation time is that of each of the M positions that take turns.",
    )
    results = Section(
        "Results",
        tables=(_best_table(best, stable, steps, seeds), _verdict_table(comparison), _printed_table(printed, seeds)),
        pictures=pictures,
    )
    note = "" if PRINTED in best else " It diverged at every step size tried, these and much smaller ones."
    validity = Section(
        "What is not a posterior sampler",
        (f"{PRINTED} is Algorithm 2 to the letter and is shown for the record.{note}",),
    )
    return Report("2D Gaussian", text, (results, validity))
