"""Signals during a run: it stops between two device calls, where a checkpoint can be written."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM
"""The exit code of a process that SIGTERM ended, as shells and schedulers have it: 143."""


class Request:
    """Whether, and by which signal, the run was asked to stop."""

    def __init__(self) -> None:
        self.signal: str = ""


@contextmanager
def stop_request() -> Iterator[Request]:
    """Note SIGINT (Ctrl-C) and SIGTERM. Outside the main thread signals are left alone.

    A second SIGINT raises KeyboardInterrupt at once. After SIGTERM the block may finish its work, such as a checkpoint;
    then the process ends with exit code 143, or the program's own handler is called where it has one. A signal that the
    program ignores stays ignored.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    former = {number: handler for number, handler in former.items() if handler is not signal.SIG_IGN}

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and request.signal:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number).name

    for number in former:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if request.signal == "SIGTERM":
        if callable(former[signal.SIGTERM]):
            signal.raise_signal(signal.SIGTERM)
        else:
            raise SystemExit(EXIT_CODE)
