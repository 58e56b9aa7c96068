"""Processes of one run: how they start, agree, and notice that one of them was lost.

Processes talk through the key-value store of JAX's coordination service, which process 0 hosts: no device takes part,
so that a thread can write files while the devices compute. Every process makes the same calls in the same order.
"""

import atexit
import ctypes
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk._validation import check_positive
from ridgewalk.distributed.launch import COORDINATOR, PROCESS, PROCESSES

HEARTBEAT = 30.0
"""Seconds of silence after which a process is considered lost."""

CLUSTERS = ("SLURM_", "OMPI_")
"""How environment variables begin from which JAX finds the other processes."""

LINGER = 1.0
"""Seconds between an error and the end of a process."""

PREFIX = "ridgewalk"
DONE = "done"
"""What a process says that has come to the end of its program."""

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
EXIT_CODE = 70
"""The exit code of a process that ended because another one was lost."""


class ProcessLostError(RuntimeError):
    """Another process of the run ended, or no longer answers; the message says what to do."""


# Start


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat: float = HEARTBEAT,
    **options: Any,
) -> None:
    """Connect the processes of a run; call it before any other call of JAX. For a single process it does nothing.

    Under `ridgewalk launch`, Slurm, Open MPI and on Cloud TPU no arguments are needed. Otherwise give the address of
    process 0 (host:port), the number of processes, and the number of this one.

    Args:
        coordinator_address: host and port of process 0, which listens there.
        num_processes: the number of processes.
        process_id: the number of this process, from 0.
        heartbeat: seconds of silence after which a process is considered lost, and the others end.
        options: further arguments of `jax.distributed.initialize`, such as `local_device_ids`.
    """
    check_positive("heartbeat", heartbeat, "give a number of seconds, such as 30.0")
    given = _from_launcher() if coordinator_address is None else {}
    given = given or {
        "coordinator_address": coordinator_address,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    address = given["coordinator_address"]
    if address is not None and str(address).rsplit(":", 1)[0] in LOOPBACK:
        options.setdefault("coordinator_bind_address", address)  # JAX would listen on all interfaces
    if given["process_id"] == 0 and address is not None:
        _check_port(
            str(address), options.get("coordinator_bind_address") or os.environ.get("JAX_COORDINATOR_BIND_ADDRESS")
        )
    # JAX's own heartbeat ends a process without words: it is the second line.
    options.setdefault("heartbeat_timeout_seconds", max(1, round(2 * heartbeat)))
    # It would take SIGTERM away from the program; `sample` handles that signal.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(**given, **options)
    except (RuntimeError, ValueError) as error:
        alone = not any(name.startswith(CLUSTERS) for name in os.environ)
        late = isinstance(error, RuntimeError) and alone  # JAX is in use already
        if address is None and (late or "coordinator_address should be defined" in str(error)):
            return  # neither a cluster nor a launcher: one process
        raise
    if jax.process_count() > 1:
        _Watch.begin(heartbeat)


def _from_launcher() -> dict[str, Any]:
    if COORDINATOR not in os.environ:
        return {}
    numbers = {"num_processes": int(os.environ[PROCESSES]), "process_id": int(os.environ[PROCESS])}
    return {"coordinator_address": os.environ[COORDINATOR], **numbers, "local_device_ids": None}


def _check_port(address: str, bound_to: str | None) -> None:
    """Raise where another program listens on the port of process 0: JAX would share it, and mix two runs up."""
    host, _, port = (bound_to or address).rpartition(":")
    host = host.strip("[]") if bound_to else ""  # JAX listens on all interfaces
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port of a run that has just ended is free
        try:
            trial.bind((host, int(port)))
        except (OSError, ValueError, OverflowError) as error:
            raise ValueError(
                f"coordinator_address: process 0 cannot listen on port {port} ({getattr(error, 'strerror', error)}); "
                "choose a free port, the same in every process"
            ) from error


def is_first() -> bool:
    """Whether this is process 0, which writes what is common to all."""
    return jax.process_index() == 0


def _client() -> Any:
    from jax._src import distributed  # noqa: PLC0415  (no public access to the key-value store)

    return distributed.global_state.client


# Agreement

_counters: dict[str, Iterator[int]] = defaultdict(itertools.count)

POLL_MILLISECONDS = 1_000
"""A wait is cut into pieces, between which signals are handled."""


def exchange(name: str, message: bytes) -> list[bytes]:
    """The messages of all processes, in their order; all of them call this, equally often for every name."""
    if jax.process_count() == 1:
        return [message]
    client, number = _client(), next(_counters[name])
    place = f"{PREFIX}/{name}/{number}"
    everyone = range(jax.process_count())
    with _waiting_at(f"{name} {number}"):
        if is_first():
            messages = [message, *(_wait_for(f"{place}/{process}", process) for process in everyone[1:])]
            client.key_value_set_bytes(f"{place}/all", _joined(messages))
        else:
            client.key_value_set_bytes(f"{place}/{jax.process_index()}", message)
            messages = _split(_wait_for(f"{place}/all", 0))
    if number and is_first():  # every process has read the messages before these
        client.key_value_delete(f"{PREFIX}/{name}/{number - 1}/")
    return messages


@contextmanager
def _waiting_at(place: str) -> Iterator[None]:
    """Tell the others where the main thread waits for them: if they wait elsewhere, it would be for ever."""
    watch = _Watch.current
    if watch is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    watch.place = place
    try:
        yield
    finally:
        watch.place = ""


def _wait_for(key: str, process: int) -> bytes:
    watch = _Watch.current
    while True:
        if watch is not None and watch.failed:
            raise ProcessLostError("this process has failed, and no longer waits for the others")
        ended = watch is not None and watch.heard[process][0] == DONE  # known before the last look for its message
        try:
            return bytes(_client().blocking_key_value_get_bytes(key, POLL_MILLISECONDS))
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise lost(error) from error
            if watch is not None and ended:
                raise ProcessLostError(watch.early_end(process)) from error


def _joined(messages: list[bytes]) -> bytes:
    header = json.dumps([len(message) for message in messages]).encode()
    return len(header).to_bytes(8, "little") + header + b"".join(messages)


def _split(joined: bytes) -> list[bytes]:
    start = 8 + int.from_bytes(joined[:8], "little")
    stops = start + np.cumsum([0, *json.loads(joined[8:start])])
    return [joined[a:b] for a, b in itertools.pairwise(stops)]


def exchange_json(name: str, value: Any) -> list[Any]:
    """`exchange` for JSON values."""
    return [json.loads(message) for message in exchange(name, json.dumps(value).encode())]


def barrier(name: str) -> None:
    """Wait until every process is here."""
    exchange(name, b"")


def check_together(name: str, error: Exception | None) -> None:
    """Raise in every process what one of them found."""
    if jax.process_count() == 1:
        if error is not None:
            raise error
        return
    texts = exchange_json(name, "" if error is None else str(error))
    for process, text in enumerate(texts):
        if text:
            own = error is not None and process == jax.process_index()
            raise (error if own and error is not None else ValueError(f"process {process}: {text}"))


def gather(tree: PyTree, present: list[bool]) -> list[PyTree]:
    """From every process with `present`, its arrays; their shapes must be those of this process's `tree`.

    Others pass arrays of the same shapes, whose values are not used.
    """
    from jax.experimental import multihost_utils  # noqa: PLC0415

    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, tree))
    gathered = [_raw(leaf, multihost_utils) for leaf in leaves]
    return [
        jax.tree.unflatten(structure, [leaf[process] for leaf in gathered]) if there else None
        for process, there in enumerate(present)
    ]


