"""A small regression for the runner's tests."""

import jax
import jax.numpy as jnp
import numpy as np
from tests.targets import linear_regression

import ridgewalk as rw

REGRESSION = linear_regression()


def run(sampler=None, *, target=None, start=None, seed=0, **options):
    settings = {"steps": 60, "step_size": 1e-3, "batch_size": 40, "progress": False} | options
    position = jnp.zeros(3) if start is None else start
    return rw.sample(jax.random.key(seed), sampler or rw.sgld(), target or REGRESSION.target, position, **settings)


def assert_same_run(one, other):
    """Draws, what is known of them, and final states agree bit for bit."""
    for a, b in zip(
        jax.tree.leaves((one.positions, one.info, one.final_states)),
        jax.tree.leaves((other.positions, other.info, other.final_states)),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(a[...]), np.asarray(b[...]))
