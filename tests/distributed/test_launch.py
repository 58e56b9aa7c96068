"""`ridgewalk launch`: numbers, output, and the end of all processes when one fails."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ridgewalk.distributed import launch

WORDS = "import os, sys; print('hello', os.environ['RIDGEWALK_PROCESS'], *sys.argv[1:])"
FAILS = """
import os, sys, time
if os.environ["RIDGEWALK_PROCESS"] == "1":
    sys.exit(7)
time.sleep(60)
"""


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text)
    return str(path)


def test_output_has_the_number_of_the_process(tmp_path, capfd):
    assert launch.launch([script(tmp_path, WORDS), "--flag", "a b"], 3) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == [f"[{i}] hello {i} --flag a b" for i in range(3)]


def test_a_failure_ends_the_others(tmp_path, capfd):
    begun = time.monotonic()
    assert launch.launch([script(tmp_path, FAILS)], 2, grace=1.0) == 7
    assert time.monotonic() - begun < 30
    assert "process 1 ended with exit code 7; the others are ended" in capfd.readouterr().err


PATIENCE = 300
"""Seconds that a test waits for processes; a shared machine may be ten times slower than a quiet one."""

COMMAND = [sys.executable, "-c", "from ridgewalk.cli import main; main()", "launch", "-n", "2"]


def start_waiting(tmp_path, text):
    """The launcher, in a group of processes as a shell makes one, once both processes have written that they wait."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen([*COMMAND, script(tmp_path, text)], process_group=0, **pipes)
    assert {child.stdout.readline(), child.stdout.readline()} == {"[0] ready\n", "[1] ready\n"}
    return child


def end(child):
    """Kill the launcher if it still runs, wait for it and close its pipes."""
    child.kill()
    child.communicate()


def test_a_signal_goes_to_all(tmp_path):
    child = start_waiting(tmp_path, "import signal, time\nprint('ready', flush=True)\nsignal.pause()\n")
    try:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=PATIENCE)
    finally:
        end(child)
    assert child.returncode == 128 + signal.SIGTERM


STOPS_IN_ORDER = """
import signal, time
received = []
signal.signal(signal.SIGINT, lambda *_: (received.append(1), print("stops", flush=True)))
print("ready", flush=True)
while not received:  # signal.pause() would miss a signal that comes before it
    time.sleep(0.01)
time.sleep(0.3)
"""


def test_ctrl_c_comes_to_each_process_once_and_is_not_success(tmp_path):
    """A terminal sends the signal to the group of the launcher; a second one would end a run without a checkpoint."""
    child = start_waiting(tmp_path, STOPS_IN_ORDER)
    try:
        os.killpg(child.pid, signal.SIGINT)
        output, errors = child.communicate(timeout=PATIENCE)
    finally:
        end(child)
    assert sorted(output.splitlines()) == ["[0] stops", "[1] stops"]
    assert child.returncode == 128 + signal.SIGINT
    assert "ended after SIGINT" in errors


def test_a_process_that_ends_long_before_the_others_is_named(tmp_path, capfd):
    text = "import os, time\nif os.environ['RIDGEWALK_PROCESS'] == '0': time.sleep(0.8)\n"
    assert launch.launch([script(tmp_path, text)], 2, grace=0.2) == 0
    assert capfd.readouterr().err.count("process 1 ended with exit code 0 0.2 s ago, and process 0 still runs") == 1


RUN = """
import sys
import ridgewalk as rw
rw.distributed.initialize(heartbeat=5.0)
import jax, jax.numpy as jnp, numpy as np
data = rw.distributed.shard(np.arange(8.0), shards=2)
target = rw.Posterior(lambda w: -0.5 * w**2, lambda w, batch: -0.5 * (batch - w) ** 2, data)
options = dict(step_size=1e-3, batch_size=4, checkpoint=sys.argv[1], checkpoint_every=200, progress=False)
result = rw.sample(jax.random.key(0), rw.sgld(), target, jnp.zeros(()), steps=int(sys.argv[2]), **options)
print("made all steps" if result.steps == int(sys.argv[2]) else "stopped early")
"""


def start_run(tmp_path, folder, steps):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = [*COMMAND, script(tmp_path, RUN), str(tmp_path / folder), str(steps)]
    return subprocess.Popen(words, process_group=0, **pipes)


@pytest.mark.slow
def test_runs_at_once_do_not_meet_and_ctrl_c_leaves_a_checkpoint(tmp_path):
    """Two that end, one that goes on until it is interrupted, and one more in the folder of that."""
    runs = [start_run(tmp_path, "a", 500), start_run(tmp_path, "b", 500), start_run(tmp_path, "c", 10**9)]
    try:
        for run in runs[:2]:
            output, errors = run.communicate(timeout=PATIENCE)
            assert run.returncode == 0, errors
            assert sorted(output.splitlines()) == ["[0] made all steps", "[1] made all steps"]
        until = time.monotonic() + PATIENCE
        while not list((tmp_path / "c").glob("step-*")) and time.monotonic() < until:
            time.sleep(0.1)
        runs.append(start_run(tmp_path, "c", 500))
        _, errors = runs[3].communicate(timeout=PATIENCE)
        assert runs[3].returncode
        assert "another run is writing" in errors
        os.killpg(runs[2].pid, signal.SIGINT)
        output, errors = runs[2].communicate(timeout=PATIENCE)
        assert runs[2].returncode == 128 + signal.SIGINT, errors
        assert sorted(output.splitlines()) == ["[0] stopped early", "[1] stopped early"]
    finally:
        for run in runs:
            end(run)
    assert list((tmp_path / "c").glob("step-*"))


def test_a_signal_before_all_are_started_goes_to_all(tmp_path, monkeypatch):
    start, begun = launch._start, []

    def start_and_signal(*arguments):
        begun.append(start(*arguments))
        if len(begun) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return begun[-1]

    monkeypatch.setattr(launch, "_start", start_and_signal)
    former = signal.getsignal(signal.SIGTERM)
    assert launch.launch([script(tmp_path, "import signal\nsignal.pause()\n")], 2) == 128 + signal.SIGTERM
    assert [child.returncode for child in begun] == [-signal.SIGTERM] * 2
    assert signal.getsignal(signal.SIGTERM) is former


def test_processes_listen_on_the_loopback_address_only():
    port = launch.free_port()
    assert 0 < port < 2**16
    assert launch.LOOPBACK == "127.0.0.1"


@pytest.mark.parametrize(("words", "message"), [([], "script: there is none"), (["x.py"], "processes: 0 is not")])
def test_wrong_arguments(words, message):
    with pytest.raises(ValueError, match=message):
        launch.launch(words, 2 if not words else 0)


def test_launching_loads_no_jax():
    code = "import ridgewalk.distributed.launch, sys; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
