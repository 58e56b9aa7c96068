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
    """xarray and `open_result` see the draws so far and no NaN, with coordinates, and without a warning."""
    monkeypatch.setattr(zarr_store, "MOST_DRAWS", 5)
    monkeypatch.setattr(zarr_store, "SHOW_EVERY", 0.0)
    monkeypatch.setattr(zarr_store, "SHOW_SHARE", np.inf)
    seen = []
    write = zarr_store.ZarrStore.write

    def looked_at(store, first, draws):
        write(store, first, draws)
        made = first + draws["posterior"].shape[1]
        with xarray.open_datatree(store.path, engine="zarr") as tree:
            for group in ("posterior", "sample_stats"):
                assert dict(tree[group].sizes) | {"position_dim_0": 3} == {
                    "chain": 2,
                    "draw": made,
                    "position_dim_0": 3,
                }
                np.testing.assert_array_equal(tree[group]["draw"], np.arange(made))
                assert tree[group]["chain"].values.tolist() == [0, 1]
            assert not tree["posterior"]["position"].isnull().any()
        opened = rw.open_result(store.path)
        assert (opened.draws, {str(chain) for chain in opened.status}) == (
            made,
            {f"unfinished; draws up to step {made:,} are stored"},
        )
        np.testing.assert_array_equal(opened.positions[:, first:], draws["posterior"])
        seen.append(made)

    monkeypatch.setattr(zarr_store.ZarrStore, "write", looked_at)
    run(chains=2, store=tmp_path / "s")
    assert len(seen) > 2
    assert seen[-1] == 60


def test_draws_are_shown_from_time_to_time(tmp_path, monkeypatch):
    """Partly filled chunks too, but not after every device call."""
    monkeypatch.setattr(zarr_store, "SHOW_EVERY", 1e9)
    shown = []
    show = zarr_store.ZarrStore._show
    monkeypatch.setattr(zarr_store.ZarrStore, "_show", lambda store: (show(store), shown.append(store.columns[0].stop)))
    run(store=tmp_path / "s", checkpoint=tmp_path / "c", checkpoint_every=20)
    assert 0 < shown[0] <= 20  # the draws of the first device call
    assert shown[1:] == [20, 40, 60, 60]  # three checkpoints, the end


def test_a_run_that_ended_early_has_no_nan_at_its_end(tmp_path):
    def stop(progress):
        if progress.step >= 20:
            raise KeyError("enough")

    where = {"store": tmp_path / "s", "checkpoint": tmp_path / "c", "checkpoint_every": 10}
    with pytest.raises(KeyError):
        run(**where, callback=stop)
    with xarray.open_datatree(tmp_path / "s", engine="zarr") as tree:
        assert tree["posterior"].sizes["draw"] == 20
        assert not tree["posterior"]["position"].isnull().any()
    resumed = run(**where, resume=True)
    assert resumed.positions.shape == (1, 60, 3)
    with xarray.open_datatree(tmp_path / "s", engine="zarr") as tree:
        np.testing.assert_array_equal(tree["posterior"]["position"], run().positions)
        np.testing.assert_array_equal(tree["sample_stats"]["draw"], np.arange(60))


def test_arviz_reads_a_store(tmp_path):
    stored = run(chains=2, steps=200, store=tmp_path / "s")
    with xarray.open_datatree(tmp_path / "s", engine="zarr") as tree:
        table = arviz_stats.summary(tree)
    assert len(table) == 3
    np.testing.assert_allclose(arviz_stats.summary(stored.to_arviz())["r_hat"], table["r_hat"])


def test_leaves_may_have_the_names_of_coordinates(tmp_path):
    start = {"draw": jnp.zeros(2), "chain": jnp.zeros(())}
    target = rw.Density(lambda p: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)))
    result = run(target=target, start=start, batch_size=None, store=tmp_path / "s")
    opened = rw.open_result(tmp_path / "s")
    assert set(opened.positions) == {"draw", "chain"}
    np.testing.assert_array_equal(opened.positions["draw"], result.positions["draw"])
    with xarray.open_datatree(tmp_path / "s", engine="zarr") as tree:
        assert set(tree["posterior"].data_vars) == {"draw~2", "chain~2"}


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
    ],
)
def test_bad_keeping(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_effective_sample_size_of_a_stored_run(tmp_path):
    stored = run(chains=2, store=tmp_path / "s")
    expected = [float(arviz_stats.ess(np.asarray(stored.positions[:, :, i]))) for i in range(3)]
    np.testing.assert_allclose(effective_sample_size(stored), expected)
