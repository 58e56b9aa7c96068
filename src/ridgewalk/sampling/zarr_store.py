"""Draws on disk: a zarr group that can be read, also by xarray, while the run goes on.

The group has ArviZ's group names: `posterior` (positions), `collected` and `sample_stats`; each leaf is an array
(chain, draw, …), with coordinates `chain` and `draw`. The process that writes takes every array for as long as the run
will be; the metadata on disk say how many draws there are, and grow after the chunks of new draws have been written.
The root holds a copy of all metadata, replaced in one step, so that xarray sees arrays of one length. Every chunk
carries a CRC-32C. A manifest lists, for every array, its metadata, the number of draws, and a digest of every chunk: a
checkpoint holds it, and the store itself once the run has ended.
"""

import json
import math
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from ridgewalk import _zarr
from ridgewalk._io import (
    DamagedFileError,
    force_to_disk,
    read_regular,
    read_sealed,
    replace_folder,
    seal,
    signature,
    temporary_folder,
    write_atomically,
)
from ridgewalk._pytree import leaf_names
from ridgewalk._types import PyTree
from ridgewalk.distributed import processes
from ridgewalk.sampling.checkpoint import differences
from ridgewalk.sampling.parts import ChainPart, merge_manifests, written_chains
from ridgewalk.sampling.storage import DrawStore, check_storable, is_floating

FORMAT = "ridgewalk-draws"
FORMAT_VERSION = 3

DTYPES = _zarr.NUMBERS | {"complex64", "complex128"}

MANIFEST = "manifest.json"
MASKED = "masked.json"
OUTCOME = "outcome.json"

SHOW_EVERY = 5.0
"""Seconds after which readers are shown the draws made meanwhile."""

SHOW_SHARE = 0.02
"""At most about this share of the time is spent on that."""

EMPTY_TOO: Any = {"write_empty_chunks": True}

CHUNK_BYTES = 2**22
"""About how many bytes a chunk holds."""

MOST_DRAWS = 2**14
"""How many draws a chunk holds at most."""

COORDINATES = ("chain", "draw")
"""The first two axes of every array."""


# Arrays, in chunks that are written, verified and masked


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


def _prefix_digest(values: np.ndarray) -> str:
    """Shape and checksum of the draws in a chunk that is not full."""
    plain = np.ascontiguousarray(values)
    return f"{values.shape[1]}-{_zarr.checksum(plain.reshape(-1).view(np.uint8)):08x}"


class ChunkedColumn:
    """One array on disk, written in whole chunks; the chunk that is not full yet is kept in memory."""

    def __init__(self, spec: ColumnSpec, array: Any, files: _zarr.CheckedStore, chains: slice | None = None) -> None:
        self.spec, self.array, self.files = spec, array, files
        self.info = info = files.arrays[spec.name]
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


# The store


