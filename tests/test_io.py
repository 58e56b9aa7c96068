"""Files and folders are replaced whole, checked when read, and removed only if they are the library's own."""

import json
import os
import socket
import stat
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save

from ridgewalk import _io
from ridgewalk._io import (
    DamagedFileError,
    NewerFormatError,
    read_json,
    read_json_object,
    read_plain_tensors,
    read_regular,
    read_tensors,
    recover_folder,
    remove_own,
    replace_folder,
    temporary_folder,
    unfinished_folders,
    working_folder,
    write_atomically,
    write_tensors,
)


def folder(path, text):
    path.mkdir()
    (path / "inside").write_text(text)
    return path


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def test_a_write_that_fails_leaves_nothing_and_keeps_what_was(tmp_path, monkeypatch):
    kept = tmp_path / "a.json"
    write_atomically(kept, b"old")

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(kept, b"new")
    assert names(tmp_path) == ["a.json"]
    assert kept.read_bytes() == b"old"


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    """Not even one at the very name that is about to be used."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / f".a.json.{os.getpid()}.tmp").symlink_to(victim)  # the name of earlier versions
    monkeypatch.setattr(_io.secrets, "token_hex", lambda _: "guessed")
    write_atomically(tmp_path / "a.json", b"new")
    (tmp_path / ".a.json.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "a.json", b"newer")
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / "a.json").read_bytes() == b"new"


def test_the_umask_and_long_names_are_honoured(tmp_path):
    out = tmp_path / ("é" * 120)
    before = os.umask(0o027)
    try:
        write_atomically(out, b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(out.stat().st_mode) == 0o640


def test_a_folder_is_replaced(tmp_path):
    path = folder(tmp_path / "model", "old")
    with temporary_folder(path) as fresh:
        (fresh / "inside").write_text("new")
        replace_folder(fresh, path)
    assert names(tmp_path) == ["model"]
    assert names(path) == ["inside"]
    assert (path / "inside").read_text() == "new"


def test_a_temporary_folder_is_removed_when_its_work_fails(tmp_path):
    def work():
        with temporary_folder(tmp_path / "model") as fresh:
            (fresh / "inside").write_text("half")
            raise KeyError("x")

    with pytest.raises(KeyError):
        work()
    assert names(tmp_path) == []


def test_a_link_is_never_replaced(tmp_path):
    real = folder(tmp_path / "real", "old")
    (tmp_path / "model").symlink_to(real)
    with temporary_folder(tmp_path / "model") as fresh, pytest.raises(ValueError, match="symbolic link"):
        replace_folder(fresh, tmp_path / "model")
    assert (real / "inside").read_text() == "old"


KILLED = """
import os, signal, sys
from pathlib import Path
from ridgewalk import _io
path, at = Path(sys.argv[1]), int(sys.argv[2])
calls = [0]
def counted(call):
    def wrapper(*arguments):
        calls[0] += 1
        if calls[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return wrapper
for name in ("mkdir", "rename", "unlink", "rmdir", "fsync", "write"):
    setattr(os, name, counted(getattr(os, name)))
with _io.temporary_folder(path) as fresh:
    (fresh / "inside").write_text("new")
    _io.replace_folder(fresh, path)
print(calls[0])
"""


def test_killed_anywhere_the_folder_is_the_old_or_the_new_one(tmp_path):
    """The first process counts the system calls, the others are killed at each of them in turn."""
    outcomes = set()
    at, ended = 1, False
    while not ended:
        here = tmp_path / str(at)
        here.mkdir()
        path = folder(here / "model", "old")
        child = subprocess.run([sys.executable, "-c", KILLED, path, str(at)], check=False, capture_output=True)
        ended = child.returncode == 0
        recover_folder(path)
        outcomes.add((path / "inside").read_text())
        with temporary_folder(path):  # which removes what the killed process left
            pass
        left = [file for file in here.rglob("*") if file.is_file() and file.parent != path]
        assert [file for file in left if file.name != _io.MARKER or file.stat().st_size] == []
        at += 1
    assert outcomes == {"old", "new"}
    assert at > 10


def test_folders_of_a_process_at_work_are_left_alone(tmp_path):
    path = folder(tmp_path / "model", "old")
    with temporary_folder(path) as one, temporary_folder(path) as other:
        assert one.is_dir()
        assert other.is_dir()


def test_nothing_without_the_marker_is_touched(tmp_path):
    """Whatever its name: numbers without end, the names of earlier versions, links to folders of ours."""
    others = ["7", str(10**30), "v2.7", "kept", "0123456789abcdef"]
    planted = [
        folder(tmp_path / f".model.{middle}.{kind}", "thesis")
        for middle in others
        for kind in ("former", "tmp", "partial")
    ]
    planted.append(folder(tmp_path / "model.partial", "thesis"))
    path = tmp_path / "model"
    recover_folder(path)
    assert not path.exists()
    mine = working_folder(path)
    assert mine not in planted
    with temporary_folder(path) as fresh:
        replace_folder(fresh, path)
    recover_folder(path)
    for one in planted:
        assert (one / "inside").read_text() == "thesis"
        with pytest.raises(ValueError, match="was not made by ridgewalk"):
            remove_own(one)
    (tmp_path / "link").symlink_to(mine)
    with pytest.raises(ValueError, match="was not made by ridgewalk"):
        remove_own(tmp_path / "link")


def test_a_marker_of_another_kind_is_not_ours(tmp_path):
    for content in ("", "{", "[]", "[" * 100_000, json.dumps({"made_by": "ridgewalk"}), json.dumps({"for": "model"})):
        there = folder(tmp_path / ".model.0.partial", "thesis")
        (there / _io.MARKER).write_text(content)
        assert unfinished_folders(tmp_path / "model") == []
        for entry in there.iterdir():
            entry.unlink()
        there.rmdir()


def test_a_working_folder_is_found_again_by_its_result(tmp_path):
    mine, other = working_folder(tmp_path / "model"), working_folder(tmp_path / "model.v2")
    assert mine != other
    assert working_folder(tmp_path / "model") == mine
    remove_own(mine)
    assert unfinished_folders(tmp_path / "model") == []
    assert unfinished_folders(tmp_path / "model.v2") == [other]


def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "real").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name in ("folder", "fifo", "socket", "zero", "link"):
            with pytest.raises(DamagedFileError, match=f"{name}: it is (not a regular file|a symbolic link)"):
                read_regular(tmp_path / name)
    with pytest.raises(DamagedFileError, match="zero: it is not a regular file"):
        read_regular(tmp_path / "zero", follow=True)
    assert read_json(tmp_path / "link", follow=True) == 1
    with pytest.raises(FileNotFoundError, match="nothing"):
        read_regular(tmp_path / "nothing")


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b"1" * 10_000])
def test_damaged_json_is_named(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"a\.json: it is not JSON, or it is damaged"):
        read_json(tmp_path / "a.json")


def test_large_json_and_other_values_are_refused(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(DamagedFileError, match=r"a\.json: it has 3 bytes; at most 2"):
        read_json(tmp_path / "a.json", 2)
    with pytest.raises(DamagedFileError, match=r"a\.json: it holds list in place of an object"):
        read_json_object(tmp_path / "a.json")


TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([True, False, True]),
    "c": np.zeros((0, 4), np.int64),
    "d": np.array(2.5),
    "e": np.arange(5, dtype=np.float16)[::2],
}


def written(tmp_path):
    path = tmp_path / "t.safetensors"
    write_tensors(path, TENSORS, kind="test", version=2, about={"step": 3})
    return path


def test_tensors_come_back_as_they_were(tmp_path):
    path = written(tmp_path)
    found = read_tensors(path, kind="test", newest=2)
    assert (found.about, found.version) == ({"step": 3}, 2)
    for tensors in (found.tensors, read_plain_tensors(path)[0]):
        assert sorted(tensors) == list(TENSORS)
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(tensor, TENSORS[name])
            assert tensor.dtype == TENSORS[name].dtype
            assert tensor.shape == TENSORS[name].shape
            assert tensor.flags.aligned
            assert tensor.flags.writeable


def test_no_changed_byte_and_no_cut_goes_unnoticed(tmp_path):
    path = written(tmp_path)
    content, named = path.read_bytes(), []
    for at in range(len(content)):
        for bit in (0, 3, 7):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            path.write_bytes(changed)
            try:
                found = read_tensors(path, kind="test", newest=2)
            except (DamagedFileError, NewerFormatError) as error:
                named.append(str(path) in str(error))
                continue
            assert found.version < 2  # the number of an earlier version
            assert found.about == {"step": 3}
            assert all(np.array_equal(found.tensors[name], TENSORS[name]) for name in TENSORS)
    assert all(named)
    for length in (*range(0, len(content), 7), len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedFileError, match=r"t\.safetensors"):
            read_tensors(path, kind="test", newest=2)
    path.write_bytes(content + b"x")
    with pytest.raises(DamagedFileError, match="truncated or damaged"):
        read_tensors(path, kind="test", newest=2)


def test_later_versions_and_other_kinds_are_told_apart(tmp_path):
    path = written(tmp_path)
    with pytest.raises(NewerFormatError, match="format version 2, this ridgewalk reads up to 1; upgrade"):
        read_tensors(path, kind="test", newest=1)
    with pytest.raises(DamagedFileError, match="it is not a model file"):
        read_tensors(path, kind="model", newest=2)
    with pytest.raises(DamagedFileError, match="at most 10 are expected"):
        read_tensors(path, kind="test", newest=2, limit=10)
    path.write_bytes(save(TENSORS | {"e": np.zeros(1)}))
    with pytest.raises(DamagedFileError, match="has no description"):
        read_tensors(path, kind="test", newest=2)


SMALL = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HUGE = {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": HUGE},
        {"a": HUGE | {"data_offsets": [0, 8]}},
        {"a": HUGE | {"shape": [2**62, 2**62]}},
        {"a": HUGE | {"shape": [-1, -8]}},
        {"a": HUGE | {"shape": [True], "data_offsets": [0, 4]}},
        {"a": HUGE | {"shape": 3}},
        {"a": HUGE | {"dtype": "F128"}},
        {"a": HUGE | {"dtype": ["F32"]}},
        {"a": {"dtype": "F32"}},
        {"a": 3},
        {"a": {"dtype": "F32", "shape": [1] * 200 + [2], "data_offsets": [0, 8]}},
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        },
        [],
    ],
)
def test_absurd_headers_allocate_nothing(tmp_path, header):
    text = json.dumps(header).encode()
    path = tmp_path / "t.safetensors"
    content = len(text).to_bytes(8, "little") + text + bytes(8)
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError, match=r"t\.safetensors: (its header is|it is truncated or) damaged"):
            read_plain_tensors(path)
        for length in (2**63, 2**40, 10**8, len(content)):
            path.write_bytes(length.to_bytes(8, "little") + text)
            with pytest.raises(DamagedFileError, match="truncated or damaged"):
                read_plain_tensors(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24  # bytes, NumPy's arrays included


def test_deep_nesting_in_a_header_is_damage(tmp_path):
    text = b"[" * 100_000
    (tmp_path / "t").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(DamagedFileError, match="nested too deeply"):
        read_plain_tensors(tmp_path / "t")


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_neither_holds_nor_releases_the_lock(tmp_path):
    reading, writing = os.pipe()
    ready, begun = os.pipe()
    with _io.sole_writer(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.write(begun, b".")
            os.read(reading, 1)  # until the parent has ended its run
            os._exit(0)
        os.read(ready, 1)
        with pytest.raises(ValueError, match="another run is writing"), _io.sole_writer(tmp_path):
            pass
    with _io.sole_writer(tmp_path):
        pass  # the child lives, and does not hold it
    with _io.sole_writer(tmp_path):
        other = os.fork()
        if other == 0:
            os._exit(0)
        os.waitpid(other, 0)
        with pytest.raises(ValueError, match="another run is writing"), _io.sole_writer(tmp_path):
            pass
    for end in (writing, reading, ready, begun):
        os.close(end)
    os.waitpid(child, 0)
