"""Writes the names that a page of the reference describes into it, one line each.

The pages can then be read without a site.

python docs/hooks/api_tables.py
"""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

START, END = "<!-- names: docs/hooks/api_tables.py -->", "<!-- end of names -->"
DIRECTIVE = re.compile(r"^::: (ridgewalk[\w.]*)", flags=re.MULTILINE)


def find(name: str) -> Any:
    """A module, or a name in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(find(module), last)


def first_line(found: Any) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")
    sentence = re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]
    return sentence.replace("|", "\\|").replace("<", "&lt;")


def table(text: str) -> str:
    """The names that a page describes."""
    lines = ["| name | |", "|---|---|"]
    for name in DIRECTIVE.findall(text):
        short = name.rpartition(".")[2]
        lines.append(f"| `{short}` | {first_line(find(name))} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """A page with its table before the first section, or in place of a former one."""
    if not DIRECTIVE.search(text):
        return text
    text = re.sub(
        re.escape(START) + ".*?" + re.escape(END) + "\n\n", "", text, flags=re.DOTALL
    )
    before, mark, after = text.partition("\n## ")
    return f"{before}\n{START}\n\n{table(text)}\n\n{END}\n{mark}{after}"


def main() -> None:
    """Write all pages."""
    for page in sorted(Path(__file__).parents[1].glob("api/*.md")):
        page.write_text(with_table(page.read_text()))


if __name__ == "__main__":
    main()
