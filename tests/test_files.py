"""Files and folders are replaced whole, and nothing is lost when a process ends on the way."""

import os
import subprocess
import sys

import pytest

from ridgewalk.files import put_in_place, recover_former, write_atomically


def folder(path, text):
    path.mkdir()
    (path / "inside").write_text(text)
    return path


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_write_that_fails_leaves_nothing_and_keeps_what_was(tmp_path, monkeypatch):
    kept = tmp_path / "a.json"
    write_atomically(kept, b"old")

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(kept, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert kept.read_bytes() == b"old"


def test_a_folder_is_replaced(tmp_path):
    path = folder(tmp_path / "model", "old")
    put_in_place(folder(tmp_path / "fresh", "new"), path)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert (path / "inside").read_text() == "new"


def test_killed_between_the_two_renames_the_former_gets_its_name_back(tmp_path):
    path = tmp_path / "model"
    folder(tmp_path / f".model.{ended_process()}.former", "old")
    recover_former(path)
    assert (path / "inside").read_text() == "old"
    folder(tmp_path / f".model.{ended_process()}.former", "older")  # killed after them
    recover_former(path)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert (path / "inside").read_text() == "old"


def test_the_former_of_a_process_that_is_at_it_is_left_alone(tmp_path):
    there = folder(tmp_path / f".model.{os.getpid()}.former", "old")
    recover_former(tmp_path / "model")
    assert there.exists()


def test_formers_of_other_names_are_left_alone(tmp_path):
    """`model.v2` begins like `model`, and a stranger's file may end alike."""
    others = [folder(tmp_path / f".model.{middle}.former", "old") for middle in (f"v2.{ended_process()}", "kept")]
    recover_former(tmp_path / "model")
    folder(tmp_path / "model", "new")
    recover_former(tmp_path / "model")
    assert all(other.exists() for other in others)
