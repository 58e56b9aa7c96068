"""A process that is killed, stopped or told to end: the others end with words, and the run can be resumed."""

import signal
import time
from pathlib import Path

import pytest
from tests.distributed.children import finish, run, start

HEARTBEAT = 4.0


def case(folder, kind, **settings):
    options = {
        "steps": 400 if kind == "data" else 1200,  # the signal comes before the end
        "batch_size": 8,
        "chains": 2,
        "checkpoint_every": 20,
        "thin": 5,
        "checkpoint": str(folder),
    }
    if kind == "data":
        return {"shards": 2, "options": options, **settings}
    return {"options": {**options, "chain_method": "parallel"}, **settings}


def interrupted(folder, kind, name, process):
    """Exit codes and errors of both processes, and how long the other one took after the signal."""
    children = start([case(folder, kind, signal=name, process=process)], processes=2, heartbeat=HEARTBEAT)
    victim, other = children[process], children[1 - process]
    if name == "SIGSTOP":
        while "State:\tT" not in (status := Path(f"/proc/{victim.pid}/status").read_text()):
            assert victim.poll() is None, status
            time.sleep(0.05)
    elif name == "SIGKILL":
        victim.wait(timeout=100)
    begun = time.monotonic()
    errors = finish(other)[1]
    took = time.monotonic() - begun
    if victim.poll() is None and name != "SIGTERM":
        victim.kill()
    finish(victim)
    return victim.returncode, other.returncode, errors, took


def check_resumed(folder, whole, kind):
    expected = run([case(whole, kind)], devices=2)
    cases = [case(folder, kind)]
    cases[0]["options"]["resume"] = True
    return expected, cases


def test_a_killed_process_ends_the_other_and_the_run_is_resumed(tmp_path):
    victim, other, errors, _ = interrupted(tmp_path / "killed", "data", "SIGKILL", 1)
    assert victim == -signal.SIGKILL
    assert other == 70
    assert "process 1 was lost at step" in errors
    assert "any number of processes that divides 2 shards" in errors
    expected, cases = check_resumed(tmp_path / "killed", tmp_path / "whole", "data")
    assert run(cases, devices=2) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["data", "chains"])
@pytest.mark.parametrize(("name", "process"), [("SIGKILL", 0), ("SIGKILL", 1), ("SIGTERM", 1)])
def test_after_any_end_the_run_is_resumed_with_one_process_or_two(tmp_path, kind, name, process):
    victim, other, errors, _ = interrupted(tmp_path / "one", kind, name, process)
    if name == "SIGTERM":
        assert (victim, other) == (143, 143)
    else:
        assert other == 70
        assert "was lost" in errors
        assert "at step" in errors
    expected, cases = check_resumed(tmp_path / "one", tmp_path / "whole", kind)
    assert run(cases, processes=2) == expected  # at the end of the run already, the other resumes it again
    assert run(cases, devices=2) == expected


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("kind", ["data", "chains"])
def test_a_stopped_process_ends_the_run_within_twice_the_heartbeat(tmp_path, kind, process):
    _, other, errors, took = interrupted(tmp_path, kind, "SIGSTOP", process)
    assert other == 70
    assert f"process {process} was lost at step" in errors
    assert took < 2 * HEARTBEAT


@pytest.mark.slow
def test_data_of_one_process_that_are_wrong_end_both():
    children = start([{"shards": 2, "bad_row": 50, "options": {"steps": 10, "batch_size": 4}}], processes=2)
    ends = [finish(child)[1] for child in children]
    assert [child.returncode for child in children] == [1, 1]
    assert "process 1: data['x']: NaN or infinity in row 2" in ends[0]
    assert "data['x']: NaN or infinity in row 2" in ends[1]
