"""ESS and R-hat against arviz-stats; HAMCMC, where one chain is M interleaved chains; the kernelised Stein discrepancy
against a slow formula by automatic differentiation, with right and wrong draws.
"""

from dataclasses import replace
from functools import cache

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import lfilter
from tests.diagnostics.runs import REGRESSION, healthy

import ridgewalk as rw
from ridgewalk.diagnostics.mixing import deinterleave_draws, ess, interleaved_chains, r_hat

PHI = 0.9
LENGTH = 20_000


def autoregressive(rng, shape, phi):
    return lfilter([1], [1, -phi], rng.normal(size=shape), axis=1)


SERIES = {
    "independent": lambda rng: rng.normal(size=(4, 500)),
    "correlated": lambda rng: autoregressive(rng, (4, 501), 0.95),
    "anticorrelated": lambda rng: autoregressive(rng, (3, 400), -0.8),
    "heavy tails": lambda rng: rng.standard_cauchy(size=(4, 300)),
    "ties": lambda rng: rng.integers(0, 5, size=(4, 200)).astype(float),
    "chains apart": lambda rng: rng.normal(size=(4, 250)) + np.arange(4)[:, None],
    "different scales": lambda rng: rng.normal(size=(4, 250)) * np.array([[1.0], [1.0], [3.0], [3.0]]),
    "one chain": lambda rng: autoregressive(rng, (1, 1000), 0.5),
    "trend": lambda rng: np.arange(60.0).reshape(2, 30) + 0.1 * rng.normal(size=(2, 30)),
    **{f"{n} draws": lambda rng, n=n: rng.normal(size=(2, n)) for n in range(4, 16)},
}


@pytest.mark.parametrize("name", SERIES)
def test_ess_and_r_hat_equal_those_of_arviz_stats(name):
    for seed in range(5):
        values = SERIES[name](np.random.default_rng(seed))
        for method in ("bulk", "tail", "mean"):
            options = {"prob": (0.05, 0.95)} if method == "tail" else {}
            reference = float(arviz_stats.ess(values, method=method, **options))
            assert ess(values, method) == pytest.approx(reference, rel=1e-10)
        if len(values) > 1:
            assert r_hat(values) == pytest.approx(float(arviz_stats.rhat(values)), rel=1e-10)


@pytest.mark.parametrize("values", [np.ones((2, 10)), np.full((2, 10), np.nan), np.zeros((2, 3)), np.zeros((2, 0))])
def test_ess_is_nan_for_draws_that_are_constant_few_or_not_finite(values):
    assert np.isnan([ess(values, method) for method in ("bulk", "tail", "mean")]).all()
    assert np.isnan(r_hat(values))


def test_r_hat_of_one_chain_is_nan():
    assert np.isnan(r_hat(np.random.default_rng(0).normal(size=(1, 100))))


@cache
def short():
    target = rw.Density(lambda x: -0.5 * jnp.sum(x**2))
    return rw.sample(jax.random.key(0), rw.sgld(), target, jnp.ones(1), steps=8, step_size=0.1, progress=False)


