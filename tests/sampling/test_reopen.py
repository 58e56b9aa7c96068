"""`open_result`: a run's draws without its call, from stores and checkpoint folders, finished or not."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.sampling.problems import assert_same_run, run

import ridgewalk as rw
from ridgewalk._io import DamagedFileError
from ridgewalk.sampling import checkpoint, reopen, zarr_store

OPTIONS = {"chains": 2, "burn_in": 7, "thin": 3, "steps": 200}


class Weights(NamedTuple):
    w: jax.Array
    rest: tuple


def gaussian(position):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))


def saved(tmp_path, where, **options):
    """A run, and what its folder gives."""
    folder = tmp_path / where
    kept = {"store": folder} if where == "store" else {"checkpoint": folder, "checkpoint_every": 50}
    return run(**(OPTIONS | options), **kept), rw.open_result(folder)


@pytest.mark.parametrize("where", ["store", "checkpoint"])
def test_a_finished_run(tmp_path, where):
    result, opened = saved(tmp_path, where, step_size=rw.cycles(20, 1e-3))
    np.testing.assert_array_equal(opened.positions[...], result.positions[...])
    jax.tree.map(np.testing.assert_array_equal, opened.info, result.info)
    for name in ("step_sizes", "draw_steps", "draw_weights", "alive"):
        np.testing.assert_array_equal(getattr(opened, name), getattr(result, name))
    for name in ("draws", "chains", "dimension", "burn_in", "thin", "batch_size"):
        assert getattr(opened, name) == getattr(result, name)
    np.testing.assert_allclose(rw.posterior_mean(opened), rw.posterior_mean(result), rtol=1e-12)
    np.testing.assert_array_equal(opened.summary().to_numpy(), result.summary().to_numpy())
    if where == "store":
        assert opened.status == result.status
        assert (opened.steps, opened.store) == (result.steps, result.store)
    else:
        assert {str(chain) for chain in opened.status} == {"unfinished; draws up to step 199 are stored"}


@pytest.mark.parametrize("where", [pytest.param("store", marks=pytest.mark.slow), "checkpoint"])
def test_step_sizes_that_warm_up_chose(tmp_path, where):
    options = {"target": rw.Density(gaussian), "start": jnp.zeros(2), "batch_size": None, "burn_in": None}
    result, opened = saved(tmp_path, where, **options, step_size="auto", steps=2_000)
    assert result.warmup == 400
    assert result.step_sizes[0] != 1.0
    np.testing.assert_array_equal(opened.step_sizes, result.step_sizes)


def test_check_says_what_it_could_not_check(tmp_path):
    result, opened = saved(tmp_path, "store", steps=60)
    report = opened.check()
    assert set(report.names) == set(result.check().names) & {"low_ess", "high_r_hat", "interrupted"}
    assert report.numbers["min ESS"] == result.check().numbers["min ESS"]
    assert "opened from a store, which has no target" in report.notes[-1]


@pytest.mark.parametrize(
    "use",
    [
        lambda opened: opened.estimator.target,
        lambda opened: opened.inclusion_probabilities,
        lambda opened: opened.to_arviz(log_likelihood=True),
        rw.configurational_temperature,
        lambda opened: opened.sampler.resolve,
    ],
)
def test_what_needs_functions_says_so(tmp_path, use):
    _, opened = saved(tmp_path, "store")
    with pytest.raises(AttributeError, match=r"holds draws and settings.* again, with resume=True"):
        use(opened)


def test_settings_of_the_sampler_are_known(tmp_path):
    result, opened = saved(tmp_path, "store", sampler=rw.hamcmc(memory=3), steps=400)
    assert opened.sampler.dynamics.temperature == 1.0
    assert opened.delay == result.delay > 1
    assert repr(opened.sampler).startswith("Sampler(dynamics=DelayedLangevin(")
    np.testing.assert_array_equal(opened.summary()["ess_bulk"], result.summary()["ess_bulk"])
    assert opened.to_arviz()["posterior"].attrs["sampler"] == "DelayedLangevin"


@pytest.mark.parametrize("where", ["store", pytest.param("checkpoint", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "start",
    [
        {"b": {"x.y": jnp.zeros(2), "it's": jnp.zeros(())}, "a": [jnp.zeros(1), jnp.zeros((2, 2))]},
        (jnp.zeros(2), {"w": jnp.zeros(1)}),
        Weights(jnp.zeros(2), (jnp.zeros(1), jnp.zeros(3))),
        jnp.zeros(2, jnp.bfloat16),
    ],
    ids=["dictionaries", "tuples", "named", "bfloat16"],
)
def test_structures(tmp_path, where, start):
    options = {"target": rw.Density(gaussian), "start": start, "batch_size": None, "steps": 20, "step_size": 0.1}
    result, opened = saved(tmp_path, where, **options)
    one, other = (jax.tree.leaves(jax.tree.map(lambda x: x[...], each.positions)) for each in (opened, result))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    np.testing.assert_allclose(
        rw.posterior_expectation(opened, gaussian), rw.posterior_expectation(result, gaussian), rtol=1e-6
    )
    if isinstance(start, Weights):
        assert opened.positions._fields == ("w", "rest")
        assert len(opened.positions.rest) == 2
    same = rw.open_result(tmp_path / where, position=start).positions
    assert jax.tree.structure(same) == jax.tree.structure(start)


def test_another_structure_is_refused(tmp_path):
    saved(tmp_path, "store")
    with pytest.raises(ValueError, match=r"position: its arrays are not those of the run, which are a bare array of "):
        rw.open_result(tmp_path / "store", position=jnp.zeros(4))


def test_collected_values(tmp_path):
    result, opened = saved(tmp_path, "store", collect=lambda p: {"sum": p.sum()}, keep="moments")
    assert opened.positions is None
    np.testing.assert_array_equal(opened.collected["sum"][...], result.collected["sum"][...])


def test_a_chain_that_diverged(tmp_path):
    options = {
        "target": rw.Density(lambda w: -jnp.sum(w**4)),
        "start": jnp.array([[0.0], [30.0]]),
        "start_per_chain": True,
        "batch_size": None,
        "step_size": 0.01,
    }
    result, opened = saved(tmp_path, "store", **options)
    assert opened.status == result.status
    (tmp_path / "store" / zarr_store.OUTCOME).unlink()
    told = rw.open_result(tmp_path / "store")
    assert [chain.outcome for chain in told.status] == ["unfinished", "diverged"]
    np.testing.assert_array_equal(told.alive, result.alive)


def test_a_running_run(tmp_path):
    """From its callback; the store has what was made by then, and a resumed run starts over with its outcome."""
    seen = []

    def look(progress):
        if progress.step > 40:
            seen.append(rw.open_result(tmp_path / "store"))  # step 20 has been shown
            raise KeyError("enough")

    where = {"store": tmp_path / "store", "checkpoint": tmp_path / "c", "checkpoint_every": 10}
    with pytest.raises(KeyError):
        run(**where, callback=look)
    assert 20 <= seen[0].draws < 60
    assert not np.isnan(seen[0].positions[...]).any()
    assert rw.open_result(tmp_path / "store").status[0].outcome == "unfinished"
    whole = run(**where, resume=True)
    assert_same_run(whole, run())
    assert rw.open_result(tmp_path / "store").status == whole.status


def test_the_outcome_of_an_earlier_process_is_forgotten(tmp_path):
    where = {"store": tmp_path / "store", "checkpoint": tmp_path / "c", "checkpoint_every": 10}
    run(**where, steps=20)
    assert rw.open_result(tmp_path / "store").status[0].outcome == "finished"

    def stop(progress):
        raise KeyError("enough")

    with pytest.raises(KeyError):
        run(**where, callback=stop, resume=True)
    assert rw.open_result(tmp_path / "store").status[0].outcome == "unfinished"


def test_chunks_are_compared_with_the_manifest_when_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_store, "MOST_DRAWS", 8)
    saved(tmp_path, "store")
    chunks = tmp_path / "store" / "posterior" / "position" / "c" / "0"
    (chunks / "2" / "0").write_bytes((chunks / "1" / "0").read_bytes())
    opened = rw.open_result(tmp_path / "store")
    opened.positions[:, :8]
    with pytest.raises(DamagedFileError, match=r"c/0/2/0: it is not the chunk that the run wrote"):
        opened.positions[...]
    manifest = reopen._manifest(tmp_path / "store")
    assert manifest["columns"]["posterior/position"]["draws"] == opened.draws


def test_a_length_that_the_manifest_does_not_have_is_refused(tmp_path):
    saved(tmp_path, "store")
    metadata = tmp_path / "store" / "posterior" / "position" / "zarr.json"
    metadata.write_text(metadata.read_text().replace("64", "63", 1))
    with pytest.raises(DamagedFileError):
        rw.open_result(tmp_path / "store")


def test_damaged_segments_are_refused(tmp_path):
    saved(tmp_path, "checkpoint")
    segment = tmp_path / "checkpoint" / checkpoint.latest(tmp_path / "checkpoint").store["segments"][0]["name"]
    content = bytearray(segment.read_bytes())
    content[-3] ^= 1
    segment.write_bytes(content)
    with pytest.raises(DamagedFileError, match=segment.name):
        rw.open_result(tmp_path / "checkpoint")


def test_other_folders_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ValueError, match="is neither a store of draws nor a checkpoint folder"):
            rw.open_result(path)
    run(steps=20, store=tmp_path / "s", checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match="are in the folder that was given as store=; open that"):
        rw.open_result(tmp_path / "c")
