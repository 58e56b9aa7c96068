"""What a study leaves behind, written whole or not at all."""

import io
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table as ScreenTable

from ridgewalk._io import write_atomically
from ridgewalk.studies.schema import Number, Report

LIBRARIES = ("ridgewalk", "jax", "jaxlib", "numpy", "scipy", "arviz", "matplotlib")


def versions() -> dict[str, str]:
    """Of the libraries that made the numbers, and of Python."""
    return {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()}


def environment() -> dict[str, str]:
    """The machine, as far as times depend on it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": str(cores),
        "device": str(jax.devices()[0].device_kind),
        "precision": "float64" if jax.config.read("jax_enable_x64") else "float32",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> Path:
    """Write `metrics.json` with the versions and the machine that made it."""
    content = {**metrics, "versions": versions(), "environment": environment()}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(folder / "metrics.json", (text + "\n").encode())
    return folder / "metrics.json"


def save_figure(folder: Path, name: str, figure: Figure) -> None:
    """Write a PNG that is sharp on a dense screen."""
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=150)
    write_atomically(folder / name, memory.getvalue())


def print_tables(report: Report) -> None:
    """Show the tables to the person who ran the study."""
    console = Console(width=None if Console().is_terminal else 130)
    console.print(report.title, style="bold")
    for section in report.sections:
        for table in section.tables:
            screen = ScreenTable(title=table.caption, title_justify="left")
            for index, column in enumerate(table.columns):
                screen.add_column(column, justify="left" if index == 0 else "right")
            for row in table.rows:
                screen.add_row(*map(_shown, row))
            console.print(screen)


def _shown(cell: str | Number) -> str:
    if isinstance(cell, str):
        return cell
    paper = "" if cell.paper is None else f" [paper {format(cell.paper, cell.style)}]"
    return f"{cell}{paper}{f', {cell.mark}' if cell.mark else ''}".replace("[", "\\[")
