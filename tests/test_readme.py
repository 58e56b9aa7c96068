"""Every code block and every command of the README is run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [
    line.split("#")[0].strip()
    for language, text in BLOCKS
    if language == "sh"
    for line in text.splitlines()
    if line.strip()
]


def test_there_is_something_to_run():
    assert len(PYTHON) >= 2
    assert {"make reproduce", "make test"} <= set(COMMANDS)


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_block(number, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(PYTHON[number])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_commands_of_the_tool(tmp_path):
    """In the order of the README, in an empty folder."""
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "ridgewalk":
            program = [sys.executable, "-c", "from ridgewalk.cli import main; main()", *words[1:]]
            done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, check=False)
            assert done.returncode == 0, done.stderr
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"permeability.zarr", "sample.png", "test.zarr", "model", "predictions.npz"}


def test_make_targets_exist():
    """`make test` runs this suite and `make reproduce` the studies, which have tests of their own."""
    for command in COMMANDS:
        if command.startswith("make "):
            done = subprocess.run(
                [*command.split(), "--dry-run"], capture_output=True, text=True, cwd=ROOT, check=False
            )
            assert done.returncode == 0, done.stderr
            assert ("ridgewalk reproduce all" in done.stdout) == (command == "make reproduce")


def test_pictures_exist():
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).stat().st_size > 10_000
