"""Summary table of the posterior: mean, standard deviation, Monte Carlo errors, ESS and R-hat; as text and as HTML."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from ridgewalk._validation import check_whole, requires_extra
from ridgewalk.diagnostics.draw_access import (
    MIN_DRAWS,
    Coordinates,
    coordinate_labels,
    leaf_draws,
    pruning_masks,
    select_coordinates,
)
from ridgewalk.diagnostics.mixing import deinterleave_draws, ess, leaf_moments, r_hat, standard_error
from ridgewalk.result import Result, weighted_mean

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat")
ACCURACY = COLUMNS[2:]
MAX_ROWS_SHOWN = 60
HTML_ROWS = 20

PLAIN = "color: inherit; background: transparent"
FAINT = "opacity: 0.7"
CELL = "padding: 0.1em 0.8em; text-align: right; color: inherit; background: transparent"
LABEL = "padding: 0.1em 0.8em; text-align: left; color: inherit; background: transparent"

QUICK_NUMBERS = 2**21
"""A notebook's cell shows a summary of runs with up to so many numbers, which takes about a second."""

QUICK_PARAMETERS = 50


@dataclass(frozen=True, repr=False, eq=False)
class SummaryTable:
    """A table with one row per parameter, or per leaf of a large model.

    `table["mean"]` is a column as an array, `table.row("w[0]")` a row as a dictionary, and `to_dataframe()` a pandas
    DataFrame.
    """

    index: tuple[str, ...]
    """Row labels."""
    data: dict[str, np.ndarray]
    """Column name → values (row,)."""
    note: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names."""
        return tuple(self.data)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self.index), len(self.data)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.index)

    def __getitem__(self, column: str) -> np.ndarray:
        """One column."""
        if column not in self.data:
            raise KeyError(f"column {column!r} does not exist; use one of {', '.join(self.data)}")
        return self.data[column]

    def row(self, label: str) -> dict[str, float]:
        """One row, as column → value."""
        if label not in self.index:
            shown = ", ".join(self.index[:8]) + (", ..." if len(self) > 8 else "")
            raise KeyError(f"row {label!r} does not exist; use one of {shown}")
        at = self.index.index(label)
        return {name: float(values[at]) for name, values in self.data.items()}

    def to_numpy(self) -> np.ndarray:
        """All values, (row, column)."""
        return np.stack([np.asarray(values, float) for values in self.data.values()], axis=1)

    def to_dataframe(self) -> "pd.DataFrame":
        """A pandas DataFrame; the note is in its `attrs`."""
        with requires_extra("arviz"):
            import pandas as pd  # noqa: PLC0415
        frame = pd.DataFrame(self.data, index=list(self.index))
        frame.attrs["note"] = self.note
        return frame

    def __repr__(self) -> str:
        """Plain text with all columns, and at most 60 rows."""
        half = MAX_ROWS_SHOWN // 2
        lines = [["", *self.data], *(self._cells(i) for i in self._shown(half))]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        text = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
        if len(lines) - 1 < len(self):
            text.insert(1 + half, f"({len(self) - len(lines) + 1} rows not shown)")
        return "\n".join([*text, *([f"note: {self.note}"] if self.note else [])])

    def _shown(self, half: int) -> list[int]:
        """The rows that are shown: all, or the first and the last of many."""
        every = range(len(self))
        return [*every] if len(self) <= 2 * half else [*every[:half], *every[-half:]]

    def _cells(self, row: int) -> list[str]:
        return [self.index[row], *(_number(name, values[row]) for name, values in self.data.items())]

    def _repr_html_(self) -> str:
        """The table for notebooks, at most 20 rows; colours are those of the page."""
        shown = self._shown(HTML_ROWS // 2)
        lines = [_html_row("th", ["", *self.data]), *(_html_row("td", self._cells(i)) for i in shown)]
        if len(shown) < len(self):
            lines.insert(1 + HTML_ROWS // 2, _html_row("td", [f"({len(self) - len(shown)} rows not shown)"]))
        note = f'<div style="{FAINT}">{escape(self.note)}</div>' if self.note else ""
        return f'<table style="{PLAIN}; border-collapse: collapse">{"".join(lines)}</table>{note}'


def _html_row(tag: str, cells: Iterable[str]) -> str:
    first, *rest = cells
    right = "".join(f'<{tag} style="{CELL}">{escape(cell)}</{tag}>' for cell in rest)
    return f'<tr style="{PLAIN}"><{tag} style="{LABEL}">{escape(first)}</{tag}>{right}</tr>'


def result_html(result: Result) -> str:
    """A run for notebooks: what it is, how its chains ended, the summary, and the findings.

    The findings are those of `check()` if it was called before, else those that the draws alone show.
    """
    head = f"<div><b>{escape(repr(result))}</b></div>"
    ends = dict.fromkeys(f"{status.outcome} after {status.steps:,} steps" for status in result.status)
    parts = [head, f'<div style="{FAINT}">{escape("; ".join(ends))}</div>']
    if result.positions is not None and result.draws < MIN_DRAWS:
        parts.append(f"<div>{result.draws} draws of each chain are too few for a summary</div>")
    elif result.positions is not None and result.chains * result.draws * result.dimension > QUICK_NUMBERS:
        parts.append("<div>many draws: call <code>result.summary()</code> and <code>result.check()</code></div>")
    elif result.positions is not None or result.moments is not None:
        parts += [summary(result, max_parameters=QUICK_PARAMETERS)._repr_html_(), *_findings_html(result)]
    return f'<div style="{PLAIN}">{"".join(parts)}</div>'


def _findings_html(result: Result) -> list[str]:
    from ridgewalk.diagnostics.check import check_draws  # noqa: PLC0415  (it need not be loaded for a table)

    whole = result.last_check
    report = check_draws(result) if whole is None else whole
    what = "check()" if whole is not None else "outcome and mixing; <code>result.check()</code> also checks step size, "
    what += "" if whole is not None else "preconditioner and temperature"
    lines = [
        f'<div style="border-left: 3px solid currentColor; padding-left: 0.6em; margin: 0.4em 0">'
        f"<b>{escape(finding.name)}</b>: {escape(finding.message)}<br>"
        f'<span style="{FAINT}">try: {escape(finding.advice)}</span></div>'
        for finding in report.findings
    ]
    return [*(lines or ["<div>no problems found</div>"]), f'<div style="{FAINT}">checked: {what}</div>']


def _number(column: str, value: float) -> str:
    if column.startswith("ess"):
        return f"{value:.0f}"
    return f"{value:.3f}" if column == "r_hat" else f"{value:.4g}"


def summary(result: Result, *, max_parameters: int = 1000, seed: int = 0) -> SummaryTable:
    """Mean, standard deviation, their Monte Carlo errors, ESS and R-hat of every parameter, as in `result.posterior`.

    Mean and sd weight draws by their step size. `ess_bulk`, `ess_tail` and `r_hat` are the rank-normalised ones, of the
    unweighted draws; mcse_mean = sd / √ESS. For ESS, the M interleaved chains of HAMCMC are separated. Chains that
    diverged are left out.
    With more than `max_parameters` parameters there is one row per leaf: the mean of its means, the root mean square
    of its sds, and the worst errors, ESS and R-hat of `sampled` of its parameters, chosen at random.
    A run that kept only moments has mean, sd and, with two chains or more, R-hat without ranks and splitting.
    With pruning, `pruned` counts the chains that pruned a parameter (of a leaf: its pruned parameters, averaged over
    chains); errors, ESS and R-hat are of the chains that kept it.
    """
    check_whole("max_parameters", max_parameters)
    if result.positions is None:
        return _summary_of_moments(result, result.dimension > max_parameters)
    parts = select_coordinates(result, max_parameters, seed, constrained=True)
    by_leaf = sum(int(np.prod(part.shape)) for part in parts) > max_parameters
    masks = pruning_masks(result) if result.shows_positions else None
    if by_leaf:
        note = (
            "one row per leaf: mean and sd over all its parameters; mcse, ess and r_hat are the worst of `sampled` of "
            "them, chosen at random; raise max_parameters for a row per parameter"
        )
        return _table([part.name for part in parts], [_leaf_row(result, part, masks) for part in parts], note)
    rows = [dict(zip(COLUMNS, row, strict=True)) for part in parts for row in _rows(result, part, masks)]
    if masks is not None:
        pruned = np.concatenate([np.sum(~masks[part.name], axis=0) for part in parts])
        rows = [row | {"pruned": count} for row, count in zip(rows, pruned.tolist(), strict=True)]
    return _table([label for part in parts for label in part.labels], rows)


def _table(labels: list[str], rows: list[dict[str, float]], note: str = "") -> SummaryTable:
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}
    return SummaryTable(tuple(labels), columns, note)


def _rows(result: Result, part: Coordinates, masks: dict[str, np.ndarray] | None) -> list[list[float]]:
    """One row for each coordinate."""
    every = np.ones((part.values.shape[0], len(part.indices)), bool)
    kept = every if masks is None else masks[part.name][:, part.indices]
    return [_row(result, part.values[:, :, i], kept[:, i]) for i in range(len(part.indices))]


def _mean_and_variance(result: Result, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and variance of (chain, draw, …) over chains and draws."""
    mean = weighted_mean(result.draw_weights, values)
    return mean, weighted_mean(result.draw_weights, (values - mean) ** 2)


