"""A pool of threads for sparse products (timed in `benchmarks/pruning.py`), which sleep while there is nothing to do.

Threads of numba's own (OpenMP) start sooner, but keep spinning after every product, on the cores that
XLA computes on between two of them; and they are not fork-safe.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np

WORTH_SHARING = 2**19
"""Numbers of a product from which on its time is long against that of waking another core (20 microseconds)."""


def allowed_cores() -> int:
    """The process's cores, or as many of them as OMP_NUM_THREADS allows."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return min(cores, int(asked)) if asked.isdigit() and int(asked) > 0 else cores


def bounds_of_parts(work: np.ndarray, parts: int) -> np.ndarray:
    """Where to cut outputs so that every part has about as much work; those before output i have `work[i]` of it."""
    wanted = np.arange(1, parts) * (int(work[-1]) / parts)
    inner = np.searchsorted(work, wanted.astype(work.dtype))
    return np.concatenate([[0], inner, [len(work) - 1]]).astype(np.int64)


class _Helper:
    """A thread that runs what it is handed, one thing after the other."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[BaseException | None]]] = SimpleQueue()
        threading.Thread(target=self._serve, name="ridgewalk-product", daemon=True).start()

    def _serve(self) -> None:
        while True:
            task, done = self.tasks.get()
            try:
                task()
            except BaseException as error:  # handed to the thread that waits
                done.put(error)
            else:
                done.put(None)


class Team:
    """Threads of one process, which serve one product at a time."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.busy = threading.Lock()
        self.helpers: list[_Helper] = []

    def run(self, tasks: list[Callable[[], Any]]) -> None:
        """All tasks, the first on this thread; one after the other where another thread has the helpers.

        The tasks must leave Python's lock, or nothing is gained.
        """
        if len(tasks) == 1 or not self.busy.acquire(blocking=False):
            for task in tasks:
                task()
            return
        try:
            first, *others = tasks
            while len(self.helpers) < len(others):
                self.helpers.append(_Helper())
            # This call's own: an interrupted one leaves ends unread.
            done: SimpleQueue[BaseException | None] = SimpleQueue()
            for helper, task in zip(self.helpers, others, strict=False):
                helper.tasks.put((task, done))
            try:
                first()
            finally:  # helpers must be done before anybody else gets them
                errors = [error for error in [done.get() for _ in others] if error is not None]
            if errors:
                raise errors[0]
        finally:
            self.busy.release()


_team = Team()


def run_together(tasks: list[Callable[[], Any]]) -> None:
    """Run all tasks, each on a core; a process that was forked gets threads of its own."""
    global _team  # noqa: PLW0603 - threads do not come along through a fork
    if _team.process != os.getpid():
        _team = Team()
    _team.run(tasks)
