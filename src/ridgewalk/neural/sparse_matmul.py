"""Products of batches with a sparse matrix on the CPU, and when they are faster than dense ones.

There are three forms. `csr` is SciPy's compressed sparse rows, and needs nothing else. With the extra `sparse` (numba)
there are two more. `indexed` has two bytes for the place of every nonzero number, and is fastest where these are few.
`masked` has a bit for every number and expands 16 (float32) at a time with an AVX-512 instruction; it is used only on
processors that have it. `benchmarks/pruning.py` times `csr` and the best form against dense products.

The last two run on a pool of threads, which sleep while there is nothing to do. Threads of numba's own (OpenMP) start
sooner, but keep spinning after every product, on the cores that XLA computes on between two of them; and they are not
fork-safe.
"""

import os
import threading
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from ridgewalk._validation import requires_extra

FETCH, MASKED = 0.22, 0.06
"""Nanoseconds of one core in a masked product: to read a number that is not zero, and for each example and number, zero
or not."""

EXAMPLE, BLOCK = 0.7, 4.0
"""Those of a number that is not zero in an indexed product: of one example, of eight together."""

READ, MULTIPLY = 0.2, 0.026
"""Those of a number in a dense product: to read it, and for each example. All measured on an AMD EPYC (L3 of 32 MB) as
in `benchmarks/pruning.py`, both kinds of product gaining alike from a second core. Fixed, so that predictions do not
depend on timings."""

START = 30_000.0
"""Those that a product outside JAX takes before it begins."""

DENSEST = 0.65
"""With fewer zeros than this leaves, there is little to gain."""

FEWEST_IN_BLOCK = 6
"""From so many examples on, an indexed product of eight together takes less time than one by one."""

CSR = 1.2
"""Those of a number that is not zero and an example in SciPy's product, which uses one core: 1.7 times `EXAMPLE` (0.46
against 0.27 where both were measured side by side, three layers of 8.2 million numbers at 50 to 90 % zeros, one
example). Two to six examples together take more (2.7 for all), but dense products of so many gain as well."""

Form = Literal["masked", "indexed", "csr"]


def _blocks(examples: int) -> tuple[int, int]:
    """How many examples go in blocks of eight, the last of which may be filled up, and how many one by one."""
    rest = examples % 8
    return (examples, 0) if rest >= FEWEST_IN_BLOCK else (examples - rest, rest)


@cache
def has_kernels() -> bool:
    """Whether numba, which compiles the kernels, is installed."""
    return find_spec("numba") is not None and find_spec("llvmlite") is not None


@cache
def can_expand() -> bool:
    """Whether there are kernels, and the processor has AVX-512, which the masked one uses."""
    if not has_kernels():
        return False
    with requires_extra("sparse"):
        from llvmlite import binding  # noqa: PLC0415 - slow to import

    return bool(binding.get_host_cpu_features().get("avx512f", False))


def best_form(density: float) -> Form:
    """The form that takes the least time for one example."""
    if not has_kernels():
        return "csr"
    return "masked" if can_expand() and density * EXAMPLE > density * FETCH + MASKED else "indexed"


