"""What a study leaves behind, written whole or not at all."""

import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> Path:
    """Write `metrics.json` with the versions that made it; an existing file is replaced in one move."""
    folder.mkdir(parents=True, exist_ok=True)
    made_with = {name: version(name) for name in ("ridgewalk", "jax", "numpy")} | {"python": platform.python_version()}
    text = json.dumps({**metrics, "versions": made_with}, indent=2, ensure_ascii=False)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".json")
    with os.fdopen(handle, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    target = folder / "metrics.json"
    Path(temporary).replace(target)
    return target


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Show a table to the person who ran the study."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if Console().is_terminal else 110).print(table)
