"""Inserts every study recorded under `docs/results` into the results page."""

from html import escape
from pathlib import Path
from typing import Any

from ridgewalk.studies.framework.page import paragraph, study_blocks
from ridgewalk.studies.framework.study import (
    BENCHMARKS,
    NAMES,
    Picture,
    Record,
    read_records,
)

MARKER = "<!-- the recorded studies -->"
NOTHING = (
    "No study is recorded under `docs/results` in this copy: run the commands above."
)


def recorded(folder: Path) -> str:
    """All studies of a folder, as Markdown with tables in HTML."""
    if not any(folder.glob("*/metrics.json")):
        return NOTHING
    records = [
        record for record in read_records(folder, NAMES) if record.name != BENCHMARKS
    ]
    return "\n\n".join(_study(record, folder.name) for record in records)


def _study(record: Record, parent: str) -> str:
    machine, place = record.environment, f"{parent}/{record.folder.name}"
    intro = [
        f"Command: `{record.command}`, {record.seconds / 60:,.0f} minutes on "
        f"{machine['cores']} cores ({machine['processor']}, {machine['precision']}). "
        f"All numbers: [metrics.json]({place}/metrics.json)."
    ]
    if record.preset == "quick":
        intro.append(paragraph(f"This is the quick preset. Reduced: {record.reduced}"))

    def heading(level: int, text: str) -> str:
        return f"{'#' * level} {escape(text)}"

    def picture(content: Picture) -> str:
        alt = escape(content.alt).replace("[", "(").replace("]", ")")
        return f"![{alt}]({place}/{content.file})\n\n{paragraph(content.caption)}"

    return "\n\n".join(study_blocks(record, intro, heading, picture))


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for every page; only the results page has the marker."""
    if MARKER not in markdown:
        return markdown
    return markdown.replace(MARKER, recorded(Path(config.docs_dir) / "results"))
