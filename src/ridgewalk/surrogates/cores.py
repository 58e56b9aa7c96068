"""On how many cores a product runs: as many as are allowed, one product at a time."""

import os
import threading

import numpy as np

WORTH_SHARING = 2**17
"""Numbers of a product from which on its time is long against that of starting other cores (some microseconds)."""

_busy = threading.Lock()
"""Held while a product has the other cores: not every threading layer of numba bears two at a time."""

_own_process = os.getpid()
"""GNU's OpenMP cannot be used after a fork, so that a child has one core."""


def allowed_cores() -> int:
    """The process's cores, or what OMP_NUM_THREADS, NUMBA_NUM_THREADS or `numba.set_num_threads` leave of them."""
    import numba  # noqa: PLC0415 - slow to import, and needed by few

    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if asked.isdigit() and int(asked) > 0:
        cores = min(cores, int(asked))
    return cores if cores == 1 else min(cores, int(numba.get_num_threads()))


def bounds_of_parts(work: np.ndarray, parts: int) -> np.ndarray:
    """Where to cut outputs so that every part has about as much work; those before output i have `work[i]` of it."""
    wanted = np.arange(1, parts) * (int(work[-1]) / parts)
    inner = np.searchsorted(work, wanted.astype(work.dtype))
    return np.concatenate([[0], inner, [len(work) - 1]]).astype(np.int64)


class OtherCores:
    """`with OtherCores(numbers) as cores`: how many to use, at most one `with` in all threads having more than one."""

    def __init__(self, numbers: int) -> None:
        self.wanted = numbers >= WORTH_SHARING and os.getpid() == _own_process
        self.held = False

    def __enter__(self) -> int:
        """Take them, if nobody has them."""
        cores = allowed_cores() if self.wanted else 1
        self.held = cores > 1 and _busy.acquire(blocking=False)
        return cores if self.held else 1

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        if self.held:
            _busy.release()
