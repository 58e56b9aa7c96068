"""The results page shows every study that is recorded under `docs/results`."""

from html import escape
from pathlib import Path
from typing import Any

from ridgewalk.report.parts import paragraph, table
from ridgewalk.report.read import Finished, read_studies
from ridgewalk.studies.schema import Picture, Section

MARKER = "<!-- the recorded studies -->"
NOTHING = (
    "No study is recorded under `docs/results` in this copy: run the commands above."
)


def recorded(folder: Path) -> str:
    """All studies of a folder, as Markdown with tables in HTML."""
    if not any(folder.glob("*/metrics.json")):
        return NOTHING
    return "\n\n".join(_study(found, folder.name) for found in read_studies(folder))


def _study(found: Finished, parent: str) -> str:
    machine = found.environment
    made = (
        f"Made by `{found.command}` in {found.seconds / 60:,.0f} minutes "
        f"on {machine['cores']} cores ({machine['processor']}, "
        f"{machine['precision']}). Every number: "
        f"[metrics.json]({parent}/{found.folder.name}/metrics.json)."
    )
    parts = [f"## {escape(found.report.title)}", made]
    if found.preset == "quick":
        parts.append(
            paragraph(f"This is the quick preset. It reduces: {found.reduced}")
        )
    parts += [paragraph(text) for text in found.report.text]
    parts += [
        _section(section, f"{parent}/{found.folder.name}")
        for section in found.report.sections
    ]
    return "\n\n".join(parts)


def _section(section: Section, folder: str) -> str:
    parts = [f"### {escape(section.heading)}", *map(paragraph, section.text)]
    parts += [table(content) for content in section.tables]
    parts += [_picture(picture, folder) for picture in section.pictures]
    return "\n\n".join(parts)


def _picture(picture: Picture, folder: str) -> str:
    alt = escape(picture.alt).replace("[", "(").replace("]", ")")
    return f"![{alt}]({folder}/{picture.file})\n\n{paragraph(picture.caption)}"


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for every page; only the results page has the marker."""
    if MARKER not in markdown:
        return markdown
    return markdown.replace(MARKER, recorded(Path(config.docs_dir) / "results"))
