"""The Darcy studies in words and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ridgewalk.studies.chains import mean_and_error
from ridgewalk.studies.darcy_look import CURVATURE_EXAMPLES
from ridgewalk.studies.darcy_methods import ADAM_RATES, BASE_GROWTH, FRICTION, PAIR_EVERY, shares_of
from ridgewalk.studies.darcy_names import ADAM, BEST, DIAGONAL, MEMORIES, NAMES, OURS, PRINTED, SGLD
from ridgewalk.studies.darcy_settings import PAPER, Settings
from ridgewalk.studies.schema import Cell, Mark, Number, Section, Table, beside_paper, judge

Rows = Sequence[Mapping[str, Any]]
Errors = dict[str, dict[float, tuple[float, float]]]
"""Mean and standard error over seeds, by method and sparsity."""

WITH, WITHOUT = "with the mirror symmetry", "without the mirror symmetry"
PAPERS_NAME = {SGLD: "SGLD"} | {form.format(m): f"M={m}" for form in (PRINTED, OURS) for m in MEMORIES}


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


def error_table(settings: Settings, runs: Rows, caption: str, multiscale: Mapping[str, Any]) -> Table:
    """Every method at every sparsity, the paper's number beside ours."""
    errors, paper = errors_of(runs), PAPER[settings.kind]
    lines: list[tuple[Cell, ...]] = []
    for sparsity in settings.sparsities:
        cells: list[Cell] = []
        for name in settings.methods:
            if sparsity not in errors.get(name, {}):
                cells.append(Number(None, note="diverged"))
                continue
            mean, error = errors[name][sparsity]
            spread = error if settings.seeds > 1 else None
            printed = paper.get(sparsity, {}).get(PAPERS_NAME.get(name, ""))
            plain = Number(mean, spread, ".2f")
            cells.append(plain if printed is None else beside_paper(mean, printed, spread=spread, style=".2f"))
        lines.append((in_words(sparsity), *cells, Number(multiscale["errors"][0], style=".2f")))
    note = (
        "Mean of ‖prediction − truth‖ / ‖truth‖ over the test samples, in per cent; the posterior mean predicts. The "
        f"multiscale solver ({multiscale['blocks']}×{multiscale['blocks']} blocks, one function an edge; the first "
        f"{settings.multiscale_samples} test samples) needs no training samples; with {multiscale['functions'][-1]} "
        f"functions it has {multiscale['errors'][-1]:.2f} %. Means are over the seeds that did not diverge."
    )
    return Table(caption, ("", *settings.methods, "multiscale solver"), tuple(lines), note)


def verdict_table(settings: Settings, runs: Rows) -> Table:
    """The valid HASGLD-SA beside the paper's best number, and over SGLD; chosen beforehand, not by these errors."""
    errors, paper, name = errors_of(runs), PAPER[settings.kind], BEST
    lines: list[tuple[Cell, ...]] = []
    for sparsity in settings.sparsities:
        if sparsity not in errors.get(name, {}):
            lines.append((in_words(sparsity), Number(None, note="diverged"), "–"))
            continue
        mean, error = errors[name][sparsity]
        several = settings.seeds > 1
        aim = paper.get(sparsity, {}).get("M=2")
        shown = Number(mean, error if several else None, ".2f")
        if aim is not None:
            shown = beside_paper(mean, aim, spread=error if several else None, style=".2f")
        other, other_error = errors.get(SGLD, {}).get(sparsity, (np.nan, 0.0))
        mark = judge(mean, other, error=2 * float(np.hypot(error, other_error))) if several else None
        beside = Number(mean / other, style=".2f", mark=mark) if np.isfinite(other) else Number(None, note="diverged")
        lines.append((in_words(sparsity), shown, beside))
    return Table(
        f"{name} beside the paper's best number, and over SGLD",
        ("", "error (%)", "over SGLD"),
        tuple(lines),
        "Over SGLD: below 1 is better; “equal” is within two standard errors over the seeds (one seed: no mark).",
    )


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
        f"Batches of {settings.batch_size}. SGLD's step size is a share of the largest stable one, those of HASGLD-SA "
        "and of SGHMC are shares of 1 / λ_max, Adam's is its first rate. Seconds contain compilation.",
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
    return Table("Held-out error (%) at the step sizes tried", columns, tuple(lines))


def method_section(settings: Settings) -> Section:
    """What was done, for all methods alike."""
    tuned = (
        f"Step sizes: the best of four for every method, by the error on {settings.held} held-out training samples "
        f"after half a run at {100 * settings.tuning_sparsity:.0f} % pruned; test samples played no part."
        if settings.tuned
        else "Step sizes are those that the full study chose."
    )
    return Section(
        "What was compared",
        (
            f"Every run starts at the same weights: {settings.optimiser_steps:,} steps of Adam on the posterior's "
            f"potential, one start a seed. Then each method gets {settings.chain_gradients:,} gradients of batches of "
            f"{settings.batch_size}, counting those that curvature pairs and scales cost (but not the two dozen "
            f"Hessian products on {CURVATURE_EXAMPLES} samples that tell the largest curvatures at a start, once for "
            "all methods); pruning, where there is any, happens in the first two fifths of the chain and draws are "
            "kept from its last two fifths. "
            f"{ADAM} goes on with Adam in place of a sampler, with the same pruning and a rate that falls to zero.",
            tuned,
            f"HASGLD-SA is the limited form with M pairs, one every {PAIR_EVERY} steps, over a diagonal base (the "
            f"inverse fourth root of the mean squared gradient at the start) that may grow {BASE_GROWTH:g} times, with "
            f"momentum (friction {FRICTION:g}). “{DIAGONAL}” is the same without pairs: what it lacks, the pairs "
            "gain. “As printed” is the paper's Algorithm 2, which is no posterior sampler. All sample at temperature "
            f"{settings.temperature:g}.",
            f"The held-out samples choose step sizes and correct the intervals too; {BEST} is held against the paper's "
            "best number, whatever the others came to.",
            f"Likelihood: Gaussian, σ = {100 * settings.relative_noise:g} % of a flux's root mean square; prior: "
            f"weights N(0, {settings.prior_scale:g}²).",
        ),
    )
