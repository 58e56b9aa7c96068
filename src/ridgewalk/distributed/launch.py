"""Start the processes of a run on this machine: `ridgewalk launch -n 2 script.py …`.

The processes find each other on a free port of the loopback address. Their output is prefixed with their number, and
when one of them fails the others are ended. Nothing here imports JAX.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import IO

from ridgewalk._validation import check_whole

PROCESSES, PROCESS, COORDINATOR = "RIDGEWALK_PROCESSES", "RIDGEWALK_PROCESS", "RIDGEWALK_COORDINATOR"
"""Environment variables that `distributed.initialize` reads."""

LOOPBACK = "127.0.0.1"

GRACE = 10.0
"""Seconds that the others have to end, after one failed or after SIGTERM, before they are killed."""

POLL = 0.05


def free_port() -> int:
    """A port of the loopback address that no program listens on."""
    with socket.socket() as trial:
        trial.bind((LOOPBACK, 0))
        return int(trial.getsockname()[1])


def launch(script: Sequence[str], processes: int, *, grace: float = GRACE) -> int:
    """Run `python script …` in so many processes; returns the exit code of the first that failed, or 0."""
    check_whole("processes", processes, 1, "give the number of processes, such as -n 2")
    if not script:
        raise ValueError("script: there is none; give a Python file and its arguments")
    coordinator = f"{LOOPBACK}:{free_port()}"
    children: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    with _forwarding_signals(children, processes) as forward_early:
        try:
            for number in range(processes):
                child = _start(script, processes, number, coordinator)
                children.append(child)
                for stream, out in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
                    readers.append(threading.Thread(target=_copy, args=(stream, out, number), daemon=True))
                    readers[-1].start()
            forward_early()
            return _wait(children, grace)
        finally:
            _end(children, grace=0.0)
            for reader in readers:
                reader.join(timeout=5)


def _start(script: Sequence[str], processes: int, number: int, coordinator: str) -> "subprocess.Popen[bytes]":
    environment = os.environ | {PROCESSES: str(processes), PROCESS: str(number), COORDINATOR: coordinator}
    return subprocess.Popen(
        [sys.executable, "-u", *script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _copy(stream: IO[bytes] | None, out: IO[str], number: int) -> None:
    """Lines of a process, each with its number before it."""
    assert stream is not None
    with stream:
        for line in stream:
            out.write(f"[{number}] {line.decode(errors='replace').rstrip(chr(10))}\n")
            out.flush()


@contextlib.contextmanager
def _forwarding_signals(children: Sequence["subprocess.Popen[bytes]"], processes: int) -> Iterator[Callable[[], None]]:
    """SIGTERM goes to all processes. So does SIGINT, which a terminal has sent to them already: one signal of the two
    is enough for a run to stop in order.

    A signal that comes before all are started is kept until the function that is yielded is called.
    """
    early: list[int] = []

    def forward(number: int, frame: FrameType | None = None) -> None:
        if len(children) < processes:
            early.append(number)
            return
        for child in children:
            if child.poll() is None and (number != signal.SIGINT or not sys.stdin.isatty()):
                child.send_signal(number)

    def forward_early() -> None:
        for number in early:
            forward(number)

    if threading.current_thread() is not threading.main_thread():
        yield forward_early
        return
    former = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield forward_early
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _wait(children: Sequence["subprocess.Popen[bytes]"], grace: float) -> int:
    """Until all have ended well, or one has failed: then the others are ended too."""
    while True:
        codes = [child.poll() for child in children]
        failed = [(number, code) for number, code in enumerate(codes) if code]
        if failed:
            number, code = failed[0]
            if None in codes:
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                print(f"ridgewalk: process {number} {how}; the others are ended", file=sys.stderr, flush=True)
            _end(children, grace)
            return 128 - code if code < 0 else code
        if None not in codes:
            return 0
        time.sleep(POLL)


def _end(children: Sequence["subprocess.Popen[bytes]"], grace: float) -> None:
    """Let processes end by themselves for a while, which gives them time to say why; then SIGTERM, then SIGKILL."""
    for number, share in ((signal.SIGTERM, 0.5), (signal.SIGKILL, 0.5)):
        until = time.monotonic() + share * grace
        while time.monotonic() < until and any(child.poll() is None for child in children):
            time.sleep(POLL)
        for child in children:
            if child.poll() is None:
                child.send_signal(number)
    for child in children:
        child.wait()
