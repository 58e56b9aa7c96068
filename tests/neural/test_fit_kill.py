"""`ridgewalk fit` killed at random moments, also inside a write, ends in the model of a run that was never touched."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.neural.fits import blobs, waves

CHILD = Path(__file__).with_name("kill_fit.py")
PATIENCE = 1800
"""Seconds: the machine may be busy with other things."""

OPTIONS = [
    "--chains",
    "2",
    "--optimiser-steps",
    "300",
    "--steps",
    "600",
    "--burn-in",
    "120",
    "--draws",
    "8",
    "--checkpoint-every",
    "25",
    "--seed",
    "5",
    "--r-hat",
    "0.5",
]


def start(folder, name, sampler, kill):
    """A fit of the data in the folder; of those of classes a classifier."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    task = "classification" if (folder / "classes.npz").exists() else "regression"
    data = folder / ("classes.npz" if task == "classification" else "data.npz")
    arguments = ["--task", task, "--data", data, "--out", folder / name, "--sampler", sampler, *OPTIONS]
    command = [sys.executable, CHILD, str(kill), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(child):
    """What it said; a child that does not end in time is not left behind."""
    try:
        return child.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise


def finish(folder, name, sampler):
    child = start(folder, name, sampler, 0)
    said = ended(child)
    assert child.returncode == 0, said
    assert not list(folder.glob(".*.partial"))
    report = json.loads((folder / name / "report.json").read_text())
    del report["sha256"]  # of the report itself, with the seconds that each phase took
    for phase in report["phases"]:
        del phase["seconds"]
    return (folder / name / "model.safetensors").read_bytes(), (folder / name / "model.json").read_bytes(), report


def check(folder, sampler, kills, seed, classes=0):
    if classes:
        x, names = blobs(classes=classes)
        np.savez(folder / "classes.npz", X=x, Y=np.unique(names, return_inverse=True)[1])
    else:
        x, y = waves()
        np.savez(folder / "data.npz", X=x, Y=y)
    expected = finish(folder, "whole", sampler)
    rng = np.random.default_rng(seed)
    done, lives = 0, 0
    while done < kills:
        name = f"killed-{lives}"
        if rng.random() < 0.5:
            child = start(folder, name, sampler, int(rng.integers(1, 120)))
        else:
            child = start(folder, name, sampler, 0)
            child.stdout.readline()
            time.sleep(rng.uniform(0.0, 5.0))
            child.send_signal(signal.SIGKILL)
        ended(child)
        done += child.returncode == -signal.SIGKILL
        lives += (folder / name).exists()  # one that reached its end makes room for another
    for life in range(lives + 1):
        if not (folder / f"killed-{life}").exists():
            assert finish(folder, f"killed-{life}", sampler) == expected


@pytest.mark.slow
def test_a_killed_fit_ends_in_the_same_model(tmp_path):
    check(tmp_path, "sgld", 1, seed=3)


@pytest.mark.slow
def test_a_killed_classifier_ends_in_the_same_model(tmp_path):
    check(tmp_path, "sgld", 1, seed=3, classes=3)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [0, 3], ids=["regression", "classification"])
@pytest.mark.parametrize("sampler", ["hasgld_sa", "sghmc", "auto"])
def test_twelve_kills(tmp_path, sampler, classes):
    check(tmp_path, sampler, 12, seed=4, classes=classes)
