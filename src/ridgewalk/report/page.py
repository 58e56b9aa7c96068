"""One self-contained page: no script, no network, nothing beside it."""

from collections import Counter
from html import escape
from pathlib import Path

from ridgewalk._io import write_atomically
from ridgewalk.report.parts import SIGNS, paragraph, picture, table
from ridgewalk.report.read import Finished, read_studies
from ridgewalk.report.style import CSS
from ridgewalk.studies.schema import Number, Section, Table


def write_page(folder: Path) -> Path:
    """Write `index.html` from the studies found in a folder."""
    out = folder / "index.html"
    write_atomically(out, render(read_studies(folder)).encode())
    return out


def render(studies: list[Finished]) -> str:
    """The page as text."""
    title = "Ridgewalk: the studies, reproduced"
    links = "".join(f'<li><a href="#{escape(s.name)}">{escape(s.report.title)}</a></li>' for s in studies)
    body = "".join(_study(study) for study in studies)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{CSS}</style></head><body><main>'
        f"<h1>{title}</h1>{_summary(studies)}<nav><ul>{links}</ul></nav>{body}{_environments(studies)}"
        "</main></body></html>\n"
    )


def _summary(studies: list[Finished]) -> str:
    rows = tuple(
        (study.report.title, study.preset, Number(study.seconds, style=".0f"), study.command) for study in studies
    )
    ran = Table("What was run", ("study", "preset", "seconds", "command"), rows)
    text = "HASGLD-SA (Wang, Deng and Lin) and the samplers it is compared with, measured by Ridgewalk."
    return paragraph(text) + paragraph(_beside_paper(studies)) + table(ran)


def _beside_paper(studies: list[Finished]) -> str:
    cells = [
        cell
        for study in studies
        for section in study.report.sections
        for part in section.tables
        for row in part.rows
        for cell in row
        if isinstance(cell, Number) and cell.paper is not None
    ]
    if not cells:
        return "The paper gives no numbers for the studies on this page; marks compare with what each table names."
    counts = Counter(cell.mark for cell in cells)
    said = ", ".join(f"{counts[mark]} {sign}" for mark, sign in SIGNS.items())
    return f"Of {len(cells)} numbers that the paper gives too: {said}."


def _study(study: Finished) -> str:
    size = f"Preset {study.preset}." + (f" Reduced: {study.reduced}" if study.reduced else " Full scale.")
    text = "".join(paragraph(part) for part in study.report.text)
    sections = "".join(_section(section, study.folder) for section in study.report.sections)
    settings = tuple((key, _plainly(value)) for key, value in study.settings.items())
    shown = table(Table(f"Settings of {study.name}", ("setting", "value"), settings))
    return (
        f'<section id="{escape(study.name)}"><h2>{escape(study.report.title)}</h2>{paragraph(size, "faint")}{text}'
        f"{sections}<details><summary>Settings</summary>{shown}</details></section>"
    )


def _plainly(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _section(section: Section, folder: Path) -> str:
    text = "".join(paragraph(part) for part in section.text)
    tables = "".join(map(table, section.tables))
    pictures = "".join(picture(part, folder) for part in section.pictures)
    return f"<h3>{escape(section.heading)}</h3>{text}{tables}{pictures}"


def _environments(studies: list[Finished]) -> str:
    """The machine and the versions; several columns where studies were run in different places."""
    places: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for study in studies:
        place = tuple((study.environment | study.versions).items())
        places.setdefault(place, []).append(study.name)
    keys = dict.fromkeys(key for place in places for key, _ in place)
    rows = tuple((key, *(dict(place).get(key, "–") for place in places)) for key in keys)
    columns = ("", *(", ".join(names) if len(places) > 1 else "all studies" for names in places.values()))
    return f'<section id="environment"><h2>Environment</h2>{table(Table("Made with", columns, rows))}</section>'
