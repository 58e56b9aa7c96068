"""A run killed at random moments, also inside a checkpoint write, ends as one that was never touched."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

CHILD = Path(__file__).with_name("kill_child.py")
CASES = [f"{name}-{kind}" for name in ("sgld", "dense", "low_rank", "spike") for kind in ("memory", "memmap")]
CASES += ["warmup-memory", "warmup-memmap", "auto-exact"]
ARRIVED, SETTLED, WARM = 112, 270, 450
"""The steps after which the phases of the warm-up of kill_child.py end; it saves every 100 steps."""


def start(case, folder, kill, cache):
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return subprocess.Popen(
        [sys.executable, CHILD, case, folder, str(kill)], env=environment, stdout=subprocess.PIPE, text=True
    )


def finish(case, folder, cache):
    child = start(case, folder, 0, cache)
    child.communicate(timeout=300)
    assert child.returncode == 0
    with np.load(folder / "result.npz") as file:
        return [file[name] for name in file.files]


def kill_at_random(rng, case, folder, cache):
    """One life of the run: killed in a disk event, or after a random time; True if it was killed before its end."""
    if rng.random() < 0.5:
        child = start(case, folder, int(rng.integers(1, 150)), cache)
        child.communicate(timeout=300)
    else:
        child = start(case, folder, 0, cache)
        child.stdout.readline()
        time.sleep(rng.uniform(0.0, 2.5))
        child.send_signal(signal.SIGKILL)
        child.communicate()
    return child.returncode == -signal.SIGKILL


def check(case, kills, tmp_path, seed):
    cache, killed, whole = tmp_path / "cache", tmp_path / "killed", tmp_path / "whole"
    killed.mkdir(), whole.mkdir()
    expected = finish(case, whole, cache)
    rng = np.random.default_rng(seed)
    done = runs = 0
    while done < kills:
        folder = killed / str(runs)
        folder.mkdir(exist_ok=True)
        done += kill_at_random(rng, case, folder, cache)
        runs += (folder / "result.npz").exists()  # one that reached its end before its killer makes room for another
    for folder in killed.iterdir():
        found = finish(case, folder, cache)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_killed_run_ends_like_an_untouched_one(tmp_path):
    check("sgld-memmap", 1, tmp_path, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, "sgld-grain"])
def test_twenty_kills(tmp_path, case):
    check(case, 20, tmp_path, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["warmup-memory", "warmup-exact", "auto-memory", "auto-exact"])
def test_killed_in_every_phase_of_warmup(tmp_path, case):
    """Before and after a checkpoint of each phase, and between phases: one run with ten lives."""
    cache, killed, whole = tmp_path / "cache", tmp_path / "killed", tmp_path / "whole"
    killed.mkdir(), whole.mkdir()
    expected = finish(case, whole, cache)
    moments = ["step:50", "step:105", f"phase:{ARRIVED}", "step:150", "step:230", f"phase:{SETTLED}", "step:290"]
    for kill in (*moments, "step:350", f"phase:{WARM}", "step:460"):
        child = start(case, killed, kill, cache)
        child.communicate(timeout=300)
        assert child.returncode == -signal.SIGKILL, kill
    for one, other in zip(finish(case, killed, cache), expected, strict=True):
        np.testing.assert_array_equal(one, other)
