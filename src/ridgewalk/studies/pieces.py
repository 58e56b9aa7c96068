"""Finished pieces of a study on disk, so that a run that was stopped goes on where it was."""

import hashlib
import json
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax

from ridgewalk._io import write_atomically
from ridgewalk.studies.study import Piece, Values


class Recorded(NamedTuple):
    """A finished piece: what it measured and how long that took."""

    values: Values
    seconds: float


class Pieces:
    """A folder with a file for every finished piece, named after the piece and its settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, piece: Piece) -> Recorded | None:
        """The piece as recorded under the very settings it has now; None where there is none."""
        path = self._path(piece)
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text())
        except ValueError:
            return None  # not written by this class: its writes are whole
        if content.get("settings") != identity(piece.settings):
            return None
        return Recorded(content["values"], content["seconds"])

    def make(self, piece: Piece) -> Recorded:
        """Do the work and record it; nothing is recorded where it is interrupted or fails."""
        start = time.perf_counter()
        values = piece.make(self.folder.parent)
        recorded = Recorded(_plain(values), time.perf_counter() - start)
        content = {"piece": piece.name, "settings": identity(piece.settings), **recorded._asdict()}
        write_atomically(self._path(piece), json.dumps(content, allow_nan=False).encode())
        return recorded

    def _path(self, piece: Piece) -> Path:
        text = json.dumps(identity(piece.settings), sort_keys=True)
        return self.folder / f"{piece.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that numbers depend on: the settings they are made with, the precision, the versions that matter."""
    made_with = {name: version(name) for name in ("ridgewalk", "jax")}
    return _plain({**settings, "x64": bool(jax.config.read("jax_enable_x64")), "versions": made_with})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON would give it back: tuples become lists, so that equal settings compare equal."""
    plain: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
    return plain
