"""Posteriors on which the best step size is found by trying: the error of runs of one length at any step size."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ridgewalk as rw
from ridgewalk.studies.framework.comparison import covariance_error
from ridgewalk.studies.gaussian.study import paper_gaussian
from ridgewalk.studies.logistic import logistic_regression

POINTS, HIDDEN, SIGMA = 200, 8, 0.5


class Case(NamedTuple):
    """What is run, and the error of one chain's draws."""

    target: Any
    start: Any
    error: Callable[[Any], float]
    steps: int
    burn_in: int
    batch_size: int | None


@lru_cache
def gaussian() -> Case:
    """The paper's 2D Gaussian: mean absolute error of the entries of the covariance, as in its study."""
    problem = paper_gaussian()
    covariance = np.linalg.inv(problem.hessian)

    def error(draws):
        return float(np.abs(np.cov(np.asarray(draws, float).T) - covariance).mean())

    return Case(problem.target, jnp.asarray(problem.mode), error, 30_000, 500, None)


@lru_cache
def logistic(control_variates: bool = False) -> Case:
    """50-d logistic regression: mean absolute log eigenvalue of the whitened covariance, as in its study."""
    problem = logistic_regression()
    start = jnp.asarray(problem.mode)
    target = rw.control_variates(problem.target, start) if control_variates else problem.target

    def error(draws):
        return covariance_error(np.asarray(draws, float), problem.hessian)

    return Case(target, start, error, 20_000, 2_000, 100)


def predict(p, x):
    return jnp.tanh(x[:, None] * p["w"][None] + p["b"][None]) @ p["v"] + p["c"]


@lru_cache
def network() -> Case:
    """A 1-8-1 tanh network on 200 points: predictive mean and variance on a grid against NUTS."""
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.uniform(-2, 2, POINTS))
    y = jnp.asarray(np.sin(2 * np.asarray(x)) + SIGMA * rng.normal(size=POINTS))
    grid = jnp.linspace(-2.4, 2.4, 49)

    def log_prior(p):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))

    def log_likelihood(p, batch):
        return -0.5 * ((batch[1] - predict(p, batch[0])) / SIGMA) ** 2

    target = rw.Posterior(log_prior, log_likelihood, (x, y))
    keys = jax.random.split(jax.random.key(5), 4)
    first = {
        "w": jax.random.normal(keys[0], (HIDDEN,)),
        "b": jax.random.normal(keys[1], (HIDDEN,)),
        "v": 0.5 * jax.random.normal(keys[2], (HIDDEN,)),
        "c": jnp.zeros(()),
    }
    start = descend(target, first)
    predictions = jax.jit(jax.vmap(lambda p: predict(p, grid)))
    reference = np.asarray(predictions(nuts(lambda p: -target.potential(p, (x, y)), start)))
    mean, variance = reference.mean(0), reference.var(0)

    def error(draws):
        made = np.asarray(predictions(draws))
        shift = (made.mean(0) - mean) ** 2 / variance
        return float(np.sqrt(np.mean(shift + 0.5 * np.log(made.var(0) / variance) ** 2)))

    return Case(target, start, error, 20_000, 2_000, 25)


def descend(target, start, steps=3_000):
    """Near a mode, by Adam on all data."""
    rule = optax.adam(0.01)

    def step(carry, _):
        p, state = carry
        change, state = rule.update(jax.grad(target.potential)(p, target.data), state)
        return (optax.apply_updates(p, change), state), None

    return jax.jit(lambda p: jax.lax.scan(step, (p, rule.init(p)), None, length=steps)[0][0])(start)


def nuts(log_density, start, chains=4, warm_up=500, draws=2_500):
    """Reference draws, exact but for Monte Carlo error."""

    def one(key):
        warm, run = jax.random.split(key)
        (state, found), _ = blackjax.window_adaptation(blackjax.nuts, log_density).run(warm, start, num_steps=warm_up)
        kernel = blackjax.nuts(log_density, **found).step

        def step(state, key):
            state, _ = kernel(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(run, draws))[1]

    made = jax.jit(lambda keys: jax.lax.map(one, keys))(
        jax.random.split(jax.random.key(9), chains)
    )  # in lockstep it would wait for the longest tree
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), made)


def errors(case: Case, sampler, step_size: float, *, seed: int = 0, seeds: int = 8) -> np.ndarray:
    """The error of every chain; infinite for one that diverged."""
    try:
        result = rw.sample(
            jax.random.key(seed), sampler, case.target, case.start,
            steps=case.steps, step_size=step_size, batch_size=case.batch_size, chains=seeds, burn_in=case.burn_in,
            progress=False,
        )  # fmt: skip
    except rw.DivergenceError:
        return np.full(seeds, np.inf)
    found = [
        case.error(jax.tree.map(lambda leaf, c=c: leaf[c], result.positions)) if alive else np.inf
        for c, alive in enumerate(result.alive)
    ]
    return np.array(found)
