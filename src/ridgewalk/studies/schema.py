"""What a study tells a reader: text, tables and figures. `metrics.json` holds it, the terminal and the page show it."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Mark: TypeAlias = Literal["better", "equal", "worse"]
"""How a number stands beside the paper's, or beside a target that the study's text names."""


@dataclass(frozen=True)
class Number:
    """A measured number as a table shows it; `value` None is a gap, and `note` says why."""

    value: float | None
    spread: float | None = None
    """Standard error over the seeds."""
    style: str = ".3g"
    paper: float | None = None
    mark: Mark | None = None
    note: str = ""

    def __str__(self) -> str:
        """The number with its spread, as read by a person."""
        if self.value is None:
            return self.note or "–"
        spread = "" if self.spread is None else f" ± {format(self.spread, self.style)}"
        return f"{format(self.value, self.style)}{spread}" + (f" ({self.note})" if self.note else "")


Cell: TypeAlias = str | Number


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first column names the row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        """Check that the rows fit the columns."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"rows: {len(row)} cells in a table of {len(self.columns)} columns ({self.caption}): {row[0]}"
                )


@dataclass(frozen=True)
class Picture:
    """A figure in the study's folder; `alt` says in words what it shows."""

    file: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Section:
    """A part of a study's report: results, calibration, cost, whatever the study has to say."""

    heading: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Report:
    """A study, told."""

    title: str
    text: tuple[str, ...]
    sections: tuple[Section, ...]


def judge(value: float, reference: float, *, error: float = 0.0, lower_is_better: bool = True) -> Mark:
    """Better or worse than a reference; equal within `error`, which should be two standard errors or a last digit."""
    if abs(value - reference) <= error:
        return "equal"
    return "better" if (value < reference) == lower_is_better else "worse"


def beside_paper(
    value: float, paper: float, *, spread: float | None = None, style: str = ".3g", lower_is_better: bool = True
) -> Number:
    """A number with the paper's beside it: equal where both print the same, or within two standard errors."""
    same = format(value, style) == format(paper, style)
    mark = "equal" if same else judge(value, paper, error=2 * (spread or 0), lower_is_better=lower_is_better)
    return Number(value, spread, style, paper, mark)


def as_json(report: Report) -> dict[str, Any]:
    """Plain dicts and lists."""
    return dataclasses.asdict(report)


def from_json(content: dict[str, Any]) -> Report:
    """The report that `as_json` wrote; ValueError where something is missing."""
    try:
        sections = tuple(_section(part) for part in content["sections"])
        return Report(content["title"], tuple(content["text"]), sections)
    except (KeyError, TypeError) as error:
        raise ValueError(f"report: not as `studies.schema` writes it ({error!r}); run the study again") from error


def _section(part: dict[str, Any]) -> Section:
    tables = tuple(
        Table(t["caption"], tuple(t["columns"]), tuple(tuple(map(_cell, row)) for row in t["rows"]), t["note"])
        for t in part["tables"]
    )
    pictures = tuple(Picture(**picture) for picture in part["pictures"])
    return Section(part["heading"], tuple(part["text"]), tables, pictures)


def _cell(cell: str | dict[str, Any]) -> Cell:
    return cell if isinstance(cell, str) else Number(**cell)
