"""Reports as text and as HTML: tables on the terminal, and one self-contained page.

The page shows the committed full-scale records first, then what was run here, compared with the committed record of the
same preset. page.css and page.js are inserted into it.
"""

import base64
import io
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table as ScreenTable

from ridgewalk._io import read_regular, write_atomically
from ridgewalk._validation import requires_extra
from ridgewalk.studies.framework.claims import (
    REDUCED,
    Agreement,
    Claim,
    Missing,
    claims,
    compare_with_record,
    missing,
    records_folder,
)
from ridgewalk.studies.framework.study import (
    BENCHMARKS,
    NAMES,
    Cell,
    Mark,
    Number,
    Picture,
    Record,
    Report,
    Table,
    read_records,
)

SIGNS: dict[Mark, str] = {"better": "✓ better", "equal": "= equal", "worse": "✗ worse"}
"""A sign and a word: no meaning is carried by colour alone."""

PICTURE_LIMIT = 2**26
"""Bytes of the largest figure that is embedded in the page."""

START = "start"
"""The column with the errors of the weights from which all methods start."""

MOST_COLUMNS = 7
"""A table with more of them has smaller print."""

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


class Evidence(NamedTuple):
    """What a page shows."""

    runs: list[Record]
    """Run by the user, at any preset."""
    full: list[Record]
    """The committed full-scale records."""
    reduced: list[Record]
    """The committed records of the quick preset."""
    benchmark: Record | None = None
    """The committed comparison with other libraries."""


def write_page(folder: Path, records: Path | None = None) -> Path:
    """Write `index.html` from the records in a folder, beside the committed ones (`records`: where they are)."""
    committed = records or records_folder()
    runs = read_records(folder, NAMES)
    full, reduced = [], []
    if committed is not None:
        full = read_records(committed, NAMES)
        runs = [] if committed.resolve() == folder.resolve() else runs
        reduced = read_records(committed / REDUCED, NAMES) if (committed / REDUCED).is_dir() else []
    compared = next((record for record in full if record.name == BENCHMARKS), None)
    full, runs = ([record for record in records if record.name != BENCHMARKS] for records in (full, runs))
    out = folder / "index.html"
    write_atomically(out, render_page(Evidence(runs, full, reduced, compared)).encode())
    return out


def render_page(evidence: Evidence) -> str:
    """Return the page as HTML."""
    title = "Ridgewalk: sampling ill-conditioned posteriors"
    agreements = agreements_of(evidence)
    known = [*evidence.runs, *evidence.full, *([evidence.benchmark] if evidence.benchmark else [])]
    parts: list[tuple[str, str, list[Record], str]] = [("claims", "Claims", [], _claims(evidence))]
    parts.append(("record", "Paper and record", evidence.full, _full_scale(evidence.full)))
    parts.append(("libraries", "Other libraries", [], _other_libraries(evidence.benchmark)))
    parts.append(("here", "This machine", evidence.runs, _this_machine(evidence.runs, agreements)))
    parts.append(("environment", "Environment", [], _environments(known)))
    shown = [part for part in parts if part[3]]
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{_asset("page.css")}</style></head><body>'
        '<nav aria-label="Contents"><a class="skip" href="#main">Skip to the content</a>'
        f'<ul>{_contents(shown)}</ul></nav><main id="main"><h1>{title}</h1>{_introduction(evidence, agreements)}'
        f"{''.join(part[3] for part in shown)}</main><script>{_asset('page.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _contents(parts: Sequence[tuple[str, str, list[Record], str]]) -> str:
    items = []
    for place, heading, records, _ in parts:
        links = "".join(
            f'<li><a href="#{place}-{escape(record.name)}">{escape(record.report.title)}</a></li>' for record in records
        )
        items.append(f'<li><a href="#{place}">{heading}</a>{f"<ul>{links}</ul>" if links else ""}</li>')
    return "".join(items)


def _given(record: Record) -> dict[str, Any]:
    """The settings that are not None: a part of a study that is added later is None in presets that leave it out."""
    return {key: value for key, value in record.settings.items() if value is not None}


def agreements_of(evidence: Evidence) -> dict[str, Agreement | None]:
    """Every run compared with the committed record of its preset; None where there is none of the same settings."""
    known = {(record.name, record.preset): record for record in (*evidence.full, *evidence.reduced)}
    found: dict[str, Agreement | None] = {}
    for run in evidence.runs:
        record = known.get((run.name, run.preset))
        same = record is not None and _given(record) == _given(run)
        found[run.name] = compare_with_record(run, record) if record is not None and same else None
    return found