def wins(density: float, examples: int, numbers: int, form: Form | None = None) -> bool:
    """Whether a sparse product of so many examples with a matrix of so many numbers is faster than a dense one."""
    if density > DENSEST:
        return False
    together, alone = _blocks(examples)
    each = density * (BLOCK * -(-together // 8) + EXAMPLE * alone)
    chosen = form or best_form(density)
    if chosen == "masked":
        each = density * FETCH + MASKED * examples
    elif chosen == "csr":
        each = density * CSR * examples
    return START + each * numbers < (READ + MULTIPLY * examples) * numbers


class SparseMatrix(NamedTuple):
    """A matrix W (before, after) by its columns: the numbers of output i are `values[starts[i]:starts[i + 1]]`.

    `places` are their inputs, in two bytes where there are few enough (four for `csr`); or, masked, bits, a word for
    as many inputs as 512 bits hold numbers, and `values` has a word's numbers more, as a whole word is read at a
    time.
    """

    form: Form
    starts: np.ndarray
    places: np.ndarray
    values: np.ndarray
    before: int

    @property
    def density(self) -> float:
        """The fraction of numbers that are not zero."""
        return int(self.starts[-1]) / max(1, self.before * (len(self.starts) - 1))

    def product(self, x: np.ndarray) -> np.ndarray:
        """x W of (example, before)."""
        x = np.ascontiguousarray(x, self.values.dtype)
        if self.form == "csr":
            shape = (len(self.starts) - 1, self.before)
            return np.ascontiguousarray((csr_array((self.values, self.places, self.starts), shape=shape) @ x.T).T)
        y = np.empty((len(x), len(self.starts) - 1), self.values.dtype)
        if self.form == "masked":
            self._run("masked_one", _filled(x, 64 // x.itemsize).reshape(-1), y)
            return y
        together, alone = _blocks(len(x))
        for n in range(0, together, 8):
            part = x[n : n + 8]
            turned = np.zeros((self.before, 8), x.dtype)
            turned[:, : len(part)] = part.T
            made = np.empty((8, y.shape[1]), y.dtype)
            self._run("indexed_eight", turned, made)
            y[n : n + 8] = made[: len(part)]
        if alone:
            self._run("indexed_one", x[together:], y[together:])
        return y

    def _run(self, name: str, x: np.ndarray, y: np.ndarray) -> None:
        """All outputs, on several cores where the product is large enough."""
        kernel, arguments = _kernel(name), (self.starts, self.places, self.values, x, y)
        parts = allowed_cores() if self.before * y.shape[1] >= WORTH_SHARING else 1
        if parts == 1:
            kernel(*arguments, 0, y.shape[1])
            return
        work = self.starts if self.form == "indexed" else np.arange(len(self.starts))
        bounds = bounds_of_parts(work, parts).tolist()
        run_together([partial(kernel, *arguments, *ends) for ends in pairwise(bounds)])


def _filled(x: np.ndarray, width: int) -> np.ndarray:
    """With columns of zeros up to a multiple of `width`."""
    missing = -x.shape[1] % width
    return x if missing == 0 else np.hstack([x, np.zeros((len(x), missing), x.dtype)])


class Pattern(NamedTuple):
    """Where a matrix W (before, after) is not zero: what matrices with zeros in common share."""

    form: Form
    starts: np.ndarray
    places: np.ndarray
    order: np.ndarray
    """The place that each number, output after output, has among the numbers as they are stored."""
    before: int

    def matrix(self, values: np.ndarray) -> SparseMatrix:
        """W from its numbers as they are stored."""
        ordered = values[self.order]
        if self.form == "masked":
            ordered = np.concatenate([ordered, np.zeros(64 // values.itemsize, values.dtype)])
        return SparseMatrix(self.form, self.starts, self.places, ordered, self.before)


def pattern(mask: np.ndarray, summed: int = 0, dtype: Any = np.float32, form: Form | None = None) -> Pattern:
    """The pattern of an array of two axes of which `summed` is summed over, its numbers stored row after row."""
    stored = np.zeros(mask.shape, np.uint32)
    stored[mask] = np.arange(np.count_nonzero(mask), dtype=np.uint32)
    by_output, stored = (mask.T, stored.T) if summed == 0 else (mask, stored)
    before = by_output.shape[1]
    starts = np.concatenate([[0], np.cumsum(by_output.sum(1))]).astype(np.uint64)
    form = form or best_form(float(mask.mean()) if mask.size else 0.0)
    if form == "masked":
        lanes = 64 // np.dtype(dtype).itemsize
        bits = np.packbits(_filled(by_output, lanes), axis=1, bitorder="little")
        places = np.ascontiguousarray(bits).view(f"<u{lanes // 8}").reshape(-1)
    else:
        kind = np.int32 if form == "csr" else np.uint16 if before <= 2**16 else np.uint32
        places = np.broadcast_to(np.arange(before, dtype=kind), by_output.shape)[by_output]
    if form == "csr":
        starts = starts.astype(np.int32 if starts[-1] < 2**31 else np.int64)
    return Pattern(form, starts, places, stored[by_output], before)


def _kernel(name: str) -> Callable[..., Any]:
    from ridgewalk.neural import sparse_kernels as kernels  # noqa: PLC0415 - numba is slow to import

    kernel: Callable[..., Any] = getattr(kernels, name)
    return kernel


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
