"""Small fits that the tests of the estimators share."""

import numpy as np

import ridgewalk as rw
from ridgewalk.neural.estimator import network_of

NETWORK = network_of("mlp")
"""The object of that name, so that all fits of the same sizes, also by the command line, share what JAX compiled."""

TINY = {
    "optimiser_steps": 200,
    "learning_rate": 0.05,
    "steps": 24,
    "burn_in": 8,
    "draws": 8,
    "chains": 2,
    "step_size": 1e-7,
    "holdout": 0.2,
    "recalibration": "conformal",
}
"""Enough for every phase to happen; a given step size needs no warm-up, which would have to be compiled."""


def tiny(**settings):
    return rw.NeuralRegressor(**{"network": NETWORK, "sampler": "sgld", **TINY, **settings})


def waves(examples=60, seed=0):
    """Three inputs of very different scales, one of them constant; a large, a tiny and a constant output."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(-2, 2, (2, examples))
    x = np.stack([1e6 * a, 1e-9 * b, np.full(examples, 3.0)], axis=1)
    y = np.stack([1e5 * np.sin(a) + 7e6, 1e-12 * (a * b), np.full(examples, 0.1)], axis=1)
    return x, y


def blobs(examples=80, classes=3, seed=0):
    """Classes around random centres, with names."""
    rng = np.random.default_rng(seed)
    centres = 2 * np.random.default_rng(0).normal(size=(classes, 2))
    codes = rng.integers(0, classes, examples)
    return centres[codes] + 0.4 * rng.normal(size=(examples, 2)), np.array(["cat", "dog", "eel"])[codes]