def _row(result: Result, values: np.ndarray, kept: np.ndarray) -> list[float]:
    """The row of one parameter from (chain, draw); its accuracy over the chains that kept it."""
    mean, variance = _mean_and_variance(result, values)
    if not kept.any():
        return [float(mean), float(np.sqrt(variance)), *[float("nan")] * len(ACCURACY)]
    weights, moving = np.asarray(result.draw_weights, float), values[kept]
    kish = 1 / (len(weights) * float((weights**2).sum()))  # relative ESS of unequal weights
    centre, moving_variance = _mean_and_variance(result, moving)
    sd = float(np.sqrt(moving_variance))
    chains = deinterleave_draws(result, moving)
    error = sd / np.sqrt(kish * ess(chains, "mean"))
    # By the delta method the error of sd is that of the centred squares over 2 sd.
    squares = (chains - centre) ** 2
    sd_error = standard_error(squares) / np.sqrt(kish) / (2 * sd) if sd > 0 else float("nan")
    accuracy = [error, sd_error, ess(chains), ess(chains, "tail"), r_hat(moving)]
    return [float(mean), float(np.sqrt(variance)), *accuracy]


def _leaf_row(result: Result, part: Coordinates, masks: dict[str, np.ndarray] | None) -> dict[str, float]:
    """The row of a leaf: means and sds of all its parameters, the worst accuracy of the sampled ones."""
    draws = leaf_draws(result, constrained=True)[part.name]
    mean, variance = _mean_and_variance(result, draws.load().astype(float))
    rows = np.array(_rows(result, part, masks))
    worst = {name: _worst(rows[:, COLUMNS.index(name)], smallest=name.startswith("ess")) for name in ACCURACY}
    size, sampled = int(np.prod(part.shape)), len(part.indices)
    row = {"parameters": size, "sampled": sampled, "mean": mean.mean(), "sd": np.sqrt(variance.mean()), **worst}
    return row if masks is None else row | {"pruned": _mean_pruned(masks[part.name])}


