"""Data sets on disk: a zarr group that describes itself, written block by block beside its final name.

While it grows the group lies in a working folder. A block of samples counts once its record exists, and the record,
which holds a SHA-256 of every file of the block, is written after the block's chunks are on the disk; so a run that
was killed goes on where it stopped. When the last block is there the digests move into the group's own metadata, and
the folder is renamed, in one step, to its final name. Every chunk carries a CRC-32C besides. Digests are compared when
a run is resumed and when samples are read.

`generate` fills a data set in parallel processes; an interrupted one resumes.
"""

import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import threading
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ridgewalk._io import (
    DamagedFileError,
    NewerFormatError,
    clear_own,
    force_to_disk,
    read_json_object,
    recover_folder,
    refuse_existing,
    remove_own,
    replace_folder,
    seal,
    sole_writer,
    unfinished_folders,
    unseal,
    working_folder,
    write_atomically,
)
from ridgewalk._validation import requires_extra
from ridgewalk._zarr import (
    COMPRESSORS,
    FILES,
    METADATA,
    check_files,
    create_group,
    digests_below,
    inspect_group,
    open_group,
    read_array,
    seal_group,
    sealed_files,
)
from ridgewalk.darcy.grid import Array, Grid
from ridgewalk.darcy.problems import Problem, Value

with requires_extra("darcy"):
    import zarr

FORMAT = "ridgewalk-darcy"
FORMAT_VERSION = 2
RECORDS = "finished"
"""The folder with a record of every finished block, while the data set grows."""

LAYOUT = "layout.json"
"""The record of metadata and constants, written once the arrays are laid out."""

WRITE_ALL: Any = {"write_empty_chunks": True}
"""Chunks of zeros are written too, so that a chunk that is missing was lost."""

SEAL = {FILES, "sha256"}
"""Attributes that are about files, not about the problem."""


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
    if not os.path.lexists(path):
        return
    if _format_of(path) != FORMAT:
        raise ValueError(f"out = {path}: it is not a ridgewalk data set, so it is not overwritten; move it away")
    others = [entry.name for entry in path.iterdir() if not (entry / METADATA).exists() and entry.name != METADATA]
    if others:
        raise ValueError(
            f"out = {path}: it holds files that are not the data set's ({', '.join(sorted(others))}); move them away"
        )


def begin(growing: Path, problem: Problem, plan: Plan) -> list[int]:
    """Lay out a data set in its working folder, or take up the one there; return the blocks still to do."""
    wanted = attributes_of(problem, plan)
    complete = growing_is_complete(growing)
    if complete or (growing / RECORDS / LAYOUT).exists():
        if not complete:
            check_files(growing, _read_record(growing, LAYOUT)[FILES], [METADATA])
        _check_settings(growing, wanted, problem.constants)
        done = set(range(len(plan.blocks))) if complete else _check_finished(growing)
    else:  # a new folder, or one whose process was killed before the arrays were laid out
        clear_own(growing)
        _create(growing, problem, plan, wanted)
        done = set()
    return [block for block in range(len(plan.blocks)) if block not in done]


def growing_is_complete(growing: Path) -> bool:
    """Whether a working folder only lacks its final name."""
    return (growing / METADATA).exists() and sealed_files(growing) is not None


def _create(growing: Path, problem: Problem, plan: Plan, attributes: dict[str, Value]) -> None:
    """Lay out the arrays; their record comes last, so that a half-made layout is never resumed."""
    grid = problem.grid
    sizes = {
        "x": grid.nx,
        "y": grid.ny,
        "edge": grid.edges,
        "spot": 2,
        "term": int(str(attributes.get("terms", 0))),
    }
    group = create_group(growing, attributes)
    for name, meaning in problem.variables.items():
        shape = tuple(sizes[dimension] for dimension in meaning.dimensions)
        leading, chunk = ((plan.samples,), (min(plan.block, plan.samples),)) if meaning.per_sample else ((), ())
        array = group.create_array(
            name,
            shape=leading + shape,
            chunks=chunk + shape,
            dtype="float64",
            compressors=COMPRESSORS,
            config=WRITE_ALL,
            dimension_names=(("sample",) if meaning.per_sample else ()) + meaning.dimensions,
            attributes={"long_name": meaning.meaning, "units": meaning.units},
        )
        if not meaning.per_sample:
            array[...] = problem.constants[name]
    for name, centres in (("x", grid.x_centres), ("y", grid.y_centres)):
        array = group.create_array(
            name,
            shape=centres.shape,
            chunks=centres.shape,
            dtype="float64",
            compressors=COMPRESSORS,
            config=WRITE_ALL,
            dimension_names=(name,),
        )
        array.attrs.update({"long_name": f"{name} of the cell centres", "units": "1"})
        array[...] = centres
    force_to_disk(growing.rglob("*"))
    digests = digests_below(growing, METADATA)
    for name in (*problem.variables, "x", "y"):
        digests |= digests_below(growing, name)
    (growing / RECORDS).mkdir()
    _write_record(growing, LAYOUT, {FILES: digests})
    force_to_disk([growing])


