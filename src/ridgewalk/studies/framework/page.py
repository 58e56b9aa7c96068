"""Reports as text and as HTML: tables on the terminal, and one self-contained page without scripts."""

import base64
from collections import Counter
from collections.abc import Callable
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table as ScreenTable

from ridgewalk._io import read_regular, write_atomically
from ridgewalk.studies.framework.study import NAMES, Cell, Mark, Number, Picture, Record, Report, Table, read_records

SIGNS: dict[Mark, str] = {"better": "✓ better", "equal": "= equal", "worse": "✗ worse"}
"""A sign and a word: no meaning is carried by colour alone."""

PICTURE_LIMIT = 2**26
"""Bytes of the largest figure that is embedded in the page."""

PNG = b"\x89PNG\r\n\x1a\n"


def print_tables(report: Report) -> None:
    """Print the tables of a report to standard output."""
    console = Console(width=None if Console().is_terminal else 130)
    console.print(report.title, style="bold")
    for section in report.sections:
        for table in section.tables:
            screen = ScreenTable(title=table.caption, title_justify="left")
            for index, column in enumerate(table.columns):
                screen.add_column(column, justify="left" if index == 0 else "right")
            for row in table.rows:
                screen.add_row(*map(_plain_text, row))
            console.print(screen)


def _plain_text(cell: str | Number) -> str:
    if isinstance(cell, str):
        return cell
    paper = "" if cell.paper is None else f" [paper {format(cell.paper, cell.style)}]"
    return f"{cell}{paper}{f', {cell.mark}' if cell.mark else ''}".replace("[", "\\[")


def write_page(folder: Path) -> Path:
    """Write `index.html` from the records in a folder."""
    out = folder / "index.html"
    write_atomically(out, render_page(read_records(folder, NAMES)).encode())
    return out


def render_page(records: list[Record]) -> str:
    """Return the page as HTML."""
    title = "Ridgewalk: reproduction of the paper's studies"
    links = "".join(f'<li><a href="#{escape(r.name)}">{escape(r.report.title)}</a></li>' for r in records)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{CSS}</style></head><body><main>'
        f"<h1>{title}</h1>{_overview(records)}<nav><ul>{links}</ul></nav>{''.join(map(_study, records))}"
        f"{_environments(records)}</main></body></html>\n"
    )


def study_blocks(
    record: Record, intro: list[str], heading: Callable[[int, str], str], picture: Callable[[Picture], str]
) -> list[str]:
    """The blocks of a study in order: its heading, `intro`, text, then each section's text, tables and figures.

    The page and the documentation differ in how they write headings and figures only.
    """
    blocks = [heading(2, record.report.title), *intro, *map(paragraph, record.report.text)]
    for section in record.report.sections:
        blocks += [heading(3, section.heading), *map(paragraph, section.text)]
        blocks += [*map(table, section.tables), *map(picture, section.pictures)]
    return blocks


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of the given class, or nothing for an empty text."""
    return f"<p{f' class={kind}' if kind else ''}>{escape(text)}</p>" if text else ""


def table(content: Table) -> str:
    """A table that scrolls horizontally on narrow screens; the caption is outside and wraps."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in content.columns)
    body = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>{"".join(f"<td>{_cell(c)}</td>" for c in row[1:])}</tr>'
        for row in content.rows
    )
    caption = escape(content.caption)
    return (
        f'<p class="caption">{caption}</p><div class="scroll" role="region" tabindex="0" aria-label="{caption}">'
        f'<table aria-label="{caption}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"{paragraph(content.note, 'faint')}"
    )


def _cell(content: Cell) -> str:
    """The value with its standard error, note, the paper's value and the mark."""
    if isinstance(content, str):
        return escape(content)
    if content.value is None:
        return escape(str(content))
    text = _number(content.value, content.style)
    if content.se is not None:
        text += f" ± {_number(content.se, content.style)}"
    if content.note:
        text += f" {escape(content.note)}"
    details = []
    if content.paper is not None:
        details.append(f"paper {_number(content.paper, content.style)}")
    if content.mark is not None:
        details.append(f'<span class="mark">{SIGNS[content.mark]}</span>')
    return text + (f"<small>{', '.join(details)}</small>" if details else "")


def _number(value: float, style: str) -> str:
    """A formatted number; the attribute holds the exact one."""
    return f'<data value="{escape(repr(value))}">{escape(format(value, style))}</data>'


