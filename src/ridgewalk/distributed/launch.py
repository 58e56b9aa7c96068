"""Start the processes of a run on this machine: `ridgewalk launch -n 2 script.py …`.

The processes find each other on a free port of the loopback address. Their output is prefixed with their number, and
when one of them fails the others are ended. Nothing here imports JAX.
"""

import contextlib
import math
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
    """Run `python script …` in so many processes; returns the exit code of the first that failed, or 0.

    After a signal it is not 0, also where all processes stopped in order: what they were to do is not done.
    """
    check_whole("processes", processes, 1, "give the number of processes, such as -n 2")
    if not script:
        raise ValueError("script: there is none; give a Python file and its arguments")
    coordinator = f"{LOOPBACK}:{free_port()}"
    children: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    with _forwarding_signals(children, processes) as (forward_early, received):
        try:
            for number in range(processes):
                child = _start(script, processes, number, coordinator)
                children.append(child)
                for stream, out in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
                    readers.append(threading.Thread(target=_copy, args=(stream, out, number), daemon=True))
                    readers[-1].start()
            forward_early()
            code = _wait(children, grace)
            if code == 0 and received:
                print(f"ridgewalk: ended after {received[0].name}", file=sys.stderr, flush=True)
                return 128 + received[0]
            return code
        finally:
            _end(children, grace=0.0)
            for reader in readers:
                reader.join(timeout=5)


def _start(script: Sequence[str], processes: int, number: int, coordinator: str) -> "subprocess.Popen[bytes]":
    environment = os.environ | {PROCESSES: str(processes), PROCESS: str(number), COORDINATOR: coordinator}
    command = [sys.executable, "-u", *script]
    # A group of its own: a terminal would send Ctrl-C to it too, and the second signal would end a run without order.
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)


def _copy(stream: IO[bytes] | None, out: IO[str], number: int) -> None:
    """Lines of a process, each with its number before it."""
    assert stream is not None
    with stream:
        for line in stream:
            out.write(f"[{number}] {line.decode(errors='replace').rstrip(chr(10))}\n")
            out.flush()


FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _forwarding_signals(
    children: Sequence["subprocess.Popen[bytes]"], processes: int
) -> Iterator[tuple[Callable[[], None], list[signal.Signals]]]:
    """Ctrl-C, SIGTERM and the end of the terminal go to all processes; those that have come are listed.

    A signal that comes before all are started is kept until the function that is yielded is called. One that the
    program ignores, as under nohup, stays ignored.
    """
    received: list[signal.Signals] = []

    def forward(number: int, frame: FrameType | None = None) -> None:
        received.append(signal.Signals(number))
        if len(children) == processes:
            send(number)

    def send(number: int) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    def forward_early() -> None:
        for number in tuple(received):
            send(number)

    if threading.current_thread() is not threading.main_thread():
        yield forward_early, received
        return
    handled = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    former = {number: signal.signal(number, forward) for number in handled}
    try:
        yield forward_early, received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _wait(children: Sequence["subprocess.Popen[bytes]"], grace: float) -> int:
    """Until all have ended well, or one has failed: then the others are ended too."""
    ended_at: dict[int, float] = {}
    while True:
        codes = [child.poll() for child in children]
        _tell_of_early_ends(codes, ended_at, grace)
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


def _tell_of_early_ends(codes: Sequence[int | None], ended_at: dict[int, float], grace: float) -> None:
    """Say which processes ended well some time ago where others still run: these may wait for them."""
    for number, code in enumerate(codes):
        if code == 0 and None in codes and time.monotonic() - ended_at.setdefault(number, time.monotonic()) > grace:
            ended_at[number] = math.inf  # said once
            others = ", ".join(str(other) for other, its in enumerate(codes) if its is None)
            print(
                f"ridgewalk: process {number} ended with exit code 0 {grace:g} s ago, and process {others} still runs",
                file=sys.stderr,
                flush=True,
            )


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