def _introduction(evidence: Evidence, agreements: dict[str, Agreement | None]) -> str:
    lead = (
        "A JAX library for Bayesian regression and neural networks whose parameters are many, correlated and of very "
        "different scales. Its main sampler, HASGLD-SA, learns the shape of the posterior from minibatches."
    )
    said = []
    if evidence.full:
        counts = _mark_counts(evidence.full)
        total = sum(counts.values())
        if total:
            said.append(
                f"<b>Recorded at the paper’s scale</b> (Wang, Deng and Lin 2021): better than the paper in "
                f"{counts['better']} of its {total} values, equal in {counts['equal']}, worse in {counts['worse']}."
                f"{_of_the_start(evidence.full)}"
            )
    if evidence.runs:
        said.append(f"<b>On this machine:</b> {escape(_agreement_in_words(agreements))}")
    differs = any(found is not None and not found.agrees for found in agreements.values())
    box = "".join(f"<p>{text}</p>" for text in said if text)
    return f'<p class="lead">{lead}</p><div class="verdict{" differs" if differs else ""}">{box}</div>'


def _of_the_start(records: list[Record]) -> str:
    """How often the weights that chains start from are better than the paper already; empty where none are known."""
    better = [
        float(row[part.columns.index(START)].value or math.inf) < cell.paper  # type: ignore[union-attr]
        for record in records
        for section in record.report.sections
        for part in section.tables
        if START in part.columns
        for row in part.rows
        for cell in row
        if isinstance(cell, Number) and cell.paper is not None
    ]
    if not better:
        return ""
    known = f"better in {sum(better)} of {len(better)}"
    return f" The trained weights that chains start from are {known} before any draw."


def _agreement_in_words(agreements: dict[str, Agreement | None]) -> str:
    compared = [found for found in agreements.values() if found is not None]
    studies = "1 study" if len(agreements) == 1 else f"{len(agreements)} studies"
    if not compared:
        return f"{studies} run here; there are no recorded results of the same settings to compare with."
    total, outside = sum(a.compared for a in compared), sum(len(a.different) for a in compared)
    verdict = "agrees with" if all(a.agrees for a in compared) else "differs from"
    without = len(agreements) - len(compared)
    return (
        f"the run ({studies}) {verdict} the recorded results of the same settings: {total - outside:,} of {total:,} "
        "numbers are equal within the noise" + (f"; {without} without a record." if without else ".")
    )


def _claims(evidence: Evidence) -> str:
    if not evidence.full:
        return ""
    cards = "".join(map(_claim, claims(evidence.full)))
    heading = '<h2 class="unseen">What the record shows</h2>'
    lacking = missing(evidence.full, benchmark=evidence.benchmark is not None)
    return f'<section id="claims">{heading}<div class="claims">{cards}</div>{_missing(lacking)}</section>'


def _claim(claim: Claim) -> str:
    return (
        f'<article class="claim" aria-label="{escape(claim.heading)}"><h3>{escape(claim.heading)}</h3>'
        f'<p class="big">{_cell(claim.number)} <span>{escape(claim.unit)}</span></p>{claim.figure}'
        f'<p class="why">{escape(claim.sentence)} <a href="#record-{escape(claim.study)}">The study</a></p></article>'
    )


def _missing(found: Sequence[Missing]) -> str:
    """What the library is meant to show and no committed record does yet."""
    if not found:
        return ""
    items = "".join(f"<li>{escape(one.what)}: <code>{escape(one.command)}</code></li>" for one in found)
    text = "There is no committed full-scale record of these, so nothing is claimed; each command makes one."
    return f'<aside class="missing"><h3>Not recorded yet</h3><p>{text}</p><ul>{items}</ul></aside>'


def _full_scale(records: list[Record]) -> str:
    """The paper's tables beside the record's numbers, then every study in full."""
    if not records:
        return ""
    beside = "".join(
        table(replace(part, caption=f"{record.report.title}. {part.caption}", note=""))
        for record in records
        for part in paper_tables(record.report)
    )
    note = (
        "Each cell: the record’s value ± one standard error over seeds, the paper’s value, and which is better. Start: "
        "the trained weights, not pruned, from which all chains begin."
    )
    return (
        f'<section id="record"><h2>The paper’s tables beside the full-scale record</h2>{paragraph(note)}{beside}'
        f"<h3>All studies at full scale</h3>{''.join(_study(record, 'record') for record in records)}</section>"
    )


