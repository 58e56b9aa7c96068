"""Draws on disk: a zarr group that can be read, also by xarray, while the run goes on.

The group has ArviZ's group names: `posterior` (positions), `collected` and `sample_stats`; each leaf is an array
(chain, draw, …) of the final shape from the start, NaN where a draw is still to come. Every chunk carries a CRC-32C.
A manifest lists, for every array, its metadata, the number of draws, and a digest of every chunk: a checkpoint holds
it, and the store itself once the run has ended.
"""

import json
import math
import os
import secrets
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from ridgewalk import _zarr
from ridgewalk._io import (
    DamagedFileError,
    force_to_disk,
    read_json_object,
    read_regular,
    replace_folder,
    seal,
    temporary_folder,
    unseal,
    write_atomically,
)
from ridgewalk._pytree import leaf_names
from ridgewalk._types import PyTree
from ridgewalk.sampling.checkpoint import differences
from ridgewalk.sampling.storage import DrawStore, check_storable, is_floating

FORMAT = "ridgewalk-draws"
FORMAT_VERSION = 2

CHUNK_BYTES = 2**22
"""About how many bytes a chunk holds."""

MOST_DRAWS = 2**14
"""How many draws a chunk holds at most."""

DTYPES = _zarr.NUMBERS | {"complex64", "complex128"}

MANIFEST = "manifest.json"
MASKED = "masked.json"
OWN_FILES_LIMIT = 2**30


# Names and layout


def file_names(names: list[str]) -> list[str]:
    """A folder name for every leaf: letters, digits and `._- ` are kept, others escaped as in a URL.

    Names that zarr reserves, that are too long, or that differ only by case are changed, so that all are valid and
    distinct on every file system.
    """
    found: list[str] = []
    seen: set[str] = set()
    for name in names:
        kept = "".join(c if c.isalnum() or c in "._- " else _escaped(c) for c in name)
        if kept.startswith((".", "__", " ")) or kept.casefold() == _zarr.METADATA or not kept:
            kept = _escaped(kept[:1]) + kept[1:]
        if len(kept.encode()) > 120:
            short = sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
            kept = f"{kept.encode()[:100].decode(errors='ignore')}~{short}"
        unique, count = kept, 1
        while (folded := unicodedata.normalize("NFC", unique).casefold()) in seen:
            count += 1
            unique = f"{kept}~{count}"
        seen.add(folded)
        found.append(unique)
    return found


