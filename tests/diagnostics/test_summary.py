"""The summary table against arviz-stats and against the draws."""

import arviz_stats
import numpy as np
import optax
import pytest
from tests.diagnostics.runs import healthy, tree_run

import ridgewalk as rw
from ridgewalk.diagnostics.summary import SummaryTable

COLUMNS = ["mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"]


def test_summary_agrees_with_arviz():
    result = healthy("sgld, minibatch")
    table = result.summary()
    reference = arviz_stats.summary(result.to_arviz(), round_to="none")
    assert list(table.columns) == COLUMNS
    assert list(table.index) == ["position[0]", "position[1]", "position[2]"] == list(reference.index)
    for name in ("mean", "ess_bulk", "r_hat"):
        np.testing.assert_allclose(table[name], reference[name], rtol=1e-10)
    tail = [arviz_stats.ess(result.positions[:, :, i], method="tail", prob=(0.05, 0.95)) for i in range(3)]
    np.testing.assert_allclose(table["ess_tail"], tail, rtol=1e-10)
    np.testing.assert_allclose(table["sd"], reference["sd"], rtol=1e-3)  # ArviZ divides by n − 1
    np.testing.assert_allclose(table["mcse_mean"], reference["mcse_mean"], rtol=1e-3)
    squares = (np.asarray(result.positions) - np.asarray(table["mean"])) ** 2
    sizes = [arviz_stats.ess(result.positions[:, :, i], method="sd") for i in range(3)]
    delta = squares.std((0, 1)) / np.sqrt(sizes) / (2 * table["sd"])
    np.testing.assert_allclose(table["mcse_sd"], delta, rtol=1e-8)
    np.testing.assert_allclose(table["mean"], rw.posterior_mean(result), rtol=1e-10)
    np.testing.assert_allclose(table["sd"], rw.posterior_std(result), rtol=1e-10)


def test_summary_weights_draws_by_their_step_size():
    schedule = optax.polynomial_schedule(0.3, 0.01, power=1, transition_steps=700)
    result = tree_run(step_size=schedule)
    table, even = result.summary(), tree_run().summary()
    assert list(table.index) == ["b", *(f"w[{i},{j}]" for i in range(2) for j in range(3))]
    np.testing.assert_allclose(table["mean"][1:], np.ravel(rw.posterior_mean(result)["w"]), rtol=1e-8)
    np.testing.assert_allclose(table["sd"][1:], np.ravel(rw.posterior_std(result)["w"]), rtol=1e-8)
    weights = result.step_sizes / result.step_sizes.sum()
    kish = 1 / (weights**2).sum() / len(weights)
    first = np.asarray(result.positions["b"])
    np.testing.assert_allclose(
        table["mcse_mean"][0], table["sd"][0] / np.sqrt(kish * arviz_stats.ess(first, method="mean")), rtol=1e-8
    )
    assert kish < 0.9
    assert len(even) == 7


def test_summary_of_a_large_model_has_a_row_per_leaf_and_says_so():
    result = tree_run()
    table, whole = result.summary(max_parameters=4), result.summary()
    assert table.index == ("b", "w")
    assert table["parameters"].tolist() == [1, 6]
    assert table["sampled"].tolist() == [1, 3]
    assert "at random" in table.note
    assert table.note in str(table)
    leaf = table.row("w")
    assert leaf["mean"] == pytest.approx(whole["mean"][1:].mean())
    assert leaf["sd"] == pytest.approx(np.sqrt((whole["sd"][1:] ** 2).mean()))
    assert leaf["ess_bulk"] in whole["ess_bulk"].tolist()
    assert leaf["r_hat"] <= whole["r_hat"].max()
    with pytest.raises(ValueError, match="max_parameters: 0"):
        result.summary(max_parameters=0)


def test_runs_that_kept_moments_only():
    result, kept = tree_run(keep="moments"), tree_run()
    table = result.summary()
    np.testing.assert_allclose(table["mean"], kept.summary()["mean"], rtol=1e-6)
    np.testing.assert_allclose(table["sd"], kept.summary()["sd"], rtol=1e-6)
    chains = np.asarray(kept.positions["b"])
    between, within = chains.mean(1).var(ddof=1), chains.var(1).mean()
    assert table.row("b")["r_hat"] == pytest.approx(np.sqrt(349 / 350 + between / within))
    assert result.summary(max_parameters=3).index == ("b", "w")
    for use in (result.to_arviz, result.plot_trace, lambda: rw.stein_discrepancy(result)):
        with pytest.raises(ValueError, match="keep='draws'"):
            use()


def test_stored_runs_equal_runs_in_memory(tmp_path):
    stored, kept = tree_run(store=tmp_path / "draws.zarr"), tree_run()
    np.testing.assert_allclose(stored.summary().to_numpy(), kept.summary().to_numpy(), rtol=1e-10)
    for group in ("posterior", "sample_stats"):
        assert stored.to_arviz()[group].equals(kept.to_arviz()[group])
    assert rw.configurational_temperature(stored, max_draws=50) == pytest.approx(
        rw.configurational_temperature(kept, max_draws=50), rel=1e-6
    )
    assert stored.check().names == kept.check().names


def test_the_table_is_plain_text_with_rows_columns_and_a_data_frame():
    table = tree_run().summary()
    lines = str(table).splitlines()
    assert lines[0].split() == COLUMNS
    assert [line.split()[0] for line in lines[1:]] == list(table.index)
    assert lines[1].split()[1] == f"{table['mean'][0]:.4g}"
    assert len({len(line) for line in lines}) == 1
    assert table.shape == (len(table), 7) == table.to_numpy().shape
    frame = table.to_dataframe()
    assert frame.loc["w[0,1]", "sd"] == table.row("w[0,1]")["sd"]
    with pytest.raises(KeyError, match=r"'variance' does not exist.*mcse_mean"):
        table["variance"]
    with pytest.raises(KeyError, match=r"'w' does not exist.*w\[0,0\]"):
        table.row("w")


def test_long_tables_leave_out_rows_in_the_middle():
    table = SummaryTable(tuple(map(str, range(100))), {"mean": np.arange(100.0)})
    lines = str(table).splitlines()
    assert len(lines) == 62
    assert lines[31] == "(40 rows not shown)"
    assert (lines[30].split()[0], lines[32].split()[0]) == ("29", "70")