def _mean_pruned(kept: np.ndarray) -> float:
    """Number of pruned parameters of a leaf, averaged over chains."""
    return float(np.mean(np.sum(~kept, axis=1)))


def _worst(values: np.ndarray, smallest: bool) -> float:
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return float("nan")
    return float(finite.min() if smallest else finite.max())


def _summary_of_moments(result: Result, by_leaf: bool) -> SummaryTable:
    """Mean, sd and R-hat from the running mean and variance of every chain."""
    if result.moments is None:
        raise ValueError("positions: this run kept neither draws nor moments; use keep='draws' or keep='moments'")
    labels: list[str] = []
    rows: list[dict[str, float]] = []
    for leaf in leaf_moments(result):
        means, variance = leaf.means.mean(0), leaf.variances.mean(0) + leaf.means.var(0)
        if by_leaf:
            labels.append(leaf.name)
            row = {"parameters": variance.size, "mean": means.mean(), "sd": np.sqrt(variance.mean())}
            row["r_hat"] = _worst(leaf.r_hat, smallest=False)
            rows.append(row if leaf.mask is None else row | {"pruned": _mean_pruned(leaf.mask)})
            continue
        labels += coordinate_labels(leaf.name, leaf.shape, np.arange(variance.size))
        columns = {"mean": means, "sd": np.sqrt(variance), "r_hat": leaf.r_hat}
        columns |= {} if leaf.mask is None else {"pruned": np.sum(~leaf.mask, axis=0)}
        rows += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return _table(labels, rows, "from running moments: ESS is unknown, and R-hat is without ranks and splitting")
