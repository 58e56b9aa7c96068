"""HAMCMC: one chain is M chains in turn, and its effective size is the sum of theirs."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import lfilter

import ridgewalk as rw
from ridgewalk.diagnostics.turns import separated, turns

PHI = 0.9
TIME = (1 + PHI) / (1 - PHI)
"""The autocorrelation time of x' = φ x + √(1 − φ²) z: 1 + 2 Σ φᵏ = 19."""

LENGTH = 20_000


@cache
def short():
    target = rw.Density(lambda x: -0.5 * jnp.sum(x**2))
    return rw.sample(jax.random.key(0), rw.sgld(), target, jnp.ones(1), steps=8, step_size=0.1, progress=False)


def woven(memory, thin=1, chains=2):
    """A run whose draws are `memory` known chains in turn, every `thin`-th of them."""
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
def test_effective_draws_of_chains_in_turn(memory, thin, apart):
    """Of every `thin`-th draw each chain has its every (thin · apart / memory)-th, with a φ to that power."""
    run = woven(memory, thin)
    phi = PHI ** (thin * apart // memory)
    exact = (1 + phi) / (1 - phi)
    assert turns(run) == apart
    count = run.chains * run.draws
    [time] = rw.autocorrelation_time(run)
    [size] = rw.effective_sample_size(run)
    assert time == pytest.approx(exact, rel=0.12)
    assert size == pytest.approx(count / exact, rel=0.12)
    row = run.summary().iloc[0]
    assert row["ess_bulk"] == pytest.approx(size)
    assert row["mcse_mean"] == pytest.approx(np.sqrt(exact / count), rel=0.12)
    # Of squares the autocorrelation is φ², and sd is 1: Var(sd) = Var(x²) / 4 = 1/2 over their effective draws.
    slower = (1 + phi**2) / (1 - phi**2)
    assert row["mcse_sd"] == pytest.approx(np.sqrt(slower / count / 2), rel=0.12)


def test_chains_are_those_of_the_steps_that_follow_each_other():
    run = woven(3)
    apart = separated(run, np.asarray(run.positions))
    assert apart.shape == (6, LENGTH, 1)
    np.testing.assert_array_equal(apart[4], run.positions[1, 1::3])
    other = replace(run, sampler=rw.sgld())
    assert separated(other, np.asarray(run.positions)).shape == (2, 3 * LENGTH, 1)


def test_fewer_draws_than_turns_tell_nothing_of_accuracy():
    run = replace(short(), sampler=rw.hamcmc(memory=9))
    assert separated(run, np.asarray(run.positions)).shape == (9, 0, 1)
    row = run.summary().iloc[0]
    assert np.isfinite(row[["mean", "sd"]]).all()
    assert np.isnan(row[["mcse_mean", "mcse_sd", "ess_bulk", "ess_tail"]]).all()
    assert np.isnan(rw.effective_sample_size(run)).all()
    assert np.isnan(rw.configurational_temperature(run)).all()
    assert "the temperature was not looked at" in str(run.check())