def _other_libraries(record: Record | None) -> str:
    """The comparison with other libraries: who is best at what, and folded below it every measurement."""
    if record is None:
        return ""
    first, *others = record.report.sections
    about = f"{record.environment['processor']}, {record.environment['cores']} cores. Command: {record.command}"
    about += f". A short run, whose ratios are rough: {record.reduced}" if record.reduced else "."
    folded = "".join(
        f"<details><summary>{escape(part.heading)}</summary>{''.join(map(paragraph, part.text))}"
        f"{''.join(map(table, part.tables))}</details>"
        for part in others
    )
    return (
        f'<section id="libraries"><h2>{escape(record.report.title)}</h2>{"".join(map(paragraph, record.report.text))}'
        f"{paragraph(about, 'faint')}{''.join(map(table, first.tables))}{folded}</section>"
    )


def paper_tables(report: Report) -> Iterator[Table]:
    """The tables with values of the paper, without columns that have none; a value that is repeated is left out.

    The column of the common start is kept: what it has already is no merit of a sampler.
    """
    seen: set[tuple[str, str, float, float | None]] = set()
    for section in report.sections:
        for part in section.tables:
            cells = {
                (row, column): cell
                for row, line in enumerate(part.rows)
                for column, cell in enumerate(line)
                if isinstance(cell, Number) and cell.paper is not None
            }
            keys = {(section.heading, str(part.rows[row][0]), c.paper or 0.0, c.value) for (row, _), c in cells.items()}
            if not keys - seen:
                continue
            seen |= keys
            start = [part.columns.index(START)] if START in part.columns else []
            columns = [0, *sorted({*start, *(column for _, column in cells)})]
            rows = [line for number, line in enumerate(part.rows) if any(row == number for row, _ in cells)]
            chosen = tuple(tuple(line[column] for column in columns) for line in rows)
            yield replace(part, columns=tuple(part.columns[column] for column in columns), rows=chosen)


