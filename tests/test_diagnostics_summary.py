"""Tables, InferenceData, log likelihoods and plots of a run."""

import arviz
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
import pytest
from tests.diagnosed import REGRESSION, healthy, run

import ridgewalk as rw
from ridgewalk.diagnostics import likelihood

mpl.use("Agg")

COLUMNS = ["mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"]


def bowl(p):
    return -0.5 * jnp.sum(p["w"] ** 2) - 0.5 * p["b"] ** 2


def tree_run(**options):
    start = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(())}
    settings = {"step_size": 0.2, "steps": 800, "burn_in": 100, "thin": 2, "chains": 2} | options
    return run(rw.sgld(), rw.Density(bowl), start=start, **settings)


def test_summary_agrees_with_arviz():
    result = healthy("sgld, minibatch")
    table = result.summary()
    reference = arviz.summary({"position": np.asarray(result.positions)}, round_to="none")
    assert list(table.columns) == COLUMNS
    assert list(table.index) == ["position[0]", "position[1]", "position[2]"] == list(reference.index)
    for name in ("mean", "ess_bulk", "ess_tail", "r_hat"):
        np.testing.assert_allclose(table[name], reference[name], rtol=1e-10)
    np.testing.assert_allclose(table["sd"], reference["sd"], rtol=1e-3)  # ArviZ divides by n − 1
    np.testing.assert_allclose(table["mcse_mean"], reference["mcse_mean"], rtol=1e-3)
    np.testing.assert_allclose(table["mcse_sd"], reference["mcse_sd"], rtol=0.1)
    np.testing.assert_allclose(table["mean"], rw.posterior_mean(result), rtol=1e-10)
    np.testing.assert_allclose(table["sd"], rw.posterior_std(result), rtol=1e-10)


def test_summary_weights_draws_by_their_step_size():
    schedule = optax.polynomial_schedule(0.3, 0.01, power=1, transition_steps=700)
    result = tree_run(step_size=schedule)
    table, even = result.summary(), tree_run().summary()
    assert list(table.index) == ["b", *(f"w[{i},{j}]" for i in range(2) for j in range(3))]
    np.testing.assert_allclose(table["mean"].iloc[1:], np.ravel(rw.posterior_mean(result)["w"]), rtol=1e-8)
    np.testing.assert_allclose(table["sd"].iloc[1:], np.ravel(rw.posterior_std(result)["w"]), rtol=1e-8)
    weights = result.step_sizes / result.step_sizes.sum()
    kish = 1 / (weights**2).sum() / len(weights)
    first = np.asarray(result.positions["b"])
    np.testing.assert_allclose(
        table["mcse_mean"].iloc[0], table["sd"].iloc[0] / np.sqrt(kish * arviz.ess(first, method="mean")), rtol=1e-8
    )
    assert kish < 0.9
    assert len(even) == 7


def test_summary_of_a_large_model_has_a_row_per_leaf_and_says_so():
    result = tree_run()
    table, whole = result.summary(max_parameters=4), result.summary()
    assert list(table.index) == ["b", "w"]
    assert table["parameters"].tolist() == [1, 6]
    assert table["looked_at"].tolist() == [1, 3]
    assert "at random" in table.attrs["note"]
    assert table.loc["w", "mean"] == pytest.approx(whole["mean"].iloc[1:].mean())
    assert table.loc["w", "sd"] == pytest.approx(np.sqrt((whole["sd"].iloc[1:] ** 2).mean()))
    assert table.loc["w", "ess_bulk"] in whole["ess_bulk"].tolist()
    assert table.loc["w", "r_hat"] <= whole["r_hat"].max()
    with pytest.raises(ValueError, match="max_parameters: 0"):
        result.summary(max_parameters=0)