def _write_record(growing: Path, name: str, content: dict[str, Any]) -> None:
    write_atomically(growing / RECORDS / name, json.dumps(seal(content)).encode())


def _read_record(growing: Path, name: str) -> dict[str, Any]:
    path = growing / RECORDS / name
    return unseal(path, read_json_object(path))


def _block_name(block: int) -> str:
    return f"{block:06d}.json"


def _records(growing: Path) -> dict[int, dict[str, Any]]:
    """The records of the finished blocks."""
    names = [path.name for path in (growing / RECORDS).glob("*.json") if path.name != LAYOUT]
    found = {name: _read_record(growing, name) for name in sorted(names)}
    layout = _read_record(growing, LAYOUT)[FILES]
    for name, record in found.items():
        if name != _block_name(record["block"]) or record["layout"] != _layout_digest(layout):
            raise DamagedFileError(growing / RECORDS / name, "it is the record of another block or of another data set")
    return {record["block"]: record for record in found.values()}


def _layout_digest(layout: dict[str, str]) -> str:
    return str(seal(layout)["sha256"])


def _check_settings(growing: Path, wanted: dict[str, Value], constants: dict[str, Array]) -> None:
    """Raise where an interrupted data set was begun with other settings."""
    found = inspect_group(growing).attributes
    differing = sorted(key for key in wanted.keys() | (found.keys() - SEAL) if found.get(key) != wanted.get(key))
    if not differing:
        group = open_group(growing, complete=False)
        differing = [name for name, value in constants.items() if not np.array_equal(read_array(group[name]), value)]
    if differing:
        raise ValueError(
            f"out: {growing} was begun with other settings ({', '.join(differing)}); finish it with those, "
            "or delete it and start again"
        )


def _check_finished(growing: Path) -> set[int]:
    """The blocks that are finished, all of whose files are as they were written."""
    records = _records(growing)
    for record in (_read_record(growing, LAYOUT), *records.values()):
        check_files(growing, record[FILES])
    return set(records)


def write_block(growing: Path, plan: Plan, block: int, arrays: dict[str, Array]) -> None:
    """Write one block's arrays, force them to the disk, then record the block as finished."""
    with zarr.config.set({"array.write_empty_chunks": True}):
        group = open_group(growing, mode="r+", complete=False)
        samples, digests = plan.blocks[block], dict[str, str]()
        for name, values in arrays.items():
            array: Any = group[name]
            array[samples.start : samples.stop] = values
            chunk = f"{name}/c/{block}"
            force_to_disk([growing / chunk, *(growing / chunk).rglob("*")])
            digests |= digests_below(growing, chunk)  # a folder, or a file where a sample has one number
    layout = _layout_digest(_read_record(growing, LAYOUT)[FILES])
    _write_record(growing, _block_name(block), {"block": block, FILES: digests, "layout": layout})


def finish(growing: Path, path: Path) -> None:
    """Give the complete data set its name; one that is replaced is removed only afterwards."""
    if not growing_is_complete(growing):
        digests = dict(_read_record(growing, LAYOUT)[FILES])
        del digests[METADATA]  # which is about to hold the others
        for record in _records(growing).values():
            digests |= record[FILES]
        seal_group(growing, digests)
    if (growing / RECORDS).exists():
        shutil.rmtree(growing / RECORDS)
    replace_folder(growing, path)


def abandon_if_empty(growing: Path) -> None:
    """Remove a growing data set without a finished block, which would only stand in a later run's way."""
    if not any(file.name != LAYOUT for file in (growing / RECORDS).glob("*.json")):
        remove_own(growing)


