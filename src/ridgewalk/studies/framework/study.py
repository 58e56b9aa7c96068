"""A study: settings for each preset, tasks that are run and cached one by one, and a report built from their rows.

`metrics.json` is the record of a study; it contains its report (text, tables, figures).
"""

import dataclasses
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

from ridgewalk._io import read_json_object, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Mark: TypeAlias = Literal["better", "equal", "worse"]
"""The comparison of a number with the paper's, or with the reference that the table names."""


@dataclass(frozen=True)
class Number:
    """A number in a table. If `value` is None the cell is empty and `note` gives the reason."""

    value: float | None
    se: float | None = None
    """Standard error over the seeds."""
    style: str = ".3g"
    paper: float | None = None
    mark: Mark | None = None
    note: str = ""

    def __str__(self) -> str:
        """The number with its standard error."""
        if self.value is None:
            return self.note or "–"
        se = "" if self.se is None else f" ± {format(self.se, self.style)}"
        return f"{format(self.value, self.style)}{se}" + (f" ({self.note})" if self.note else "")


Cell: TypeAlias = str | Number


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first column names the row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        """Check that every row has one cell per column."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"rows: {len(row)} cells in a table of {len(self.columns)} columns ({self.caption}): {row[0]}"
                )


@dataclass(frozen=True)
class Picture:
    """A figure in the study's folder; `alt` is its text alternative."""

    file: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Section:
    """A section of a report: heading, paragraphs, tables, figures."""

    heading: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Report:
    """A complete study report."""

    title: str
    text: tuple[str, ...]
    sections: tuple[Section, ...]


def mark_against(value: float, reference: float, *, error: float = 0.0, lower_is_better: bool = True) -> Mark:
    """Compare a value with a reference: equal within `error`, usually two standard errors or one unit of rounding."""
    if abs(value - reference) <= error:
        return "equal"
    return "better" if (value < reference) == lower_is_better else "worse"


def versus_paper(
    value: float, paper: float, *, se: float | None = None, style: str = ".3g", lower_is_better: bool = True
) -> Number:
    """A number with the paper's: equal if both print the same or differ by at most two standard errors."""
    same = format(value, style) == format(paper, style)
    mark = "equal" if same else mark_against(value, paper, error=2 * (se or 0), lower_is_better=lower_is_better)
    return Number(value, se, style, paper, mark)


def to_json(report: Report) -> dict[str, Any]:
    """Convert a report to plain dicts and lists."""
    return dataclasses.asdict(report)


def from_json(content: dict[str, Any]) -> Report:
    """Convert the output of `to_json` back to a report; ValueError if something is missing or of another type.

    The content comes from a file and is not trusted: text must be text, numbers must be numbers, and figures must be
    files in the study's own folder.
    """
    try:
        sections = tuple(_section(part) for part in content["sections"])
        return Report(_text(content["title"]), tuple(map(_text, content["text"])), sections)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"report: not in the format of `studies.framework.study` ({error!r})") from error


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
    for name in ("value", "se", "paper"):
        _check_number(name, getattr(found, name))
    if not (isinstance(found.style, str) and _STYLE.fullmatch(found.style)):
        raise ValueError(f"style = {str(found.style)[:40]!r}: must be a number format such as '.3g'")
    if found.mark not in (None, *get_args(Mark)):
        raise ValueError(f"mark = {str(found.mark)[:40]!r}: must be one of {', '.join(get_args(Mark))}")
    _text(found.note)
    return found


_STYLE = re.compile(r",?(\.\d{1,2})?[defg%]?")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is {type(value).__name__}; expected text")
    return value


def _check_number(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name} = {str(value)[:40]!r}: is {type(value).__name__}; expected a number")


def _file_name(value: Any) -> str:
    """A file name without any path, so that it cannot point outside the study's folder."""
    name = _text(value)
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"file = {name[:80]!r}: must be the name of a file in the study's folder")
    return name


class Record(NamedTuple):
    """A study as recorded in its `metrics.json`."""

    name: str
    folder: Path
    report: Report
    preset: str
    command: str
    reduced: str
    seconds: float
    settings: dict[str, Any]
    versions: dict[str, str]
    environment: dict[str, str]


def read_records(folder: Path, order: tuple[str, ...] = ()) -> list[Record]:
    """Read all studies of a folder: those named in `order` first, then the others by name."""
    rank = {name: place for place, name in enumerate(order)}
    paths = sorted(folder.glob("*/metrics.json"), key=lambda p: (rank.get(p.parent.name, len(rank)), p.parent.name))
    if not paths:
        raise ValueError(
            f"folder = {folder}: contains no <study>/metrics.json; run `ridgewalk reproduce --out {folder}` first"
        )
    return [_read(path) for path in paths]