def _escaped(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


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
        """A chunk's shape: all chains and as many draws as fit, or fewer chains where one draw is large."""
        draw_bytes = max(1, int(np.prod(self.shape)) * self.stored_dtype.itemsize)
        most = max(1, min(MOST_DRAWS, draws))
        draws_per_chunk = int(np.clip(CHUNK_BYTES // (draw_bytes * chains), 1, most))
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
        for name, (path, leaf) in zip(file_names(leaf_names(tree)), paths, strict=True):
            dtype = np.dtype(leaf.dtype)
            check_storable(dtype)
            specs.append(ColumnSpec(f"{group}/{name}", jax.tree_util.keystr(path), tuple(leaf.shape), dtype))
    return specs


def settings_of(path: Path) -> Any:
    """The settings of the run that wrote a store, or None where the folder is something else."""
    if not os.path.lexists(path / _zarr.METADATA):
        return None
    about = _zarr.inspect_group(path, DTYPES).attributes
    if about.get("format") != FORMAT:
        return None
    version = about.get("format_version")
    if not isinstance(version, int) or version != FORMAT_VERSION:
        fix = (
            "finish the run with the version of ridgewalk that wrote it"
            if version == 1
            else "upgrade ridgewalk, if a later version wrote it"
        )
        raise ValueError(
            f"store: {path}/{_zarr.METADATA} has format version {version}, this ridgewalk writes {FORMAT_VERSION}; "
            f"{fix}, or choose another name"
        )
    try:
        return json.loads(about["settings"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedFileError(path / _zarr.METADATA, f"its settings are damaged ({error!r})") from error


# Arrays


class StoredArray:
    """Draws on disk, read when they are indexed. A chunk that is missing or damaged is an error that names its file."""

    def __init__(self, array: Any, dtype: np.dtype[Any]) -> None:
        self.array, self.dtype = array, dtype
        self.shape: tuple[int, ...] = array.shape
        self.chunks: tuple[int, ...] = array.chunks

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        """Length of the first axis."""
        return self.shape[0]

    def __getitem__(self, selection: Any) -> np.ndarray:
        """The selected draws, in memory."""
        values = _zarr.read_array(self.array, selection)
        return values if values.dtype == self.dtype else values.view(self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All draws, in memory."""
        return self[...] if dtype is None else self[...].astype(dtype, copy=False)

    def __repr__(self) -> str:
        """Shape, dtype and place."""
        return f"StoredArray(shape={self.shape}, dtype={self.dtype}, path={self.array.store.root / self.array.path})"


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
        return index[1] * self.arrays[name].chunks[1] < self.counts.get(name, 0)


def _prefix_digest(values: np.ndarray) -> str:
    """Shape and checksum of the draws in a chunk that is not full."""
    plain = np.ascontiguousarray(values)
    return f"{values.shape[1]}-{_zarr.checksum(plain.reshape(-1).view(np.uint8)):08x}"


class ChunkedColumn:
    """One array on disk, written in whole chunks; the chunk that is not full yet is kept in memory."""

    def __init__(self, spec: ColumnSpec, array: Any, info: _zarr.ArrayInfo, files: DrawFolder) -> None:
        self.spec, self.array, self.info, self.files = spec, array, info, files
        self.per_chunk = info.chunks[1]
        draw_bytes = info.shape[0] * math.prod(info.shape[2:]) * spec.stored_dtype.itemsize
        if self.per_chunk > 1 and self.per_chunk * draw_bytes > CHUNK_BYTES:
            raise DamagedFileError(info.folder / _zarr.METADATA, "its chunks are larger than any that a run writes")
        self.buffer = np.empty((info.shape[0], self.per_chunk, *info.shape[2:]), spec.stored_dtype)
        self.start = self.stop = 0
        self.unsynced: set[Path] = set()
        self.signatures: dict[Path, tuple[int, int, int]] = {}

    # Chunks

    def _blocks(self) -> list[slice]:
        """The chains of every chunk."""
        chains, each = self.info.shape[0], self.info.chunks[0]
        return [slice(first, min(first + each, chains)) for first in range(0, chains, each)]

    def _indices(self, chunk: int) -> list[tuple[int, ...]]:
        """The chunks that hold the same draws, by chain."""
        if self.array.size == 0:
            return []
        rest = (0,) * (len(self.info.shape) - 2)
        return [(block, chunk, *rest) for block in range(len(self._blocks()))]

    def _key(self, index: tuple[int, ...]) -> str:
        return self.info.chunk_file(index).relative_to(self.files.root).as_posix()

    def _write_to_array(self, chunk: int, values: np.ndarray) -> None:
        """Write a chunk of draws and note its files."""
        first = chunk * self.per_chunk
        last = min(first + self.per_chunk, self.array.shape[1])
        self.array[:, first:last] = values[:, : last - first]
        for index in self._indices(chunk):
            path = self.info.chunk_file(index)
            self.signatures[path] = _signature(path)
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
            if draw >= self.start:
                self.buffer[chain, draw - self.start] = self.spec.fill
            else:
                on_disk[draw // self.per_chunk].append((chain, draw % self.per_chunk))
        for chunk, rows in on_disk.items():
            values = self._load(chunk)
            for chain, row in rows:
                values[chain, row] = self.spec.fill
            self._write_to_array(chunk, values)

    def _load(self, chunk: int) -> np.ndarray:
        first = chunk * self.per_chunk
        return np.array(_zarr.read_array(self.array, np.s_[:, first : first + self.per_chunk]))

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
        for chunk, expected in enumerate(then["chunks"]):
            for index, wanted in zip(self._indices(chunk), expected, strict=True):
                self._verify(index, wanted, masked)
        filled = self.stop - self.start
        if filled:
            chunk = self.start // self.per_chunk
            self.buffer[:, :filled] = self._load(chunk)[:, :filled]
            for index, block, wanted in zip(self._indices(chunk), self._blocks(), then["last"], strict=False):
                if _prefix_digest(self.buffer[block, :filled]) != wanted:
                    self._allow_masked(index, self.buffer[block], masked)
                path = self.info.chunk_file(index)
                self.signatures[path] = _signature(path)

    def _verify(self, index: tuple[int, ...], wanted: str, masked: set[tuple[int, int]]) -> None:
        path, key = self.info.chunk_file(index), self._key(index)
        try:
            content = read_regular(path, 2 * self.info.chunk_bytes + 2**16)
        except (FileNotFoundError, NotADirectoryError):
            raise _zarr.missing_chunk(path) from None
        self.info.check_content(path, content)
        self.signatures[path] = _signature(path)
        self.files.digests[key] = _zarr.digest(content)
        if self.files.digests[key] != wanted:
            block = self._blocks()[index[0]]
            self._allow_masked(index, self._load(index[1])[block], masked)

    def _allow_masked(self, index: tuple[int, ...], values: np.ndarray, masked: set[tuple[int, int]]) -> None:
        """A chunk may differ from the manifest where draws were masked after it: then those are NaN."""
        block, first = self._blocks()[index[0]], index[1] * self.per_chunk
        rows = [
            (chain - block.start, draw - first)
            for chain, draw in masked
            if block.start <= chain < block.stop and first <= draw < first + self.per_chunk
        ]
        numbers = values.view(self.spec.dtype)
        if not rows or not is_floating(self.spec.dtype) or not all(np.isnan(numbers[row]).all() for row in rows):
            raise DamagedFileError(
                self.info.chunk_file(index), "it is not the chunk that the run wrote there; restore it from a copy"
            )

    def check_unchanged(self) -> None:
        """Raise where a file is not the one that was written."""
        for path, signature in self.signatures.items():
            if _signature(path) != signature:
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


def _signature(path: Path) -> tuple[int, int, int]:
    """Which file this is: it changes where the file is written or replaced."""
    try:
        about = os.lstat(path)
    except OSError as error:
        raise DamagedFileError(path, "it was removed while the run was writing to the store") from error
    return about.st_ino, about.st_size, about.st_mtime_ns


# The store


class ZarrStore(DrawStore):
    """Draws on disk, written by the writer thread."""

    in_background = True

    def __init__(self, path: Path, like: dict[str, PyTree], chains: int, draws: int) -> None:
        """Open a store that exists, and make it long enough for the draws."""
        self.path, self.like = path, like
        specs = column_specs(like)
        group = self._open(specs, chains)
        for spec in specs:
            array = group[spec.name]
            if array.shape[1] < draws:
                array.resize((chains, draws, *spec.shape))
        group = self._open(specs, chains)
        files: Any = group.store
        self.files: DrawFolder = files
        self.run_id = str(group.attrs.get("run"))
        self.columns = [
            ChunkedColumn(
                spec, group[spec.name].with_config({"write_empty_chunks": True}), files.arrays[spec.name], files
            )
            for spec in specs
        ]
        places = {path, *(path / spec.name for spec in specs), *(path / spec.name.split("/")[0] for spec in specs)}
        self.metadata = {place / _zarr.METADATA: _signature(place / _zarr.METADATA) for place in places}
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _open(self, specs: list[ColumnSpec], chains: int) -> Any:
        group: Any = _zarr.open_group(self.path, mode="r+", dtypes=DTYPES, complete=False, store=DrawFolder)
        for spec in specs:
            if spec.name not in group.store.arrays:
                raise DamagedFileError(self.path / spec.name, "this array of the store is missing")
            spec.check(group.store.arrays[spec.name], chains)
        return group

    @classmethod
    def create(cls, path: Path, like: dict[str, PyTree], chains: int, draws: int, settings: Any) -> "ZarrStore":
        """Lay the arrays out under a temporary name, so that a layout that is not complete is never opened."""
        specs = column_specs(like)
        about = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "run": secrets.token_hex(16),
            "settings": json.dumps(settings),
        }
        with temporary_folder(path) as fresh:
            group = _zarr.create_group(fresh, about)
            inner = {name: group.create_group(name) for name in like}
            for spec in specs:
                place, name = spec.name.split("/", 1)
                inner[place].create_array(
                    name,
                    shape=(chains, draws, *spec.shape),
                    chunks=spec.chunks(chains, draws),
                    dtype=spec.stored_dtype,
                    fill_value=spec.fill,
                    compressors=_zarr.COMPRESSORS,
                    attributes=spec.attributes,
                    dimension_names=("chain", "draw", *(f"{name}_dim_{i}" for i in range(len(spec.shape)))),
                )
            force_to_disk(fresh.rglob("*"))
            if os.path.lexists(path):
                raise FileExistsError(17, "it was made by another process meanwhile", str(path))
            replace_folder(fresh, path)
        return cls(path, like, chains, draws)

    def restart(self, draws: int, manifest: dict[str, Any] | None) -> None:
        """Continue after `draws` draws of an earlier process, all of whose chunks are verified first."""
        if manifest is not None:
            if manifest.get("run") != self.run_id:
                raise DamagedFileError(self.path, "it is the store of another run; restore the one of this checkpoint")
            masked = self._masked()
            for column in self.columns:
                column.restart(manifest["columns"][column.spec.name], draws, masked)
        elif draws:
            raise ValueError("the checkpoint does not say what the store held")
        (self.path / MANIFEST).unlink(missing_ok=True)
        for column in self.columns:
            _zarr.remove_unfinished(column.info)

    def _masked(self) -> set[tuple[int, int]]:
        try:
            listed = _read_sealed(self.path / MASKED)["masked"]
            return {(int(chain), int(draw)) for chain, draw in listed}
        except FileNotFoundError:
            return set()
        except (KeyError, TypeError) as error:
            raise DamagedFileError(self.path / MASKED, f"it is damaged ({error!r})") from error

    def write(self, first: int, draws: dict[str, PyTree]) -> None:
        """Append draws; chunks are written as they fill up."""
        self._check_folder()
        leaves = [leaf for group in self.like for leaf in jax.tree.leaves(draws[group])]
        for column, values in zip(self.columns, leaves, strict=True):
            column.write(first, values)

    def mask_draws(self, places: list[tuple[int, int]]) -> None:
        """NaN for draws (chain, draw); they are listed first, since chunks then differ from earlier manifests."""
        if places:
            listed = sorted(self._masked() | set(places))
            write_atomically(self.path / MASKED, json.dumps(seal({"masked": listed})).encode())
        for column in self.columns:
            column.mask(places)

    def flush(self) -> None:
        """Write the chunks that are not full, force everything to the disk, and check that nothing was altered."""
        self._check_folder()
        for column in self.columns:
            column.check_unchanged()
            column.write_chunk()
        force_to_disk(file for column in self.columns for file in column.unsynced_files())
        self._check_folder()

    def _check_folder(self) -> None:
        """Raise where the folder is not the one that was opened."""
        opened = os.fstat(self.descriptor)
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise DamagedFileError(self.path, "it was removed while the run was writing to it") from error
        if (opened.st_ino, opened.st_dev) != (now.st_ino, now.st_dev):
            raise DamagedFileError(self.path, "it was replaced while the run was writing to it")
        for path, signature in self.metadata.items():
            if _signature(path) != signature:
                raise DamagedFileError(path, "it was altered or replaced while the run was writing to the store")

    def manifest(self) -> dict[str, Any]:
        """What the store holds, after a flush."""
        return {"run": self.run_id, "columns": {column.spec.name: column.manifest() for column in self.columns}}

    def remove_unused(self) -> None:
        """Every file of the store is in use."""

    def finish(self) -> None:
        """Flush, and write the manifest into the store, so that readers can verify it."""
        self.flush()
        write_atomically(self.path / MANIFEST, json.dumps(seal(self.manifest())).encode())

    def read(self, draws: int) -> PyTree:
        """The first draws, loaded into memory."""
        return jax.tree.map(lambda leaf: leaf[:, :draws], self.arrays())

    def arrays(self) -> PyTree:
        """The arrays on disk, in the structure of the draws."""
        leaves: Iterator[StoredArray] = iter([StoredArray(column.array, column.spec.dtype) for column in self.columns])
        return jax.tree.map(lambda _: next(leaves), self.like)

    def close(self) -> None:
        """Release the folder."""
        os.close(self.descriptor)


def _read_sealed(path: Path) -> dict[str, Any]:
    """A JSON file of the store, if its checksum matches."""
    return unseal(path, read_json_object(path, OWN_FILES_LIMIT))


def open_finished(path: Path) -> dict[str, StoredArray]:
    """The arrays of a finished run's store, by name, after every chunk has been compared with the manifest."""
    if settings_of(path) is None:
        raise ValueError(f"store: {path} is not a store of draws, or its {_zarr.METADATA} is lost or damaged")
    try:
        manifest = _read_sealed(path / MANIFEST)
    except FileNotFoundError as error:
        raise DamagedFileError(path, f"it has no {MANIFEST}: the run that wrote it has not ended; resume it") from error
    group: Any = _zarr.open_group(path, dtypes=DTYPES, complete=False, store=DrawFolder)
    files: DrawFolder = group.store
    found = {}
    for name, then in manifest["columns"].items():
        if name not in files.arrays:
            raise DamagedFileError(path / name, "this array of the store is missing")
        info = files.arrays[name]
        dtype = np.dtype(info.attributes.get("raw_bits_of", info.dtype.newbyteorder("=").name))
        spec = ColumnSpec(name, str(info.attributes.get("leaf")), info.shape[2:], dtype)
        ChunkedColumn(spec, group[name], info, files).restart(then, then["draws"], set())
        found[name] = StoredArray(group[name], dtype)
    return found
