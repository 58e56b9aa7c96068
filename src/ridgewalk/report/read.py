"""Reads what the studies in a folder left behind."""

from pathlib import Path
from typing import Any, NamedTuple

from ridgewalk._io import read_json_object
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
    content = read_json_object(path)
    try:
        text = {name: content[name] for name in ("study", "preset", "command", "reduced")}
        records = {name: content[name] for name in ("settings", "versions", "environment")}
        if not all(isinstance(value, str) for value in text.values()):
            raise ValueError("study, preset, command and reduced are text")
        if not all(isinstance(value, dict) for value in records.values()):
            raise ValueError("settings, versions and environment are objects")
        if not all(isinstance(item, str) for name in ("versions", "environment") for item in records[name].values()):
            raise ValueError("versions and environment hold text")
        return Finished(
            name=text["study"],
            folder=path.parent,
            report=from_json(content["report"]),
            preset=text["preset"],
            command=text["command"],
            reduced=text["reduced"],
            seconds=float(content["seconds"]),
            **records,
        )
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path}: not as a study writes it ({error}); run the study again") from error
