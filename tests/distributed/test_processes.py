"""What a process makes of the words of the others, and what it refuses before it connects."""

import socket
from types import SimpleNamespace

import jax
import pytest

from ridgewalk.distributed import processes
from ridgewalk.sampling.checkpoint import config_snapshot
from ridgewalk.sampling.parts import same_settings

HEARTBEAT = 10.0


class Client:
    """The key-value store of one process that nobody answers."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, allow_overwrite=False):
        self.values[key] = value

    def key_value_set_bytes(self, key, value):
        self.values[key] = value

    def blocking_key_value_get_bytes(self, key, milliseconds):
        raise RuntimeError("DEADLINE_EXCEEDED: nobody set it")


@pytest.fixture
def watch(monkeypatch):
    """The watch of process 0 of two, whose clock stands still and which says why it would end its process."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    client, clock = Client(), SimpleNamespace(now=0.0)
    monkeypatch.setattr(processes, "_client", lambda: client)
    monkeypatch.setattr(processes.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(processes, "_counters", processes.defaultdict(processes.itertools.count))
    made = processes._Watch(HEARTBEAT)
    made.clock, made.ends = clock, []
    made.give_up = lambda what, advised=False: made.ends.append(what)
    monkeypatch.setattr(processes._Watch, "current", made)
    return made


def hear(watch, *words, seconds):
    """Listen once a second, with the words of process 1 one after the other, the last one again and again."""
    for second in range(seconds):
        watch.clock.now += 1.0
        watch.listen({0: "", 1: words[min(second, len(words) - 1)]})


def beats(place=""):
    return [f"{beat} {place}" for beat in range(100)]


def test_a_process_that_says_nothing_new_is_lost(watch):
    hear(watch, *beats(), seconds=50)
    assert watch.ends == []
    hear(watch, "50 ", seconds=10)
    assert watch.ends == []
    hear(watch, "50 ", seconds=2)
    assert watch.ends[0] == "process 1 was lost: silent for 10 s"


def test_an_error_of_another_process_is_repeated(watch):
    hear(watch, "failed ValueError: rows", seconds=2)
    assert watch.ends == []  # its own words may come first
    hear(watch, "failed ValueError: rows", seconds=3)
    assert watch.ends[0] == "process 1 ended with ValueError: rows"


def test_a_process_may_end_before_the_others_but_not_during_a_run(watch):
    hear(watch, "done", seconds=100)
    assert watch.ends == []
    with processes.failing_together(running=True):
        hear(watch, "done", seconds=1)
    assert "process 1 came to the end of its program, while process 0 waits for it" in watch.ends[0]
    assert watch.running == 0


def test_nobody_waits_for_a_process_that_has_ended(watch):
    hear(watch, "done", seconds=1)
    with pytest.raises(processes.ProcessLostError, match="process 1 came to the end of its program"):
        processes.barrier("here")


def test_processes_that_wait_for_each_other_at_different_calls_end(watch):
    with processes._waiting_at("rows 0"):
        hear(watch, *beats("chunk 0"), seconds=10)
        assert watch.ends == []
        hear(watch, *beats("chunk 0")[10:], seconds=3)
    assert "it waits at 'chunk 0', and process 0 at 'rows 0'" in watch.ends[0]


@pytest.mark.parametrize(("own", "other"), [("chunk 0", "chunk 0"), ("chunk 0", ""), ("", "chunk 0")])
def test_a_process_may_wait_for_long_where_the_others_work(watch, own, other):
    with processes._waiting_at(own):
        hear(watch, *beats(other), seconds=90)
    assert watch.ends == []


def test_each_wait_has_its_own_time(watch):
    """Two processes that pass from call to call are seen at different ones, but never for long."""
    for turn in range(20):
        with processes._waiting_at(f"chunk {turn}"):
            hear(watch, *beats(f"chunk {turn + 1}")[turn:], seconds=5)
    assert watch.ends == []


def test_a_port_in_use_is_refused():
    """Also one that can be shared, as that of another coordinator: processes would connect to either."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=f"process 0 cannot listen on port {port}"):
            processes.initialize(f"127.0.0.1:{port}", 2, 0)


def test_the_settings_of_all_processes_are_compared(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    settings = {"chains": 2, "target": lambda theta: -(theta**2)}
    monkeypatch.setattr(processes, "exchange_json", lambda _, own: [own, own])
    described = same_settings(settings, {"steps": 10})
    assert described["chains"] == 2
    monkeypatch.setattr(processes, "exchange_json", lambda _, own: [own, {**own, "steps": 20}])
    with pytest.raises(ValueError, match="steps: 10 in process 0, 20 in process 1"):
        same_settings(settings, {"steps": 10})
    other = config_snapshot(lambda theta: -(theta**3))
    monkeypatch.setattr(processes, "exchange_json", lambda _, own: [own, {**own, "target": other}])
    with pytest.raises(ValueError, match=r"do not make the same call(.|\n)*target.code: '.*' in process 0, '.*' in"):
        same_settings(settings, {"steps": 10})
