"""Subscripts in docstrings: they are written `ω_k` and `θ_{k−1}`, for terminals too."""

import re
from typing import Any

from griffe import Extension, Object

LETTER = r"(?:(?<![A-Za-z0-9_])[A-Za-z]|[Α-Ωα-ωϑ])[\u0303\u0304]?"
INDEX = r"(?:max|min|kept|batch|[A-Za-z0-9*]{1,2})(?![A-Za-z0-9_])"
BRACED = re.compile(r"_\{([^{}]*)\}")
SHORT = re.compile(f"({LETTER})_({INDEX})")
RAISED = re.compile(r"\^\{([^{}]*)\}")
CODE = re.compile(r"(`+)(.*?)\1", re.DOTALL)
SECTION = re.compile(r"^(Args|Returns|Raises|Attributes):$")


def with_subscripts(docstring: str) -> str:
    """The docstring with HTML for indices, outside of code."""
    text, in_section, lines = [], False, docstring.split("\n")
    for line in lines:
        in_section = in_section or bool(SECTION.match(line))
        is_code = line.startswith("    ") and not in_section
        text.append(line if is_code else _outside_code(line))
    return "\n".join(text)


def _outside_code(line: str) -> str:
    parts, start = [], 0
    for code in CODE.finditer(line):
        parts += [_indexed(line[start : code.start()]), code[0]]
        start = code.end()
    return "".join([*parts, _indexed(line[start:])])


def _indexed(text: str) -> str:
    text = BRACED.sub(r"<sub>\1</sub>", text)
    text = SHORT.sub(r"\1<sub>\2</sub>", text)
    return RAISED.sub(r"<sup>\1</sup>", text)


class Subscripts(Extension):
    """A griffe extension; mkdocs.yml names this file."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Every documented thing."""
        if obj.docstring is not None:
            obj.docstring.value = with_subscripts(obj.docstring.value)
