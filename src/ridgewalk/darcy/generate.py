"""Generate a data set in parallel processes; interrupted, it goes on where it stopped."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from ridgewalk._io import sole_writer, working_folder
from ridgewalk.darcy import store
from ridgewalk.darcy.problems import Problem
from ridgewalk.darcy.store import Plan

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
    store.refuse_to_replace(path, overwrite)
    growing = working_folder(path)
    with sole_writer(growing):
        todo = store.begin(growing, problem, plan)
        progress(plan.samples - sum(len(plan.blocks[number]) for number in todo))
        try:
            _fill(growing, problem, plan, todo, processes=min(processes, len(todo)), progress=progress)
        except BaseException:
            store.abandon_if_empty(growing)
            raise
        store.finish(growing, path)
    return path


def _fill(growing: Path, problem: Problem, plan: Plan, todo: list[int], *, processes: int, progress: Progress) -> None:
    """Compute the blocks still to do and write each as it becomes ready; this process is the only writer."""
    if not todo:
        return
    with _workers(processes) as pool:
        running = {pool.submit(problem.draw, plan.seed, plan.blocks[number]): number for number in todo}
        for finished in as_completed(running):
            number = running[finished]
            store.write_block(growing, plan, number, finished.result())
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