def _format_of(path: Path) -> Any:
    """The format that a zarr group names in its attributes, or None."""
    try:
        attributes = read_json_object(path / METADATA).get("attributes")
    except (OSError, ValueError):
        return None
    return attributes.get("format") if isinstance(attributes, dict) else None


def load(path: str | Path, samples: slice = slice(None), names: Container[str] | None = None) -> DataSet:
    """Read a data set into memory, or some of its samples and arrays.

    Raises
    ------
    ValueError
        With the file, where one of those read is missing or not as it was written.
    """
    path = Path(path)
    recover_folder(path)
    if not path.exists():
        hint = "; it was begun but not finished: run generate again" if unfinished_folders(path) else ""
        raise ValueError(f"file = {path}: there is no such data set{hint}")
    if _format_of(path) != FORMAT:
        raise ValueError(
            f"file = {path}: not a ridgewalk Darcy data set (a zarr folder made by `darcy generate`), or "
            f"{METADATA} is damaged"
        )
    info = inspect_group(path)
    _check_version(path, info.attributes.get("format_version"))
    files = sealed_files(path)
    if files is None:
        raise DamagedFileError(path / METADATA, "it has no digests of the files, so it is damaged or unfinished")
    recorded = {name.split("/")[0] for name in files}
    chosen = [name for name in sorted(recorded) if names is None or name in names]
    check_files(path, files, chosen)
    group = open_group(path)
    arrays = {}
    for name in chosen:
        per_sample = "sample" in (info.arrays[name].metadata.get("dimension_names") or ())
        arrays[name] = read_array(group[name], samples if per_sample else ...)
    attributes = {key: value for key, value in info.attributes.items() if key not in SEAL}
    grid = Grid(*(attributes[name] for name in ("nx", "ny", "width", "height")))
    return DataSet(grid, attributes, arrays)


def _check_version(path: Path, found: Any) -> None:
    if found == FORMAT_VERSION:
        return
    if isinstance(found, int) and found > FORMAT_VERSION:
        raise NewerFormatError(
            f"file = {path}: {METADATA} names format version {found}, this ridgewalk reads {FORMAT_VERSION}; upgrade "
            "ridgewalk"
        )
    raise ValueError(
        f"file = {path}: {METADATA} names format version {found}, of an earlier ridgewalk, without checksums; generate "
        "it again (the same command gives the same samples)"
    )


THREAD_SETTINGS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Progress = Callable[[int], None]


def generate(
    path: str | Path,
    problem: Problem,
    plan: Plan,
    *,
    processes: int = 1,
    overwrite: bool = False,
    progress: Progress = lambda samples: None,
) -> Path:
    """Draw and solve `plan.samples` problems into the zarr group `path`.

    `progress` is called with the number of samples that became ready. Samples are computed in worker
    processes with one thread of linear algebra each, also when there is one worker: threads change the order
    of sums, and sample `i` has to be the same, to the last bit, whatever the number of processes.
    """
    if processes < 1:
        raise ValueError(f"processes = {processes}: give at least 1")
    path = Path(path)
    refuse_to_replace(path, overwrite)
    growing = working_folder(path)
    with sole_writer(growing):
        todo = begin(growing, problem, plan)
        progress(plan.samples - sum(len(plan.blocks[number]) for number in todo))
        try:
            _fill(growing, problem, plan, todo, processes=min(processes, len(todo)), progress=progress)
        except BaseException:
            abandon_if_empty(growing)
            raise
        finish(growing, path)
    return path


def _fill(growing: Path, problem: Problem, plan: Plan, todo: list[int], *, processes: int, progress: Progress) -> None:
    """Compute the blocks still to do and write each as it becomes ready; this process is the only writer."""
    if not todo:
        return
    with _workers(processes) as pool:
        running = {pool.submit(problem.draw, plan.seed, plan.blocks[number]): number for number in todo}
        for finished in as_completed(running):
            number = running[finished]
            write_block(growing, plan, number, finished.result())
            progress(len(plan.blocks[number]))


@contextmanager
def _workers(processes: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh, single-threaded processes that end with their parent."""
    former = {name: os.environ.get(name) for name in THREAD_SETTINGS}
    os.environ.update(dict.fromkeys(THREAD_SETTINGS, "1"))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_with_parent() -> None:
    """Leave interrupts to the parent, and do not outlive it: a worker would wait for work for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