def _this_machine(runs: list[Record], agreements: dict[str, Agreement | None]) -> str:
    if not runs:
        return ""
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        found = agreements[run.name]
        seconds = Number(run.seconds, style=".0f")
        if found is None:
            rows.append((run.report.title, run.preset, "no record of these settings", "–", "–", "–", seconds))
            continue
        verdict = "agrees" if found.agrees else "differs"
        counts = (Number(n, style=",.0f") for n in (found.compared, found.as_printed, len(found.different)))
        rows.append((run.report.title, run.preset, verdict, *counts, seconds))
    columns = (
        "study",
        "preset",
        "verdict",
        "numbers compared",
        "equal as printed",
        "outside the noise",
        "compute time (s)",
    )
    note = (
        "Every number of a study’s tables, without durations, is compared with the committed record of the same "
        "settings. Noise: three standard errors of the difference, or four standard deviations over repeats of the "
        "record where a number has no standard error. A study agrees if at most 2 % of its numbers, or one, are "
        "outside. Reduced runs are not comparable with the paper."
    )
    differences = [
        (found.study, " / ".join(difference.place), difference.run, difference.record)
        for found in agreements.values()
        if found is not None
        for difference in found.different
    ]
    outside = ""
    if differences:
        shown = Table("Numbers outside the noise", ("study", "number", "this run", "record"), tuple(differences))
        outside = f"<details><summary>Numbers outside the noise ({len(differences)})</summary>{table(shown)}</details>"
    return (
        f'<section id="here"><h2>What this machine ran</h2>{paragraph(_agreement_in_words(agreements).capitalize())}'
        f"{table(Table('Agreement with the committed record', columns, tuple(rows), note))}{outside}"
        f"<h3>All studies of this run</h3>{''.join(_study(run, 'here') for run in runs)}</section>"
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
    """A table that scrolls horizontally, with the caption outside; on a phone every row is a card.

    Roles are written out: as cards the elements are no table for the browser, but still for a screen reader.
    """
    unnamed = '<span class="unseen">row</span>'
    head = "".join(
        f'<th scope="col" role="columnheader">{escape(column) or unnamed}</th>' for column in content.columns
    )
    names = [escape(column) for column in content.columns[1:]]
    body = "".join(
        f'<tr role="row"><th scope="row" role="rowheader">{_cell(row[0])}</th>'
        + "".join(
            f'<td role="cell" data-column="{name}"><span>{_cell(cell)}</span></td>'
            for name, cell in zip(names, row[1:], strict=True)
        )
        + "</tr>"
        for row in content.rows
    )
    caption = escape(content.caption)
    wide = ' class="wide"' if len(content.columns) > MOST_COLUMNS else ""
    return (
        f'<p class="caption">{caption}</p><div class="scroll" role="group" tabindex="0" aria-label="{caption}">'
        f'<table{wide} role="table" aria-label="{caption}"><thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table></div>'
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
        details.append(f'<span class="mark {content.mark}">{SIGNS[content.mark]}</span>')
    return text + (f"<small>{' '.join(details)}</small>" if details else "")


def _number(value: float, style: str) -> str:
    """A formatted number; the attribute holds the exact one."""
    return f'<data value="{escape(repr(value))}">{escape(format(value, style))}</data>'


def _study(record: Record, place: str) -> str:
    """A study in full, folded."""
    scale = f"Preset {record.preset}." + (f" Reduced: {record.reduced}" if record.reduced else " Full scale.")

    def heading(level: int, text: str) -> str:
        return "" if level == 2 else f"<h4>{escape(text)}</h4>"  # the title is the summary

    def picture(content: Picture) -> str:
        return _embedded(content, record.folder)

    blocks = study_blocks(record, [paragraph(f"{scale} Command: {record.command}", "faint")], heading, picture)
    settings = tuple((key, _setting(value)) for key, value in record.settings.items())
    shown = table(Table(f"Settings of {record.name}", ("setting", "value"), settings))
    counts = _counts([record])
    about = f"{record.preset} preset, {record.seconds / 60:,.1f} min of compute" + (f"; {counts}" if counts else "")
    return (
        f'<details id="{place}-{escape(record.name)}"><summary>{escape(record.report.title)} '
        f"<small>{escape(about)}</small></summary>{''.join(blocks)}<details><summary>Settings</summary>{shown}</details></details>"
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
    kind, data = _smaller(image)
    return (
        f'<figure><img alt="{escape(content.alt)}" src="data:image/{kind};base64,'
        f'{base64.b64encode(data).decode()}"><figcaption>{escape(content.caption)}</figcaption></figure>'
    )


COLOURS = 96
"""Of a figure on the page."""


@lru_cache(maxsize=64)
def _smaller(image: bytes) -> tuple[str, bytes]:
    """A plot as WebP with few colours, a third of its size; unchanged without Pillow, which matplotlib brings."""
    try:
        with requires_extra("plots"):
            from PIL import Image, UnidentifiedImageError  # noqa: PLC0415
    except ImportError:
        return "png", image
    memory = io.BytesIO()
    try:
        with Image.open(io.BytesIO(image), formats=["PNG"]) as picture:
            few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.convert("RGB").save(memory, "WEBP", lossless=True, method=4)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        return "png", image
    return ("webp", memory.getvalue()) if len(memory.getvalue()) < len(image) else ("png", image)


def _mark_counts(records: list[Record]) -> "Counter[Mark | None]":
    """How many of the values that the paper reports are better, equal or worse in the records."""
    return Counter(
        cell.mark
        for record in records
        for part in paper_tables(record.report)
        for row in part.rows
        for cell in row
        if isinstance(cell, Number) and cell.paper is not None
    )


def _counts(records: list[Record]) -> str:
    """How the values that the paper reports compare with the record, in words; empty if it reports none."""
    counts = _mark_counts(records)
    listed = ", ".join(f"{counts[mark]} {sign}" for mark, sign in SIGNS.items())
    return f"{listed}, of {sum(counts.values())} values that the paper reports" if counts else ""


def _environments(records: list[Record]) -> str:
    """Machine and library versions, one column per environment."""
    if not records:
        return ""
    places: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for record in records:
        place = tuple((record.environment | record.versions).items())
        places.setdefault(place, []).append(f"{record.name} ({record.preset})")
    keys = dict.fromkeys(key for place in places for key, _ in place)
    rows = tuple((key, *(dict(place).get(key, "–") for place in places)) for key in keys)
    columns = ("", *(", ".join(names) if len(places) > 1 else "all studies" for names in places.values()))
    shown = table(Table("Machine and library versions", columns, rows))
    return (
        '<section id="environment"><h2>Environment</h2><details><summary>Machines and library versions</summary>'
        f"{shown}</details></section>"
    )
