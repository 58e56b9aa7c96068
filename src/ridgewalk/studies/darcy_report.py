"""The Darcy studies in words and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ridgewalk.studies.chains import mean_and_error
from ridgewalk.studies.darcy_methods import ADAM_RATES, shares_of
from ridgewalk.studies.darcy_names import DIAGONAL, MEMORIES, NAMES, OURS, PRINTED, SGLD
from ridgewalk.studies.darcy_settings import PAPER, Settings
from ridgewalk.studies.schema import Cell, Mark, Number, Table, beside_paper

Rows = Sequence[Mapping[str, Any]]
STYLE = ".3f"
Errors = dict[str, dict[float, tuple[float, float]]]
"""Mean and standard error over seeds, by method and sparsity."""

WITH, WITHOUT = "with the mirror symmetry", "without the mirror symmetry"
PAPERS_NAME = {SGLD: "SGLD"} | {form.format(m): f"M={m}" for form in (PRINTED, OURS) for m in MEMORIES}


def starts_of(results: Rows, mirror: bool) -> tuple[float, float]:
    """Mean and standard error of the starts' errors."""
    return mean_and_error(
        np.array([row["error"] for row in results if "start" in row and row["mirror"] == int(mirror)])
    )


def runs_of(results: Rows, mirror: bool) -> list[Mapping[str, Any]]:
    """The runs, without starts and tuning."""
    return [row for row in results if "sparsity" in row and row["mirror"] == int(mirror)]


def errors_of(runs: Rows, what: str = "error") -> Errors:
    """Over the seeds that did not diverge."""
    found: Errors = {}
    for name in NAMES:
        for sparsity in sorted({row["sparsity"] for row in runs}):
            values = [
                row[what]
                for row in runs
                if row["method"] == name and row["sparsity"] == sparsity and not row["diverged"]
            ]
            if values:
                found.setdefault(name, {})[sparsity] = mean_and_error(np.array(values))
    return found


def in_words(sparsity: float) -> str:
    """A row's name."""
    return "no pruning" if sparsity == 0 else f"{100 * sparsity:.0f} % pruned"


def error_table(
    settings: Settings,
    mirror: bool,
    runs: Rows,
    start: tuple[float, float],
    caption: str,
    multiscale: Mapping[str, Any],
) -> Table:
    """Every method at every sparsity, the paper's number beside ours; the error of the common start comes first."""
    errors, paper, methods = errors_of(runs), PAPER[settings.kind], settings.methods_of(mirror)
    lines: list[tuple[Cell, ...]] = []
    for sparsity in settings.sparsities_of(mirror):
        cells: list[Cell] = []
        for name in methods:
            if sparsity not in errors.get(name, {}):
                cells.append(Number(None, note="diverged"))
                continue
            mean, error = errors[name][sparsity]
            spread = error if settings.seeds > 1 else None
            printed = paper.get(sparsity, {}).get(PAPERS_NAME.get(name, ""))
            plain = Number(mean, spread, STYLE)
            cells.append(plain if printed is None else beside_paper(mean, printed, spread=spread, style=STYLE))
        begun = Number(start[0], start[1] if settings.seeds > 1 else None, STYLE)
        lines.append((in_words(sparsity), begun, *cells, Number(multiscale["errors"][0], style=".2f")))
    note = (
        "Mean of ‖prediction − truth‖ / ‖truth‖ over the test samples, in per cent; the posterior mean predicts "
        "(Adam: its last weights). The start is not pruned: read the methods by how far they move it, or by what "
        "they keep of it under pruning. The "
        f"multiscale solver ({multiscale['blocks']}×{multiscale['blocks']} blocks, one function an edge; the first "
        f"{settings.multiscale_samples} test samples) needs no training samples; with {multiscale['functions'][-1]} "
        f"functions it has {multiscale['errors'][-1]:.2f} %. Means are over the seeds that did not diverge."
    )
    return Table(caption, ("", "start", *methods, "multiscale solver"), tuple(lines), note)


def coverage_table(settings: Settings, runs: Rows) -> Table:
    """Of 90 % intervals on test samples."""
    before, after, wide = (errors_of(runs, what) for what in ("coverage_before", "coverage", "width"))
    lines: list[tuple[Cell, ...]] = []
    for name in settings.methods:
        for sparsity in (s for s in settings.sparsities if s in after.get(name, {})):
            share = after[name][sparsity][0]
            mark: Mark = "equal" if 0.85 <= share <= 0.95 else "worse"
            cells = Number(before[name][sparsity][0], style=".3f"), Number(share, style=".3f", mark=mark)
            lines.append((f"{name}, {in_words(sparsity)}", *cells, Number(wide[name][sparsity][0], style=".3f")))
    return Table(
        "90 % intervals on the test samples",
        ("", "coverage before", "coverage after", "width after"),
        tuple(lines),
        "After recalibration on the held-out training samples (conformal quantiles); “equal” is between 85 and 95 %. "
        "Widths are in units of the fluxes' common standard deviation. Before it, a method without posterior draws has "
        "the likelihood's noise alone.",
    )


def cost_table(settings: Settings, runs: Rows) -> Table:
    """Seconds and gradients of a run."""
    seconds = errors_of(runs, "seconds")
    chosen = {row["method"]: row["share"] for row in runs}
    also = " and of SGHMC" if DIAGONAL in settings.methods else ""
    lines = []
    for name in (name for name in NAMES if name in seconds):
        mean = float(np.mean([value for value, _ in seconds[name].values()]))
        gradients = settings.optimiser_steps, settings.chain_gradients
        cells = Number(gradients[0], style=",.0f"), Number(gradients[1], style=",.0f"), Number(mean, style=".0f")
        lines.append((name, f"{chosen[name]:g}", *cells))
    return Table(
        "What a run costs",
        ("", "step size", "gradients of the optimiser", "gradients of the chain", "seconds of the chain"),
        tuple(lines),
        f"Batches of {settings.batch_size}. Step sizes: SGLD's is a share of the largest stable one; those of "
        f"HASGLD-SA (but not as printed){also} are shares of 1 / λ_max in units of the weights' scales, from which G "
        "may grow; pSGLD's and those as printed are plain numbers; Adam's is its first rate. Seconds contain "
        "compilation, but not the scales and curvatures measured at the start.",
    )


def tuning_table(results: Rows, mirror: bool) -> Table | None:
    """Held-out errors at the step sizes tried."""
    tried = [row for row in results if "tuned" in row and row["mirror"] == int(mirror) and row["errors"]]
    if not tried:
        return None
    lines: list[tuple[Cell, ...]] = []
    for row in tried:
        shares = shares_of(row["method"])
        cells = [
            Number(error, style=".3f", note=f"at {share:g}" if error is not None else f"diverged at {share:g}")
            for share, error in zip(shares, row["errors"], strict=True)
        ]
        lines.append((row["method"], *cells))
    columns = ("", *(f"step size {i + 1}" for i in range(len(ADAM_RATES))))
    note = "The largest comes first; where it is the best, a larger one might have been better still."
    return Table("Held-out error (%) at the step sizes tried", columns, tuple(lines), note)
