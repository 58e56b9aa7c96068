"""Starts `run_child.py` in one process or several, and reads what it prints."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from ridgewalk.distributed.launch import COORDINATOR, LOOPBACK, PROCESS, PROCESSES, free_port

FEATURES, EXAMPLES = 4, 96


def arrays():
    """The data of the children."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, FEATURES))
    return {"x": x, "y": x @ rng.normal(size=FEATURES) + rng.normal(size=EXAMPLES)}


def summands(count, size):
    """Vectors whose sum depends on the order of the additions."""
    return np.random.default_rng(1).normal(size=(count, size)).astype("float32")


def digest(tree):
    """Of every bit of some arrays."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.ascontiguousarray(np.asarray(leaf)).tobytes())
    return found.hexdigest()[:16]


CHILD = Path(__file__).with_name("run_child.py")
TIMEOUT = 600


def start(cases, processes=1, devices=1, flags="", **settings):
    """Processes with so many devices each; the cases are runs that each of them makes."""
    kept = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    every = [*kept, f"--xla_force_host_platform_device_count={devices}", *flags.split()]
    common = os.environ | {"XLA_FLAGS": " ".join(every), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    common = {name: value for name, value in common.items() if "proxy" not in name.lower()}
    address = f"{LOOPBACK}:{free_port()}"
    several = [
        {PROCESSES: str(processes), PROCESS: str(number), COORDINATOR: address} if processes > 1 else {}
        for number in range(processes)
    ]
    command = [sys.executable, str(CHILD), json.dumps({"cases": cases, **settings})]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(command, env=common | one, **pipes) for one in several]


def finish(child):
    """The output and the errors of a child that ends."""
    try:
        return child.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        child.kill()
        errors = child.communicate()[1]
        raise AssertionError(f"a process did not end within {TIMEOUT} s; its errors:\n{errors}") from None


def results(children):
    """What the runs of each child gave: a list for each process."""
    try:
        ends = [finish(child) for child in children]
    finally:
        for child in children:
            child.kill()
    assert [child.returncode for child in children] == [0] * len(children), "\n".join(errors for _, errors in ends)
    return [
        [json.loads(line.removeprefix("RESULT ")) for line in output.splitlines() if line.startswith("RESULT ")]
        for output, _ in ends
    ]


def run(cases, processes=1, devices=1, **settings):
    """The results of the cases, which all processes agree on."""
    found = results(start(cases, processes, devices, **settings))
    assert all(other == found[0] for other in found)
    assert len(found[0]) == len(cases)
    return found[0]