def _read(path: Path) -> Record:
    content = read_json_object(path)
    try:
        text = {name: content[name] for name in ("study", "preset", "command", "reduced")}
        objects = {name: content[name] for name in ("settings", "versions", "environment")}
        if not all(isinstance(value, str) for value in text.values()):
            raise ValueError("study, preset, command and reduced must be text")
        if not all(isinstance(value, dict) for value in objects.values()):
            raise ValueError("settings, versions and environment must be objects")
        if not all(isinstance(item, str) for name in ("versions", "environment") for item in objects[name].values()):
            raise ValueError("versions and environment must contain text")
        return Record(
            name=text["study"],
            folder=path.parent,
            report=from_json(content["report"]),
            preset=text["preset"],
            command=text["command"],
            reduced=text["reduced"],
            seconds=float(content["seconds"]),
            **objects,
        )
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path}: not a record of a study ({error}); run the study again") from error


def save_figure(folder: Path, name: str, figure: "Figure") -> None:
    """Write a PNG at a resolution for high-density screens."""
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=150)
    write_atomically(folder / name, memory.getvalue())


class Preset(StrEnum):
    """The scale at which a study is run."""

    quick = "quick"
    paper = "paper"


class Row(Protocol):
    """The result of a task: a NamedTuple of numbers, strings and (nested) lists of numbers, stored as JSON."""

    def _asdict(self) -> dict[str, Any]: ...


class Task(NamedTuple):
    """A unit of work of a study: it is completed and recorded as a whole, or not at all.

    `settings` must contain everything that the result depends on: a recorded result is reused only for equal settings.
    """

    name: str
    settings: Mapping[str, Any]
    run: Callable[[Path], Row]
    """Called with the study's folder, where arrays that several tasks need are cached."""
    row: Callable[..., Row]
    """The NamedTuple that `run` returns; called with its fields when a result is read from the cache."""
    cost: float = 1.0
    """Expected duration relative to the other tasks, in seconds of the quick preset."""
    group: str = ""
    """Tasks of one group share compiled code, so one worker process runs them all."""
    after: tuple[str, ...] = ()
    """Names of the study's tasks that must be complete before this one starts."""


class Outcome(NamedTuple):
    """The result of a complete study: its report and every number behind it."""

    report: Report
    numbers: Mapping[str, Any]


class Study(NamedTuple):
    """A registered study.

    `plan(settings)` lists its tasks; `assemble(settings, rows, folder)` saves the figures in the folder and returns
    the report, where `rows` are the tasks' results by name. `settings` is a frozen dataclass.
    """

    name: str
    location: str
    """Where it is defined, "module:variable": worker processes import it from there."""
    presets: Mapping[Preset, Any]
    reduced: str
    """What the quick preset reduces, in words."""
    plan: Callable[[Any], list[Task]]
    assemble: Callable[[Any, Mapping[str, Any], Path], Outcome]
    command: str = "ridgewalk reproduce {name} --preset {preset}"
    """What a user runs."""


LOCATIONS = {
    "gaussian": "ridgewalk.studies.gaussian.study:STUDY",
    "regression": "ridgewalk.studies.regression.study:STUDY",
    "source": "ridgewalk.studies.darcy.study:SOURCE",
    "permeability": "ridgewalk.studies.darcy.study:PERMEABILITY",
    "convergence": "ridgewalk.studies.convergence.study:STUDY",
    "logistic": "ridgewalk.studies.logistic:STUDY",
    "outliers": "ridgewalk.studies.outliers:STUDY",
    "tall": "ridgewalk.studies.tall.study:STUDY",
    "uci": "ridgewalk.studies.uci:STUDY",
    "digits": "ridgewalk.studies.digits:STUDY",
}
"""The registry, in the order in which studies are reported. To add a study, add its location."""

NAMES = tuple(LOCATIONS)

BENCHMARKS = "benchmarks"
"""The study of other libraries, of `make benchmark`; it is no part of the package, its record is."""


def load_study(name: str) -> Study:
    """Return a registered study; its module is imported now."""
    if name not in LOCATIONS:
        raise ValueError(f"study = {name!r}: unknown; use all, or one or more of {', '.join(NAMES)}")
    return study_at(LOCATIONS[name])


def study_at(location: str) -> Study:
    """Import the study at "module:variable"."""
    module, variable = location.split(":")
    study: Study = getattr(import_module(module), variable)
    return study
