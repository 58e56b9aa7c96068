"""Draws of a checkpointed run: in memory, and on disk in segments, one safetensors file for a range of draws.

A segment is written before the checkpoint that lists it, with a SHA-256 that the checkpoint holds too. Segments are
merged geometrically: one that is not longer than the one after it is written again together with that one, so that n
checkpoints leave about log2(n) files. A file is removed once no checkpoint in the folder lists it.
"""

import dataclasses
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ridgewalk._io import DamagedFileError, NewerFormatError, peek_description, read_tensors, write_tensors
from ridgewalk._types import PyTree
from ridgewalk.sampling import checkpoint
from ridgewalk.sampling.checkpoint import CheckpointError
from ridgewalk.sampling.parts import ChainPart, count_chains, local_rows
from ridgewalk.sampling.storage import MemoryStore, check_storable

FORMAT = "ridgewalk-segment"
FORMAT_VERSION = 1

SEGMENT_BYTES = 2**28
"""About how many bytes a segment holds at most: more are written as several, and full ones are not merged."""

_NAME = re.compile(r"draws-\d{12,19}-\d{12,19}(\.chains-\d+-\d+)?\.safetensors")


@dataclass(frozen=True)
class Segment:
    """The draws from number `first` to `stop`, exclusive, of all chains, or of a range of them."""

    first: int
    stop: int
    sha256: str
    chains: tuple[int, int] | None = None

    def __len__(self) -> int:
        """The number of draws."""
        return self.stop - self.first

    @property
    def name(self) -> str:
        """The name of its file."""
        part = "" if self.chains is None else f".chains-{self.chains[0]}-{self.chains[1]}"
        return f"draws-{self.first:012d}-{self.stop:012d}{part}.safetensors"

    def described(self) -> dict[str, Any]:
        """The segment as a checkpoint lists it."""
        fields = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        return {"name": self.name, **fields}

    @classmethod
    def of(cls, listed: Any) -> "Segment":
        """The segment that a checkpoint lists."""
        chains = listed.get("chains")
        part = None if chains is None else (int(chains[0]), int(chains[1]))
        return cls(int(listed["first"]), int(listed["stop"]), str(listed["sha256"]), part)


