"""What is kept of a run: draws in memory or on disk, moments, or a function of the position."""

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray
from tests.sampling.problems import assert_same_run, run

import ridgewalk as rw
from ridgewalk.diagnostics.mixing import effective_sample_size
from ridgewalk.sampling import zarr_store

OPTIONS = {"chains": 2, "burn_in": 7, "thin": 3}


def test_a_store_holds_the_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_store, "MOST_DRAWS", 4)  # several chunks, the last one partly filled
    kept, stored = run(**OPTIONS), run(**OPTIONS, store=tmp_path / "draws.zarr")
    assert_same_run(kept, stored)
    with xarray.open_zarr(tmp_path / "draws.zarr", group="posterior", consolidated=False) as posterior:
        assert posterior["position"].dims == ("chain", "draw", "position_dim_0")
        np.testing.assert_array_equal(posterior["position"], kept.positions)
    with xarray.open_zarr(tmp_path / "draws.zarr", group="sample_stats", consolidated=False) as stats:
        np.testing.assert_array_equal(stats["potential"], kept.info.potential)
    for average in (rw.posterior_mean, rw.posterior_variance, rw.posterior_covariance):
        np.testing.assert_allclose(average(stored), average(kept), rtol=1e-9)


def test_a_store_names_the_leaves_of_a_model(tmp_path):
    start = {"layer": [jnp.zeros((2, 2)), jnp.zeros(())], "bias": jnp.zeros(3)}
    target = rw.Density(lambda p: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)))
    result = run(target=target, start=start, batch_size=None, store=tmp_path / "s")
    assert result.positions["layer"][0].shape == (1, 60, 2, 2)
    with xarray.open_zarr(tmp_path / "s", group="posterior", consolidated=False) as posterior:
        assert set(posterior) == {"layer.0", "layer.1", "bias"}


def test_a_store_can_be_read_while_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_store, "MOST_DRAWS", 5)
    seen = []
    write = zarr_store.ZarrStore.write

    def looked_at(store, first, draws):
        write(store, first, draws)
        with xarray.open_zarr(store.path, group="posterior", consolidated=False) as posterior:
            seen.append(int(posterior["position"].notnull().all("position_dim_0").sum()))

    monkeypatch.setattr(zarr_store.ZarrStore, "write", looked_at)
    run(store=tmp_path / "s")
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert 0 < seen[len(seen) // 2] < 60
    assert seen[-1] == 60


def test_a_store_that_exists_is_refused(tmp_path):
    run(store=tmp_path / "s")
    with pytest.raises(ValueError, match=r"store: .* exists; choose another name"):
        run(store=tmp_path / "s")
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match=r"store: .* is not a store of draws"):
        run(store=tmp_path / "other", checkpoint=tmp_path / "c", resume=True)
    with pytest.raises(ValueError, match=r"store: .* was written by another run"):
        run(store=tmp_path / "s", checkpoint=tmp_path / "c", resume=True, batch_size=30)


@pytest.mark.parametrize("step_size", [1e-3, optax.exponential_decay(1e-3, 20, 0.5)], ids=["constant", "decreasing"])
def test_moments_are_those_of_the_draws(step_size):
    draws = run(**OPTIONS, step_size=step_size)
    moments = run(**OPTIONS, step_size=step_size, keep="moments")
    assert moments.positions is None
    for average in (rw.posterior_mean, rw.posterior_variance, rw.posterior_std):
        np.testing.assert_allclose(average(moments), average(draws), rtol=1e-9)
    with pytest.raises(ValueError, match="positions: this run kept none"):
        rw.posterior_covariance(moments)


def test_collect_is_called_for_every_draw_and_no_other_step():
    def predict(position):
        return {"line": position[0] + position[1] * jnp.linspace(0.0, 1.0, 5), "sum": jnp.sum(position)}

    draws = run(**OPTIONS)
    collected = run(**OPTIONS, collect=predict)
    expected = jax.vmap(jax.vmap(predict))(draws.positions)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), collected.collected, expected)
    assert collected.positions is None
    np.testing.assert_allclose(rw.posterior_mean(collected), rw.posterior_mean(draws), rtol=1e-9)
    both = run(**OPTIONS, collect=predict, keep="draws")
    np.testing.assert_array_equal(both.positions, draws.positions)


def test_draws_of_large_models_are_written_only_when_due():
    """Above a size the loop asks whether a draw is due; the draws are the same."""
    start = jnp.zeros(5_000)
    target = rw.Density(lambda p: -0.5 * jnp.sum(p**2))
    options = {"target": target, "start": start, "batch_size": None, "steps": 20}
    every = run(**options).positions[0]
    np.testing.assert_array_equal(run(**options, burn_in=3, thin=4).positions[0], every[6::4])


def test_sequential_chains_agree():
    one, other = run(**OPTIONS), run(**OPTIONS, chain_method="sequential")
    np.testing.assert_allclose(one.positions, other.positions, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "all"}, "keep: 'all' is unknown"),
        ({"collect": 3}, "collect: 3 is not a function"),
        ({"store": "x", "keep": "moments"}, "store: with keep='moments' there are no draws"),
        ({"chain_method": "quick"}, "chain_method: 'quick' is unknown; use one of 'vectorized'"),
        ({"chain_method": "parallel", "chains": 999}, "needs one device per chain: 999 chains, "),
    ],
)
def test_bad_keeping(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_effective_sample_size_of_a_stored_run(tmp_path):
    stored = run(chains=2, store=tmp_path / "s")
    expected = [float(arviz_stats.ess(np.asarray(stored.positions[:, :, i]))) for i in range(3)]
    np.testing.assert_allclose(effective_sample_size(stored), expected)
