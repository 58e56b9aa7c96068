"""Ctrl-C and SIGTERM end a run between two chunks instead of in the middle of one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Request:
    """Whether, and by which signal, the run was asked to stop."""

    def __init__(self) -> None:
        self.signal: str = ""


@contextmanager
def stop_request() -> Iterator[Request]:
    """Note the first signal; the second one interrupts at once. Outside the main thread signals are left alone."""
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        if request.signal:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number).name

    for number in former:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
