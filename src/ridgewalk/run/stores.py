"""Where draws go: into memory, or into a zarr group that can be read, also by xarray, while the run goes on.

A group on disk has the final shape from the start, NaN where a draw is still to come, and ArviZ's group names:
`posterior` (positions), `collected` and `sample_stats`, each leaf an array (chain, draw, …).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._io import force_to_disk
from ridgewalk._types import PyTree
from ridgewalk.ravel import leaf_names

FORMAT = "ridgewalk-draws"
FORMAT_VERSION = 1
CHUNK_BYTES = 2**22
"""About what one compressed piece of an array holds."""

MOST_DRAWS = 2**14


class MemoryStore:
    """Draws in memory."""

    def __init__(self, like: PyTree, chains: int, draws: int) -> None:
        self._arrays = jax.tree.map(lambda x: np.empty((chains, draws, *x.shape), x.dtype), like)

    def write(self, first: int, draws: PyTree) -> None:
        """Copy the draws in."""

        def put(room: np.ndarray, values: np.ndarray) -> None:
            room[:, first : first + values.shape[1]] = values

        jax.tree.map(put, self._arrays, draws)

    def blank(self, chain: int, draw: int) -> None:
        """NaN for a draw."""
        for room in jax.tree.leaves(self._arrays):
            if jnp.issubdtype(room.dtype, jnp.floating):
                room[chain, draw] = np.nan

    def flush(self) -> None:
        """Nothing waits."""

    def read(self, draws: int) -> PyTree:
        """The first draws, without a copy."""
        return jax.tree.map(lambda x: x[:, :draws], self._arrays)


def settings_of(path: Path) -> Any:
    """The settings of the run that wrote a store, or None where the folder is something else."""
    import zarr  # noqa: PLC0415

    try:
        about: dict[str, Any] = dict(zarr.open_group(path, mode="r").attrs)
    except (OSError, ValueError):
        return None
    if about.get("format") != FORMAT:
        return None
    if about.get("format_version", 0) > FORMAT_VERSION:
        raise ValueError(
            f"store: {path} has format version {about['format_version']}, this ridgewalk writes {FORMAT_VERSION}; "
            "upgrade ridgewalk, or choose another name"
        )
    return about.get("settings")


class Column:
    """One array on disk, written in whole pieces; the unfinished piece waits in memory."""

    def __init__(self, array: Any, folder: Path) -> None:
        self.array, self.folder = array, folder
        self.piece = array.chunks[1]
        self.room = np.empty((array.shape[0], self.piece, *array.shape[2:]), array.dtype)
        self.start = self.stop = 0
        self.unsynced: set[int] = set()

    def restart(self, draw: int) -> None:
        """Go on from a draw that was written before."""
        self.start, self.stop = draw - draw % self.piece, draw
        self.room[:, : self.stop - self.start] = self.array[:, self.start : self.stop]

    def write(self, first: int, values: np.ndarray) -> None:
        """Take draws in; write pieces as they fill up."""
        assert first == self.stop, "draws come in order"
        while values.shape[1]:
            at = self.stop - self.start
            part = values[:, : self.piece - at]
            self.room[:, at : at + part.shape[1]] = part
            self.stop += part.shape[1]
            values = values[:, part.shape[1] :]
            if self.stop - self.start == self.piece:
                self.write_piece()
                self.start = self.stop

    def blank(self, chain: int, draw: int) -> None:
        """NaN for a draw, in the piece that waits or on disk."""
        if not jnp.issubdtype(self.array.dtype, jnp.floating):
            return
        if draw >= self.start:
            self.room[chain, draw - self.start] = np.nan
        else:
            self.array[chain, draw] = np.nan
            self.unsynced.add(draw // self.piece)

    def write_piece(self) -> None:
        """Write the piece as far as it goes; zarr renames it into place."""
        if self.stop > self.start:
            self.array[:, self.start : self.stop] = self.room[:, : self.stop - self.start]
            self.unsynced.add(self.start // self.piece)

    def unsynced_files(self) -> Iterator[Path]:
        """Files and folders of pieces written since the last call."""
        for chain in range(self.array.shape[0]):
            for piece in self.unsynced:
                folder = self.folder / "c" / str(chain) / str(piece)
                if folder.is_dir():
                    yield from (*folder.rglob("*"), folder, folder.parent)
                elif folder.exists():  # a scalar's piece is a file; zarr leaves out pieces of nothing but fill values
                    yield from (folder, folder.parent)
        self.unsynced.clear()


class ZarrStore:
    """Draws on disk."""

    def __init__(self, path: Path, like: PyTree) -> None:
        import zarr  # noqa: PLC0415  (slow to import, and only needed for draws on disk)

        self.path, self.like = path, like
        group: Any = zarr.open_group(path, mode="r+")
        self.columns = [
            Column(group[f"{room}/{name}"], path / room / name)
            for room, tree in like.items()
            for name in leaf_names(tree)
        ]

    @classmethod
    def create(cls, path: Path, like: PyTree, chains: int, draws: int, attributes: dict[str, Any]) -> "ZarrStore":
        """Lay the arrays out under a temporary name, so that a half-made layout is never opened."""
        import zarr  # noqa: PLC0415

        for leaf in jax.tree.leaves(like):
            if np.dtype(leaf.dtype).kind == "V":
                raise ValueError(
                    f"position: draws of dtype {leaf.dtype} cannot be kept on disk, as store and checkpoint do; start "
                    "from float32 numbers, or keep='moments'"
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        about = {"format": FORMAT, "format_version": FORMAT_VERSION, **attributes}
        group = zarr.create_group(store=fresh, zarr_format=3, attributes=about, overwrite=True)
        for room, tree in like.items():
            inner = group.create_group(room)
            for name, leaf in zip(leaf_names(tree), jax.tree.leaves(tree), strict=True):
                bytes_per_draw = int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize
                piece = int(np.clip(CHUNK_BYTES // max(bytes_per_draw, 1), 1, min(MOST_DRAWS, draws)))
                inner.create_array(
                    name,
                    shape=(chains, draws, *leaf.shape),
                    chunks=(1, piece, *leaf.shape),
                    dtype=leaf.dtype,
                    fill_value=np.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 0,
                    dimension_names=("chain", "draw", *(f"{name}_dim_{i}" for i in range(len(leaf.shape)))),
                )
        force_to_disk(fresh.rglob("*"))
        os.rename(fresh, path)
        force_to_disk([path.parent])
        return cls(path, like)

    def grow(self, draws: int) -> None:
        """Make room for more draws, where a run is continued for longer than it was begun."""
        for column in self.columns:
            if column.array.shape[1] < draws:
                column.array.resize((column.array.shape[0], draws, *column.array.shape[2:]))

    def restart(self, draw: int) -> None:
        """Go on from a draw that was written before; later ones will be written again."""
        for column in self.columns:
            column.restart(draw)

    def write(self, first: int, draws: PyTree) -> None:
        """Write the draws, whole pieces at a time."""
        leaves = [leaf for room in self.like for leaf in jax.tree.leaves(draws[room])]
        for column, values in zip(self.columns, leaves, strict=True):
            column.write(first, values)

    def blank(self, chain: int, draw: int) -> None:
        """NaN for a draw; the next flush forces it to the disk."""
        for column in self.columns:
            column.blank(chain, draw)

    def flush(self) -> None:
        """Write also what does not fill a piece, and force everything to the disk."""
        for column in self.columns:
            column.write_piece()
        force_to_disk(file for column in self.columns for file in column.unsynced_files())

    def read(self, draws: int) -> PyTree:
        """The first draws, loaded into memory."""
        leaves = iter([np.asarray(column.array[:, :draws]) for column in self.columns])
        return jax.tree.map(lambda _: next(leaves), self.like)

    def lazy(self) -> PyTree:
        """The arrays on disk, in the structure of the draws."""
        leaves = iter([column.array for column in self.columns])
        return jax.tree.map(lambda _: next(leaves), self.like)
