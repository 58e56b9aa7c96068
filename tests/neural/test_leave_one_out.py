"""Leave-one-out estimates against the truth, for a model whose posteriors are known."""

import numpy as np
import pytest
from scipy.stats import norm

from ridgewalk.neural.predictive import Mixture, leave_one_out, smoothed_weights, some_examples


@pytest.fixture(scope="module")
def normal_mean():
    """y ~ N(m, 1), flat prior of m: the posterior is N(mean, 1/n), and without example i N(mean of the others, …)."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=40)
    draws = rng.normal(y.mean(), 1 / np.sqrt(40), size=4_000)
    location = np.broadcast_to(draws[:, None, None], (4_000, 40, 1))
    return y[:, None], Mixture(location, np.ones_like(location), np.full(4_000, np.inf))


def test_the_density_without_the_example(normal_mean):
    y, mixture = normal_mean
    found = leave_one_out(mixture, y)
    others = (y.sum() - y[:, 0]) / 39
    expected = norm.logpdf(y[:, 0], others, np.sqrt(1 + 1 / 39))
    np.testing.assert_allclose(found.log_density, expected, atol=0.03)
    np.testing.assert_allclose(found.cumulative[:, 0], norm.cdf(y[:, 0], others, np.sqrt(1 + 1 / 39)), atol=0.01)
    np.testing.assert_allclose(found.predictive.mean[:, 0], others, atol=0.03)
    np.testing.assert_allclose(found.predictive.std[:, 0], np.sqrt(1 + 1 / 39), rtol=0.02)
    assert found.unreliable == 0
    assert np.abs(mixture.log_density(y) - expected).max() > 0.05, "the estimate differs from the density on all rows"


def test_heavy_tails_are_unreliable():
    """Ratios of a Pareto distribution with shape 1.2 have no mean; with shape 0.2 they have."""
    u = np.random.default_rng(1).uniform(size=(4_000, 20))
    weights, heavy = smoothed_weights(-1.2 * np.log(u))
    np.testing.assert_allclose(np.exp(weights).sum(0), 1)
    assert np.all(heavy > 0.7)
    assert np.all(smoothed_weights(-0.2 * np.log(u))[1] < 0.7)
    assert np.median(heavy) == pytest.approx(1.2, abs=0.2)


def test_few_draws_and_many_examples():
    weights, shape = smoothed_weights(np.zeros((4, 3)))
    np.testing.assert_allclose(weights, np.log(0.25))
    assert np.all(np.isinf(shape))
    assert len(some_examples(7)) == 7
    assert len(some_examples(50_000)) == 1_000
