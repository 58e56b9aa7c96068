"""A process that is killed, stopped or told to end: the others end with words, and the run can be resumed."""

import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.distributed.children import TIMEOUT, finish, run, start
from tests.distributed.test_bit_equal import assert_same_on_disk

HEARTBEAT = 4.0


BASE = {"steps": 600, "batch_size": 8, "chains": 2, "checkpoint_every": 20, "thin": 5}
DATA = {"shards": 2}
STORED = "store"
KINDS = {
    "dense": {**DATA, "sampler": "dense"},
    "low_rank": {**DATA, "sampler": "low_rank"},
    "limited": {**DATA, "sampler": "limited", STORED: True},
    "sghmc": {**DATA, "sampler": "sghmc"},
    "pruned": {**DATA, "sampler": "pruned", STORED: True},
    "control_variates": {**DATA, "estimator": "control_variates"},
    "epochs": {**DATA, "options": {**BASE, "replacement": False}, STORED: True},
    "on_disk": {**DATA, "on_disk": True},
    "batches": {**DATA, "loader": True, "options": {**BASE, "batch_size": None}},
    "warm_up_dense": {**DATA, "sampler": "dense", "step_size": "auto"},
    "warm_up_sghmc": {**DATA, "sampler": "sghmc", "step_size": "auto", STORED: True},
    "data": DATA,
    "chains": {"options": {**BASE, "steps": 2400, "chain_method": "parallel"}},
    "chains_stored": {"options": {**BASE, "steps": 2400, "chain_method": "parallel"}, STORED: True},
}
"""Runs whose data, or chains, are spread over two devices. Their draws are in memory and segments, or in a store."""


def case(folder, kind, **settings):
    given = {"options": BASE, **KINDS[kind], **settings}
    options = {**given["options"], "checkpoint": str(folder / "checkpoint")}
    if given.get("step_size") == "auto":
        options |= {"batch_size": 16, "warmup": 300, "burn_in": 300}
    if given.pop(STORED, False):
        options["store"] = str(folder / "draws.zarr")
    return {**given, "options": options}


def interrupted(folder, kind, name, process):
    """Exit codes and errors of both processes, and how long the other one took after the signal.

    The run is resumed if there is one.
    """
    settings = {**resumed(folder, kind), "signal": name, "process": process}
    children = start([settings], processes=2, heartbeat=HEARTBEAT)
    victim, other = children[process], children[1 - process]
    try:
        if name != "SIGTERM":
            wait_for_signal(victim, name)
        begun = time.monotonic()
        errors = finish(other)[1]
        took = time.monotonic() - begun
        if victim.poll() is None and name != "SIGTERM":
            victim.kill()
        finish(victim)
    finally:
        for child in children:
            child.kill()
    return victim.returncode, other.returncode, errors, took


def wait_for_signal(victim, name):
    """Until a process was killed or stopped."""
    until = time.monotonic() + TIMEOUT
    while victim.poll() is None and "State:\tT" not in Path(f"/proc/{victim.pid}/status").read_text():
        assert time.monotonic() < until, f"no checkpoint after {TIMEOUT} s, so no {name}"
        time.sleep(0.05)
    assert name == "SIGKILL" or victim.poll() is None, "the run ended before it was stopped"


def resumed(folder, kind):
    found = case(folder, kind)
    return {**found, "options": {**found["options"], "resume": True}}


def test_a_killed_process_ends_the_other_and_the_run_is_resumed(tmp_path):
    victim, other, errors, _ = interrupted(tmp_path / "killed", "data", "SIGKILL", 1)
    assert victim == -signal.SIGKILL
    assert other == 70
    assert "process 1 was lost at step" in errors
    assert "any number of processes that divides 2 shards" in errors
    both = run([resumed(tmp_path / "killed", "data"), case(tmp_path / "whole", "data")], devices=2)
    assert both[0] == both[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_interrupted_again_and_again_is_the_same(tmp_path, kind):
    """Killed worker, resumed; killed coordinator, resumed; SIGTERM to one; then resumed with one process, and with two.

    Draws were on the disk before each end. All that is returned, and what readers find on the disk, is as in a run
    without interruption.
    """
    for name, process in (("SIGKILL", 1), ("SIGKILL", 0), ("SIGTERM", 1)):
        victim, other, errors, _ = interrupted(tmp_path / "one", kind, name, process)
        if name == "SIGTERM":
            assert (victim, other) == (143, 143), errors
        else:
            assert (victim, other) == (-signal.SIGKILL, 70), errors
            assert "was lost at step" in errors
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one = run([resumed(tmp_path / "one", kind), case(tmp_path / "whole", kind)], devices=2)
    assert one[0] == one[1]
    assert run([resumed(tmp_path / "two", kind)], processes=2) == one[1:]
    where = "draws.zarr" if KINDS[kind].get(STORED) else "checkpoint"
    for name in ("one", "two"):
        assert_same_on_disk(tmp_path / name / where, tmp_path / "whole" / where)


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
