"""Arrays that several pieces of a study share, on disk: made once, by whichever piece needs them first."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from ridgewalk._io import remove_own, working_folder, write_atomically
from ridgewalk.studies.pieces import identity

Arrays = dict[str, np.ndarray]


def kept(folder: Path, name: str, settings: Mapping[str, Any], make: Callable[[Path], Arrays]) -> Arrays:
    """The arrays as kept under the very settings, or made now and kept.

    `make` gets a folder of its own for checkpoints, which is the same when it is called again.
    """
    text = json.dumps(identity(settings), sort_keys=True)
    stem = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    place = folder / "kept"
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{stem}.safetensors"
    if path.exists():
        return load(path.read_bytes())
    unfinished = working_folder(path)
    arrays = make(unfinished)
    write_atomically(path, save({key: np.ascontiguousarray(value) for key, value in arrays.items()}))
    remove_own(unfinished)
    return arrays
