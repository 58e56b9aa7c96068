"""Results of completed tasks, and arrays that tasks share, on disk: an interrupted study resumes from them."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ridgewalk._io import read_tensors, remove_own, working_folder, write_atomically, write_tensors
from ridgewalk.studies.framework.study import Row, Task

Arrays = dict[str, np.ndarray]
KIND, VERSION = "ridgewalk study arrays", 1
"""Format of the files of `cached_arrays`."""


class Completed(NamedTuple):
    """The result of a task, and the seconds that it took."""

    row: Row
    seconds: float


class TaskCache:
    """A folder with one JSON file per completed task, named after the task and a hash of its settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, task: Task) -> Completed | None:
        """Return the result recorded for a task with equal settings, or None."""
        path = self._path(task)
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text())
            if content["settings"] != full_settings(task.settings):
                return None
            return Completed(task.row(**content["row"]), float(content["seconds"]))
        except (ValueError, KeyError, TypeError):
            return None  # not written by this class, whose writes are atomic: run the task again

    def run(self, task: Task) -> Completed:
        """Run a task and record its result; nothing is recorded if it is interrupted or fails."""
        start = time.perf_counter()
        fields = _through_json(row_fields(task.run(self.folder.parent)))
        seconds = time.perf_counter() - start
        content = {"task": task.name, "settings": full_settings(task.settings), "row": fields, "seconds": seconds}
        write_atomically(self._path(task), json.dumps(content, allow_nan=False).encode())
        return Completed(task.row(**fields), seconds)

    def _path(self, task: Task) -> Path:
        return self.folder / f"{task.name}-{_hash(task.settings)}.json"


def row_fields(row: Row, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a row by name, without those that equal their default (such as the errors of diverged chains)."""
    defaults = getattr(row, "_field_defaults", {})
    return {
        name: value
        for name, value in row._asdict().items()
        if name not in without and not (name in defaults and _same(value, defaults[name]))
    }


def _same(value: Any, default: Any) -> bool:
    both_nan = isinstance(value, float) and isinstance(default, float) and math.isnan(value) and math.isnan(default)
    return bool(both_nan or value == default)


def cached_arrays(folder: Path, name: str, settings: Mapping[str, Any], make: Callable[[Path], Arrays]) -> Arrays:
    """Return the arrays cached for equal settings, or make and cache them.

    `make` is called with a folder for its checkpoints, the same one when it is called again after an interruption.
    """
    path = folder / "arrays" / f"{name}-{_hash(settings)}.safetensors"
    if path.exists():
        return read_tensors(path, kind=KIND, newest=VERSION).tensors
    unfinished = working_folder(path)
    arrays = make(unfinished)
    write_tensors(path, arrays, kind=KIND, version=VERSION, about=full_settings(settings))
    remove_own(unfinished)
    return arrays


def full_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a result depends on: the task's settings, the precision, and the versions that matter."""
    versions = {name: version(name) for name in ("ridgewalk", "jax")}
    return _through_json({**settings, "x64": bool(jax.config.read("jax_enable_x64")), "versions": versions})


def _hash(settings: Mapping[str, Any]) -> str:
    text = json.dumps(full_settings(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _through_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Encode and decode as JSON, which turns tuples into lists: equal settings then compare equal."""
    plain: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
    return plain
