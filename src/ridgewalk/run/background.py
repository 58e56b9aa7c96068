"""Disk writes in a thread beside the loop, in order, with a bounded queue."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

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