class ZarrStore(DrawStore):
    """Draws on disk, written by the writer thread."""

    in_background = True

    def __init__(
        self, path: Path, like: dict[str, PyTree], chains: int, draws: int, parts: Sequence[ChainPart] = ()
    ) -> None:
        """Open a store that exists, for a run that makes `draws` draws; of several processes, each writes its chains,
        and process 0 the metadata.
        """
        self.path, self.like = path, like
        self.several, self.first = jax.process_count() > 1, jax.process_index() == 0
        specs = column_specs(like)
        if self.several:
            processes.barrier("store")
        group = self._open(specs, chains)
        files: Any = group.store
        self.files: _zarr.CheckedStore = files
        self.run_id = str(group.attrs.get("run"))
        self._leaves = [
            (spec, _zarr.with_length(group[spec.name], files.arrays[spec.name], draws).with_config(EMPTY_TOO))
            for spec in specs
        ]
        cuts = written_chains(parts) if self.several else [(slice(0, chains), slice(0, chains))]
        self._written = [(cut, leaf) for cut in cuts for leaf in range(len(specs))]
        self.columns = [ChunkedColumn(spec, array, files, cut) for cut, _ in cuts for spec, array in self._leaves]
        self._chain_numbers = [group[f"{place}/chain"] for place in like]
        self._draw_numbers = [
            _zarr.with_length(group[name], files.arrays[name], draws, axis=0)
            for name in (f"{place}/draw" for place in like)
        ]
        self._draws = self._numbered = 0
        self._show_at = 0.0
        places = {path, *(path / spec.name for spec in specs), *(path / spec.name.split("/")[0] for spec in specs)}
        files_of_metadata = [place / _zarr.METADATA for place in places] if self.first else []
        self.metadata = {file: signature(file) for file in files_of_metadata}
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _open(self, specs: list[ColumnSpec], chains: int) -> Any:
        group: Any = _zarr.open_group(self.path, mode="r+", dtypes=DTYPES, complete=False)
        coordinates = [f"{place}/{name}" for place in self.like for name in COORDINATES]
        for name in [*(spec.name for spec in specs), *coordinates]:
            if name not in group.store.arrays:
                raise DamagedFileError(self.path / name, "this array of the store is missing")
        for spec in specs:
            spec.check(group.store.arrays[spec.name], chains)
        return group

    @classmethod
    def create(
        cls,
        path: Path,
        like: dict[str, PyTree],
        chains: int,
        draws: int,
        settings: Any,
        parts: Sequence[ChainPart] = (),
    ) -> "ZarrStore":
        """Lay the arrays out under a temporary name, so that a layout that is not complete is never opened.

        Chains that run on several devices have chunks of their own: they may be resumed in other processes.
        """
        if jax.process_index() == 0:
            spread = any(part.device is not None or part.group is not None for part in parts)
            cls._lay_out(path, like, (chains, 1 if spread else chains), draws, settings)
        store = cls(path, like, chains, draws, parts)
        if store.first:
            store._number_chains()
        return store

    @staticmethod
    def _lay_out(path: Path, like: dict[str, PyTree], chains: tuple[int, int], draws: int, settings: Any) -> None:
        specs = column_specs(like)
        about = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "run": secrets.token_hex(16),
            "settings": json.dumps(settings),
            "columns": [spec.name for spec in specs],
        }
        with temporary_folder(path) as fresh:
            group = _zarr.create_group(fresh, about)
            inner = {name: group.create_group(name) for name in like}
            for spec in specs:
                place, name = spec.name.split("/", 1)
                inner[place].create_array(
                    name,
                    shape=(chains[0], 0, *spec.shape),
                    chunks=spec.chunks(chains[1], draws),
                    dtype=spec.stored_dtype,
                    fill_value=spec.fill,
                    compressors=_zarr.COMPRESSORS,
                    attributes=spec.attributes,
                    dimension_names=(*COORDINATES, *(f"{name}_dim_{i}" for i in range(len(spec.shape)))),
                )
            for place in inner.values():
                for name, length in zip(COORDINATES, (chains[0], 0), strict=True):
                    place.create_array(
                        name,
                        shape=(length,),
                        chunks=(most_draws(draws) if name == "draw" else chains[0],),
                        dtype=np.int64,
                        fill_value=0,
                        compressors=_zarr.COMPRESSORS,
                        dimension_names=(name,),
                    )
            _zarr.consolidate(fresh)
            force_to_disk(fresh.rglob("*"))
            if os.path.lexists(path):
                raise FileExistsError(17, "it was made by another process meanwhile", str(path))
            replace_folder(fresh, path)

    def _number_chains(self) -> None:
        for numbers in self._chain_numbers:
            numbers[...] = np.arange(numbers.shape[0])

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
        if self.first:
            for name in (MANIFEST, OUTCOME):
                (self.path / name).unlink(missing_ok=True)
            for info in self.files.arrays.values():
                _zarr.remove_unfinished(info)
            self._number_chains()
        self._count(draws)
        self._show()

    def _masked(self) -> set[tuple[int, int]]:
        try:
            listed = read_sealed(self.path / MASKED)["masked"]
            return {(int(chain), int(draw)) for chain, draw in listed}
        except FileNotFoundError:
            return set()
        except (KeyError, TypeError) as error:
            raise DamagedFileError(self.path / MASKED, f"it is damaged ({error!r})") from error

    def write(self, first: int, draws: dict[str, PyTree]) -> None:
        """Append draws; chunks are written as they fill up."""
        self._check_folder()
        leaves = [leaf for group in self.like for leaf in jax.tree.leaves(draws[group])]
        for column, ((_, rows), leaf) in zip(self.columns, self._written, strict=True):
            column.write(first, leaves[leaf][rows])
        self._draws = first + leaves[0].shape[1]
        began = time.monotonic()
        due = began >= self._show_at
        if self.several:  # process 0 decides
            due = processes.exchange_json("store due", due)[0]
        if due:
            for column in self.columns:
                column.write_chunk()
            self._show()
            now = time.monotonic()
            self._show_at = now + max(SHOW_EVERY, (now - began) / SHOW_SHARE)

    def _count(self, draws: int) -> None:
        """Note that all chains, also those that other processes write, have so many draws."""
        self._draws = draws
        for spec, _ in self._leaves:
            self.files.counts[spec.name] = draws

    def _show(self) -> None:
        """Let readers see all draws, once every process has written their chunks: the metadata say how many."""
        self._check_folder()
        if self.several:
            processes.barrier("store shown")
        if not self.first:
            return
        draws = self._draws
        for numbers in self._draw_numbers:  # in whole chunks, which zarr need not read first
            each = numbers.chunks[0]
            first, stop = self._numbered - self._numbered % each, min(-(-draws // each) * each, numbers.shape[0])
            if stop > first:
                numbers[first:stop] = np.arange(first, stop)
        self._numbered = draws
        changed = [_zarr.set_length(self.files.arrays[spec.name], draws) for spec, _ in self._leaves]
        for numbers in self._draw_numbers:
            _zarr.set_length(self.files.arrays[numbers.path], draws, axis=0)
        changed.append(_zarr.consolidate(self.path))
        self.metadata.update({path: signature(path) for path in changed})

    def mask_draws(self, places: list[tuple[int, int]]) -> None:
        """NaN for draws (chain, draw); they are listed first, since chunks then differ from earlier manifests."""
        if places and self.first:
            listed = sorted(self._masked() | set(places))
            write_atomically(self.path / MASKED, json.dumps(seal({"masked": listed})).encode())
        if self.several:
            processes.barrier("store masked")
        for column in self.columns:
            column.mask(places)

    def flush(self) -> None:
        """Write the chunks that are not full, force everything to the disk, and check that nothing was altered."""
        self._check_folder()
        for column in self.columns:
            column.check_unchanged()
            column.write_chunk()
        force_to_disk(file for column in self.columns for file in column.unsynced_files())
        self._show()

    def _check_folder(self) -> None:
        """Raise where the folder is not the one that was opened."""
        opened = os.fstat(self.descriptor)
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise DamagedFileError(self.path, "it was removed while the run was writing to it") from error
        if (opened.st_ino, opened.st_dev) != (now.st_ino, now.st_dev):
            raise DamagedFileError(self.path, "it was replaced while the run was writing to it")
        for path, written in self.metadata.items():
            if signature(path) != written:
                raise DamagedFileError(path, "it was altered or replaced while the run was writing to the store")

    def manifest(self) -> dict[str, Any]:
        """What the store holds, after a flush; of several processes, what this one has written."""
        if not self.several:
            return {"run": self.run_id, "columns": {column.spec.name: column.manifest() for column in self.columns}}
        columns: dict[str, list[Any]] = defaultdict(list)
        for column in self.columns:
            columns[column.spec.name].append({"first_chain": column.chains.start, **column.manifest()})
        return {"run": self.run_id, "columns": columns}

    def remove_unused(self) -> None:
        """Every file of the store is in use."""

    def finish(self) -> None:
        """Flush, and write the manifest into the store, so that readers can verify it."""
        self.flush()
        manifest = self.manifest()
        if self.several:
            manifest = merge_manifests(processes.exchange_json("store manifest", manifest))
            self._count(self._draws)
        if self.first:
            write_atomically(self.path / MANIFEST, json.dumps(seal(manifest)).encode())

    def record_outcome(self, outcome: dict[str, Any]) -> None:
        """Write how the run ended into the store, for readers."""
        write_atomically(self.path / OUTCOME, json.dumps(seal(outcome)).encode())

    def read(self, draws: int) -> PyTree:
        """The first draws, loaded into memory."""
        return jax.tree.map(lambda leaf: leaf[...], self.arrays(draws))

    def arrays(self, draws: int) -> PyTree:
        """The first draws as arrays on disk, in the structure of the draws."""
        cut = [
            (_zarr.with_length(array, self.files.arrays[spec.name], draws), spec.dtype) for spec, array in self._leaves
        ]
        leaves = iter([_zarr.StoredArray(array, dtype) for array, dtype in cut])
        return jax.tree.map(lambda _: next(leaves), self.like)

    def close(self) -> None:
        """Release the folder."""
        os.close(self.descriptor)
