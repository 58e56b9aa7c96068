"""Execution of tasks: their results on disk, from which an interrupted study resumes, and worker processes.

XLA's thread pools stall if several busy processes share the cores, so a worker has a single thread and there is one
worker per core. Processes are spawned, because JAX must not be forked.
"""

import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ridgewalk._io import read_tensors, remove_own, working_folder, write_atomically, write_tensors
from ridgewalk.studies.framework.study import Preset, Row, Task, study_at

Arrays = dict[str, np.ndarray]
KIND, VERSION = "ridgewalk study arrays", 1
"""Format of the files of `cached_arrays`."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "PJRT_NPROC": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_ARENA_MAX": "1",
}
"""Environment of a worker: one thread for BLAS, Numba and XLA, and a heap that keeps its memory.

By default glibc returns large buffers to the system at every step and maps them again: a chain of the Darcy studies
spends 10 to 20 % of its CPU time on page faults. Other C libraries ignore the last three variables.
"""
SINGLE_THREAD_XLA = "--xla_cpu_multi_thread_eigen=false"
CONFIGURATION = ("jax_enable_x64", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
"""JAX settings that workers take over from this process."""
GRACE_SECONDS = 20.0
"""How long workers may take to stop after an interrupt: the optimiser writes a checkpoint first."""


class Completed(NamedTuple):
    """The result of a task, and the seconds that it took."""

    row: Row
    seconds: float


class TaskCache:
    """A folder with one JSON file per completed task, named after the task and a hash of its settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, task: Task) -> Completed | None:
        """Return the result recorded for a task with equal settings, or None."""
        path = self._path(task)
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text())
            if content["settings"] != full_settings(task.settings):
                return None
            return Completed(task.row(**content["row"]), float(content["seconds"]))
        except (ValueError, KeyError, TypeError):
            return None  # not written by this class, whose writes are atomic: run the task again

    def run(self, task: Task) -> Completed:
        """Run a task and record its result; nothing is recorded if it is interrupted or fails."""
        start = time.perf_counter()
        fields = _through_json(row_fields(task.run(self.folder.parent)))
        seconds = time.perf_counter() - start
        content = {"task": task.name, "settings": full_settings(task.settings), "row": fields, "seconds": seconds}
        write_atomically(self._path(task), json.dumps(content, allow_nan=False).encode())
        return Completed(task.row(**fields), seconds)

    def _path(self, task: Task) -> Path:
        return self.folder / f"{task.name}-{_hash(task.settings)}.json"


def row_fields(row: Row, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a row by name, without those that equal their default (such as the errors of diverged chains)."""
    defaults = getattr(row, "_field_defaults", {})
    return {
        name: value
        for name, value in row._asdict().items()
        if name not in without and not (name in defaults and _same(value, defaults[name]))
    }


def _same(value: Any, default: Any) -> bool:
    both_nan = isinstance(value, float) and isinstance(default, float) and math.isnan(value) and math.isnan(default)
    return bool(both_nan or value == default)


def cached_arrays(folder: Path, name: str, settings: Mapping[str, Any], make: Callable[[Path], Arrays]) -> Arrays:
    """Return the arrays cached for equal settings, or make and cache them.

    `make` is called with a folder for its checkpoints, the same one when it is called again after an interruption.
    """
    path = folder / "arrays" / f"{name}-{_hash(settings)}.safetensors"
    if path.exists():
        return read_tensors(path, kind=KIND, newest=VERSION).tensors
    unfinished = working_folder(path)
    arrays = make(unfinished)
    write_tensors(path, arrays, kind=KIND, version=VERSION, about=full_settings(settings))
    remove_own(unfinished)
    return arrays


def full_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a result depends on: the task's settings, the precision, and the versions that matter."""
    versions = {name: version(name) for name in ("ridgewalk", "jax")}
    return _through_json({**settings, "x64": bool(jax.config.read("jax_enable_x64")), "versions": versions})


def _hash(settings: Mapping[str, Any]) -> str:
    text = json.dumps(full_settings(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _through_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Encode and decode as JSON, which turns tuples into lists: equal settings then compare equal."""
    plain: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
    return plain


class Assignment(NamedTuple):
    """A task, by names that a worker process can resolve."""

    location: str
    task: str


class Finished(NamedTuple):
    """What a worker reports: `error` is empty if the task's result is in the cache."""

    worker: int
    assignment: Assignment
    error: str


class WorkerPool:
    """A number of worker processes, each with at most one task at a time."""

    def __init__(self, count: int, preset: Preset, out: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes, self._connections = [], []
        self._running: dict[int, Assignment] = {}
        configuration = {name: getattr(jax.config, name) for name in CONFIGURATION}
        with _environment_of_workers():
            for _ in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, preset, out, configuration), daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._connections.append(ours)

    def idle(self) -> list[int]:
        """Workers without a task."""
        return [number for number in range(len(self._processes)) if number not in self._running]

    def start(self, worker: int, assignment: Assignment) -> None:
        """Give an idle worker a task."""
        self._running[worker] = assignment
        with contextlib.suppress(BrokenPipeError):  # it has died: `finished` reports that
            self._connections[worker].send(assignment)

    def finished(self) -> list[Finished]:
        """Wait until at least one running task ends, and return those that did."""
        ready = wait([self._connections[number] for number in self._running])
        found = []
        for number in [n for n in self._running if self._connections[n] in ready]:
            assignment = self._running.pop(number)
            try:
                error = self._connections[number].recv()
            except EOFError:
                self._processes[number].join()
                error = f"the worker process ended with exit code {self._processes[number].exitcode}"
            found.append(Finished(number, assignment, error))
        return found

    def close(self) -> None:
        """Stop all workers, interrupting running tasks once so that they can save a checkpoint."""
        for number, process in enumerate(self._processes):
            if number in self._running and process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGINT)
            self._connections[number].close()
        last = time.monotonic() + GRACE_SECONDS
        for process in self._processes:
            process.join(max(0.0, last - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


@contextlib.contextmanager
def _environment_of_workers() -> Iterator[None]:
    """Environment variables and signal handling that processes started inside inherit.

    Ctrl-C in a terminal signals the whole process group. Workers ignore it until they have left the group (`_serve`).
    """
    flags = os.environ.get("XLA_FLAGS", "")
    wanted = ENVIRONMENT | {"XLA_FLAGS": f"{flags} {SINGLE_THREAD_XLA}".strip()}
    former = {name: os.environ.get(name) for name in wanted}
    main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main_thread else None
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if main_thread:
            signal.signal(signal.SIGINT, handler)


def _serve(connection: Connection, preset: Preset, out: Path, configuration: dict[str, Any]) -> None:
    """Run the tasks that arrive until the connection closes; a worker process's main function."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for name, value in configuration.items():
        jax.config.update(name, value)
    try:
        while True:
            assignment: Assignment = connection.recv()
            error = ""
            try:
                study = study_at(assignment.location)
                plan = study.plan(study.presets[preset])
                task = next(task for task in plan if task.name == assignment.task)
                TaskCache(out / study.name / "tasks").run(task)
            except (ValueError, RuntimeError, OSError) as known:
                error = f"{type(known).__name__}: {known}"
            except Exception:
                error = traceback.format_exc()
            connection.send(error)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return


def _end_with_parent() -> None:
    """End this process if its parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
