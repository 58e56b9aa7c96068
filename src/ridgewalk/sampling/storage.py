"""Where draws are kept, and the thread that writes them.

`RunWriter` writes the draws and checkpoints of a run, and finds what an earlier process of the same run has written.
Stores on disk are in `segments`, beside checkpoints, and `zarr_store`, which can be read during a run.
"""

import contextlib
import dataclasses
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._io import DamagedFileError, sole_writer
from ridgewalk._types import PyTree
from ridgewalk.distributed import processes
from ridgewalk.kernel import Info
from ridgewalk.result import ChainStatus
from ridgewalk.sampling import checkpoint
from ridgewalk.sampling.checkpoint import (
    ENVIRONMENT,
    Checkpoint,
    CheckpointError,
    config_snapshot,
    differences,
    environment,
    warn_of_environment,
)
from ridgewalk.sampling.parts import (
    ChainPart,
    advice,
    count_chains,
    join_data_states,
    merge_manifests,
    parts_of,
)
from ridgewalk.schedules import RunSchedule

T = TypeVar("T")

SECONDS_TO_SHOW = 5.0
"""How long a file of one process may take to be seen by another, on another machine."""

STORABLE = frozenset(
    [
        "bool",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        *("float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
    ]
)
"""The dtypes of draws that can be kept on disk."""


def check_storable(dtype: np.dtype[Any]) -> None:
    """Raise where draws of a dtype cannot be kept on disk."""
    if dtype.name not in STORABLE:
        raise ValueError(
            f"position: draws of dtype {dtype} cannot be kept on disk, as store and checkpoint do; start from "
            "float32 or bfloat16 numbers"
        )


def is_floating(dtype: Any) -> bool:
    """Whether a dtype has NaN; bfloat16 counts."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _statistics(groups: dict[str, PyTree], step: Any, step_size: Any) -> dict[str, Any]:
    return {**groups["sample_stats"]._asdict(), "step": step, "step_size": step_size}


class DrawStore(ABC):
    """Keeps the draws of all chains: a dictionary of groups, each a pytree whose leaves have axes (chain, draw, …)."""

    in_background: bool
    """Whether its methods are called by the writer thread."""

    @abstractmethod
    def write(self, first: int, draws: dict[str, PyTree]) -> None:
        """Append draws; `first` is the number of draws before them."""

    @abstractmethod
    def mask_draws(self, places: list[tuple[int, int]]) -> None:
        """Replace draws (chain, draw) that were written before by NaN."""

    @abstractmethod
    def flush(self) -> None:
        """Make everything written so far durable (fsync)."""

    @abstractmethod
    def manifest(self) -> dict[str, Any] | None:
        """What the store holds after a flush, as JSON, for a checkpoint; None where nothing survives the process."""

    @abstractmethod
    def remove_unused(self) -> None:
        """Remove files of the store that no checkpoint refers to any more; called after a checkpoint was written."""

    @abstractmethod
    def finish(self) -> None:
        """Flush, and complete the store for readers."""

    @abstractmethod
    def record_outcome(self, outcome: dict[str, Any]) -> None:
        """Keep how the run ended, as JSON, where readers of the store look for it."""

    @abstractmethod
    def read(self, draws: int) -> PyTree:
        """The first draws, in memory."""

    @abstractmethod
    def arrays(self, draws: int) -> PyTree:
        """The arrays of the first draws, read when they are indexed where they are on disk."""

    @abstractmethod
    def close(self) -> None:
        """Release files; `arrays` can still be read."""


class MemoryStore(DrawStore):
    """Draws in memory."""

    in_background = False

    def __init__(self, like: dict[str, PyTree], chains: int, draws: int, arrays: PyTree = None) -> None:
        fresh = arrays is None
        self._arrays = jax.tree.map(lambda x: np.empty((chains, draws, *x.shape), x.dtype), like) if fresh else arrays

    def write(self, first: int, draws: dict[str, PyTree]) -> None:
        """Copy the draws."""

        def copy(array: np.ndarray, values: np.ndarray) -> None:
            array[:, first : first + values.shape[1]] = values

        jax.tree.map(copy, self._arrays, draws)

    def mask_draws(self, places: list[tuple[int, int]]) -> None:
        """NaN for draws."""
        for array in jax.tree.leaves(self._arrays):
            if is_floating(array.dtype):
                for place in places:
                    array[place] = np.nan

    def flush(self) -> None:
        """Nothing to do."""

    def manifest(self) -> dict[str, Any] | None:
        """Nothing survives the process."""
        return None

    def remove_unused(self) -> None:
        """There are no files."""

    def finish(self) -> None:
        """Nothing to do."""

    def record_outcome(self, outcome: dict[str, Any]) -> None:
        """The result has it."""

    def read(self, draws: int) -> PyTree:
        """The first draws, without a copy."""
        return self.arrays(draws)

    def arrays(self, draws: int) -> PyTree:
        """The same."""
        return jax.tree.map(lambda x: x[:, :draws], self._arrays)

    def close(self) -> None:
        """Nothing to do."""


QUEUE_LENGTH = 2


class WriterThread:
    """Runs calls one after the other; an exception of one of them is raised by a later `submit` or by `finish`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "ridgewalk-writer")
        self._queue: deque[Future[Any]] = deque()

    def submit(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Queue a call; wait where the queue is full."""
        while self._queue and (self._queue[0].done() or len(self._queue) >= QUEUE_LENGTH):
            self._queue.popleft().result()
        self._queue.append(self._thread.submit(call, *arguments))

    def finish(self) -> None:
        """Wait for all calls."""
        while self._queue:
            self._queue.popleft().result()

    def close(self) -> None:
        """End the thread; calls that have not begun are dropped."""
        self._thread.shutdown(cancel_futures=True)


def stored_setting(folder: Path, name: str) -> Any:
    """A setting of the run whose newest checkpoint is in a folder; None if there is none."""
    if not folder.is_dir() or not checkpoint.files(folder):
        return None
    found = checkpoint.latest(folder)
    return None if found is None else found.settings.get(name)


FORMER_DRAWS = "draws.zarr"
"""Where a run with checkpoints and without `store` kept its draws before version 3 of the checkpoint format."""


class RunWriter:
    """Writes draws and checkpoints of one run. A checkpoint is written after the draws it counts are on the disk."""

    def __init__(
        self,
        schedule: RunSchedule,
        like: dict[str, PyTree],
        settings: dict[str, Any],
        store: str | os.PathLike[str] | None,
        folder: str | os.PathLike[str] | None,
        every: tuple[int | None, float | None],
        resume: bool,
        parts: Sequence[ChainPart] = (),
        shards: int = 0,
    ) -> None:
        self.schedule, self.settings, self.parts, self.shards = schedule, settings, parts, shards
        self.steps_between, self.seconds_between = every
        self.folder = None if folder is None else Path(folder)
        self.store_path = None if store is None else Path(store)
        self.found: Checkpoint | None = None
        self.several = jax.process_count() > 1
        self._saved_at, self._saved_step = time.monotonic(), 0
        self._open = contextlib.ExitStack()
        try:
            if self.folder is not None:
                self._open_folder(resume)
            if self.several:
                self._check_same_checkpoint()
            self.draws: DrawStore = self._call(self._store, self._on_disk(like, 0, 0), resume)
            self._open.callback(self.draws.close)
            if self.several:
                processes.barrier("opened")
        except BaseException:
            self._open.close()
            raise
        self._masked: list[tuple[int, int]] = []
        self._thread = WriterThread()
        self._open.callback(self._thread.close)

    def _open_folder(self, resume: bool) -> None:
        """Take hold of the checkpoint folder, and read the newest checkpoint where a run is to be resumed."""
        assert self.folder is not None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"checkpoint: {self.folder} cannot be made a folder ({error.strerror})") from error
        if not os.access(self.folder, os.W_OK):
            raise ValueError(f"checkpoint: {self.folder} is read-only; choose a folder that can be written")
        if jax.process_index() == 0:
            self._open.enter_context(sole_writer(self.folder, "checkpoint"))
        if not resume:
            if checkpoint.files(self.folder):
                raise ValueError(
                    f"checkpoint: {self.folder} already holds a run; pass resume=True to continue it, or another folder"
                )
            return
        self.found = checkpoint.latest(self.folder)
        if self.found is not None:
            self._compare(self.found)
            self._saved_step = self.found.step

    def _check_same_checkpoint(self) -> None:
        """Raise where the processes do not see the same files."""
        if self.folder is not None:
            self._check_shared_folder(self.folder)
        steps = processes.exchange_json("resumed from", self.start)
        if len(set(steps)) > 1:
            raise ValueError(
                f"checkpoint: the processes see checkpoints of {steps} steps in {self.folder}; use a folder on a file "
                "system that all of them share"
            )

    def _check_shared_folder(self, folder: Path) -> None:
        """Raise where another process does not see a file of process 0; a network may take a moment to show it."""
        first = jax.process_index() == 0
        own = folder / f".shared-{secrets.token_hex(4)}"
        try:
            if first:
                own.touch()
            name = processes.exchange_json("folder", own.name)[0]
            until = time.monotonic() + SECONDS_TO_SHOW
            while not (seen := (folder / name).exists()) and time.monotonic() < until:
                time.sleep(0.1)
            told = processes.exchange_json("folder seen", seen)
        finally:
            if first:
                own.unlink(missing_ok=True)
        if not all(told):
            raise ValueError(
                f"checkpoint: process {told.index(False)} does not see what process 0 writes to {folder}; use a folder "
                "on a file system that all of them share"
            )

    def _compare(self, found: Checkpoint) -> None:
        """Refuse other settings; more steps than before are allowed."""
        then, now = found.settings, self.snapshot(found.step)
        changed = differences(then, now)
        if self.schedule.steps < found.step:
            changed.append(f"steps: the checkpoint has made {found.step}, now only {self.schedule.steps} are asked for")
        if changed:
            raise ValueError(
                f"resume: {self.folder} was begun with other settings:\n  "
                + "\n  ".join(changed)
                + "\nuse the same settings, or another checkpoint folder"
            )
        warn_of_environment(then, now)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """Described once: all data are read for it."""
        description: dict[str, Any] = config_snapshot({**self.settings, ENVIRONMENT: environment()})
        return description

    def snapshot(self, step: int) -> dict[str, Any]:
        """The settings that must agree when a run that has made `step` steps is resumed."""
        return {**self._settings, **config_snapshot(self.schedule.described(step))}

    def _store(self, like: dict[str, PyTree], resume: bool) -> DrawStore:
        """Where the draws are kept; those that the checkpoint counts are verified."""
        manifest = self._manifest()
        if self.store_path is not None:
            return self._zarr_store(self.store_path, like, resume, manifest)
        chains, draws = self.schedule.chains, self.schedule.draws
        if self.folder is None:
            if self.several:
                chains = count_chains(parts_of(self.parts, jax.process_index()))
            return MemoryStore(like, chains, draws)
        from ridgewalk.sampling.segments import SegmentParts, SegmentStore  # noqa: PLC0415  (it builds on this module)

        store = (
            SegmentParts(self.folder, like, draws, self.parts)
            if self.several
            else SegmentStore(self.folder, like, chains, draws)
        )
        if manifest is not None:
            store.restart(self.schedule.draws_by(self.start), manifest)
        return store

    def _manifest(self) -> dict[str, Any] | None:
        """What the checkpoint says about the draws before it, if they are where this call keeps draws."""
        if self.found is None:
            return None
        where, manifest = f"checkpoint: step {self.found.step} in {self.folder}", self.found.store
        finish = "finish it with the version that began it, or choose another checkpoint folder"
        if manifest is None:
            raise CheckpointError(f"{where} has no list of its draws, as in former formats; {finish}")
        segments = "columns" not in manifest
        if not segments and self.store_path is None:
            raise CheckpointError(
                f"{where} has its draws in a zarr store; pass the store= that the run was begun with. A run begun "
                f"without one, whose draws are in {FORMER_DRAWS}, has a former format: {finish}"
            )
        if segments and self.store_path is not None:
            raise CheckpointError(
                f"store: the run in {self.folder} was begun without store=, and its draws are in that folder; leave "
                "store= out, or choose another checkpoint folder"
            )
        return manifest

    def _zarr_store(
        self, path: Path, like: dict[str, PyTree], resume: bool, manifest: dict[str, Any] | None
    ) -> DrawStore:
        """Open the store of an earlier process, or create one."""
        from ridgewalk.sampling.zarr_store import ZarrStore  # noqa: PLC0415  (zarr is slow to import)

        exists = os.path.lexists(path)
        if self.several:
            exists = processes.exchange_json("store exists", exists)[0]
        chains, draws = self.schedule.chains, self.schedule.draws
        if not exists:
            if self.found is not None:
                raise CheckpointError(f"store: {path} does not exist, but the checkpoint has draws in it; restore it")
            return ZarrStore.create(path, like, chains, draws, self.snapshot(0), self.parts)
        self._check_store(path, resume)
        store = ZarrStore(path, like, chains, draws, self.parts)
        try:
            store.restart(self.schedule.draws_by(self.start), manifest)
        except BaseException:
            store.close()
            raise
        return store

    def _check_store(self, path: Path, resume: bool) -> None:
        from ridgewalk.sampling.reopen import settings_of  # noqa: PLC0415  (it builds on this module)

        if not resume:
            raise ValueError(f"store: {path} exists; choose another name, or resume the run that wrote it")
        written_with = settings_of(path)
        if written_with is None:
            raise ValueError(f"store: {path} is not a store of draws; choose another name")
        changed = differences(written_with, self.snapshot(0))
        if changed:
            listed = "\n  ".join(changed)
            raise ValueError(f"store: {path} was written by another run; choose another name\n  {listed}")

    def advice(self) -> str:
        """What to do after a process was lost."""
        return advice(self.shards, self.folder)

    @property
    def start(self) -> int:
        """The steps that were made before."""
        return 0 if self.found is None else self.found.step

    def write(self, first: int, draws: dict[str, PyTree], step_size: float = 1.0) -> None:
        """Keep draws from number `first` on; `step_size` is what warm-up chose, of which the schedule has factors."""
        if self.draws.in_background:
            count = jax.tree.leaves(draws)[0].shape[1]
            stored = self._on_disk(draws, first, first + count, step_size)
            self._thread.submit(self._call, self.draws.write, first, stored)
        else:
            self.draws.write(first, draws)

    def _on_disk(self, groups: dict[str, PyTree], first: int, stop: int, step_size: float = 1.0) -> dict[str, PyTree]:
        """Draws from `first` to `stop`, or one draw's shapes, as they are kept on disk: each has its step and step size
        beside its statistics, so that a reader needs no schedule.
        """
        if self.folder is None and self.store_path is None:
            return groups
        steps, sizes = self.schedule.draw_steps(first, stop), self.schedule.draw_step_sizes(first, stop) * step_size
        if stop == first:
            return {**groups, "sample_stats": _statistics(groups, np.zeros((), np.int64), np.zeros(()))}
        chains = jax.tree.leaves(groups)[0].shape[0]  # of this process
        both = (np.tile(values, (chains, 1)) for values in (steps.astype(np.int64), sizes))
        return {**groups, "sample_stats": _statistics(groups, *both)}

    def mask_draw(self, chain: int, draw: int) -> None:
        """Replace a draw that was written before by NaN, at the latest with the next checkpoint."""
        self._masked.append((chain, draw))

    def _submit_masks(self) -> None:
        masked, self._masked = self._masked, []
        if masked:
            self._thread.submit(self._call, self.draws.mask_draws, masked)

    def due(self, step: int) -> bool:
        """Whether it is time for a checkpoint after `step` steps."""
        if self.folder is None:
            return False
        if self.steps_between is not None:
            return step % self.steps_between == 0
        return time.monotonic() - self._saved_at >= (self.seconds_between or 0)

    def save(self, step: int, arrays: PyTree, data: dict[str, Any] | None = None) -> None:
        """Write a checkpoint, after all draws so far; `data` is where the data were read up to."""
        if self.folder is None or step == self._saved_step:
            return
        self._saved_at, self._saved_step = time.monotonic(), step
        self._submit_masks()
        state = Checkpoint(step, [], self.snapshot(step), data=data)
        if self.several:
            own = zip(parts_of(self.parts, jax.process_index()), arrays, strict=True)
            owned = [(part.chains, group) for part, group in own if part.owner == jax.process_index()]
            written = [(cut, [np.array(leaf) for leaf in jax.tree.leaves(group)]) for cut, group in owned]
            self._thread.submit(self._write_parts, self.folder, state, written)
            return
        leaves = [np.array(leaf) for leaf in jax.tree.leaves(arrays)]
        self._thread.submit(self._write_checkpoint, self.folder, dataclasses.replace(state, arrays=leaves))

    def _write_parts(self, folder: Path, state: Checkpoint, parts: list[tuple[slice, list[np.ndarray]]]) -> None:
        """This process's part of a checkpoint; process 0 writes the list of all parts once they are on the disk."""
        self._call(self.draws.flush)
        written = [checkpoint.write_part(folder, state.step, cut, leaves) for cut, leaves in parts]
        own = {"parts": written, "store": self.draws.manifest(), "data": state.data}
        told = processes.exchange_json("checkpoint", own)
        if jax.process_index() == 0:
            store = merge_manifests([one["store"] for one in told])
            listed = [part for one in told for part in one["parts"]]
            state = dataclasses.replace(state, store=store, data=join_data_states([one["data"] for one in told]))
            checkpoint.write(folder, state, listed)
        processes.barrier("checkpoint written")
        self._call(self.draws.remove_unused)

    def _write_checkpoint(self, folder: Path, state: Checkpoint) -> None:
        self._call(self.draws.flush)
        checkpoint.write(folder, dataclasses.replace(state, store=self.draws.manifest()))
        self._call(self.draws.remove_unused)

    def _call(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call a method of the store; its errors say what to do."""
        name = "checkpoint" if self.store_path is None else "store"
        again = "" if self.folder is None else ", then make the same call with resume=True"
        try:
            return call(*arguments)
        except DamagedFileError as error:
            raise CheckpointError(f"{name}: {error}") from error
        except OSError as error:
            place = self.store_path or self.folder
            raise OSError(
                error.errno,
                f"{name}: draws could not be written to {place} ({error.strerror}); free space or make it writable"
                f"{again}",
            ) from error

    def finish(self) -> None:
        """Wait until everything is written."""
        self._submit_masks()
        self._thread.submit(self._call, self.draws.finish)
        self._thread.finish()
        if self.several:
            processes.barrier("finished")

    def result_draws(self, draws: int) -> dict[str, PyTree]:
        """The first draws: positions and collected values on disk where the user asked for a store."""
        groups: dict[str, PyTree] = self._call(self.draws.arrays, draws)
        stats = groups["sample_stats"]
        named = stats if isinstance(stats, dict) else stats._asdict()
        info = {name: np.asarray(named[name][...]) for name in Info._fields}
        return {**groups, "sample_stats": Info(**info)}  # type: ignore[arg-type]

    def record_outcome(self, status: Iterable[ChainStatus]) -> None:
        """Keep how every chain ended."""
        if jax.process_index() == 0:
            self._call(self.draws.record_outcome, {"status": [dataclasses.asdict(chain) for chain in status]})
        if self.several:
            processes.barrier("outcome")

    def close(self) -> None:
        """Release files and threads."""
        self._open.close()
