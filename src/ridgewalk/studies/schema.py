"""What a study tells a reader: text, tables and figures. `metrics.json` holds it, the terminal and the page show it."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

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
    """The report that `as_json` wrote; ValueError where something is missing or of another type.

    The content comes from a file, so nothing is trusted: text must be text, numbers numbers, and figures files of the
    study's own folder.
    """
    try:
        sections = tuple(_section(part) for part in content["sections"])
        return Report(_text(content["title"]), tuple(map(_text, content["text"])), sections)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"report: not as `studies.schema` writes it ({error!r}); run the study again") from error


def _section(part: dict[str, Any]) -> Section:
    tables = tuple(
        Table(
            _text(t["caption"]),
            tuple(map(_text, t["columns"])),
            tuple(tuple(map(_cell, row)) for row in t["rows"]),
            _text(t["note"]),
        )
        for t in part["tables"]
    )
    pictures = tuple(
        Picture(_file_name(picture["file"]), _text(picture["caption"]), _text(picture["alt"]))
        for picture in part["pictures"]
    )
    return Section(_text(part["heading"]), tuple(map(_text, part["text"])), tables, pictures)


def _cell(cell: str | dict[str, Any]) -> Cell:
    if isinstance(cell, str):
        return cell
    found = Number(**cell)
    for name in ("value", "spread", "paper"):
        _number(name, getattr(found, name))
    if not (isinstance(found.style, str) and _STYLE.fullmatch(found.style)):
        raise ValueError(f"style: {str(found.style)[:40]!r} is not a format of numbers such as '.3g'")
    if found.mark not in (None, *get_args(Mark)):
        raise ValueError(f"mark: {str(found.mark)[:40]!r} is not one of {', '.join(get_args(Mark))}")
    _text(found.note)
    return found


_STYLE = re.compile(r",?(\.\d{1,2})?[defg%]?")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is {type(value).__name__}, where text belongs")
    return value


def _number(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name}: {str(value)[:40]!r} is {type(value).__name__}, where a number belongs")


def _file_name(value: Any) -> str:
    """A name in the study's own folder: no path leads out of it."""
    name = _text(value)
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"file: {name[:80]!r} is not the name of a file in the study's folder")
    return name
