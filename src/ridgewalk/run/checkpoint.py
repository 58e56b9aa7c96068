"""Checkpoints: one safetensors file each, written atomically, checked when read, and never able to run code.

The header holds the settings of the run, what its store of draws held at that step, and a SHA-256 of everything.
"""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ridgewalk._io import DamagedFileError, NewerFormatError, peek_description, read_tensors, write_tensors

FORMAT = "ridgewalk-checkpoint"
FORMAT_VERSION = 3
"""2 added what the store of draws held, 3 segments of draws. 1 is read too: checkpoints of optimisers have no store."""

KEPT = 2
"""How many checkpoints stay: the newest, and one more in case the newest cannot be read."""

_NAME = re.compile(r"step-(\d{1,19})\.safetensors")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


class FutureVersionError(CheckpointError):
    """Written by a later version of the library: no older checkpoint is used in its place."""


@dataclass(frozen=True)
class Checkpoint:
    """A run's state after `step` steps: its arrays, in order, and the settings it was made with."""

    step: int
    arrays: list[np.ndarray]
    settings: dict[str, Any]
    store: dict[str, Any] | None = None
    """What the store of draws held (`DrawStore.manifest`)."""


def pack_arrays(arrays: Iterable[np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays by number as safetensors holds them, and their dtypes: raw bits of bfloat16, pairs for complex128."""
    listed = [np.asarray(array, order="C") for array in arrays]
    return {f"{i:04d}": _packed(array) for i, array in enumerate(listed)}, [str(array.dtype) for array in listed]


def _packed(array: np.ndarray) -> np.ndarray:
    if array.dtype == ml_dtypes.bfloat16:
        return array.view(np.uint16)
    return array[..., None].view(np.float64) if array.dtype == np.complex128 else array


def unpack_arrays(tensors: Mapping[str, np.ndarray], dtypes: list[str]) -> list[np.ndarray]:
    """The arrays that `pack_arrays` was given."""
    return [_unpacked(tensors[f"{i:04d}"], dtype) for i, dtype in enumerate(dtypes)]


def _unpacked(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return array.view(ml_dtypes.bfloat16)
    return array.view(np.complex128)[..., 0] if dtype == "complex128" else array


def _step_of(path: Path) -> int | None:
    """The step in a checkpoint's name; None for other files."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def files(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(step, path) for path in folder.iterdir() if (step := _step_of(path)) is not None]
    return [path for _, path in sorted(found)]


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Add a checkpoint; once it is on the disk, those before the last `KEPT` are removed."""
    tensors, dtypes = pack_arrays(checkpoint.arrays)
    about = {
        "step": checkpoint.step,
        "dtypes": dtypes,
        "settings": checkpoint.settings,
        "store": checkpoint.store,
    }
    path = folder / f"step-{checkpoint.step:012d}.safetensors"
    try:
        write_tensors(path, tensors, kind=FORMAT, version=FORMAT_VERSION, about=about)
    except OSError as error:
        left = [earlier for earlier in files(folder) if _is_checkpoint(earlier)]
        rest = f"the run can be resumed from {left[-1].name}" if left else "no earlier checkpoint exists"
        raise CheckpointError(
            f"checkpoint: step {checkpoint.step} could not be written to {path} ({error.strerror}); {rest}: free "
            "space or make it writable, then make the same call with resume=True"
        ) from error
    _remove_before(folder, checkpoint.step)
    return path


def _remove_before(folder: Path, step: int) -> None:
    """Remove old checkpoints: only files that are checkpoints, and only of steps before this one."""
    older = [path for path in files(folder) if (found := _step_of(path)) is not None and found < step]
    for path in [path for path in older if _is_checkpoint(path)][: -(KEPT - 1)]:
        path.unlink(missing_ok=True)


def _is_checkpoint(path: Path) -> bool:
    """Whether a file's header says that this library wrote it."""
    return peek_description(path, kind=FORMAT) is not None


def stores(folder: Path) -> list[dict[str, Any]]:
    """What the stores of draws held, as the headers of all checkpoints in a folder say."""
    found = [(peek_description(path, kind=FORMAT) or {}).get("store") for path in files(folder)]
    return [store for store in found if isinstance(store, dict)]


def read(path: Path) -> Checkpoint:
    """A checkpoint, if every bit of it is as it was written."""
    try:
        found = read_tensors(path, kind=FORMAT, newest=FORMAT_VERSION)
        about = found.about
        arrays = unpack_arrays(found.tensors, about["dtypes"])
        return Checkpoint(int(about["step"]), arrays, dict(about["settings"]), about.get("store"))
    except NewerFormatError as error:
        raise FutureVersionError(f"checkpoint: {error}, or choose another checkpoint folder") from error
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, MemoryError) as error:
        raise CheckpointError(f"{path}: it is not a ridgewalk checkpoint, or damaged ({error!r})") from error


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
