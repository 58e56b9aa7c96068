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


def test_a_signal_goes_to_all(tmp_path):
    text = "import signal, time\nprint('ready', flush=True)\nsignal.pause()\n"
    command = [sys.executable, "-c", "from ridgewalk.cli import main; main()", "launch", "-n", "2"]
    child = subprocess.Popen(
        [*command, script(tmp_path, text)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert {child.stdout.readline(), child.stdout.readline()} == {"[0] ready\n", "[1] ready\n"}
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 128 + signal.SIGTERM


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