class SegmentStore(MemoryStore):
    """Draws in memory, those up to the last checkpoint in segments on disk too.

    With `part`, chains that this store has of those of a run in several processes, the arrays are parts of others.
    """

    in_background = True

    def __init__(
        self,
        folder: Path,
        like: dict[str, PyTree],
        chains: int,
        draws: int,
        part: tuple[int, int] | None = None,
        arrays: PyTree = None,
    ) -> None:
        self.folder, self.chains, self.part = folder, chains, part
        self._paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(like)[0]]
        self._like = jax.tree.leaves(like)
        for leaf in self._like:
            check_storable(np.dtype(leaf.dtype))
        super().__init__(like, chains, draws, arrays)
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
        self.written(first + jax.tree.leaves(draws)[0].shape[1])

    def written(self, stop: int) -> None:
        """Note that the arrays hold so many draws."""
        self._stop = stop

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
        path = self.folder / Segment(first, stop, "", self.part).name
        if os.path.lexists(path) and peek_description(path, kind=FORMAT) is None:
            raise DamagedFileError(path, "it is in the way of draws that are to be written there; move it elsewhere")
        tensors, dtypes = checkpoint.pack_arrays(leaf[:, first:stop] for leaf in jax.tree.leaves(self.arrays(stop)))
        about = {"first": first, "stop": stop, "dtypes": dtypes, "leaves": self._paths}
        sha256 = write_tensors(path, tensors, kind=FORMAT, version=FORMAT_VERSION, about=about)
        return Segment(first, stop, sha256, self.part)

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
        listed = [part for manifest in checkpoint.stores(self.folder) for part in manifest.get("parts", [manifest])]
        used = {name for manifest in listed for name in _names(manifest.get("segments"))}
        for name in self._listed - used:
            path = self.folder / name
            if _is_regular(path):
                path.unlink(missing_ok=True)
            self._listed.discard(name)

    # Reading

    def restart(self, draws: int, manifest: dict[str, Any]) -> None:
        """Continue after `draws` draws of an earlier process, whose segments are verified and read."""
        own = self.part or (0, self.chains)
        listed = manifest.get("parts", [{**manifest, "chains": own}])
        self._stop = draws
        for part in listed:
            first, stop = (int(chain) for chain in part["chains"])
            here = slice(max(first, own[0]) - first, min(stop, own[1]) - first)
            if here.start < here.stop:
                segments = self._read(draws, part, stop - first, here, max(first - own[0], 0))
                same = (first, stop) == own
                self._segments = segments if same else []  # all are written again where the parts were others
        super().mask_draws(sorted(self._masked))
        others = [part for other in checkpoint.stores(self.folder) for part in other.get("parts", [other])]
        for other in [*listed, *others]:
            self._listed |= _names(other.get("segments")) | _names(other.get("unused"))

    def _read(self, draws: int, manifest: dict[str, Any], chains: int, here: slice, to: int) -> list[Segment]:
        """Read the segments of a manifest, and keep the chains `here` of it from number `to` on."""
        try:
            segments = [Segment.of(listed) for listed in manifest["segments"]]
            masked = {(int(chain), int(draw)) for chain, draw in manifest["masked"]}
            if not all(0 <= chain < chains and 0 <= draw < draws for chain, draw in masked):
                raise ValueError("a masked draw is not among them")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"checkpoint: its list of draws in {self.folder} is damaged ({error!r})") from error
        starts = [0, *(segment.stop for segment in segments)]
        if [segment.first for segment in segments] != starts[:-1] or starts[-1] != draws:
            raise CheckpointError(
                f"checkpoint: the segments listed in {self.folder} do not hold the {draws} draws of the checkpoint; "
                "choose another checkpoint folder"
            )
        self._masked |= {(c - here.start + to, draw) for c, draw in masked if here.start <= c < here.stop}
        into = slice(to, to + here.stop - here.start)
        for segment in segments:
            for array, leaf in zip(
                jax.tree.leaves(self.arrays(draws)), self._read_segment(segment, chains), strict=True
            ):
                array[into, segment.first : segment.stop] = leaf[here]
        return segments

    def _read_segment(self, segment: Segment, chains: int) -> list[np.ndarray]:
        path = self.folder / segment.name
        limit = (
            len(segment) * chains * (self._draw_bytes // max(self.chains, 1))
            + 2**20
            + sum(2**10 + 16 * len(path) for path in self._paths)
        )
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
        expected = [((chains, len(segment), *leaf.shape), np.dtype(leaf.dtype)) for leaf in self._like]
        if [(leaf.shape, leaf.dtype) for leaf in leaves] != expected:
            raise DamagedFileError(path, "its arrays are not those of this run; choose another checkpoint folder")
        return leaves


class SegmentParts(MemoryStore):
    """Draws of the chains of one process of several: each part that it owns is written in segments of its own."""

    in_background = True

    def __init__(self, folder: Path, like: dict[str, PyTree], draws: int, parts: Sequence[ChainPart]) -> None:
        own = local_rows(parts, jax.process_index())
        super().__init__(like, count_chains([part for part, _ in own]), draws)
        self._total = count_chains(parts)
        self._stores: list[SegmentStore] = []
        for part, rows in own:
            chains = (part.chains.start, part.chains.stop)
            view = jax.tree.map(lambda x, rows=rows: x[rows], self.arrays(draws))
            self._stores.append(SegmentStore(folder, like, chains[1] - chains[0], draws, chains, view))
        self._owned = [
            store for store, (part, _) in zip(self._stores, own, strict=True) if part.owner == jax.process_index()
        ]
        self._rows = {
            chain: rows.start + i
            for part, rows in own
            for i, chain in enumerate(range(part.chains.start, part.chains.stop))
        }

    def write(self, first: int, draws: dict[str, PyTree]) -> None:
        """Copy the draws."""
        super().write(first, draws)
        for store in self._stores:
            store.written(first + jax.tree.leaves(draws)[0].shape[1])

    def mask_draws(self, places: list[tuple[int, int]]) -> None:
        """NaN for draws of chains that this process has."""
        super().mask_draws([(self._rows[chain], draw) for chain, draw in places if chain in self._rows])
        for store in self._stores:
            first, stop = store.part or (0, 0)
            store.mask_draws([(chain - first, draw) for chain, draw in places if first <= chain < stop])

    def flush(self) -> None:
        """Write the draws since the last checkpoint."""
        for store in self._owned:
            store.flush()

    def manifest(self) -> dict[str, Any]:
        """What the parts of this process hold."""
        return {"parts": [{"chains": store.part, **store.manifest()} for store in self._owned]}

    def remove_unused(self) -> None:
        """Remove segments that no checkpoint lists any more."""
        for store in self._owned:
            store.remove_unused()

    def restart(self, draws: int, manifest: dict[str, Any]) -> None:
        """Continue after `draws` draws of earlier processes, however many they were."""
        if "parts" not in manifest:  # of one process
            manifest = {"parts": [{**manifest, "chains": (0, self._total)}]}
        for store in self._stores:
            store.restart(draws, manifest)


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
