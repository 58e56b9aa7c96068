"""Expectations from a result: draws weighted by their step size, chains that diverged left out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.targets import linear_regression

import ridgewalk as rw
from ridgewalk.result import weighted_mean

REGRESSION = linear_regression()


def run(**options):
    settings = {"steps": 60, "step_size": 1e-3, "batch_size": 40, "chains": 2, "progress": False} | options
    return rw.sample(jax.random.key(0), rw.sgld(), REGRESSION.target, jnp.zeros(3), **settings)


def test_expectations_weight_draws_by_their_step_size():
    schedule = optax.polynomial_schedule(1e-3, 1e-4, power=1, transition_steps=50)
    result = run(step_size=schedule, burn_in=10, thin=5)
    np.testing.assert_allclose(result.step_sizes, [float(schedule(k)) for k in np.arange(14, 60, 5)], rtol=1e-6)
    weights = result.step_sizes / result.step_sizes.sum()
    np.testing.assert_allclose(result.draw_weights, weights)
    flat = np.asarray(result.positions)
    mean = np.einsum("k,ckd->d", weights, flat) / 2
    np.testing.assert_allclose(rw.posterior_mean(result), mean, rtol=1e-10)
    centred = flat - mean
    covariance = np.einsum("k,cki,ckj->ij", weights, centred, centred) / 2
    np.testing.assert_allclose(rw.posterior_covariance(result), covariance, rtol=1e-10)
    np.testing.assert_allclose(rw.posterior_variance(result), np.diag(covariance), rtol=1e-10)
    np.testing.assert_allclose(rw.posterior_std(result), np.sqrt(np.diag(covariance)), rtol=1e-10)
    squares = np.einsum("k,ck->", weights, (flat**2).sum(-1)) / 2
    np.testing.assert_allclose(rw.posterior_expectation(result, lambda p: jnp.sum(p**2)), squares, rtol=1e-10)
    probability = rw.posterior_expectation(result, lambda p: p > 0)
    np.testing.assert_allclose(probability, np.einsum("k,ckd->d", weights, flat > 0) / 2, rtol=1e-6)


def test_with_a_constant_step_size_the_mean_is_that_of_all_draws():
    result = run()
    np.testing.assert_allclose(rw.posterior_mean(result), np.asarray(result.positions).mean((0, 1)), rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, bool, np.int32])
def test_weighted_mean_keeps_floating_dtypes_and_is_the_same_for_numpy_and_jax(dtype):
    values = np.random.default_rng(0).normal(size=(2, 5, 3)) > 0
    values = values.astype(dtype)
    weights = np.arange(1.0, 6.0) / 15
    found = weighted_mean(weights, values)
    assert found.dtype == (dtype if np.issubdtype(dtype, np.floating) else np.float64)
    np.testing.assert_allclose(found, np.einsum("k,ckd->d", weights, values) / 2, rtol=1e-6)
    np.testing.assert_allclose(weighted_mean(weights, jnp.asarray(values)), found, rtol=1e-6)


def test_chains_that_diverged_are_left_out():
    starts = jnp.array([[0.1], [1e3]])
    result = rw.sample(
        jax.random.key(0), rw.sgld(), rw.Density(lambda x: -jnp.sum(x**4)), starts,
        steps=50, step_size=0.02, chains=2, start_per_chain=True, progress=False,
    )  # fmt: skip
    assert result.alive.tolist() == [True, False]
    assert [state.position.shape for state in result.alive_states] == [(1,)]
    np.testing.assert_allclose(rw.posterior_mean(result), np.asarray(result.positions)[0].mean(0), rtol=1e-10)
    assert result.kept_positions().shape == (1, 50, 1)
    assert repr(result) == "Result(2 chains x 50 draws of 1 parameters, 1 diverged)"
    assert str(result.status[0]) == "finished after 50 steps"
    assert str(result.status[1]).startswith("diverged after")


def test_runs_without_positions_say_what_to_do():
    result = run(keep="moments")
    for use in (result.kept_positions, lambda: rw.posterior_covariance(result)):
        with pytest.raises(ValueError, match="keep='draws'"):
            use()
    draws = run()
    np.testing.assert_allclose(rw.posterior_mean(result), rw.posterior_mean(draws), rtol=1e-8)
    np.testing.assert_allclose(rw.posterior_variance(result), rw.posterior_variance(draws), rtol=1e-8)


def test_inclusion_probabilities_need_a_spike_and_slab_prior():
    with pytest.raises(ValueError, match="spike_and_slab"):
        _ = run().inclusion_probabilities
