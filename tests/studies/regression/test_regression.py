"""The regression study: its data, its errors and its comparisons against answers known beforehand; and its claims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw
from ridgewalk.studies.framework.comparison import best_rows
from ridgewalk.studies.regression import study
from ridgewalk.studies.regression.report import (
    OURS,
    PAPER_STEP_SIZE,
    PLAIN,
    SPARSE,
    RegressionRow,
    Settings,
    compare,
    over_seeds,
    validation_score,
)
from ridgewalk.studies.regression.study import (
    CONTENDERS,
    PREDICTORS,
    contender_named,
    data_set,
    errors,
    posterior,
    true_weights,
)

STEPS = 400
MARKS = list(range(50, STEPS + 1, 50))


def _row(name, step_size, mse, validation=1.0, seeds=4, diverged=False):
    """A row whose curves of the seeds are `mse(step)` plus a constant for each seed."""
    row = RegressionRow(name, step_size, contender_named(name).gradients, MARKS, diverged)
    if diverged:
        return row
    curve = np.array([mse(step) for step in MARKS])
    curves = (curve + np.arange(seeds)[:, None]).tolist()
    inclusion = [] if name == PLAIN else np.tile(true_weights() > 0, (seeds, 1)).astype(float).tolist()
    return row._replace(
        mse=curves,
        mae=curves,
        validation_mse=[[validation] * len(MARKS)] * seeds,
        means=np.tile(true_weights(), (seeds, 1)).tolist(),
        inclusion=inclusion,
        sigma=[1.7] * seeds,
    )


def _chosen(rows):
    return best_rows(rows, lambda row: validation_score(row, STEPS))


def test_the_data_are_the_papers():
    seeds = [data_set(seed) for seed in range(40)]
    x = np.concatenate([part[0] for split in seeds for part in split])
    y = np.concatenate([part[1] for split in seeds for part in split])
    assert [part[0].shape for part in seeds[0]] == [(100, 200), (50, 200), (50, 200)]
    for lag in (0, 1, 4, 20):
        product = (x[:, : PREDICTORS - lag] * x[:, lag:]).mean()
        assert product == pytest.approx(0.8 ** (lag / 4), abs=0.02)
    noise = y - x @ true_weights()
    assert noise.var() == pytest.approx(3.0, rel=4 * np.sqrt(2 / len(noise)))
    assert not np.allclose(seeds[0].test[0][0], seeds[0].validation[0][0])


def test_posteriors_have_the_noise_they_are_told():
    """Under the plain prior −∇U is Xᵀ(y − Xβ)/3 − β."""
    x, y = data_set(0).training
    weights = np.linspace(-1, 1, PREDICTORS)
    gradient = np.asarray(posterior((x, y), sparse=False).full_gradient(weights))
    expected = weights - x.T.astype(float) @ (y - x @ weights) / 3
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-2)
    assert posterior((x, y), sparse=True).adaptive


def test_running_means_start_after_burn_in():
    draws = np.arange(24.0).reshape(2, 6, 2)
    found = study.running_means(draws, 2, np.array([3, 6]))
    np.testing.assert_allclose(found[0], draws[:, 2])
    np.testing.assert_allclose(found[1], draws[:, 2:].mean(axis=1))
    mse, mae = errors(np.array([[1.0, 0.0], [0.0, 0.0]]), (np.eye(2), np.array([1.0, -2.0])))
    np.testing.assert_allclose(mse, [2.0, 2.5])
    np.testing.assert_allclose(mae, [1.0, 1.5])


def test_a_short_run_is_measured():
    settings = Settings(steps=300, burn_in=100, mark_every=100, seeds=2, chains=2)
    row = study.measure(contender_named(SPARSE), 8e-4, settings)
    assert row.step == [200, 300]
    for curves in (row.mse, row.mae, row.validation_mse):
        assert np.shape(curves) == (2, 2)
    mean, error = over_seeds(row.mse)
    variance = np.mean([np.var(data_set(seed).test[1]) for seed in range(2)])
    assert 2 < mean[-1] < 0.8 * variance  # it predicts
    assert error[-1] > 0
    assert np.shape(row.means) == np.shape(row.inclusion) == (2, PREDICTORS)
    diverged = study.measure(contender_named(PLAIN), 0.1, settings)
    assert diverged == RegressionRow(PLAIN, 0.1, 1, [200, 300], diverged=True)


def test_step_sizes_are_chosen_on_validation_samples():
    rows = [
        _row(SPARSE, 1, lambda k: 1.0, 3.0),
        _row(SPARSE, 2, lambda k: 9.0, 2.0),
        _row(SPARSE, 3, None, diverged=True),
    ]
    late = _row(SPARSE, 4, lambda k: 0.5, 0.0)
    late = late._replace(validation_mse=[[0.0] * 3 + [2.1] * 5] * 4)  # only the second half counts
    assert _chosen([*rows, late])[SPARSE].step_size == 2
    assert _chosen(rows[2:]) == {}


def test_the_claims_are_about_the_whole_second_half_and_half_the_steps():
    theirs = _row(SPARSE, 1, lambda k: 3 + 100 / k)  # 3.25 in the end
    better = _row(OURS, 1, lambda k: 3 + 30 / k)  # there by step 120
    found = compare({SPARSE: theirs, OURS: better}, STEPS)
    assert found.holds
    assert found.reach.step == 150
    assert found.reach.gradients == 300
    assert found.excess["mse"].largest == pytest.approx(-70 / 400)
    assert found.excess["mse"].mean_se == pytest.approx(0, abs=1e-12)  # the seeds' levels cancel
    assert found.excess["mse_at_equal_gradients"].largest == pytest.approx(-(100 - 60) / 400)

    late = _row(OURS, 1, lambda k: 3.1 if k == 400 else 3 + 100 / k)
    found = compare({SPARSE: theirs, OURS: late}, STEPS)
    assert found.excess["mse"].holds
    assert found.reach.step == 400
    assert not found.reach.holds
    assert not found.holds

    once_above = _row(OURS, 1, lambda k: 3.34 if k == 300 else 3.1)
    found = compare({SPARSE: theirs, OURS: once_above}, STEPS)
    assert not found.excess["mse"].holds
    assert found.reach.step == 350  # for good
    assert compare({SPARSE: theirs, OURS: _row(OURS, 1, lambda k: 5.0)}, STEPS).reach.step is None
    assert compare({SPARSE: theirs}, STEPS).missing == (OURS,)


@pytest.mark.parametrize("ours", [lambda k: 3 + 30 / k, lambda k: 5.0])
def test_the_study_reports_its_numbers(tmp_path, ours):
    settings = Settings(steps=STEPS, burn_in=0, seeds=4)
    results = {}
    for task in study.plan(settings):
        name, size = task.settings["sampler"], task.settings["step_size"]
        gone = size == PAPER_STEP_SIZE and name in (PLAIN, SPARSE)
        results[task.name] = _row(name, size, ours if name == OURS else lambda k: 3 + 100 / k, diverged=gone)
    outcome = study.assemble(settings, results, tmp_path)
    summary, excess, reach = outcome.report.sections[0].tables
    assert [row[0] for row in summary.rows] == [contender.name for contender in CONTENDERS] + ["the true weights"]
    wins = ours(400) < 4
    assert outcome.numbers["comparison"]["holds"] == wins
    assert ("All three claims hold" in outcome.report.text[-1]) == wins
    assert {row[2].mark for row in excess.rows} == {"better" if wins else "worse"}
    assert str(reach.rows[1][1]) == ("150" if wins else "not reached")
    tried = outcome.report.sections[2].tables[0]
    assert sum(str(row[1]) == "diverged" for row in tried.rows) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"errors.png", "means.png"}


@pytest.mark.slow
def test_hasgld_sa_errs_less_than_sgld_sa_in_the_second_half_and_is_there_in_half_the_steps():
    """The paper preset at the step sizes it chooses."""
    settings = Settings()
    chosen = {
        name: study.measure(contender_named(name), size, settings) for name, size in ((SPARSE, 1.1e-3), (OURS, 0.1))
    }
    found = compare(chosen, settings.steps)
    print(found)
    assert found.excess["mse"].holds
    assert found.excess["mae"].holds
    assert found.reach.holds


def check_selection(seed, steps):
    """β₁ or its neighbour β₂ is selected, zeros are not; β₂ alone, at 1.4 standard errors, is reported only."""
    target = posterior(data_set(seed).training, sparse=True)
    start = jnp.zeros(PREDICTORS, jnp.float32)
    result = rw.sample(
        jax.random.key(seed), rw.hasgld_sa(), target, start, steps=steps, step_size=0.1, burn_in=steps // 2,
        progress=False,
    )  # fmt: skip
    (inclusion,) = result.inclusion_probabilities
    prior = result.final_states[0].prior
    print(
        f"seed {seed}: P(β₁ ≠ 0) {inclusion[0]:.3f}, P(β₂ ≠ 0) {inclusion[1]:.3f}, zeros below 0.5: "
        f"{int((inclusion[2:] < 0.5).sum())}, σ {float(prior.sigma):.2f}, δ {float(prior.delta):.4f}"
    )
    assert inclusion.dtype == np.float32
    assert inclusion[:2].max() > 0.5
    assert (inclusion[2:] < 0.5).sum() >= 190
    assert 1.0 < prior.sigma < 2.2  # √3, and β₂'s part of the variance


@pytest.mark.slow
def test_one_seed_selects_the_weights():
    check_selection(0, 4_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ten_seeds_select_the_weights(seed):
    check_selection(seed, 20_000)
