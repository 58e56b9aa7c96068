"""Reads what the studies in a folder left behind."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from ridgewalk.studies.registry import NAMES
from ridgewalk.studies.schema import Report, from_json


class Finished(NamedTuple):
    """A study as its `metrics.json` tells it."""

    name: str
    folder: Path
    report: Report
    preset: str
    command: str
    reduced: str
    seconds: float
    settings: dict[str, Any]
    versions: dict[str, str]
    environment: dict[str, str]


def read_studies(folder: Path) -> list[Finished]:
    """All studies of a folder: the known ones in their order, then others by name."""
    paths = sorted(folder.glob("*/metrics.json"), key=lambda path: _place(path.parent.name))
    if not paths:
        raise ValueError(
            f"folder = {folder}: no study has written its metrics.json there; run `ridgewalk reproduce --out "
            f"{folder}` first"
        )
    return [_read(path) for path in paths]


def _place(name: str) -> tuple[int, str]:
    return (NAMES.index(name) if name in NAMES else len(NAMES), name)


def _read(path: Path) -> Finished:
    try:
        content = json.loads(path.read_text())
        return Finished(
            name=content["study"],
            folder=path.parent,
            report=from_json(content["report"]),
            preset=content["preset"],
            command=content["command"],
            reduced=content["reduced"],
            seconds=float(content["seconds"]),
            settings=content["settings"],
            versions=content["versions"],
            environment=content["environment"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not as a study writes it ({error}); run the study again") from error
