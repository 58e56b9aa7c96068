"""Tables, figures and text as HTML."""

import base64
from html import escape
from pathlib import Path

from ridgewalk._io import read_regular
from ridgewalk.studies.schema import Cell, Mark, Number, Picture, Table

SIGNS: dict[Mark, str] = {"better": "✓ better", "equal": "= equal", "worse": "✗ worse"}
"""A sign and a word, so that nobody needs the colour."""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph, or nothing for no text."""
    return f"<p{f' class={kind}' if kind else ''}>{escape(text)}</p>" if text else ""


def number(value: float, style: str) -> str:
    """A number as read, with the full one for machines."""
    return f'<data value="{escape(repr(value))}">{escape(format(value, style))}</data>'


def cell(content: Cell) -> str:
    """What stands in a table's cell: the number, its spread, the paper's number and the mark."""
    if isinstance(content, str):
        return escape(content)
    if content.value is None:
        return escape(str(content))
    text = number(content.value, content.style)
    if content.spread is not None:
        text += f" ± {number(content.spread, content.style)}"
    if content.note:
        text += f" {escape(content.note)}"
    return text + _beside(content)


def _beside(content: Number) -> str:
    said = []
    if content.paper is not None:
        said.append(f"paper {number(content.paper, content.style)}")
    if content.mark is not None:
        said.append(f'<span class="mark">{SIGNS[content.mark]}</span>')
    return f"<small>{', '.join(said)}</small>" if said else ""


def table(content: Table) -> str:
    """A table in a box that scrolls sideways where the screen is narrow; its title stays outside and can break."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in content.columns)
    body = "".join(
        f'<tr><th scope="row">{cell(row[0])}</th>{"".join(f"<td>{cell(c)}</td>" for c in row[1:])}</tr>'
        for row in content.rows
    )
    caption = escape(content.caption)
    return (
        f'<p class="caption">{caption}</p><div class="scroll" role="region" tabindex="0" aria-label="{caption}">'
        f'<table aria-label="{caption}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"{paragraph(content.note, 'faint')}"
    )


PICTURE_LIMIT = 2**26
"""Bytes of the largest figure that is put into the page."""

PNG = b"\x89PNG\r\n\x1a\n"


def picture(content: Picture, folder: Path) -> str:
    """A figure, the image inside the page."""
    path = folder / content.file
    try:
        image = read_regular(path, PICTURE_LIMIT)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: the figure is missing; run the study again") from error
    if not image.startswith(PNG):
        raise ValueError(f"{path}: it is not a PNG image; run the study again")
    data = base64.b64encode(image).decode()
    return (
        f'<figure><img alt="{escape(content.alt)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(content.caption)}</figcaption></figure>"
    )
