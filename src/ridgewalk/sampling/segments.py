"""Draws of a checkpointed run: in memory, and on disk in segments, one safetensors file for a range of draws.

A segment is written before the checkpoint that lists it, with a SHA-256 that the checkpoint holds too. Segments are
merged geometrically: one that is not longer than the one after it is written again together with that one, so that n
checkpoints leave about log2(n) files. A file is removed once no checkpoint in the folder lists it.
"""

import dataclasses
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ridgewalk._io import DamagedFileError, NewerFormatError, peek_description, read_tensors, write_tensors
from ridgewalk._types import PyTree
from ridgewalk.sampling import checkpoint
from ridgewalk.sampling.checkpoint import CheckpointError
from ridgewalk.sampling.storage import MemoryStore, check_storable

FORMAT = "ridgewalk-segment"
FORMAT_VERSION = 1

SEGMENT_BYTES = 2**28
"""About how many bytes a segment holds at most: more are written as several, and full ones are not merged."""

_NAME = re.compile(r"draws-\d{12,19}-\d{12,19}\.safetensors")


@dataclass(frozen=True)
class Segment:
    """The draws from number `first` to `stop`, exclusive, of all chains."""

    first: int
    stop: int
    sha256: str

    def __len__(self) -> int:
        """The number of draws."""
        return self.stop - self.first

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"draws-{self.first:012d}-{self.stop:012d}.safetensors"

    def described(self) -> dict[str, Any]:
        """The segment as a checkpoint lists it."""
        return {"name": self.name, **dataclasses.asdict(self)}


class SegmentStore(MemoryStore):
    """Draws in memory, those up to the last checkpoint in segments on disk too."""

    in_background = True

    def __init__(self, folder: Path, like: dict[str, PyTree], chains: int, draws: int) -> None:
        self.folder, self.chains = folder, chains
        self._paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(like)[0]]
        self._like = jax.tree.leaves(like)
        for leaf in self._like:
            check_storable(np.dtype(leaf.dtype))
        super().__init__(like, chains, draws)
        each = sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in self._like)
        self._draw_bytes = max(1, chains * each)
        self._stop = 0
        self._segments: list[Segment] = []
        self._masked: set[tuple[int, int]] = set()
        self._listed: set[str] = set()
        """Names of files on disk that some checkpoint of the run has listed."""

    # Writing

    def write(self, first: int, draws: dict[str, PyTree]) -> None:
        """Copy the draws."""
        super().write(first, draws)
        self._stop = first + jax.tree.leaves(draws)[0].shape[1]

    def mask_draws(self, places: list[tuple[int, int]]) -> None:
        """NaN for draws; they are listed in the next checkpoint, since their segment may have been written."""
        super().mask_draws(places)
        self._masked.update(places)

    def flush(self) -> None:
        """Write the draws since the last checkpoint as a segment, with those of the segments before it to merge."""
        most = max(1, SEGMENT_BYTES // self._draw_bytes)
        kept = list(self._segments)
        first = kept[-1].stop if kept else 0
        while kept and len(kept[-1]) < most and len(kept[-1]) <= self._stop - first:
            first = kept.pop().first
        self._segments = kept + [
            self._write_segment(start, min(start + most, self._stop)) for start in range(first, self._stop, most)
        ]

    def _write_segment(self, first: int, stop: int) -> Segment:
        path = self.folder / Segment(first, stop, "").name
        if os.path.lexists(path) and peek_description(path, kind=FORMAT) is None:
            raise DamagedFileError(path, "it is in the way of draws that are to be written there; move it elsewhere")
        tensors, dtypes = checkpoint.pack_arrays(leaf[:, first:stop] for leaf in jax.tree.leaves(self.arrays()))
        about = {"first": first, "stop": stop, "dtypes": dtypes, "leaves": self._paths}
        return Segment(first, stop, write_tensors(path, tensors, kind=FORMAT, version=FORMAT_VERSION, about=about))

    def manifest(self) -> dict[str, Any]:
        """The segments, the draws that were masked after they were written, and files that are no longer used.

        The last are removed once the checkpoint is on the disk, or by the process that resumes the run.
        """
        segments = [segment.described() for segment in self._segments]
        return {
            "segments": segments,
            "masked": sorted(self._masked),
            "unused": sorted(self._listed - _names(segments)),
        }

    def remove_unused(self) -> None:
        """Remove segments that a checkpoint of the run listed and that none in the folder lists any more."""
        self._listed |= {segment.name for segment in self._segments}
        used = {name for manifest in checkpoint.stores(self.folder) for name in _names(manifest.get("segments"))}
        for name in self._listed - used:
            path = self.folder / name
            if _is_regular(path):
                path.unlink(missing_ok=True)
            self._listed.discard(name)

    # Reading

    def restart(self, draws: int, manifest: dict[str, Any]) -> None:
        """Continue after `draws` draws of an earlier process, whose segments are verified and read."""
        try:
            segments = [Segment(int(s["first"]), int(s["stop"]), str(s["sha256"])) for s in manifest["segments"]]
            self._masked = {(int(chain), int(draw)) for chain, draw in manifest["masked"]}
            if not all(0 <= chain < self.chains and 0 <= draw < draws for chain, draw in self._masked):
                raise ValueError("a masked draw is not among them")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"checkpoint: its list of draws in {self.folder} is damaged ({error!r})") from error
        starts = [0, *(segment.stop for segment in segments)]
        if [segment.first for segment in segments] != starts[:-1] or starts[-1] != draws:
            raise CheckpointError(
                f"checkpoint: the segments listed in {self.folder} do not hold the {draws} draws of the checkpoint; "
                "choose another checkpoint folder"
            )
        for segment in segments:
            self._read_segment(segment)
        super().mask_draws(sorted(self._masked))
        self._segments, self._stop = segments, draws
        for other in [manifest, *checkpoint.stores(self.folder)]:
            self._listed |= _names(other.get("segments")) | _names(other.get("unused"))

    def _read_segment(self, segment: Segment) -> None:
        path = self.folder / segment.name
        limit = len(segment) * self._draw_bytes + 2**20 + sum(2**10 + 16 * len(path) for path in self._paths)
        try:
            found = read_tensors(path, kind=FORMAT, newest=FORMAT_VERSION, limit=limit)
        except FileNotFoundError:
            raise DamagedFileError(path, "this file of draws is missing; restore it from a copy") from None
        except NewerFormatError as error:
            raise CheckpointError(f"checkpoint: {error}") from error
        if found.sha256 != segment.sha256:
            raise DamagedFileError(path, "these are not the draws that the checkpoint lists; restore it from a copy")
        try:
            leaves = checkpoint.unpack_arrays(found.tensors, found.about["dtypes"])
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(path, f"it is damaged ({error!r})") from error
        expected = [((self.chains, len(segment), *leaf.shape), np.dtype(leaf.dtype)) for leaf in self._like]
        if [(leaf.shape, leaf.dtype) for leaf in leaves] != expected:
            raise DamagedFileError(path, "its arrays are not those of this run; choose another checkpoint folder")
        super().write(segment.first, jax.tree.unflatten(jax.tree.structure(self.arrays()), leaves))


def _names(listed: Any) -> set[str]:
    """The file names in a part of a manifest, which holds names or segments; others are left out."""
    entries = listed if isinstance(listed, list) else []
    found = [entry.get("name") if isinstance(entry, dict) else entry for entry in entries]
    return {name for name in found if isinstance(name, str) and _NAME.fullmatch(name)}


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
