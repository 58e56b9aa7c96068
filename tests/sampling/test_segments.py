"""Draws of a checkpointed run in segments: few files, verified when resumed, removed once no checkpoint lists them."""

import json
import os
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tests.sampling.problems import assert_same_run, run

import ridgewalk as rw
from ridgewalk._io import read_tensors
from ridgewalk.sampling import checkpoint, segments
from ridgewalk.sampling.segments import SegmentStore


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("draws-"))


def ranges(folder):
    return [tuple(int(part) for part in name.removesuffix(".safetensors").split("-")[1:]) for name in names(folder)]


def listed(path):
    return [(segment["first"], segment["stop"]) for segment in checkpoint.read(path).store["segments"]]


def all_listed(folder):
    return {found for path in checkpoint.files(folder) for found in listed(path)}


def begun(folder, **options):
    """A run that stopped after 44 of 60 steps, with segments of 32, 8 and 4 draws."""
    run(chains=2, steps=44, checkpoint=folder, checkpoint_every=4, **options)
    assert listed(checkpoint.files(folder)[-1]) == [(0, 32), (32, 40), (40, 44)]


def resumed(folder, **options):
    return run(chains=2, checkpoint=folder, checkpoint_every=4, resume=True, **options)


def test_segments_are_merged(tmp_path):
    run(steps=1000, checkpoint=tmp_path, checkpoint_every=10)
    old, new = checkpoint.files(tmp_path)
    assert listed(old) == [(0, 640), (640, 960), (960, 980), (980, 990)]
    assert listed(new) == [(0, 640), (640, 960), (960, 1000)]
    assert ranges(tmp_path) == sorted(all_listed(tmp_path))
    assert len(list(tmp_path.iterdir())) == 7


def test_the_older_checkpoint_stays_resumable_after_a_merge(tmp_path):
    whole = run(chains=2, steps=50)
    run(chains=2, steps=40, checkpoint=tmp_path, checkpoint_every=5)
    assert ranges(tmp_path) == [(0, 20), (0, 40), (20, 30), (30, 35)]
    checkpoint.files(tmp_path)[-1].unlink()
    assert_same_run(whole, run(chains=2, steps=50, checkpoint=tmp_path, checkpoint_every=5, resume=True))


def test_no_draws_no_segment(tmp_path):
    options = {"burn_in": 30, "thin": 7, "checkpoint": tmp_path, "checkpoint_every": 10}
    run(**options, steps=40)
    old, new = checkpoint.files(tmp_path)
    assert (listed(old), listed(new)) == ([], [(0, 1)])
    new.unlink()
    again = run(**options, resume=True)
    assert ranges(tmp_path)[-1] == (0, 4)
    assert_same_run(again, run(burn_in=30, thin=7))


def test_full_segments_are_not_merged(tmp_path, monkeypatch):
    whole = run(chains=2)
    bytes_of_a_draw = sum(leaf[:, 0].nbytes for leaf in jax.tree.leaves((whole.positions, whole.info)))
    bytes_of_a_draw += 2 * 16  # its step and step size, for each chain
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 9 * bytes_of_a_draw)
    run(chains=2, checkpoint=tmp_path, checkpoint_every=20)
    assert [stop for _, stop in listed(checkpoint.files(tmp_path)[-1])] == [9, 18, 27, 36, 45, 54, 60]
    assert_same_run(whole, resumed(tmp_path))


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("flip", "its checksum does not match|damaged"),
        ("cut", "truncated or damaged"),
        ("empty", "truncated or damaged"),
        ("remove", "this file of draws is missing"),
        ("other run", "not the draws that the checkpoint lists"),
        ("fifo", "not a regular file"),
        ("link", "symbolic link"),
        ("folder", "not a regular file"),
        ("large", "bytes; at most"),
    ],
)
def test_damage_is_refused_with_the_file(tmp_path, index, damage, message):
    begun(tmp_path / "c")
    path = sorted((tmp_path / "c").glob("draws-*"))[index]
    content = path.read_bytes()
    path.unlink()
    if damage == "flip":
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
    elif damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other run":
        begun(tmp_path / "o", seed=1)
        shutil.copy(tmp_path / "o" / path.name, path)
    elif damage == "fifo":
        os.mkfifo(path)
    elif damage == "link":
        path.symlink_to("/dev/zero")
    elif damage == "folder":
        path.mkdir()
    elif damage == "large":
        path.write_bytes(content)
        os.truncate(path, 2**32)
    with pytest.raises(rw.CheckpointError, match=f"checkpoint: {path}: .*({message})"):
        resumed(tmp_path / "c")