def _raw(leaf: np.ndarray, utils: Any) -> np.ndarray:
    """All processes' arrays, stacked; sent as bytes, so that JAX changes no dtype."""
    words = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
    stacked = np.asarray(utils.process_allgather(words)).reshape(jax.process_count(), -1)
    return np.ascontiguousarray(stacked).view(leaf.dtype).reshape(jax.process_count(), *leaf.shape)


# Loss of a process


class _Watch(threading.Thread):
    """Says "alive" for this process, and ends it with words where another one has been silent for too long."""

    current: "_Watch | None" = None

    def __init__(self, heartbeat: float) -> None:
        super().__init__(name="ridgewalk-heartbeat", daemon=True)
        self.heartbeat, self.client = heartbeat, _client()
        self.own, self.count = jax.process_index(), jax.process_count()
        self.heard = dict.fromkeys(range(self.count), ("", time.monotonic()))
        self.answered = time.monotonic()
        self.failed = self.ending = self.lost = self.shown = False
        self.advice = self.words = self.place = ""
        self.step: int | None = None
        self.running = 0
        """How many blocks of `failing_together(running=True)` the main thread is in."""
        self.apart: dict[int, tuple[str, str, float]] = {}
        """Where this process and another one wait for each other, and since when."""

    @classmethod
    def begin(cls, heartbeat: float) -> None:
        cls.current = cls(heartbeat)
        cls.current.start()
        threading.Thread(target=cls.current.watch_first, name="ridgewalk-watch", daemon=True).start()
        _speak_on_abort(cls.current)
        sys.excepthook = cls.current.uncaught(sys.excepthook)
        atexit.register(cls.current.end)  # runs before JAX's own, which would wait for the others

    def say(self, word: str) -> None:
        self.client.key_value_set(f"{PREFIX}/alive/{self.own}", word, allow_overwrite=True)

    def run(self) -> None:
        for beat in itertools.count():
            if self.ending:
                return
            try:
                if not self.failed:
                    self.say(f"{beat} {self.place}")
                words = dict(self.client.key_value_dir_get(f"{PREFIX}/alive/"))
            except Exception as error:
                self.give_up(f"process 0, which the others connect to, was lost{self.where()} ({_first_line(error)})")
                return
            self.answered = time.monotonic()
            self.listen({int(key.rsplit("/", 1)[1]): word for key, word in words.items()})
            time.sleep(self.heartbeat / 10)

    def uncaught(self, former: Callable[..., Any]) -> Callable[..., Any]:
        """A hook for errors outside of a run: the others end too, and this process does not wait for them."""

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            former(kind, error, trace)
            self.shown = True
            self.fail(error)

        return hook

    def fail(self, error: BaseException) -> None:
        """Tell the others that this process fails."""
        if self.failed:
            return
        self.failed, self.lost, self.words = True, isinstance(error, ProcessLostError), str(error)
        try:
            self.say(f"failed {type(error).__name__}: {_first_line(error)}")
        except Exception as gone:
            error.add_note(f"ridgewalk: the other processes could not be told ({_first_line(gone)})")

    def watch_first(self) -> None:
        """Calls to process 0 do not return where it is stopped, so another thread looks at the clock."""
        while not self.ending:
            time.sleep(self.heartbeat / 10)
            if time.monotonic() - self.answered > self.heartbeat:
                self.give_up(f"process 0 was lost{self.where()}: silent for {self.heartbeat:g} s")

    def listen(self, words: dict[int, str]) -> None:
        now = time.monotonic()
        for process in range(self.count):
            word = words.get(process, "")
            if word != self.heard[process][0]:
                self.heard[process] = word, now
            if process == self.own:
                continue
            silence = now - self.heard[process][1]
            if word == DONE:
                if self.running and silence > self.heartbeat / 5:
                    self.give_up(self.early_end(process), advised=True)
            elif word.startswith("failed"):
                if not self.failed and silence > self.heartbeat / 5:
                    self.give_up(f"process {process} ended{self.where()} with {word.removeprefix('failed ')}")
            elif silence > self.heartbeat:
                self.give_up(f"process {process} was lost{self.where()}: silent for {self.heartbeat:g} s")
            else:
                self.compare_places(process, word.partition(" ")[2], now)

    def compare_places(self, process: int, place: str, now: float) -> None:
        """End this process where it and another one have waited for each other at different calls for too long."""
        own, other, since = self.apart.get(process, ("", "", now))
        if not self.place or not place or place == self.place or (own, other) != (self.place, place):
            self.apart[process] = self.place, place, now
        elif now - since > self.heartbeat:
            self.give_up(
                f"process {process} does not make the calls that this one makes: it waits at '{place}', and process "
                f"{self.own} at '{self.place}'",
                advised=True,
            )

    def early_end(self, process: int) -> str:
        """The words where another process ends its program while this one waits for it."""
        return (
            f"process {process} came to the end of its program{self.where()}, while process {self.own} waits for it; "
            "make the same calls of ridgewalk in every process"
        )

    def silent(self) -> list[int]:
        """Processes that have not been heard of for some time."""
        now = time.monotonic()
        others = {process: heard for process, heard in self.heard.items() if process != self.own}
        return [p for p, (word, since) in others.items() if word != DONE and now - since > self.heartbeat / 3]

    def where(self) -> str:
        return "" if self.step is None else f" at step {self.step}"

    def give_up(self, what: str, advised: bool = False) -> None:
        """End this process: its main thread may wait for the lost one for ever."""
        if self.ending:
            return
        if self.failed:  # with an error of its own, which the main thread is about to show
            until = time.monotonic() + LINGER
            while not self.shown and time.monotonic() < until:
                time.sleep(LINGER / 20)
            if not self.shown:
                print(f"ridgewalk: {self.words}", file=sys.stderr, flush=True)
            os._exit(EXIT_CODE if self.lost else 1)
        sys.stdout.flush()
        advice = "" if advised else f"; {self.advice or 'start all processes again'}"
        print(f"ridgewalk: {what}{advice}", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE)

    def end(self) -> None:
        if self.failed:
            sys.stdout.flush()
            sys.stderr.flush()
            if self.own == 0:
                time.sleep(LINGER)  # others that fail too need the connection until they have said so
            os._exit(EXIT_CODE if self.lost else 1)  # JAX would wait for processes that may not come
        self.ending = True
        try:
            self.say(DONE)
        except Exception:
            return


