"""Data sets on disk: a zarr group that describes itself, written block by block beside its final name.

While it grows the group lies in a working folder. A block of samples counts once its marker exists, and the marker is
written after the block's chunks are on the disk; so a run that was killed goes on where it stopped. When the last
block is there the folder is renamed, in one step, to its final name.
"""

import json
import os
import shutil
from collections.abc import Container
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ridgewalk._io import (
    clear_own,
    force_to_disk,
    recover_folder,
    refuse_existing,
    remove_own,
    replace_folder,
    unfinished_folders,
    write_atomically,
)
from ridgewalk._optional import requires_extra
from ridgewalk.darcy.grid import Array, Grid
from ridgewalk.darcy.problems import Problem, Value

with requires_extra("darcy"):
    import zarr

FORMAT = "ridgewalk-darcy"
FORMAT_VERSION = 1
MARKERS = "finished"


@dataclass(frozen=True)
class Plan:
    """How many samples, from which seed, in blocks of how many."""

    samples: int = 1500
    seed: int = 0
    block: int = 50

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("seed", 0), ("block", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: give a whole number of at least {least}")

    @property
    def blocks(self) -> list[range]:
        """Sample numbers of every block."""
        return [range(start, min(start + self.block, self.samples)) for start in range(0, self.samples, self.block)]


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set in memory."""

    grid: Grid
    attributes: dict[str, Any]
    arrays: dict[str, Array]


def attributes_of(problem: Problem, plan: Plan) -> dict[str, Value]:
    """The group's attributes: what determines the numbers, and who wrote them."""
    grid = problem.grid
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "ridgewalk_version": version("ridgewalk"),
        "equations": "u/kappa + grad p = 0, div u = f; RT0-P0 mixed finite elements",
        "nx": grid.nx,
        "ny": grid.ny,
        "width": grid.width,
        "height": grid.height,
        "samples": plan.samples,
        "seed": plan.seed,
        "seeding": "sample i: numpy default_rng(SeedSequence(seed, spawn_key=(i,)))",
        "block": plan.block,
        **problem.description,
    }


def refuse_to_replace(path: Path, overwrite: bool) -> None:
    """Raise where something is in the way: a data set is replaced only on request, anything else never."""
    recover_folder(path)
    refuse_existing(path, overwrite)
    if os.path.lexists(path) and not is_data_set(path):
        raise ValueError(f"out = {path}: it is not a ridgewalk data set, so it is never overwritten; move it away")


def begin(growing: Path, problem: Problem, plan: Plan) -> list[int]:
    """Lay out a data set in its working folder, or take up the one there; return the blocks still to do."""
    wanted = attributes_of(problem, plan)
    if (growing / MARKERS).is_dir():
        _check_same(growing, wanted, problem.constants)
    else:  # a new folder, or one whose process was killed before the arrays were laid out
        clear_own(growing)
        _create(growing, problem, plan, wanted)
    done = {int(marker.stem) for marker in (growing / MARKERS).glob("*.done")}
    return [block for block in range(len(plan.blocks)) if block not in done]


def _create(growing: Path, problem: Problem, plan: Plan, attributes: dict[str, Value]) -> None:
    """Lay out the arrays; the folder for markers comes last, so that a half-made layout is never resumed."""
    grid = problem.grid
    sizes = {
        "x": grid.nx,
        "y": grid.ny,
        "edge": grid.edges,
        "spot": 2,
        "term": int(str(attributes.get("terms", 0))),
    }
    group = zarr.create_group(store=growing, zarr_format=3, attributes=attributes)
    for name, meaning in problem.variables.items():
        shape = tuple(sizes[dimension] for dimension in meaning.dimensions)
        leading, chunk = ((plan.samples,), (min(plan.block, plan.samples),)) if meaning.per_sample else ((), ())
        array = group.create_array(
            name,
            shape=leading + shape,
            chunks=chunk + shape,
            dtype="float64",
            dimension_names=(("sample",) if meaning.per_sample else ()) + meaning.dimensions,
            attributes={"long_name": meaning.meaning, "units": meaning.units},
        )
        if not meaning.per_sample:
            array[...] = problem.constants[name]
    for name, centres in (("x", grid.x_centres), ("y", grid.y_centres)):
        array = group.create_array(
            name, shape=centres.shape, chunks=centres.shape, dtype="float64", dimension_names=(name,)
        )
        array.attrs.update({"long_name": f"{name} of the cell centres", "units": "1"})
        array[...] = centres
    force_to_disk(growing.rglob("*"))
    (growing / MARKERS).mkdir()
    force_to_disk([growing])


def _check_same(growing: Path, wanted: dict[str, Value], constants: dict[str, Array]) -> None:
    group = zarr.open_group(growing, mode="r")
    found = dict(group.attrs)
    differing = sorted(key for key in wanted.keys() | found.keys() if found.get(key) != wanted.get(key))
    differing += [name for name, value in constants.items() if not np.array_equal(_array(group, name)[...], value)]
    if differing:
        raise ValueError(
            f"out: {growing} was begun with other settings ({', '.join(differing)}); finish it with those, "
            "or delete it and start again"
        )


def write_block(growing: Path, plan: Plan, block: int, arrays: dict[str, Array]) -> None:
    """Write one block's arrays, force them to the disk, then mark the block as finished."""
    group = zarr.open_group(growing, mode="r+")
    samples = plan.blocks[block]
    for name, values in arrays.items():
        _array(group, name)[samples.start : samples.stop] = values
        chunks = growing / name / "c" / str(block)
        if chunks.exists():  # zarr leaves out a chunk of zeros
            force_to_disk([chunks, *chunks.rglob("*")])
    marker = growing / MARKERS / f"{block:06d}.done"
    write_atomically(marker, json.dumps({"samples": [samples.start, samples.stop]}).encode())


def finish(growing: Path, path: Path) -> None:
    """Give the complete data set its name; one that is replaced is removed only afterwards."""
    shutil.rmtree(growing / MARKERS)
    replace_folder(growing, path)


def abandon_if_empty(growing: Path) -> None:
    """Remove a growing data set without a finished block, which would only stand in a later run's way."""
    if not any((growing / MARKERS).glob("*.done")):
        remove_own(growing)


def is_data_set(path: Path) -> bool:
    """Whether the folder is a data set of this format."""
    try:
        return zarr.open_group(path, mode="r").attrs.get("format") == FORMAT
    except (OSError, ValueError):
        return False


def load(path: str | Path, samples: slice = slice(None), names: Container[str] | None = None) -> DataSet:
    """Read a data set into memory, or some of its samples and arrays."""
    path = Path(path)
    recover_folder(path)
    if not path.exists():
        hint = "; it was begun but not finished: run generate again" if unfinished_folders(path) else ""
        raise ValueError(f"file = {path}: there is no such data set{hint}")
    if not is_data_set(path):
        raise ValueError(f"file = {path}: not a ridgewalk Darcy data set (a zarr folder made by `darcy generate`)")
    group = zarr.open_group(path, mode="r")
    attributes: dict[str, Any] = dict(group.attrs)
    arrays = {}
    for name, array in group.arrays():
        if names is not None and name not in names:
            continue
        per_sample = "sample" in str(array.metadata.to_dict()["dimension_names"])
        arrays[name] = np.asarray(array[samples] if per_sample else array[...])
    grid = Grid(*(attributes[name] for name in ("nx", "ny", "width", "height")))
    return DataSet(grid, attributes, arrays)


def _array(group: zarr.Group, name: str) -> Any:
    return group[name]
