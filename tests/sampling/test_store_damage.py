"""A store on disk: damage of every kind stops a run or a reader with the file named, and names and sizes are safe."""

import contextlib
import json
import os
import shutil
from functools import cache

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import xarray
import zarr
from tests.sampling.problems import assert_same_run, run

import ridgewalk as rw
from ridgewalk import _zarr
from ridgewalk._io import DamagedFileError
from ridgewalk.sampling import checkpoint, reopen, zarr_store
from ridgewalk.sampling.storage import RunWriter

GAUSSIAN = rw.Density(lambda p: -0.5 * sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in jax.tree.leaves(p)))


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(zarr_store, "MOST_DRAWS", 8)


def chunk_files(store):
    """Those of draws; coordinates are written again when a run is resumed."""
    files = [path for path in store.rglob("*") if path.is_file() and "c" in path.relative_to(store).parts]
    return sorted(path for path in files if not {"chain", "draw"} & set(path.relative_to(store).parts))


@cache
def whole_run():
    return run(chains=2)


def begun(folder, **options):
    """A run that stopped after 44 of 60 steps: five full chunks and one with four draws."""
    run(chains=2, steps=44, store=folder / "draws.zarr", checkpoint=folder, checkpoint_every=11, **options)
    return None if options else whole_run(), folder / "draws.zarr"


def resumed(folder, **options):
    return run(chains=2, store=folder / "draws.zarr", checkpoint=folder, checkpoint_every=11, resume=True, **options)


def test_a_flipped_byte_in_any_chunk_is_refused(tmp_path, small_chunks):
    whole, store = begun(tmp_path)
    rng = np.random.default_rng(0)
    files = chunk_files(store)
    assert len({path.parent for path in files}) > 5
    for path in files:
        content = path.read_bytes()
        place = int(rng.integers(len(content)))
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << int(rng.integers(8)))]) + content[place + 1 :])
        with pytest.raises(rw.CheckpointError, match=f"store: {path}: .*damaged"):
            resumed(tmp_path)
        path.write_bytes(content)
    assert_same_run(whole, resumed(tmp_path))


def test_damaged_coordinates_are_written_again(tmp_path, small_chunks):
    whole, store = begun(tmp_path)
    for name in ("posterior/chain/c/0", "posterior/draw/c/0", "sample_stats/draw/c/3"):
        (store / name).write_bytes(b"other")
    assert_same_run(whole, resumed(tmp_path))
    with xarray.open_datatree(store, engine="zarr") as tree:
        assert tree["posterior"]["chain"].values.tolist() == [0, 1]
        np.testing.assert_array_equal(tree["sample_stats"]["draw"], np.arange(60))


def replace_chunk(store, other):
    shutil.copy(other / "posterior/position/c/0/2/0", store / "posterior/position/c/0/2/0")


def swap_chunks(store, other):
    shutil.copy(store / "posterior/position/c/0/1/0", store / "posterior/position/c/0/2/0")


def replace_last_chunk(store, other):
    shutil.copy(other / "posterior/position/c/0/5/0", store / "posterior/position/c/0/5/0")


def remove_chunk(store, other):
    (store / "posterior/position/c/0/3/0").unlink()


def remove_last_chunk(store, other):
    (store / "posterior/position/c/0/5/0").unlink()


def remove_folder(store, other):
    shutil.rmtree(store / "posterior/position/c/0/3")


def remove_array(store, other):
    shutil.rmtree(store / "posterior/position")


def fifo(store, other):
    (store / "posterior/position/c/0/3/0").unlink()
    os.mkfifo(store / "posterior/position/c/0/3/0")


def link(store, other):
    (store / "posterior/position/c/0/3/0").unlink()
    (store / "posterior/position/c/0/3/0").symlink_to("/dev/zero")


def whole_store(store, other):
    shutil.rmtree(store)
    shutil.copytree(other, store)


def edited(**changes):
    def edit(store, other):
        path = store / "posterior/position/zarr.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


