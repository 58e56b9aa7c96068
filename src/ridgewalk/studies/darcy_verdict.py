"""HASGLD-SA in a Darcy study beside the paper's best number, and beside SGLD from the same starts."""

import numpy as np

from ridgewalk.studies.chains import mean_and_error
from ridgewalk.studies.darcy_names import BEST, SGLD
from ridgewalk.studies.darcy_report import STYLE, Rows, errors_of, in_words
from ridgewalk.studies.darcy_settings import PAPER, Settings
from ridgewalk.studies.schema import Cell, Number, Table, beside_paper, judge


def by_seed(runs: Rows, name: str, sparsity: float) -> dict[int, float]:
    """The error of every seed that did not diverge."""
    chosen = [row for row in runs if row["method"] == name and row["sparsity"] == sparsity]
    return {row["seed"]: row["error"] for row in chosen if not row["diverged"]}


def beside_sgld(runs: Rows, sparsity: float) -> Number:
    """The ratio of errors over the seeds that both finished; marked by the differences, since starts are shared."""
    ours, theirs = (by_seed(runs, name, sparsity) for name in (BEST, SGLD))
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return Number(None, note="diverged")
    mine, other = (np.array([errors[seed] for seed in common]) for errors in (ours, theirs))
    mean, error = mean_and_error(mine - other)
    mark = judge(mean, 0.0, error=2 * error) if len(common) > 1 else None
    return Number(float(mine.mean() / other.mean()), style=STYLE, mark=mark)


def verdict_table(settings: Settings, mirror: bool, runs: Rows, start: float) -> Table:
    """The valid HASGLD-SA with M = 2, chosen beforehand and not by these errors."""
    errors, paper = errors_of(runs).get(BEST, {}), PAPER[settings.kind]
    lines: list[tuple[Cell, ...]] = []
    for sparsity in settings.sparsities_of(mirror):
        if sparsity not in errors:
            lines.append((in_words(sparsity), Number(None, note="diverged"), "–", "–"))
            continue
        mean, error = errors[sparsity]
        spread = error if settings.seeds > 1 else None
        aim = paper.get(sparsity, {}).get("M=2")
        shown = Number(mean, spread, STYLE) if aim is None else beside_paper(mean, aim, spread=spread, style=STYLE)
        lines.append((in_words(sparsity), shown, beside_sgld(runs, sparsity), Number(mean / start, style=STYLE)))
    return Table(
        f"{BEST}: beside the paper's best number, over SGLD, and over the start",
        ("", "error (%)", "over SGLD", "over the start"),
        tuple(lines),
        "Ratios below 1 are better. Over SGLD: marked by the differences seed by seed, because both start at the same "
        "weights; “equal” is within two standard errors (one seed: no mark).",
    )
