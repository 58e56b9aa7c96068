"""The disk side of a run: where its draws and checkpoints go, and what an earlier process left of them."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from ridgewalk._io import sole_writer
from ridgewalk._types import PyTree
from ridgewalk.run import checkpoint
from ridgewalk.run.background import Background
from ridgewalk.run.checkpoint import Checkpoint, CheckpointError
from ridgewalk.run.fingerprint import describe, differences
from ridgewalk.run.plan import Plan
from ridgewalk.run.stores import MemoryStore, ZarrStore, settings_of

T = TypeVar("T")

DRAWS = "draws.zarr"
"""Where a checkpointed run that keeps its draws in memory also has them on disk."""


class Archive:
    """Draws and checkpoints of one run. A checkpoint is written after the draws it counts are on the disk."""

    def __init__(
        self,
        plan: Plan,
        like: dict[str, PyTree],
        settings: dict[str, Any],
        store: str | os.PathLike[str] | None,
        folder: str | os.PathLike[str] | None,
        every: tuple[int | None, float | None],
        resume: bool,
    ) -> None:
        self.plan, self.settings = plan, settings
        self.steps_between, self.seconds_between = every
        self.folder = None if folder is None else Path(folder)
        self.store_path = None if store is None else Path(store)
        self.found: Checkpoint | None = None
        self._saved_at, self._saved_step = time.monotonic(), 0
        self._open = contextlib.ExitStack()
        try:
            if self.folder is not None:
                self._open_folder(resume)
            path = self.store_path or (self.folder / DRAWS if self.folder is not None else None)
            self.draws = MemoryStore(like, plan.chains, plan.draws) if path is None else self._store(path, like, resume)
        except BaseException:
            self._open.close()
            raise
        self._disk = Background()
        self._open.callback(self._disk.close)

    def _open_folder(self, resume: bool) -> None:
        """Take hold of the checkpoint folder, and read the newest checkpoint where a run is to be resumed."""
        assert self.folder is not None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"checkpoint: {self.folder} cannot be made a folder ({error.strerror})") from error
        if not os.access(self.folder, os.W_OK):
            raise ValueError(f"checkpoint: {self.folder} is read-only; choose a folder that can be written")
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

    def _compare(self, found: Checkpoint) -> None:
        """Refuse other settings; more steps than before are welcome."""
        then, now = found.settings, self.described(found.step)
        changed = differences(then, now)
        if self.plan.steps < found.step:
            changed.append(f"steps: the checkpoint has made {found.step}, now only {self.plan.steps} are asked for")
        if changed:
            raise ValueError(
                f"resume: {self.folder} was begun with other settings:\n  "
                + "\n  ".join(changed)
                + "\nuse the same settings, or another checkpoint folder"
            )

    def described(self, step: int) -> dict[str, Any]:
        """The settings that must agree when a run that has made `step` steps is resumed."""
        return {**describe(self.settings), "step_sizes": describe(self.plan.step_sizes.described(step))}

    def _store(self, path: Path, like: dict[str, PyTree], resume: bool) -> ZarrStore:
        mine = self.folder is not None and path == self.folder / DRAWS
        if path.exists():
            self._check_store(path, resume or mine)
            store = ZarrStore(path, like)
            store.grow(self.plan.draws)
        else:
            if self.found is not None:
                raise CheckpointError(f"store: {path} is gone, but the checkpoint counts draws in it; put it back")
            about = {"settings": self.described(0)}
            store = self._guarded(ZarrStore.create, path, like, self.plan.chains, self.plan.draws, about)
        store.restart(self.plan.draws_by(0 if self.found is None else self.found.step))
        return store

    def _check_store(self, path: Path, resume: bool) -> None:
        if not resume:
            raise ValueError(f"store: {path} exists; choose another name, or resume the run that wrote it")
        written_with = settings_of(path)
        if written_with is None:
            raise ValueError(f"store: {path} is not a store of draws; choose another name")
        changed = differences(written_with, self.described(0))
        if changed:
            listed = "\n  ".join(changed)
            raise ValueError(f"store: {path} was written by another run; choose another name\n  {listed}")

    @property
    def start(self) -> int:
        """The steps that were made before."""
        return 0 if self.found is None else self.found.step

    def take(self, first: int, draws: dict[str, PyTree]) -> None:
        """Keep draws from number `first` on."""
        if isinstance(self.draws, MemoryStore):
            self.draws.write(first, draws)
        else:
            self._disk.submit(self._guarded, self.draws.write, first, draws)

    def blank(self, chain: int, draw: int) -> None:
        """NaN for a draw taken before."""
        if isinstance(self.draws, MemoryStore):
            self.draws.blank(chain, draw)
        else:
            self._disk.submit(self._guarded, self.draws.blank, chain, draw)

    def due(self, step: int) -> bool:
        """Whether it is time for a checkpoint after `step` steps."""
        if self.folder is None:
            return False
        if self.steps_between is not None:
            return step % self.steps_between == 0
        return time.monotonic() - self._saved_at >= (self.seconds_between or 0)

    def save(self, step: int, arrays: PyTree) -> None:
        """Write a checkpoint, after all draws so far."""
        if self.folder is None or step == self._saved_step:
            return
        self._saved_at, self._saved_step = time.monotonic(), step
        leaves = [np.array(leaf) for leaf in jax.tree.leaves(arrays)]
        self._disk.submit(self._guarded, self.draws.flush)
        self._disk.submit(checkpoint.write, self.folder, Checkpoint(step, leaves, self.described(step)))

    def _guarded(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return call(*arguments)
        except OSError as error:
            place = self.store_path or self.folder
            again = "" if self.folder is None else ", then make the same call with resume=True"
            raise OSError(
                error.errno,
                f"store: draws could not be written to {place} ({error.strerror}); free space or make it writable"
                f"{again}",
            ) from error

    def finish(self) -> None:
        """Everything that was taken is on the disk."""
        if isinstance(self.draws, ZarrStore):
            self._disk.submit(self._guarded, self.draws.flush)
        self._disk.finish()

    def close(self) -> None:
        """Let go of files and threads."""
        self._open.close()