def interleaved(memory, thin=1, chains=2):
    """A run whose draws are `memory` interleaved AR(1) chains, every `thin`-th of them."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(chains, LENGTH, memory)) * np.sqrt(1 - PHI**2)
    noise[:, 0] /= np.sqrt(1 - PHI**2)
    series = lfilter([1], [1, -PHI], noise, axis=1)
    draws = series.reshape(chains, -1, 1)[:, thin - 1 :: thin]
    run = short()
    return replace(
        run,
        positions=draws,
        sampler=rw.hamcmc(memory=memory),
        final_states=run.final_states * chains,
        status=run.status * chains,
        step_sizes=np.full(draws.shape[1], 0.1),
        thin=thin,
    )


@pytest.mark.parametrize(("memory", "thin", "apart"), [(3, 1, 3), (3, 2, 3), (4, 2, 2), (3, 3, 1)])
def test_ess_of_interleaved_chains(memory, thin, apart):
    """Of every `thin`-th draw each chain has its every (thin · apart / memory)-th, with φ to that power.

    The autocorrelation time of AR(1) is (1 + φ) / (1 − φ), and of its squares the same with φ².
    """
    run = interleaved(memory, thin)
    phi = PHI ** (thin * apart // memory)
    exact = (1 + phi) / (1 - phi)
    assert interleaved_chains(run) == apart
    count = run.chains * run.draws
    [time] = rw.autocorrelation_time(run)
    [size] = rw.effective_sample_size(run)
    assert time == pytest.approx(exact, rel=0.12)
    assert size == pytest.approx(count / exact, rel=0.12)
    row = run.summary().row("position[0]")
    assert row["ess_bulk"] == pytest.approx(size)
    assert row["mcse_mean"] == pytest.approx(np.sqrt(exact / count), rel=0.12)
    # sd is 1, so Var(sd) = Var(x²) / 4 = 1/2 over the ESS of the squares.
    squares = (1 + phi**2) / (1 - phi**2)
    assert row["mcse_sd"] == pytest.approx(np.sqrt(squares / count / 2), rel=0.12)


def test_deinterleaved_chains_are_every_third_step():
    run = interleaved(3)
    apart = deinterleave_draws(run, np.asarray(run.positions))
    assert apart.shape == (6, LENGTH, 1)
    np.testing.assert_array_equal(apart[4], run.positions[1, 1::3])
    other = replace(run, sampler=rw.sgld())
    assert deinterleave_draws(other, np.asarray(run.positions)).shape == (2, 3 * LENGTH, 1)


def test_with_fewer_draws_than_interleaved_chains_the_accuracy_is_unknown():
    run = replace(short(), sampler=rw.hamcmc(memory=9))
    assert deinterleave_draws(run, np.asarray(run.positions)).shape == (9, 0, 1)
    row = run.summary().row("position[0]")
    assert np.isfinite([row["mean"], row["sd"]]).all()
    assert np.isnan([row[name] for name in ("mcse_mean", "mcse_sd", "ess_bulk", "ess_tail")]).all()
    assert np.isnan(rw.effective_sample_size(run)).all()
    assert np.isnan(rw.configurational_temperature(run)).all()
    assert "the temperature was not computed" in str(run.check())


COVARIANCE = np.array([[1.0, 0.6], [0.6, 2.0]])
PRECISION = np.linalg.inv(COVARIANCE)


def draws(count, seed=0, scale=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    return scale * rng.multivariate_normal(np.zeros(2), COVARIANCE, count) + shift


def naive(x, scores, metric):
    """Pair by pair, every derivative of the kernel by JAX; distances are (x − y)ᵀ metric⁻¹ (x − y)."""
    inverse = np.linalg.inv(metric)

    def kernel(a, b):
        return (1 + (a - b) @ inverse @ (a - b)) ** -0.5

    def stein(a, sa, b, sb):
        # In whitened coordinates derivatives carry the factor L: traces and products go through the metric.
        cross = jax.jacfwd(jax.grad(kernel, 0), 1)(a, b)
        along = sa @ metric @ jax.grad(kernel, 1)(a, b) + sb @ metric @ jax.grad(kernel, 0)(a, b)
        return sa @ metric @ sb * kernel(a, b) + along + jnp.trace(metric @ cross)

    one = jax.vmap(stein, (None, None, 0, 0))
    table = jax.vmap(one, (0, 0, None, None))(x, scores, x, scores)
    return float(np.sqrt(np.mean(np.asarray(table))))


@pytest.mark.parametrize("scaling", ["none", "diagonal", "covariance"])
def test_equals_the_slow_formula(scaling):
    x = draws(30)
    gradients = x @ PRECISION
    centred = x - x.mean(0)
    spread = centred.T @ centred / len(x)
    metric = {"none": np.eye(2), "diagonal": np.diag(np.diag(spread)), "covariance": spread}[scaling]
    got = rw.stein_discrepancy_of(x, gradients, scaling=scaling, temperature=2.0)
    assert got == pytest.approx(naive(jnp.asarray(x), jnp.asarray(-gradients / 2.0), metric), rel=1e-9)


@pytest.mark.parametrize("scaling", ["none", "covariance"])
def test_small_on_right_draws_and_large_on_wrong_ones(scaling):
    def discrepancy(x):
        return rw.stein_discrepancy_of(x, x @ PRECISION, scaling=scaling)

    right, fewer = (np.mean([discrepancy(draws(n, seed)) for seed in range(10)]) for n in (1000, 250))
    assert right == pytest.approx(fewer / 2, rel=0.15), "falls as the root of the number of draws"
    for wrong in (draws(1000, scale=2**0.5), draws(1000, scale=0.5), draws(1000, shift=0.5)):
        assert discrepancy(wrong) > 2 * right


def test_of_a_run():
    run = healthy("sgld, control variates")
    got = rw.stein_discrepancy(run, max_draws=400, scaling="covariance")
    rng = np.random.default_rng(1)
    exact = rng.multivariate_normal(REGRESSION.mean, REGRESSION.covariance, 400)
    gradients = (exact - REGRESSION.mean) @ np.linalg.inv(REGRESSION.covariance)
    reference = rw.stein_discrepancy_of(exact, gradients, scaling="covariance")
    wrong = rw.stein_discrepancy_of(exact, 2 * gradients, scaling="covariance")
    assert got < 2 * reference < wrong
    assert rw.stein_discrepancy(run, max_draws=400, scaling="covariance", examples=200) > got, "gradient noise"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradients": np.zeros((3, 2))}, "gradients: shapes"),
        ({"gradients": np.full((4, 2), np.nan)}, "gradients: .* not finite"),
        ({"scaling": "whole"}, "scaling: 'whole' is unknown"),
        ({"beta": -2.0}, "beta: -2.0"),
        ({"positions": np.ones((2, 4)), "gradients": np.ones((2, 4)), "scaling": "covariance"}, "more draws than 2"),
    ],
)
def test_bad_input(arguments, message):
    given = {"positions": np.zeros((4, 2)), "gradients": np.zeros((4, 2))} | arguments
    with pytest.raises(ValueError, match=message):
        rw.stein_discrepancy_of(given.pop("positions"), given.pop("gradients"), **given)