def test_runs_that_kept_moments_only():
    result, kept = tree_run(keep="moments"), tree_run()
    table = result.summary()
    np.testing.assert_allclose(table["mean"], kept.summary()["mean"], rtol=1e-6)
    np.testing.assert_allclose(table["sd"], kept.summary()["sd"], rtol=1e-6)
    chains = np.asarray(kept.positions["b"])
    between, within = chains.mean(1).var(ddof=1), chains.var(1).mean()
    assert table.loc["b", "r_hat"] == pytest.approx(np.sqrt(349 / 350 + between / within))
    assert result.summary(max_parameters=3).index.tolist() == ["b", "w"]
    for use in (result.to_arviz, result.plot_trace, lambda: rw.stein_discrepancy(result)):
        with pytest.raises(ValueError, match="keep='draws'"):
            use()


def test_stored_runs_equal_runs_in_memory(tmp_path):
    stored, kept = tree_run(store=tmp_path / "draws.zarr"), tree_run()
    np.testing.assert_allclose(stored.summary(), kept.summary(), rtol=1e-10)
    for group in ("posterior", "sample_stats"):
        assert stored.to_arviz()[group].equals(kept.to_arviz()[group])
    assert rw.configurational_temperature(stored, max_draws=50) == pytest.approx(
        rw.configurational_temperature(kept, max_draws=50), rel=1e-6
    )
    assert stored.check().names == kept.check().names


def test_inference_data(monkeypatch):
    monkeypatch.setattr(likelihood, "DRAWS_AT_ONCE", 700)
    monkeypatch.setattr(likelihood, "EXAMPLES_AT_ONCE", 150)
    result = healthy("sgld, control variates")
    data = result.to_arviz(log_likelihood=True, observed_data=True)
    assert set(data.groups()) == {"posterior", "sample_stats", "log_likelihood", "observed_data"}
    np.testing.assert_array_equal(data.posterior["position"], result.positions)
    np.testing.assert_array_equal(data.sample_stats["lp"], -result.info.potential)
    assert set(data.sample_stats) == {
        "lp", "gradient_norm", "noise_norm", "temperature", "damping", "rejected", "step_size", "diverging",
    }  # fmt: skip
    assert not data.sample_stats["diverging"].any()
    np.testing.assert_array_equal(data.observed_data["y"], REGRESSION.target.data["y"])
    values = data.log_likelihood["log_likelihood"]
    assert values.shape == (4, 1400, 400)
    x, y = (np.asarray(REGRESSION.target.data[name]) for name in ("x", "y"))
    np.testing.assert_allclose(values, -0.5 * (y - np.asarray(result.positions) @ x.T) ** 2, rtol=1e-8, atol=1e-12)
    loo, waic = arviz.loo(data), arviz.waic(data)
    assert loo.elpd_loo == pytest.approx(waic.elpd_waic, abs=0.1)
    assert loo.p_loo == pytest.approx(3, abs=0.8)  # three parameters


def test_log_likelihood_needs_examples():
    with pytest.raises(ValueError, match="a Density has no examples"):
        rw.log_likelihood(tree_run())


@pytest.mark.parametrize("plot", ["plot_trace", "plot_autocorrelation", "plot_pairs", "plot_posterior", "plot_steps"])
def test_plots_draw(plot, tmp_path):
    from matplotlib import pyplot

    result = tree_run(steps=300)
    axes = np.ravel(getattr(result, plot)(**({} if plot == "plot_steps" else {"max_parameters": 3})))
    figure = next(axis for axis in axes if axis is not None).figure
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5_000
    pyplot.close(figure)


def test_plots_take_names():
    from matplotlib import pyplot

    result = tree_run(steps=300)
    axes = result.plot_trace(["w[1,2]", "b"])
    assert [axis.get_title() for axis in axes[:, 0]] == ["w[1,2]", "b"]
    pyplot.close(axes[0, 0].figure)
    for names, message in ((["nothing"], "'nothing' is not one of them"), (["w[5,5]"], r"shape is \(2, 3\)")):
        with pytest.raises(ValueError, match=message):
            result.plot_trace(names)
    with pytest.raises(ValueError, match="needs two"):
        result.plot_pairs(["b"])