@pytest.fixture(scope="module")
def two_stores(tmp_path_factory):
    """Of two runs, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr_store, "MOST_DRAWS", 8)
        begun(folder / "one")
        begun(folder / "other", seed=1)
    return folder


BIG_ENDIAN = [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "zstd"}, {"name": "crc32c"}]
UNCHECKED = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}]
PICKLED = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "numcodecs.pickle"}]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (replace_chunk, "c/0/2/0"),
        (swap_chunks, "c/0/2/0"),
        (replace_last_chunk, "c/0/5/0"),
        (remove_chunk, "c/0/3/0"),
        (remove_last_chunk, "c/0/5/0"),
        (remove_folder, "c/0/3/0"),
        (remove_array, "posterior/position"),
        (fifo, "c/0/3/0"),
        (link, "c/0/3/0"),
        (whole_store, "draws.zarr.* of another run|was written by another run"),
        (edited(data_type="int64"), "position/zarr.json"),
        (edited(codecs=BIG_ENDIAN), "position/zarr.json"),
        (edited(codecs=UNCHECKED), "position/zarr.json"),
        (edited(codecs=PICKLED), "position/zarr.json"),
        (edited(shape=[3, 44, 3]), "position/zarr.json"),
        (edited(attributes={"leaf": "other"}), "position/zarr.json"),
        (edited(fill_value=0.0), "position/zarr.json"),
        (edited(zarr_format=2), "position/zarr.json"),
    ],
)
def test_damage_is_refused_with_the_file(tmp_path, small_chunks, two_stores, damage, named):
    shutil.copytree(two_stores / "one", tmp_path / "one")
    damage(tmp_path / "one" / "draws.zarr", two_stores / "other" / "draws.zarr")
    with pytest.raises(ValueError, match=f"store: .*{named}"):
        resumed(tmp_path / "one")


def test_an_older_copy_of_the_store_is_refused(tmp_path, small_chunks):
    options = {"chains": 2, "store": tmp_path / "draws.zarr", "checkpoint": tmp_path, "checkpoint_every": 11}
    run(**options, steps=33)
    shutil.copytree(tmp_path / "draws.zarr", tmp_path / "old")
    run(**options, steps=44, resume=True)
    shutil.rmtree(tmp_path / "draws.zarr")
    shutil.copytree(tmp_path / "old", tmp_path / "draws.zarr")
    with pytest.raises(rw.CheckpointError, match=r"store: .*draws.zarr/.*/c/"):
        resumed(tmp_path)


def test_a_store_of_the_first_format_is_refused_with_what_to_do(tmp_path):
    _, store = begun(tmp_path)
    root = json.loads((store / "zarr.json").read_text())
    root["attributes"]["format_version"] = 1
    (store / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(
        ValueError, match=r"format version 1, .* finish the run with the version of ridgewalk that wrote it"
    ):
        resumed(tmp_path)


def test_a_checkpoint_that_counts_no_chunks_is_refused(tmp_path):
    begun(tmp_path)
    for path in checkpoint.files(tmp_path):
        found = checkpoint.read(path)
        checkpoint.write(tmp_path, checkpoint.Checkpoint(found.step, found.arrays, found.settings))
    with pytest.raises(rw.CheckpointError, match=r"has no list of its draws.* finish it with the version that began"):
        resumed(tmp_path)


def test_an_older_checkpoint_still_fits_the_store(tmp_path, small_chunks):
    """The chunk that was not full then has more draws now."""
    whole, _ = begun(tmp_path)
    checkpoint.files(tmp_path)[-1].unlink()
    assert_same_run(whole, resumed(tmp_path))


def removed(path):
    shutil.rmtree(path)


def replaced(path):
    os.rename(path, path.with_name("moved"))
    shutil.copytree(path.with_name("moved"), path)


def relinked(path):
    """Another folder with the same files."""
    os.rename(path, path.with_name("moved"))
    shutil.copytree(path.with_name("moved"), path, copy_function=os.link)


def altered(path):
    chunk_files(path)[0].write_bytes(b"other")


def without_a_chunk(path):
    chunk_files(path)[0].unlink()


def without_an_array(path):
    shutil.rmtree(path / "posterior")


@pytest.mark.parametrize("act", [removed, replaced, relinked, altered, without_a_chunk, without_an_array])
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_store_that_changes_while_the_run_writes_stops_it(tmp_path, small_chunks, monkeypatch, act, checkpoints):
    store, acted = tmp_path / "draws", []
    write = RunWriter.write

    def interfere(self, first, draws, *step_size):
        write(self, first, draws, *step_size)
        if first >= 8 and not acted:
            self._thread.finish()
            acted.append(act(store))

    monkeypatch.setattr(RunWriter, "write", interfere)
    options = {"checkpoint": tmp_path / "c", "checkpoint_every": 5} if checkpoints else {}
    with pytest.raises(rw.CheckpointError, match=rf"store: {store}.*(removed|replaced|altered).* while the run"):
        run(store=store, **options)
    assert acted


def test_reading_draws_back_checks_them(tmp_path, small_chunks):
    result = run(chains=2, store=tmp_path / "s")
    path = tmp_path / "s" / "posterior/position/c/0/2/0"
    content = path.read_bytes()
    path.write_bytes(content[:-9] + b"x" + content[-8:])
    with pytest.raises(DamagedFileError, match=f"{path}: its checksum does not match"):
        np.asarray(result.positions)
    with pytest.raises(DamagedFileError, match=str(path)):
        rw.posterior_covariance(result)
    path.unlink()
    with pytest.raises(DamagedFileError, match=f"{path}: this chunk of the array is missing"):
        np.asarray(result.positions)
    shutil.copy(path.parent.parent / "1" / "0", path)
    with pytest.raises(DamagedFileError, match=f"{path}: it is not the chunk that the run wrote"):
        np.asarray(result.positions)
    np.testing.assert_array_equal(result.positions[:, :8], run(chains=2).positions[:, :8])


def test_a_finished_store_can_be_verified(tmp_path, small_chunks):
    result = run(chains=2, store=tmp_path / "s")
    arrays = reopen.open_finished(tmp_path / "s")
    np.testing.assert_array_equal(arrays["posterior/position"], result.positions)
    path = tmp_path / "s" / "posterior/position/c/0/2/0"
    shutil.copy(path.parent.parent / "1" / "0", path)
    with pytest.raises(DamagedFileError, match=str(path)):
        reopen.open_finished(tmp_path / "s")
    manifest = tmp_path / "s" / zarr_store.MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b"draws", b"drawn"))
    with pytest.raises(DamagedFileError, match=r"checksum of manifest.json does not match"):
        reopen.open_finished(tmp_path / "s")


def test_masked_draws_fit_the_checkpoints_before_them(tmp_path, small_chunks):
    """A draw is masked on disk; a process killed before its next checkpoint is resumed from the one before."""
    like = {"posterior": jax.ShapeDtypeStruct((2,), np.float32)}
    draws = np.arange(80, dtype=np.float32).reshape(2, 20, 2)
    store = zarr_store.ZarrStore.create(tmp_path / "s", like, 2, 20, {})
    store.restart(0, None)
    store.write(0, {"posterior": draws[:, :13]})
    store.flush()
    manifest = json.loads(json.dumps(store.manifest()))
    store.mask_draws([(1, 3), (0, 12)])
    store.flush()
    store.close()
    again = zarr_store.ZarrStore(tmp_path / "s", like, 2, 20)
    again.restart(13, manifest)
    again.write(13, {"posterior": draws[:, 13:]})
    again.finish()
    expected = draws.copy()
    expected[1, 3] = expected[0, 12] = np.nan
    np.testing.assert_array_equal(again.read(20)["posterior"], expected)
    again.close()
    masked = tmp_path / "s" / zarr_store.MASKED
    masked.write_bytes(masked.read_bytes().replace(b"[1, 3]", b"[1, 4]"))
    for message in (r"masked.json: the checksum of masked.json does not match", r"c/0/0/0: it is not the chunk"):
        other = zarr_store.ZarrStore(tmp_path / "s", like, 2, 20)
        with contextlib.closing(other), pytest.raises(DamagedFileError, match=message):
            other.restart(13, manifest)
        masked.unlink(missing_ok=True)


# Names, sizes and dtypes.


def test_names_on_disk_are_valid_and_distinct():
    names = ["zarr.json", "x" * 300, "y" * 300, "a\0b", "a_b", "A_b", "__init", "a%b", "μ", "", "a b", "a~2", ".x"]
    found = _zarr.array_names(names)
    assert len({name.casefold() for name in found}) == len(names)
    assert all(len(name.encode()) < 200 and "/" not in name and "\0" not in name for name in found)
    assert not any(name.startswith((".", "__")) or name == "zarr.json" for name in found)
    assert _zarr.array_names(["layer.0", "bias"]) == ["layer.0", "bias"]


def test_every_leaf_name_can_be_stored_and_resumed(tmp_path):
    names = ["zarr.json", "x" * 300, "nul\0", "a/b", "a_b", "A_B", "..", "c", "ü"]
    start = {name: jnp.full(2, float(i)) for i, name in enumerate(names)}
    options = {"target": GAUSSIAN, "start": start, "batch_size": None}
    whole = run(**options)
    run(**options, steps=30, store=tmp_path / "s", checkpoint=tmp_path / "c")
    again = run(**options, store=tmp_path / "s", checkpoint=tmp_path / "c", resume=True)
    assert_same_run(whole, again)
    with xarray.open_zarr(tmp_path / "s", group="posterior", consolidated=False) as posterior:
        leaves = {variable.attrs["leaf"]: variable for variable in posterior.values()}
        assert set(leaves) == {f"[{name!r}]" for name in names}
        np.testing.assert_array_equal(leaves["['a/b']"], whole.positions["a/b"])


def test_many_chains_share_chunks(tmp_path):
    """A store has as many files for 500 chains as for one."""
    start = jnp.zeros((500, 3))
    options = {"start": start, "start_per_chain": True, "chains": 500, "steps": 3}
    result = run(**options, store=tmp_path / "s", checkpoint=tmp_path / "c", checkpoint_every=1)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) < 100
    assert result.positions.shape == (500, 3, 3)


def test_chunks_are_of_about_one_size():
    for chains, shape, draws in ((1, (3,), 10**6), (10_000, (3,), 3), (4, (10**6,), 2000), (4, (), 50), (7, (5, 0), 9)):
        spec = zarr_store.ColumnSpec("x", "x", shape, np.dtype(np.float32))
        chunks = spec.chunks(chains, draws)
        assert chunks[0] <= chains
        assert chunks[1] <= draws
        assert np.prod(chunks) * 4 <= zarr_store.CHUNK_BYTES


def test_bfloat16_positions_are_stored_and_resumed(tmp_path):
    start = jnp.ones(4, jnp.bfloat16)
    options = {"target": GAUSSIAN, "start": start, "batch_size": None, "step_size": 0.05, "chains": 2}
    whole = run(**options)
    assert whole.positions.dtype == ml_dtypes.bfloat16
    assert whole.info.potential.dtype == np.float32
    run(**options, steps=30, store=tmp_path / "s", checkpoint=tmp_path / "c")
    again = run(**options, store=tmp_path / "s", checkpoint=tmp_path / "c", resume=True)
    assert again.positions.dtype == ml_dtypes.bfloat16
    assert_same_run(whole, again)
    for leaf in jax.tree.leaves((again.moments, again.info)):
        assert leaf.dtype in (np.float32, np.int32, np.bool_), leaf.dtype
    run(**options, steps=30, keep="moments", checkpoint=tmp_path / "m")
    moments = run(**options, keep="moments", checkpoint=tmp_path / "m", resume=True)
    np.testing.assert_array_equal(moments.moments.mean, run(**options, keep="moments").moments.mean)


def test_a_folder_that_a_killed_process_left_is_removed(tmp_path):
    marked, foreign = tmp_path / ".s.0123.tmp", tmp_path / ".s.4567.tmp"
    for folder in (marked, foreign):
        folder.mkdir()
        (folder / "thesis.txt").write_text("mine")
    (marked / ".ridgewalk").write_text(json.dumps({"made_by": "ridgewalk", "for": "s"}))
    run(store=tmp_path / "s")
    assert not marked.exists()
    assert (foreign / "thesis.txt").read_text() == "mine"


def test_a_store_in_zarr_format_2_is_not_opened(tmp_path):
    zarr.create_group(store=tmp_path / "s", zarr_format=2, attributes={"format": "ridgewalk-draws"})
    with pytest.raises(ValueError, match=r"store: .* is not a store of draws"):
        run(store=tmp_path / "s", checkpoint=tmp_path / "c", resume=True)


def test_what_a_killed_write_left_is_removed(tmp_path, small_chunks):
    whole, store = begun(tmp_path)
    folder = store / "posterior/position/c/0/2"
    left = [folder / f"0.{'0a' * 16}.partial", folder / f".0.{'0a' * 8}.tmp"]
    others = [folder / "0.partial", folder / f"x.{'0a' * 16}.partial", store / f"0.{'0a' * 16}.partial"]
    for path in (*left, *others):
        path.write_bytes(b"half")
    link = folder / f"1.{'0a' * 16}.partial"
    link.symlink_to(others[0])
    assert_same_run(whole, resumed(tmp_path))
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in (*others, link))


def test_a_refused_resume_leaves_no_file_open(tmp_path, small_chunks):
    _, store = begun(tmp_path)
    path = store / "posterior/position/c/0/2/0"
    path.write_bytes(b"damaged")
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(rw.CheckpointError, match=str(path)):
            resumed(tmp_path)
    assert os.listdir("/proc/self/fd") == before
