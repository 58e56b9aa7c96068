"""Processes that do not do the same: all of them end, with words, and none waits for ever."""

import re
import time

import pytest
from tests.distributed.children import finish, start

HEARTBEAT = 4.0
PARALLEL = {"steps": 40, "batch_size": 8, "chains": 2, "chain_method": "parallel"}
DATA = {"shards": 2, "options": {"steps": 40, "batch_size": 8, "chains": 2}}
CHAINS = {"options": PARALLEL}

CASES = {
    "step_size": (DATA, {"step_size": 2e-3}, "step_size: 0.001 in process 0, 0.002 in process 1"),
    "sampler": (DATA, {"sampler": "sghmc"}, "sampler.dynamics"),
    "steps": (CHAINS, {"options": {**PARALLEL, "steps": 400}}, "steps: 40 in process 0, 400 in process 1"),
    "data_of_chains": (CHAINS, {"first_rows": 48}, r"estimator.target.data.x: .* in process 0"),
    "likelihood": (DATA, {"estimator": "spike"}, "estimator.target.log_likelihood"),
    "rows": (DATA, {"first_rows": 40}, r"rows: the processes have \[48, 40\] rows"),
    "columns": (
        DATA,
        {"columns": 3},
        r"shard: arrays are .*float64\[4\].* in process 0 and .*float64\[3\].* in process 1",
    ),
    "shards": (DATA, {"shards": 4}, "shard: shards are 2 in process 0 and 4 in process 1"),
    "indivisible": ({**DATA, "shards": 5}, {}, "shards: 5 cannot be shared equally by 2 devices; use a multiple of 2"),
    "calls": (DATA, {"shard_again": True}, "does not make the calls that this one makes: it waits at"),
    "early_end": (DATA, {"ends": True}, "came to the end of its program, while process . waits for it"),
    "early_end_in_a_run": (DATA, {"ends_in_run": True}, "came to the end of its program at step"),
    "state": (DATA, {"moved": True}, "the chains from 0 on are not the same in processes 0 and 1 after"),
    "checkpoint": (
        {**DATA, "options": {**DATA["options"], "checkpoint": "FOLDER"}},
        {"options": {**DATA["options"], "checkpoint": "/proc/none"}},
        "checkpoint: /proc/none cannot be made a folder",
    ),
    "folders": (
        {**DATA, "options": {**DATA["options"], "checkpoint": "FOLDER/a"}},
        {"options": {**DATA["options"], "checkpoint": "FOLDER/b"}},
        "use a folder on a file system that all of them share",
    ),
}
"""What all processes are given, what process 1 does otherwise, and words that the errors of one of them hold."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_processes_that_disagree_end_with_words(tmp_path, name):
    common, other, words = CASES[name]
    case = with_folder({**common, "of_process": {"1": other}}, str(tmp_path))
    children = start([case], processes=2, heartbeat=HEARTBEAT)
    begun = time.monotonic()
    try:
        errors = [finish(child)[1] for child in children]
    finally:
        for child in children:
            child.kill()
    assert all(child.returncode for child in children) or (name.startswith("early_end") and children[0].returncode)
    assert re.search(words, "\n".join(errors)), errors
    assert all("process" in text or re.search(words, text) for text in errors), errors
    assert time.monotonic() - begun < 60


def with_folder(value, folder):
    if isinstance(value, dict):
        return {key: with_folder(item, folder) for key, item in value.items()}
    return value.replace("FOLDER", folder) if isinstance(value, str) else value
