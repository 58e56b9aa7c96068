"""Draws in memory, and at every checkpoint also in safetensors files beside it, from which a run is resumed.

A file holds draws of all chains, from one number to another, and a SHA-256 of them. Files of about `CHUNK_BYTES` are
written once; the draws after the last of them are in one more file, which the next checkpoint replaces. The manifest,
which is a part of the checkpoint, lists the files with their digests: a file of another run is refused.
"""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ridgewalk._io import DamagedFileError, is_tensor_file, read_tensors, write_tensors
from ridgewalk._types import PyTree
from ridgewalk.run.checkpoint import KEPT
from ridgewalk.run.stores import MemoryStore

FORMAT = "ridgewalk-draws"
FORMAT_VERSION = 1

CHUNK_BYTES = 2**22
"""About how many bytes a file holds: at least one draw of every chain."""

MOST_DRAWS = 2**14
"""How many draws a file holds at most."""

_NAME = re.compile(r"draws-(\d{12,19})-(\d{12,19})\.safetensors")


def _storable(array: np.ndarray) -> np.ndarray:
    """A view in a dtype of safetensors: complex numbers as pairs, bfloat16 and the like as their bits."""
    if array.dtype.kind == "c":
        return array[..., None].view(array.real.dtype)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


class ChunkFileStore(MemoryStore):
    """Draws in memory; `flush` writes them to files of a folder."""

    in_background = True

    def __init__(self, folder: Path, like: dict[str, PyTree], chains: int, draws: int) -> None:
        super().__init__(like, chains, draws)
        self.folder = folder
        self._leaves: list[np.ndarray] = jax.tree.leaves(self._arrays)
        draw_bytes = sum(leaf.nbytes for leaf in self._leaves) // max(draws, 1)
        self._chunk = min(max(1, CHUNK_BYTES // max(draw_bytes, 1)), MOST_DRAWS)
        self._draws = self._filed = 0  # in memory, and in full files
        self._digests: dict[str, str] = {}  # by the names of the files that hold all draws of the last flush, in order
        self._replaceable = self._found()  # names of files that are not full, or that no checkpoint lists; newest last
        self._masked: list[tuple[int, int]] = []

    def restart(self, draws: int, manifest: dict[str, Any]) -> None:
        """Read the draws that a checkpoint counts."""
        for name, sha256 in manifest["files"]:
            self._read(self.folder / name, sha256)
        if manifest["draws"] != draws or self._draws != draws:
            raise ValueError(f"the files of {self.folder} hold {self._draws} draws; the run has made {draws}")
        self.mask_draws([(int(chain), int(draw)) for chain, draw in manifest["masked"]])
        listed = list(self._digests)
        full = draws - self._filed == 0
        self._replaceable = [name for name in self._replaceable if name not in listed] + ([] if full else listed[-1:])

    def _found(self) -> list[str]:
        """Files of draws in the folder, those with most draws first: later ones than the checkpoint's go first."""
        names = [path.name for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(names, reverse=True)

    def _read(self, path: Path, sha256: str) -> None:
        """Copy the draws of a file that is the one that the manifest lists."""
        match = _NAME.fullmatch(path.name)
        if match is None or int(match[1]) != self._draws:
            raise ValueError(f"{path.name} does not follow on {self._draws} draws")
        try:
            found = read_tensors(path, kind=FORMAT, newest=FORMAT_VERSION)
        except FileNotFoundError:
            raise DamagedFileError(path, "it is missing; restore it from a copy") from None
        if found.sha256 != sha256:
            raise DamagedFileError(path, "it is not the file that the run wrote; restore it from a copy")
        first, stop = int(match[1]), int(match[2])
        for i, leaf in enumerate(self._leaves):
            values = found.tensors.get(f"{i:04d}")
            part = _storable(leaf)[:, first:stop]
            if values is None or (values.dtype, values.shape) != (part.dtype, part.shape):
                raise DamagedFileError(path, f"array {i:04d} is not {part.dtype} of shape {part.shape}")
            part[...] = values
        self._digests[path.name], self._draws = sha256, stop
        if stop - first >= self._chunk:
            self._filed = stop

    def write(self, first: int, draws: dict[str, PyTree]) -> None:
        """Copy the draws."""
        super().write(first, draws)
        self._draws = first + jax.tree.leaves(draws)[0].shape[1]

    def mask_draws(self, places: list[tuple[int, int]]) -> None:
        """NaN for draws; the manifest lists them, since files are not changed once they are written."""
        super().mask_draws(places)
        self._masked += places

    def flush(self) -> None:
        """Write the draws that are in no full file yet, and remove files that no checkpoint lists any more."""
        if self._replaceable:
            self._digests.pop(self._replaceable[-1], None)
        while self._draws - self._filed >= self._chunk:
            self._write(self._filed, self._filed + self._chunk)
            self._filed += self._chunk
        if self._draws > self._filed:
            name = self._write(self._filed, self._draws)
            self._replaceable.append(name)
        kept = KEPT + 1  # those of the checkpoints on the disk, and that of the checkpoint to come
        for name in self._replaceable[:-kept]:
            if is_tensor_file(self.folder / name, FORMAT):
                (self.folder / name).unlink()
        self._replaceable = self._replaceable[-kept:]

    def _write(self, first: int, stop: int) -> str:
        name = f"draws-{first:012d}-{stop:012d}.safetensors"
        tensors = {f"{i:04d}": _storable(leaf)[:, first:stop] for i, leaf in enumerate(self._leaves)}
        about = {"first": first, "stop": stop}
        self._digests[name] = write_tensors(
            self.folder / name, tensors, kind=FORMAT, version=FORMAT_VERSION, about=about
        )
        self._replaceable = [other for other in self._replaceable if other != name]
        return name

    def manifest(self) -> dict[str, Any]:
        """The files that hold the draws, with their digests, and the draws that were masked."""
        return {"draws": self._draws, "files": list(self._digests.items()), "masked": self._masked}
