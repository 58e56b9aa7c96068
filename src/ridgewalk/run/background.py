"""Disk work beside the loop, in order, with a bound on how much may wait."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MOST_WAITING = 2


class Background:
    """Runs calls one after the other in a thread; what one of them raises is raised by the next call or `finish`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "ridgewalk-disk")
        self._waiting: deque[Future[Any]] = deque()

    def submit(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Have `call` done after all calls before it."""
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= MOST_WAITING):
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(call, *arguments))

    def finish(self) -> None:
        """Wait for all calls."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """End the thread; calls not begun are dropped."""
        self._thread.shutdown(cancel_futures=True)
