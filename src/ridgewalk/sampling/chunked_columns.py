"""The arrays of a store of draws: their layout, and chunks that are written, verified and masked."""

import math
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from ridgewalk import _zarr
from ridgewalk._io import DamagedFileError, read_regular
from ridgewalk._pytree import leaf_names
from ridgewalk._types import PyTree
from ridgewalk.sampling.checkpoint import differences
from ridgewalk.sampling.storage import check_storable, is_floating

CHUNK_BYTES = 2**22
"""About how many bytes a chunk holds."""

MOST_DRAWS = 2**14
"""How many draws a chunk holds at most."""

COORDINATES = ("chain", "draw")
"""The first two axes of every array."""


def most_draws(draws: int) -> int:
    """How many draws a chunk of a run with so many draws holds at most."""
    return max(1, min(MOST_DRAWS, draws))


class ColumnSpec(NamedTuple):
    """An array of the store: where it is, which leaf it holds, and a draw's shape and dtype."""

    name: str
    leaf: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """bfloat16 is stored as its raw uint16 bits."""
        return np.dtype(np.uint16) if self.dtype == ml_dtypes.bfloat16 else self.dtype

    @property
    def fill(self) -> Any:
        """What stands for a draw to come, in the stored dtype."""
        value = np.asarray(np.nan if is_floating(self.dtype) else 0, self.dtype)
        return value.view(self.stored_dtype)[()]

    @property
    def attributes(self) -> dict[str, Any]:
        """What the array says about itself."""
        return {"leaf": self.leaf} | ({"raw_bits_of": "bfloat16"} if self.dtype == ml_dtypes.bfloat16 else {})

    def chunks(self, chains: int, draws: int) -> tuple[int, ...]:
        """A chunk's shape: the chains and as many draws as fit, or fewer chains where one draw is large."""
        draw_bytes = max(1, int(np.prod(self.shape)) * self.stored_dtype.itemsize)
        draws_per_chunk = int(np.clip(CHUNK_BYTES // (draw_bytes * chains), 1, most_draws(draws)))
        chains_per_chunk = int(np.clip(CHUNK_BYTES // (draw_bytes * draws_per_chunk), 1, chains))
        return (chains_per_chunk, draws_per_chunk, *(max(1, length) for length in self.shape))

    def check(self, info: _zarr.ArrayInfo, chains: int) -> None:
        """Raise where an array on disk is not laid out as this run's is."""
        now = {
            "shape": (info.shape[0], *info.shape[2:]),
            "dtype": info.dtype.str,
            "codecs": info.codecs,
            "attributes": info.attributes,
        }
        expected = {
            "shape": (chains, *self.shape),
            "dtype": self.stored_dtype.newbyteorder("<").str,
            "codecs": ("bytes", "zstd", "crc32c"),
            "attributes": self.attributes,
        }
        _refuse(info.folder / _zarr.METADATA, differences(expected, now))


def _refuse(path: Path, changed: list[str]) -> None:
    if changed:
        listed = "; ".join(changed)
        raise DamagedFileError(path, f"it is not as the run wrote it ({listed}); restore the store from a copy")


def column_specs(like: dict[str, PyTree]) -> list[ColumnSpec]:
    """The arrays of a store, from one chain's draw: shapes and dtypes by group."""
    specs = []
    for group, tree in like.items():
        paths = jax.tree_util.tree_flatten_with_path(tree)[0]
        for name, (path, leaf) in zip(_zarr.array_names(leaf_names(tree), COORDINATES), paths, strict=True):
            dtype = np.dtype(leaf.dtype)
            check_storable(dtype)
            specs.append(ColumnSpec(f"{group}/{name}", jax.tree_util.keystr(path), tuple(leaf.shape), dtype))
    return specs


# Files and columns


class DrawFolder(_zarr.CheckedStore):
    """The files of a store; `counts` are the draws written to each array, whose chunks have to exist."""

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self.counts: dict[str, int] = {}

    def with_read_only(self, read_only: bool = False) -> "DrawFolder":
        """The same store, for reading only or not."""
        other = super().with_read_only(read_only)
        assert isinstance(other, DrawFolder)
        other.counts = self.counts
        return other

    def must_exist(self, name: str, index: tuple[int, ...]) -> bool:
        """Whether a chunk holds draws that were written."""
        return name in self.counts and index[1] * self.arrays[name].chunks[1] < self.counts[name]


def _prefix_digest(values: np.ndarray) -> str:
    """Shape and checksum of the draws in a chunk that is not full."""
    plain = np.ascontiguousarray(values)
    return f"{values.shape[1]}-{_zarr.checksum(plain.reshape(-1).view(np.uint8)):08x}"


class ChunkedColumn:
    """One array on disk, written in whole chunks; the chunk that is not full yet is kept in memory."""

    def __init__(
        self, spec: ColumnSpec, array: Any, info: _zarr.ArrayInfo, files: DrawFolder, chains: slice | None = None
    ) -> None:
        self.spec, self.array, self.info, self.files = spec, array, info, files
        self.chains = chains or slice(0, info.shape[0])
        self.count = self.chains.stop - self.chains.start
        self.per_chunk = info.chunks[1]
        if self.chains.start % info.chunks[0] or (
            self.chains.stop % info.chunks[0] and self.chains.stop < info.shape[0]
        ):
            raise DamagedFileError(info.folder, "its chunks hold chains of several processes; resume with one process")
        draw_bytes = info.chunks[0] * math.prod(info.shape[2:]) * spec.stored_dtype.itemsize
        if self.per_chunk > 1 and self.per_chunk * draw_bytes > CHUNK_BYTES:
            raise DamagedFileError(info.folder / _zarr.METADATA, "its chunks are larger than any that a run writes")
        self.buffer = np.empty((self.count, self.per_chunk, *info.shape[2:]), spec.stored_dtype)
        self.start = self.stop = 0
        self.unsynced: set[Path] = set()
        self.signatures: dict[Path, tuple[int, int, int]] = {}

    # Chunks

    def _blocks(self) -> list[slice]:
        """The chains of every chunk, counted from the first that is written."""
        chains, each = self.count, self.info.chunks[0]
        return [slice(first, min(first + each, chains)) for first in range(0, chains, each)]

    def _indices(self, chunk: int) -> list[tuple[int, ...]]:
        """The chunks that hold the same draws, by chain."""
        if self.array.size == 0:
            return []
        rest, first = (0,) * (len(self.info.shape) - 2), self.chains.start // self.info.chunks[0]
        return [(first + block, chunk, *rest) for block in range(len(self._blocks()))]

    def _key(self, index: tuple[int, ...]) -> str:
        return self.info.chunk_file(index).relative_to(self.files.root).as_posix()

    def _write_to_array(self, chunk: int, values: np.ndarray) -> None:
        """Write a chunk of draws and note its files."""
        first = chunk * self.per_chunk
        last = min(first + self.per_chunk, self.array.shape[1])
        self.array[self.chains, first:last] = values[:, : last - first]
        for index in self._indices(chunk):
            path = self.info.chunk_file(index)
            self.signatures[path] = signature(path)
            self.unsynced.add(path)

    def write(self, first: int, values: np.ndarray) -> None:
        """Append draws; chunks are written as they fill up."""
        assert first == self.stop, "draws come in order"
        values = values.view(self.spec.stored_dtype)
        while values.shape[1]:
            at = self.stop - self.start
            part = values[:, : self.per_chunk - at]
            self.buffer[:, at : at + part.shape[1]] = part
            self.stop += part.shape[1]
            values = values[:, part.shape[1] :]
            if self.stop - self.start == self.per_chunk:
                self.write_chunk()
                self.start = self.stop

    def write_chunk(self) -> None:
        """Write the chunk in memory, with fill values where draws are still to come."""
        if self.stop > self.start:
            self.buffer[:, self.stop - self.start :] = self.spec.fill
            self._write_to_array(self.start // self.per_chunk, self.buffer)
            self.files.counts[self.spec.name] = self.stop

    def mask(self, places: Iterable[tuple[int, int]]) -> None:
        """NaN for draws (chain, draw), in memory or on disk."""
        if not is_floating(self.spec.dtype):
            return
        on_disk: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for chain, draw in places:
            if not self.chains.start <= chain < self.chains.stop:
                continue
            row = chain - self.chains.start
            if draw >= self.start:
                self.buffer[row, draw - self.start] = self.spec.fill
            else:
                on_disk[draw // self.per_chunk].append((row, draw % self.per_chunk))
        for chunk, rows in on_disk.items():
            values = self._load(chunk)
            for chain, row in rows:
                values[chain, row] = self.spec.fill
            self._write_to_array(chunk, values)

    def _load(self, chunk: int) -> np.ndarray:
        first = chunk * self.per_chunk
        return np.array(_zarr.read_array(self.array, np.s_[self.chains, first : first + self.per_chunk]))

    # What is on disk, and whether it is what was written

    def manifest(self) -> dict[str, Any]:
        """The array's metadata, how many draws it has, and a digest of every chunk."""
        finished = range(self.stop // self.per_chunk)
        filled = self.stop % self.per_chunk
        digests = self.files.digests
        return {
            "metadata": self.info.metadata,
            "draws": self.stop,
            "chunks": [[digests[self._key(index)] for index in self._indices(chunk)] for chunk in finished],
            "last": [_prefix_digest(self.buffer[block, :filled]) for block in self._blocks()] if filled else [],
        }

    def restart(self, then: dict[str, Any], draws: int, masked: set[tuple[int, int]]) -> None:
        """Continue after `draws` draws, once all their chunks are found to be those of the manifest."""
        _refuse(self.info.folder / _zarr.METADATA, differences(_fixed(then["metadata"]), _fixed(self.info.metadata)))
        if then["draws"] != draws or len(then["chunks"]) != draws // self.per_chunk:
            raise ValueError(f"the manifest counts {then['draws']} draws of {self.spec.name}; the run has made {draws}")
        self.start, self.stop = draws - draws % self.per_chunk, draws
        self.files.counts[self.spec.name] = draws
        first = self.chains.start // self.info.chunks[0]
        own = slice(first, first + len(self._blocks()))
        for chunk, expected in enumerate(then["chunks"]):
            for index, wanted in zip(self._indices(chunk), expected[own], strict=True):
                self._verify(index, wanted, masked)
        filled = self.stop - self.start
        if filled:
            chunk = self.start // self.per_chunk
            self.buffer[:, :filled] = self._load(chunk)[:, :filled]
            for index, block, wanted in zip(self._indices(chunk), self._blocks(), then["last"][own], strict=False):
                if _prefix_digest(self.buffer[block, :filled]) != wanted:
                    self._allow_masked(index, self.buffer[block], masked)
                path = self.info.chunk_file(index)
                self.signatures[path] = signature(path)

    def _verify(self, index: tuple[int, ...], wanted: str, masked: set[tuple[int, int]]) -> None:
        path, key = self.info.chunk_file(index), self._key(index)
        try:
            content = read_regular(path, 2 * self.info.chunk_bytes + 2**16)
        except (FileNotFoundError, NotADirectoryError):
            raise _zarr.missing_chunk(path) from None
        self.info.check_content(path, content)
        self.signatures[path] = signature(path)
        self.files.digests[key] = _zarr.digest(content)
        if self.files.digests[key] != wanted:
            self._allow_masked(index, self._load(index[1])[self._block(index)], masked)

    def _block(self, index: tuple[int, ...]) -> slice:
        return self._blocks()[index[0] - self.chains.start // self.info.chunks[0]]

    def _allow_masked(self, index: tuple[int, ...], values: np.ndarray, masked: set[tuple[int, int]]) -> None:
        """A chunk may differ from the manifest where draws were masked after it: then those are NaN."""
        block, first = self._block(index), index[1] * self.per_chunk
        rows = [
            (chain - self.chains.start - block.start, draw - first)
            for chain, draw in masked
            if block.start <= chain - self.chains.start < block.stop and first <= draw < first + self.per_chunk
        ]
        numbers = values.view(self.spec.dtype)
        if not rows or not is_floating(self.spec.dtype) or not all(np.isnan(numbers[row]).all() for row in rows):
            raise DamagedFileError(
                self.info.chunk_file(index), "it is not the chunk that the run wrote there; restore it from a copy"
            )

    def check_unchanged(self) -> None:
        """Raise where a file is not the one that was written."""
        for path, written in self.signatures.items():
            if signature(path) != written:
                raise DamagedFileError(path, "it was altered or replaced while the run was writing to the store")

    def unsynced_files(self) -> set[Path]:
        """Files written since the last call, and their folders."""
        folders = {
            folder for path in self.unsynced for folder in path.parents if folder.is_relative_to(self.info.folder)
        }
        files, self.unsynced = self.unsynced, set()
        return files | folders


def _fixed(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata but for the number of draws, which grows with a run that is made longer."""
    shape = metadata["shape"]
    return {**metadata, "shape": [shape[0], *shape[2:]]}


def signature(path: Path) -> tuple[int, int, int]:
    """Which file this is: it changes where the file is written or replaced."""
    try:
        about = os.lstat(path)
    except OSError as error:
        raise DamagedFileError(path, "it was removed while the run was writing to the store") from error
    return about.st_ino, about.st_size, about.st_mtime_ns