def test_every_flipped_bit_of_a_segment_is_noticed(tmp_path):
    begun(tmp_path)
    whole = run(chains=2, steps=44)
    path = sorted(tmp_path.glob("draws-*"))[2]
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.choice(len(content), 60):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << int(rng.integers(8))]) + content[place + 1 :])
        try:
            again = run(chains=2, steps=44, checkpoint=tmp_path, checkpoint_every=4, resume=True)
        except rw.CheckpointError as error:
            assert str(path) in str(error)  # noqa: PT017
            refused += 1
        else:
            assert_same_run(whole, again)  # white space that pads the header
    assert refused > 50
    path.write_bytes(content)
    assert_same_run(run(chains=2), resumed(tmp_path))


def edited(path, **changes):
    """Write a checkpoint again with other segments listed."""
    found = checkpoint.read(path)
    store = found.store | changes
    return checkpoint.write(path.parent, checkpoint.Checkpoint(found.step, found.arrays, found.settings, store))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"segments": []}, "do not hold the 44 draws"),
        ({"segments": [{"first": 0}]}, "is damaged"),
        ({"segments": [{"first": i, "stop": i + 21, "sha256": ""} for i in (0, 23)]}, "do not hold"),
        ({"masked": [[2, 0]]}, "a masked draw is not among them"),
        ({"masked": [[0]]}, "is damaged"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(tmp_path, changes, message):
    begun(tmp_path)
    edited(checkpoint.files(tmp_path)[-1], **changes)
    with pytest.raises(rw.CheckpointError, match=f"checkpoint: .*{message}"):
        resumed(tmp_path)


def test_only_listed_segments_are_removed(tmp_path):
    """Files that look like segments and that no checkpoint listed stay, and so do others in a list that was edited."""
    begun(tmp_path)
    strangers = [tmp_path / f"draws-{0:012d}-{stop:012d}.safetensors" for stop in (1, 2, 3)]
    for path in strangers:
        path.write_bytes(b"mine")
    edited(checkpoint.files(tmp_path)[-1], unused=["../mine", "mine", 3, {"name": []}, strangers[0].name])
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path.parent / "mine").write_bytes(b"mine")
    strangers[0].unlink()
    strangers[0].mkdir()
    resumed(tmp_path)
    assert all(path.exists() for path in (*strangers, tmp_path / "mine", tmp_path.parent / "mine"))


def test_files_that_a_killed_process_did_not_remove_are_removed_later(tmp_path, monkeypatch):
    remove = SegmentStore.remove_unused

    def stop(self):
        if self._stop == 44:
            raise RuntimeError("killed")
        remove(self)

    monkeypatch.setattr(SegmentStore, "remove_unused", stop)
    with pytest.raises(RuntimeError, match="killed"):
        run(chains=2, checkpoint=tmp_path, checkpoint_every=4)
    monkeypatch.undo()
    assert set(ranges(tmp_path)) - {found for path in checkpoint.files(tmp_path) for found in listed(path)} == {
        (32, 36)
    }
    assert_same_run(run(chains=2), resumed(tmp_path))
    kept = {found for path in checkpoint.files(tmp_path) for found in listed(path)}
    assert set(ranges(tmp_path)) == kept


def test_a_file_in_the_way_is_not_overwritten(tmp_path):
    path = tmp_path / "draws-000000000000-000000000020.safetensors"
    path.write_text("my thesis")
    with pytest.raises(rw.CheckpointError, match=f"checkpoint: {path}: it is in the way"):
        run(checkpoint=tmp_path, checkpoint_every=20)
    assert path.read_text() == "my thesis"


def test_masked_draws(tmp_path):
    """A draw that is masked after its segment was written is NaN after a resume."""
    like = {"posterior": {"w": jax.ShapeDtypeStruct((2,), np.float32), "n": jax.ShapeDtypeStruct((), np.int32)}}
    draws = np.arange(80, dtype=np.float32).reshape(2, 20, 2)
    counts = np.arange(40, dtype=np.int32).reshape(2, 20)
    store = SegmentStore(tmp_path, like, 2, 20)
    store.write(0, {"posterior": {"w": draws[:, :16], "n": counts[:, :16]}})
    store.flush()
    store.mask_draws([(1, 3), (0, 15)])
    store.write(16, {"posterior": {"w": draws[:, 16:], "n": counts[:, 16:]}})
    store.flush()
    manifest = json.loads(json.dumps(store.manifest()))
    first = tmp_path / manifest["segments"][0]["name"]
    assert not np.isnan(read_tensors(first, kind=segments.FORMAT, newest=1).tensors["0001"]).any()
    again = SegmentStore(tmp_path, like, 2, 20)
    again.restart(20, manifest)
    draws[1, 3] = draws[0, 15] = np.nan
    np.testing.assert_array_equal(again.read(20)["posterior"]["w"], draws)
    np.testing.assert_array_equal(again.read(20)["posterior"]["n"], counts)
    assert again.manifest()["masked"] == [(0, 15), (1, 3)]


