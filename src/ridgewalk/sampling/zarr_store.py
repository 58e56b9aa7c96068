"""Draws on disk: a zarr group that can be read, also by xarray, while the run goes on.

The group has ArviZ's group names: `posterior` (positions), `collected` and `sample_stats`; each leaf is an array
(chain, draw, …), with coordinates `chain` and `draw`. The process that writes takes every array for as long as the run
will be; the metadata on disk say how many draws there are, and grow after the chunks of new draws have been written.
The root holds a copy of all metadata, replaced in one step, so that xarray sees arrays of one length. Every chunk
carries a CRC-32C. A manifest lists, for every array, its metadata, the number of draws, and a digest of every chunk: a
checkpoint holds it, and the store itself once the run has ended.
"""

import json
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ridgewalk import _zarr
from ridgewalk._io import (
    DamagedFileError,
    force_to_disk,
    read_json_object,
    replace_folder,
    seal,
    temporary_folder,
    unseal,
    write_atomically,
)
from ridgewalk._types import PyTree
from ridgewalk.distributed import processes
from ridgewalk.sampling.chunked_columns import (
    COORDINATES,
    ChunkedColumn,
    ColumnSpec,
    DrawFolder,
    column_specs,
    most_draws,
    signature,
)
from ridgewalk.sampling.parts import ChainPart, merge_manifests, written_chains
from ridgewalk.sampling.storage import DrawStore

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

OWN_FILES_LIMIT = 2**30

EMPTY_TOO: Any = {"write_empty_chunks": True}


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
        self.files: DrawFolder = files
        self.run_id = str(group.attrs.get("run"))
        self._leaves = [
            (spec, _zarr.with_length(group[spec.name], files.arrays[spec.name], draws).with_config(EMPTY_TOO))
            for spec in specs
        ]
        cuts = written_chains(parts) if self.several else [(slice(0, chains), slice(0, chains))]
        self._written = [(cut, leaf) for cut in cuts for leaf in range(len(specs))]
        self.columns = [
            ChunkedColumn(spec, array, files.arrays[spec.name], files, cut)
            for cut, _ in cuts
            for spec, array in self._leaves
        ]
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
        group: Any = _zarr.open_group(self.path, mode="r+", dtypes=DTYPES, complete=False, store=DrawFolder)
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


def read_sealed(path: Path) -> dict[str, Any]:
    """A JSON file of the store, if its checksum matches."""
    return unseal(path, read_json_object(path, OWN_FILES_LIMIT))
