"""Data sets on disk: bit-identical whatever the processes and interruptions, atomic, self-describing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from ridgewalk._io import unfinished_folders
from ridgewalk.darcy import Grid
from ridgewalk.darcy.datasets import Plan, generate, load
from ridgewalk.darcy.problems import SYNTHETIC, VaryingPermeability, VaryingSource, channelised, karhunen_loeve

GRID = Grid(12, 10)
SOURCES = VaryingSource(channelised(GRID), SYNTHETIC)
PERMEABILITIES = VaryingPermeability(karhunen_loeve(GRID, 16), kappa_0=4.0)
PLAN = Plan(samples=23, seed=3, block=5)


class Interruption(Exception):
    pass


def assert_same(first, second):
    one, two = load(first), load(second)
    assert one.attributes == two.attributes
    assert one.arrays.keys() == two.arrays.keys()
    for name, values in one.arrays.items():
        np.testing.assert_array_equal(values, two.arrays[name], err_msg=name)


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("complete") / "data.zarr", SOURCES, PLAN)


def interrupt_after(blocks):
    seen = []

    def progress(samples):
        seen.append(samples)
        if len(seen) > blocks:
            raise Interruption

    return progress


def test_what_is_stored_is_what_was_drawn(complete):
    data = load(complete)
    drawn = SOURCES.draw(3, range(23))
    for name, values in drawn.items():
        np.testing.assert_array_equal(data.arrays[name], values, err_msg=name)
    np.testing.assert_array_equal(data.arrays["permeability"], SOURCES.permeability)
    assert data.grid == GRID
    assert sorted(complete.parent.iterdir()) == [complete]  # nothing temporary is left


def test_number_of_processes_changes_nothing(complete, tmp_path):
    assert_same(generate(tmp_path / "two.zarr", SOURCES, PLAN, processes=2), complete)


def test_interrupted_run_goes_on(complete, tmp_path):
    path = tmp_path / "data.zarr"
    with pytest.raises(Interruption):
        generate(path, SOURCES, PLAN, processes=2, progress=interrupt_after(2))
    assert not path.exists()
    with pytest.raises(ValueError, match="begun but not finished"):
        load(path)
    ready = []
    generate(path, SOURCES, PLAN, progress=ready.append)
    assert ready[0] >= 10  # the first run's blocks were kept
    assert sum(ready) == 23
    assert_same(path, complete)


def test_killed_run_goes_on(tmp_path):
    """A run killed without warning leaves no worker behind, and the same command completes it."""
    command = [sys.executable, "-c", "from ridgewalk.cli import main; main()"]
    options = ["darcy", "generate", "permeability", "--samples", "500", "--size", "30", "--processes", "2"]
    killed, whole = tmp_path / "killed.zarr", tmp_path / "whole.zarr"
    run = subprocess.Popen([*command, *options, "--out", str(killed)], stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob(".killed.zarr.*.partial/finished/0*.json")):
        assert run.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    children = _children(run.pid)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    kept = len(list(tmp_path.glob(".killed.zarr.*.partial/finished/0*.json")))
    assert 1 <= kept < 10
    assert not killed.exists()
    deadline = time.monotonic() + 20
    while any(_alive(child) for child in children):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)
    for path in (killed, whole):
        subprocess.run([*command, *options[:-1], "1", "--out", str(path)], check=True, capture_output=True)
    assert_same(killed, whole)


def _children(parent):
    with open(f"/proc/{parent}/task/{parent}/children") as listing:
        return [int(child) for child in listing.read().split()]


def _alive(process):
    try:
        with open(f"/proc/{process}/stat") as status:
            return status.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_two_runs_do_not_write_one_file(tmp_path):
    path = tmp_path / "data.zarr"
    complaints = []

    def begin_another(samples):
        if not complaints:
            with pytest.raises(ValueError, match="another run is writing") as caught:
                generate(path, SOURCES, PLAN)
            complaints.append(caught.value)

    generate(path, SOURCES, PLAN, progress=begin_another)
    assert complaints
    assert load(path).arrays["flux"].shape[0] == 23


def test_a_run_killed_while_arrays_were_laid_out_starts_again(complete, tmp_path):
    path = tmp_path / "data.zarr"
    with pytest.raises(Interruption):
        generate(path, SOURCES, PLAN, progress=interrupt_after(3))
    (growing,) = unfinished_folders(path)
    shutil.rmtree(growing / "finished")
    assert_same(generate(path, SOURCES, PLAN), complete)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_of_others_beside_the_output_is_left_alone(complete, tmp_path):
    path = tmp_path / "data.zarr"
    for name in ("data.zarr.partial", ".data.zarr.0123456789abcdef.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("years of work")
    assert_same(generate(path, SOURCES, PLAN), complete)
    assert len(list(tmp_path.rglob("thesis.txt"))) == 2


def test_other_settings_do_not_continue_a_partial_run(tmp_path):
    path = tmp_path / "data.zarr"
    with pytest.raises(Interruption):
        generate(path, SOURCES, PLAN, progress=interrupt_after(1))
    with pytest.raises(ValueError, match=r"begun with other settings \(seed\)"):
        generate(path, SOURCES, Plan(samples=23, seed=4, block=5))
    other = VaryingSource(channelised(GRID, seed=9), SYNTHETIC)
    with pytest.raises(ValueError, match=r"other settings \(permeability\)"):
        generate(path, other, PLAN)


def test_an_existing_output_is_kept(complete, tmp_path):
    with pytest.raises(ValueError, match="it exists; choose another name"):
        generate(complete, SOURCES, PLAN)
    path = generate(tmp_path / "data.zarr", SOURCES, Plan(2, 0))
    generate(path, PERMEABILITIES, Plan(3, 0), overwrite=True)
    assert load(path).attributes["kind"] == "permeability"
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_foreign_folder_is_never_overwritten(tmp_path):
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="not overwritten"):
        generate(folder, SOURCES, PLAN, overwrite=True)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_file_describes_itself(tmp_path):
    import xarray

    path = generate(tmp_path / "data.zarr", PERMEABILITIES, PLAN)
    with xarray.open_zarr(path, consolidated=False) as data:
        assert data["flux"].dims == ("sample", "edge")
        assert data["permeability"].dims == ("sample", "y", "x")
        assert data["redraws"].values.sum() == PERMEABILITIES.draw(3, range(23))["redraws"].sum() > 0
        for name in data.variables:
            assert data[name].attrs["units"] == "1"
            assert data[name].attrs["long_name"]
        for key in ("boundary", "seed", "ridgewalk_version", "seeding", "energy_captured", "kappa_0"):
            assert key in data.attrs
        np.testing.assert_allclose(data["x"], GRID.x_centres)


def test_synthetic_field_is_labelled(complete):
    assert "synthetic" in load(complete).attributes["permeability_label"]


@pytest.mark.parametrize(
    ("arguments", "message"), [((0, 0), "samples = 0"), ((1, -1), "seed = -1"), ((1, 0, 0), "block = 0")]
)
def test_bad_plan(arguments, message):
    with pytest.raises(ValueError, match=message):
        Plan(*arguments)


def test_a_run_that_fails_at_once_leaves_nothing(tmp_path):
    hopeless = VaryingPermeability(karhunen_loeve(GRID, 16), kappa_0=1e-9)
    with pytest.raises(ValueError, match="no positive field"):
        generate(tmp_path / "data.zarr", hopeless, Plan(1, 0))
    assert list(tmp_path.iterdir()) == []


def test_bad_processes(tmp_path):
    with pytest.raises(ValueError, match="processes = 0"):
        generate(tmp_path / "data.zarr", SOURCES, PLAN, processes=0)


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match="there is no such data set"):
        load(tmp_path / "absent.zarr")
    (tmp_path / "text.zarr").write_text("no")
    with pytest.raises(ValueError, match="not a ridgewalk Darcy data set"):
        load(tmp_path / "text.zarr")


def flip(path, at=-6):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def interrupted(path):
    with pytest.raises(Interruption):
        generate(path, SOURCES, PLAN, progress=interrupt_after(3))
    (growing,) = unfinished_folders(path)
    return growing


@pytest.mark.parametrize(
    "place",
    [
        "flux/c/1/0",
        "permeability/c/0/0",
        "flux/zarr.json",
        "finished/000000.json",
        "finished/layout.json",
        "flux/c/0/0",
    ],
)
def test_a_damaged_file_of_an_interrupted_run_is_named(tmp_path, place):
    growing = interrupted(tmp_path / "data.zarr")
    flip(growing / place)
    with pytest.raises(ValueError, match=f"{growing}/{place}: "):
        generate(tmp_path / "data.zarr", SOURCES, PLAN)


def test_chunks_that_are_gone_old_or_of_another_run_are_named(complete, tmp_path):
    growing = interrupted(tmp_path / "data.zarr")
    other = generate(tmp_path / "other.zarr", SOURCES, Plan(samples=23, seed=4, block=5))
    shutil.copy(other / "flux" / "c" / "1" / "0", growing / "flux" / "c" / "1" / "0")
    with pytest.raises(ValueError, match="flux/c/1/0: its checksum"):
        generate(tmp_path / "data.zarr", SOURCES, PLAN)
    (growing / "flux" / "c" / "1" / "0").unlink()
    with pytest.raises(ValueError, match="flux/c/1/0: this chunk of the array is missing"):
        generate(tmp_path / "data.zarr", SOURCES, PLAN)
    shutil.copy(complete / "flux" / "c" / "1" / "0", growing / "flux" / "c" / "1" / "0")
    os.replace(growing / "finished" / "000000.json", growing / "finished" / "000001.json")
    with pytest.raises(ValueError, match=r"finished/000001\.json: it is the record of another block"):
        generate(tmp_path / "data.zarr", SOURCES, PLAN)


@pytest.mark.parametrize("place", ["flux/c/1/0", "flux/zarr.json", "zarr.json", "x/c/0"])
def test_a_damaged_file_of_a_data_set_is_named(complete, tmp_path, place):
    path = tmp_path / "data.zarr"
    shutil.copytree(complete, path)
    flip(path / place, -20)
    with pytest.raises(ValueError, match=str(path)) as caught:
        load(path)
    assert place in str(caught.value)


def test_only_what_is_asked_for_is_checked(complete, tmp_path):
    path = tmp_path / "data.zarr"
    shutil.copytree(complete, path)
    flip(path / "flux" / "c" / "1" / "0")
    assert load(path, names=("pressure",)).arrays.keys() == {"pressure"}


def test_every_chunk_has_a_checksum_even_of_zeros(complete):
    for metadata in complete.glob("*/zarr.json"):
        assert json.loads(metadata.read_text())["codecs"][-1]["name"] == "crc32c"
    assert len(list((complete / "redraws" / "c").iterdir()) if (complete / "redraws").exists() else [0]) > 0


def test_data_sets_of_other_versions_say_what_to_do(complete, tmp_path):
    for number, said in ((1, "generate it again"), (3, "upgrade ridgewalk")):
        path = tmp_path / f"{number}.zarr"
        shutil.copytree(complete, path)
        metadata = json.loads((path / "zarr.json").read_text())
        metadata["attributes"]["format_version"] = number
        (path / "zarr.json").write_text(json.dumps(metadata))
        with pytest.raises(ValueError, match=said):
            load(path)


def test_files_of_others_in_a_data_set_are_not_overwritten(complete, tmp_path):
    path = tmp_path / "data.zarr"
    shutil.copytree(complete, path)
    (path / "notes.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"not the data set's \(notes\.txt\)"):
        generate(path, SOURCES, PLAN, overwrite=True)
    assert (path / "notes.txt").exists()
