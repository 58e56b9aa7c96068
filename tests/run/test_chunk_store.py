"""Draws beside checkpoints, in safetensors files: resumed bit for bit, damage refused with the file named."""

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.run.problems import assert_same_run, run

import ridgewalk as rw
from ridgewalk._io import DamagedFileError
from ridgewalk.run import checkpoint, chunk_store
from ridgewalk.run.chunk_store import ChunkFileStore


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunk_store, "MOST_DRAWS", 7)


def files(folder):
    return sorted(folder.glob("draws-*.safetensors"))


def begun(folder, **options):
    """A run that stopped after 44 of 60 steps: six full files, and one with two draws."""
    whole = run(chains=2, **options)
    run(chains=2, steps=44, checkpoint=folder, every=11, **options)
    return whole


def resumed(folder, **options):
    return run(chains=2, checkpoint=folder, every=11, resume=True, **options)


def listed(folder):
    return [folder / name for name, _ in checkpoint.latest(folder).store["files"]]


def test_files_hold_the_draws_and_old_ones_are_removed(tmp_path):
    whole = begun(tmp_path)
    assert [path.stem[-5:] for path in listed(tmp_path)] == [
        "00007",
        "00014",
        "00021",
        "00028",
        "00035",
        "00042",
        "00044",
    ]
    assert set(listed(tmp_path)) < set(files(tmp_path))
    assert_same_run(whole, resumed(tmp_path))
    assert len(files(tmp_path)) <= 60 // 7 + 1 + 2
    longer = resumed(tmp_path, steps=80)
    assert_same_run(run(chains=2, steps=80), longer)


def test_other_files_are_left_alone(tmp_path):
    other = tmp_path / "draws-000000000000-000000000003.safetensors"
    other.write_bytes(b"not ours")
    begun(tmp_path)
    resumed(tmp_path)
    assert other.read_bytes() == b"not ours"


def test_a_flipped_bit_in_any_file_is_refused(tmp_path):
    whole = begun(tmp_path)
    rng = np.random.default_rng(0)
    for path in listed(tmp_path):
        content = bytearray(path.read_bytes())
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        intact = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(rw.CheckpointError, match=f"store: {path}: "):
            resumed(tmp_path)
        path.write_bytes(intact)
    assert_same_run(whole, resumed(tmp_path))


def remove(path, other):
    path.unlink()


def replace(path, other):
    shutil.copy(other / path.name, path)


def fifo(path, other):
    path.unlink()
    os.mkfifo(path)


def shorten(path, other):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [remove, replace, fifo, shorten])
@pytest.mark.parametrize("place", [0, -1])
def test_damage_is_refused_with_the_file(tmp_path, damage, place):
    begun(tmp_path / "one")
    begun(tmp_path / "other", seed=1)
    path = listed(tmp_path / "one")[place]
    damage(path, tmp_path / "other")
    with pytest.raises(rw.CheckpointError, match=f"store: {path}"):
        resumed(tmp_path / "one")


def test_an_older_checkpoint_finds_its_draws(tmp_path):
    whole = begun(tmp_path)
    checkpoint.files(tmp_path)[-1].unlink()
    assert_same_run(whole, resumed(tmp_path))
    assert len(files(tmp_path)) <= 60 // 7 + 1 + 2


def test_another_kind_of_store_is_refused(tmp_path):
    begun(tmp_path / "files")
    with pytest.raises(ValueError, match=r"store: .* is gone|pass the same store as before"):
        resumed(tmp_path / "files", store=tmp_path / "s")
    run(chains=2, steps=44, checkpoint=tmp_path / "zarr", store=tmp_path / "s")
    with pytest.raises(rw.CheckpointError, match="pass the same store as before"):
        resumed(tmp_path / "zarr")


def test_masked_draws_stay_masked(tmp_path):
    like = {"posterior": jax.ShapeDtypeStruct((2,), np.float32), "collected": jax.ShapeDtypeStruct((), np.complex128)}
    draws = {
        "posterior": np.arange(80, dtype=np.float32).reshape(2, 20, 2),
        "collected": np.arange(40).reshape(2, 20) * (1 + 2j),
    }
    first, rest = ({name: x[:, part] for name, x in draws.items()} for part in (slice(13), slice(13, 20)))
    store = ChunkFileStore(tmp_path, like, 2, 20)
    store.write(0, first)
    store.flush()
    store.mask_draws([(1, 3), (0, 12)])
    store.flush()
    again = ChunkFileStore(tmp_path, like, 2, 20)
    again.restart(13, store.manifest())
    again.write(13, rest)
    expected = draws["posterior"].copy()
    expected[1, 3] = expected[0, 12] = np.nan
    np.testing.assert_array_equal(again.read(20)["posterior"], expected)
    np.testing.assert_array_equal(again.read(20)["collected"][:, 4:12], draws["collected"][:, 4:12])
    other = {**like, "posterior": jax.ShapeDtypeStruct((2,), np.float64)}
    with pytest.raises(DamagedFileError, match=r"is not float64 of shape \(2, 7, 2\)"):
        ChunkFileStore(tmp_path, other, 2, 20).restart(13, store.manifest())


def test_bfloat16_draws_are_resumed(tmp_path):
    target = rw.Density(lambda x: -0.5 * jnp.sum(x.astype(jnp.float32) ** 2))
    options = {"target": target, "start": jnp.zeros(3, jnp.bfloat16), "batch_size": None, "step_size": 0.1}
    assert_same_run(begun(tmp_path, **options), resumed(tmp_path, **options))
