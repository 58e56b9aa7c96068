"""Checkpoints: one file each, written whole or not at all, checked when read, and never able to run code.

A file is in the safetensors format; its header holds the settings of the run and a SHA-256 of everything in it.
"""

import hashlib
import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ridgewalk._io import force_to_disk, write_atomically

FORMAT = "ridgewalk-checkpoint"
FORMAT_VERSION = 1
KEPT = 2
"""How many checkpoints stay: the newest, and one more in case the newest cannot be read."""

_NAME = re.compile(r"step-(\d+)\.safetensors")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run was: its arrays, in order, and the settings it was made with."""

    step: int
    arrays: list[np.ndarray]
    settings: dict[str, Any]


def _digest(tensors: dict[str, np.ndarray], about: str) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = np.asarray(tensors[name], order="C")
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _storable(array: np.ndarray) -> np.ndarray:
    """Half-precision brains and other dtypes that numpy lacks travel as the bytes they are."""
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def files(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Add a checkpoint; older ones than the last two are removed once it is complete on the disk."""
    tensors = {f"{i:04d}": _storable(np.asarray(array, order="C")) for i, array in enumerate(checkpoint.arrays)}
    about = json.dumps(
        {
            "step": checkpoint.step,
            "dtypes": [str(array.dtype) for array in checkpoint.arrays],
            "settings": checkpoint.settings,
        },
        sort_keys=True,
    )
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "about": about,
        "sha256": _digest(tensors, about),
    }
    path = folder / f"step-{checkpoint.step:012d}.safetensors"
    try:
        write_atomically(path, save(tensors, metadata=header))
        force_to_disk([folder])
    except OSError as error:
        left = files(folder)
        rest = f"the run can be resumed from {left[-1].name}" if left else "no earlier checkpoint exists"
        raise CheckpointError(
            f"checkpoint: step {checkpoint.step} could not be written to {folder} ({error.strerror}); {rest}: free "
            "space or make the folder writable, then make the same call with resume=True"
        ) from error
    for old in files(folder)[:-KEPT]:
        old.unlink()
    return path


def read(path: Path) -> Checkpoint:
    """A checkpoint, if every bit of it is as it was written."""
    content = path.read_bytes()
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])["__metadata__"]
        if header["format"] != FORMAT:
            raise CheckpointError(f"its format is {header['format']!r}")
        version, sha256 = int(header["format_version"]), header["sha256"]
        tensors = load(content)
        about = json.loads(header["about"])
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: it is not a ridgewalk checkpoint, or damaged ({error})") from error
    if version > FORMAT_VERSION:
        raise FutureVersionError(
            f"checkpoint: {path} has format version {version}, this ridgewalk reads up to {FORMAT_VERSION}; "
            "upgrade ridgewalk, or choose another checkpoint folder"
        )
    if _digest(tensors, header["about"]) != sha256:
        raise CheckpointError(f"{path}: its checksum does not match, so it is damaged")
    arrays = [
        tensors[f"{i:04d}"].view(ml_dtypes.bfloat16) if dtype == "bfloat16" else tensors[f"{i:04d}"]
        for i, dtype in enumerate(about["dtypes"])
    ]
    return Checkpoint(about["step"], arrays, about["settings"])


class FutureVersionError(CheckpointError):
    """Written by a later version of the library: no older checkpoint is used in its place."""


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read, or None where there is none; a damaged one is skipped with a warning."""
    found = files(folder)
    for path in reversed(found):
        try:
            return read(path)
        except FutureVersionError:
            raise
        except (CheckpointError, OSError) as error:
            warnings.warn(f"checkpoint: {error}; an older one is used", RuntimeWarning, stacklevel=2)
    if found:
        raise CheckpointError(
            f"checkpoint: none of the {len(found)} checkpoints in {folder} can be read; move them away to start afresh"
        )
    return None
