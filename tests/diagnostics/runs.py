"""Runs shared by the tests of the diagnostics."""

from functools import cache

import jax
import jax.numpy as jnp
from tests.targets import correlated_gaussian, linear_regression

import ridgewalk as rw

REGRESSION = linear_regression()
GAUSSIAN = correlated_gaussian()
STEEPEST = REGRESSION.steepest


def run(sampler, target=REGRESSION.target, d=3, *, seed=0, start=None, **options):
    settings = {"steps": 8_000, "burn_in": 1_000, "thin": 5, "chains": 4, "progress": False} | options
    position = jnp.zeros(d) if start is None else start
    return rw.sample(jax.random.key(seed), sampler, target, position, **settings)


@cache
def centred():
    return rw.control_variates(REGRESSION.target, jnp.asarray(REGRESSION.mean))


@cache
def healthy(name, seed=0):
    """A run with nothing wrong; the step sizes leave a few percent of bias."""
    recipes = {
        "sgld": (rw.sgld(), {"step_size": 0.1 / STEEPEST, "batch_size": None}),
        "sgld, minibatch": (rw.sgld(), {"step_size": 0.05 / STEEPEST, "batch_size": 40}),
        "sgld, control variates": (rw.sgld(), {"step_size": 0.1 / STEEPEST, "batch_size": 40, "target": centred()}),
        "hasgld_sa": (rw.hasgld_sa(memory=2), {"step_size": 0.03, "batch_size": 40}),
        "hasgld_sa, control variates": (rw.hasgld_sa(), {"step_size": 0.05, "batch_size": 40, "target": centred()}),
        "hasgld_sa, limited": (rw.hasgld_sa(form="snapshot_lbfgs"), {"step_size": 0.03, "batch_size": 100}),
        "sghmc": (rw.sghmc(), {"step_size": 0.01, "target": GAUSSIAN.target, "d": 2}),
        "sghmc, minibatch": (rw.sghmc(), {"step_size": 0.01 / STEEPEST, "batch_size": 100}),
        "sgnht, minibatch": (rw.sgnht(), {"step_size": 0.01 / STEEPEST, "batch_size": 100}),
        "psgld": (rw.psgld(), {"step_size": 0.05, "target": GAUSSIAN.target, "d": 2}),
        "hamcmc": (rw.hamcmc(), {"step_size": 0.03, "target": GAUSSIAN.target, "d": 2}),
    }
    sampler, options = recipes[name]
    return run(sampler, seed=seed, **options)


def bowl(p):
    return -0.5 * jnp.sum(p["w"] ** 2) - 0.5 * p["b"] ** 2


def tree_run(**options):
    start = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(())}
    settings = {"step_size": 0.2, "steps": 800, "burn_in": 100, "thin": 2, "chains": 2} | options
    return run(rw.sgld(), rw.Density(bowl), start=start, **settings)