def test_a_diverged_chain_is_resumed(tmp_path):
    target = rw.Density(lambda w: -jnp.sum(w**4))
    options = {
        "target": target, "start": jnp.array([[0.0], [30.0]]), "start_per_chain": True, "chains": 2,
        "step_size": 0.01, "batch_size": None,
    }  # fmt: skip
    whole = run(**options)
    assert np.isnan(whole.positions[1]).any()
    run(**options, steps=21, checkpoint=tmp_path, checkpoint_every=4)
    assert_same_run(whole, run(**options, checkpoint=tmp_path, checkpoint_every=4, resume=True))
    assert_same_run(whole, run(**options, checkpoint=tmp_path, checkpoint_every=4, resume=True))


def test_dtypes_are_kept(tmp_path):
    """bfloat16 positions, and collected values of many kinds."""
    target = rw.Density(lambda w: -0.5 * jnp.sum(w.astype(jnp.float32) ** 2))
    start = jnp.ones(4, jnp.bfloat16)

    def collect(w):
        x = w.astype(jnp.float64)
        return {"complex": x + 1j, "scalar": (x[0] + 1j).astype(jnp.complex128), "bool": w > 0, "none": x[:0]}

    options = {"target": target, "start": start, "batch_size": None, "chains": 2, "collect": collect, "keep": "draws"}
    whole = run(**options)
    run(**options, steps=30, checkpoint=tmp_path, checkpoint_every=7)
    again = run(**options, checkpoint=tmp_path, checkpoint_every=7, resume=True)
    assert again.positions.dtype == ml_dtypes.bfloat16
    assert_same_run(whole, again)
    for one, other in zip(jax.tree.leaves(whole.collected), jax.tree.leaves(again.collected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_every_leaf_name_is_resumed(tmp_path):
    labels = ["zarr.json", "x" * 3000, "nul\0", "a/b", "a_b", "A_B", "..", "", "ü", "\ud800", "__metadata__"]
    start = {name: jnp.full(2, float(i)) for i, name in enumerate(labels)}
    target = rw.Density(lambda p: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)))
    options = {"target": target, "start": start, "batch_size": None}
    run(**options, steps=30, checkpoint=tmp_path)
    assert_same_run(run(**options), run(**options, checkpoint=tmp_path, resume=True))


def test_many_chains_make_few_files(tmp_path):
    options = {"start": jnp.zeros((500, 3)), "start_per_chain": True, "chains": 500, "steps": 3}
    assert_same_run(run(**options), run(**options, checkpoint=tmp_path, checkpoint_every=1))
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) < 6


def test_a_run_begun_with_a_store_is_not_resumed_without_it(tmp_path):
    options = {"checkpoint": tmp_path / "c", "checkpoint_every": 20}
    run(**options, store=tmp_path / "s")
    with pytest.raises(rw.CheckpointError, match=r"has its draws in a zarr store; pass the store="):
        run(**options, resume=True)
    run(checkpoint=tmp_path / "d", checkpoint_every=20)
    with pytest.raises(rw.CheckpointError, match=r"store: .* was begun without store="):
        run(checkpoint=tmp_path / "d", checkpoint_every=20, store=tmp_path / "t", resume=True)


def test_a_folder_of_the_former_format_is_refused_with_what_to_do(tmp_path):
    run(checkpoint=tmp_path, checkpoint_every=20)
    for path in checkpoint.files(tmp_path):
        found = checkpoint.read(path)
        former = {"run": "0" * 32, "columns": {}}
        checkpoint.write(tmp_path, checkpoint.Checkpoint(found.step, found.arrays, found.settings, former))
    match = r"in draws\.zarr, has a former format: finish it with the version that began it, or choose another"
    with pytest.raises(rw.CheckpointError, match=match):
        run(checkpoint=tmp_path, checkpoint_every=20, resume=True)
