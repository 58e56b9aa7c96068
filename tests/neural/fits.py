"""Small fits that the tests of the estimator share."""

import numpy as np

import ridgewalk as rw
from ridgewalk.neural.regressor import network_of

NETWORK = network_of("mlp")
"""The object of that name, so that all fits of the same sizes, also by the command line, share what JAX compiled."""

TINY = {"optimiser_steps": 200, "learning_rate": 0.02, "steps": 24, "burn_in": 8, "draws": 8, "chains": 2}
"""Enough for every phase to happen."""


def tiny(**settings):
    return rw.SurrogateRegressor(**{"network": NETWORK, "sampler": "sgld", **TINY, **settings})


def waves(examples=60, seed=0):
    """Three inputs of very different scales, one of them constant; a large, a tiny and a constant output."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(-2, 2, (2, examples))
    x = np.stack([1e6 * a, 1e-9 * b, np.full(examples, 3.0)], axis=1)
    y = np.stack([1e5 * np.sin(a) + 7e6, 1e-12 * (a * b), np.full(examples, 0.1)], axis=1)
    return x, y