def _study(record: Record) -> str:
    scale = f"Preset {record.preset}." + (f" Reduced: {record.reduced}" if record.reduced else " Full scale.")

    def heading(level: int, text: str) -> str:
        return f"<h{level}>{escape(text)}</h{level}>"

    def picture(content: Picture) -> str:
        return _embedded(content, record.folder)

    blocks = study_blocks(record, [paragraph(scale, "faint")], heading, picture)
    settings = tuple((key, _setting(value)) for key, value in record.settings.items())
    shown = table(Table(f"Settings of {record.name}", ("setting", "value"), settings))
    return (
        f'<section id="{escape(record.name)}">{"".join(blocks)}'
        f"<details><summary>Settings</summary>{shown}</details></section>"
    )


def _setting(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _embedded(content: Picture, folder: Path) -> str:
    """A figure with its image data."""
    path = folder / content.file
    try:
        image = read_regular(path, PICTURE_LIMIT)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: the figure is missing; run the study again") from error
    if not image.startswith(PNG):
        raise ValueError(f"{path}: not a PNG image; run the study again")
    data = base64.b64encode(image).decode()
    return (
        f'<figure><img alt="{escape(content.alt)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(content.caption)}</figcaption></figure>"
    )


def _overview(records: list[Record]) -> str:
    rows = tuple((r.report.title, r.preset, Number(r.seconds, style=".0f"), r.command) for r in records)
    runs = Table("Studies on this page", ("study", "preset", "compute time (s)", "command"), rows)
    text = "HASGLD-SA (Wang, Deng and Lin) compared with other SG-MCMC samplers, implemented in Ridgewalk."
    return paragraph(text) + paragraph(_paper_counts(records)) + table(runs)


def _paper_counts(records: list[Record]) -> str:
    cells = [
        cell
        for record in records
        for section in record.report.sections
        for part in section.tables
        for row in part.rows
        for cell in row
        if isinstance(cell, Number) and cell.paper is not None
    ]
    if not cells:
        return (
            "The paper reports no values for the studies on this page; marks compare with the reference named in each "
            "table."
        )
    counts = Counter(cell.mark for cell in cells)
    listed = ", ".join(f"{counts[mark]} {sign}" for mark, sign in SIGNS.items())
    return f"Of {len(cells)} values also reported in the paper: {listed}."


def _environments(records: list[Record]) -> str:
    """Machine and library versions, one column per environment."""
    places: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for record in records:
        place = tuple((record.environment | record.versions).items())
        places.setdefault(place, []).append(record.name)
    keys = dict.fromkeys(key for place in places for key, _ in place)
    rows = tuple((key, *(dict(place).get(key, "–") for place in places)) for key in keys)
    columns = ("", *(", ".join(names) if len(places) > 1 else "all studies" for names in places.values()))
    shown = table(Table("Machine and library versions", columns, rows))
    return f'<section id="environment"><h2>Environment</h2>{shown}</section>'


CSS = """
:root { color-scheme: light dark; --ink: #1c2126; --paper: #ffffff; --faint: #5b6570; --line: #d5dae0;
  --panel: #f5f7f9; --link: #0b5cad; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --paper: #14181c; --faint: #9aa5b1; --line: #38414a; --panel: #1d2329; --link: #7db8f5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; }
h2 { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { margin-top: 2rem; } p { max-width: 46rem; }
a { color: var(--link); } code { font-size: 0.92em; overflow-wrap: anywhere; }
.faint, figcaption, td small { color: var(--faint); }
.faint, figcaption { font-size: 0.92rem; }
.scroll { overflow-x: auto; margin: 0.4rem 0 0.3rem; border: 1px solid var(--line); border-radius: 6px; }
.scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.95rem; }
p.caption { margin: 1.6rem 0 0; font-weight: 600; }
th, td { padding: 0.35rem 0.7rem; text-align: right; vertical-align: top; }
tbody tr { border-top: 1px solid var(--line); }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { background: var(--panel); vertical-align: bottom; }
tbody th { font-weight: 500; min-width: 8rem; position: sticky; left: 0; background: var(--paper); }
td small { display: block; }
.mark { font-weight: 600; color: var(--ink); }
figure { margin: 1.5rem 0; }
figure img { display: block; width: 100%; height: auto; background: #fff;
  border: 1px solid var(--line); border-radius: 6px; }
details { margin: 0.6rem 0; } summary { cursor: pointer; }
@media print { .scroll { overflow: visible; border: 0; } }
"""