_on_abort: list[Any] = []
"""Keeps the handler of SIGABRT alive."""


def _speak_on_abort(watch: _Watch) -> None:
    """JAX aborts a process that has lost the connection to process 0, in a thread of its own: add words to that.

    A handler in Python would run in the main thread, which never gets to it; one of C runs in the thread that aborts.
    """
    if os.name != "posix":
        return

    def speak(_: int) -> None:
        watch.give_up(f"process 0, or one that it waits for, was lost{watch.where()} (JAX ended this process)")

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(speak)
    _on_abort.append(handler)
    ctypes.CDLL(None).signal(ctypes.c_int(signal.SIGABRT), handler)


def note_progress(step: int, advice: str) -> None:
    """What a message about a lost process should say."""
    if _Watch.current is not None:
        _Watch.current.step, _Watch.current.advice = step, advice


@contextmanager
def failing_together(running: bool = False) -> Iterator[None]:
    """Within it, an exception in this process is told to the others, which then end; one of a collective operation
    becomes a `ProcessLostError`.

    With `running`, all processes are needed until the end of the block: one that ends its program before is an error.
    """
    watch = _Watch.current
    if watch is not None:
        watch.running += running
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if watch is None or watch.failed:
            raise
        failure = lost(error) if isinstance(error, Exception) and _is_connection(error) else error
        watch.fail(failure)
        if failure is error:
            raise
        raise failure from error
    finally:
        if watch is not None:
            watch.running -= running


def _is_connection(error: Exception) -> bool:
    """Whether an error is that of a collective operation whose partner is gone."""
    text = str(error)
    return not isinstance(error, ProcessLostError) and any(
        word in text for word in ("Gloo", "UNAVAILABLE", "NCCL", "oordination service", "Connection reset")
    )


def lost(error: Exception) -> ProcessLostError:
    """The error that says which process was lost, as far as it is known."""
    if isinstance(error, ProcessLostError):
        return error
    watch = _Watch.current
    who, where, advice = "another process", "", "start all processes again"
    if watch is not None:
        where, advice = watch.where(), watch.advice or advice
        until = time.monotonic() + watch.heartbeat
        while watch.count > 2 and not watch.silent() and time.monotonic() < until:
            time.sleep(0.1)
        gone = [1 - watch.own] if watch.count == 2 else watch.silent()
        who = f"process {', '.join(map(str, gone))}" if gone else who
    return ProcessLostError(f"{who} was lost{where}; {advice} ({_first_line(error)})")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
