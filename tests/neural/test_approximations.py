"""Gaussian approximations where they are exact: a linear network with known noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ridgewalk.neural.approximations import MOST_DENSE, laplace_draws, swag_draws
from ridgewalk.neural.likelihoods import Noisy
from ridgewalk.neural.networks import FunctionNetwork
from ridgewalk.neural.posterior import PosteriorSpec, build, padded

NOISE = 0.5


def linear():
    def init(key, shape, outputs):
        return {"w": jax.random.normal(key, (shape[0], outputs))}

    return FunctionNetwork(init, lambda w, x: x @ w["w"])


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 3)).astype("float32")
    y = (x @ rng.normal(size=(3, 1)) + NOISE * rng.normal(size=(70, 1))).astype("float32")
    spec = PosteriorSpec(linear(), (3,), Noisy(1, first_noise=NOISE, width=0.0), 2.0, False, "float32")
    posterior = build(spec)
    data = padded(x, y, np.ones(70), 1.0, 3, whole=True)
    unit = float(np.asarray(posterior.parameters({"network": {"w": jnp.ones((3, 1))}})["network"]["w"])[0, 0])
    precision = x.T @ x / NOISE**2 + np.eye(3) / unit**2
    mode = np.linalg.solve(precision, x.T @ y / NOISE**2)
    starts = {"network": {"w": np.stack([mode / unit] * 2).astype("float32")}}
    return posterior, posterior.posterior(data), starts, x, y, precision, mode


def test_laplace_is_the_posterior_of_a_linear_model(case):
    posterior, target, starts, x, _, precision, mode = case
    draws = laplace_draws(jax.random.key(0), posterior, target, starts, 4_000)
    assert draws["tangent"]["w"].shape == (2, 4_000, 3, 1)
    np.testing.assert_allclose(draws["network"]["w"][1, 7], mode, rtol=1e-4)
    deviations = draws["tangent"]["w"].reshape(-1, 3)
    ratio = np.cov(deviations.T) @ precision
    np.testing.assert_allclose(ratio, np.eye(3), atol=0.08)
    one = jax.tree.map(lambda leaf: leaf[0, 3], draws)
    expected = x @ (np.asarray(one["network"]["w"]) + np.asarray(one["tangent"]["w"]))
    np.testing.assert_allclose(posterior.raw(one, jnp.asarray(x)), expected, rtol=1e-4, atol=1e-4)


def test_swag_stays_around_the_mode(case):
    _, target, starts, _, _, precision, mode = case
    draws, steps = swag_draws(jax.random.key(1), target, starts, 70, 500)
    assert steps > 0
    assert draws["network"]["w"].shape == (2, 500, 3, 1)
    centre = draws["network"]["w"].mean((0, 1))
    width = draws["network"]["w"].std((0, 1))
    start = starts["network"]["w"][0]
    assert np.all(width > 0)
    assert np.all(np.abs(centre - start) < 6 * np.sqrt(np.diag(np.linalg.inv(precision)))[:, None] + 3 * width)
    assert mode.shape == (3, 1)


def test_a_large_network_has_no_dense_matrix(case):
    posterior, target, *_ = case
    starts = {"network": {"w": np.zeros((1, MOST_DENSE + 1, 1), "float32")}}
    with pytest.raises(ValueError, match="method: 'laplace' needs a matrix"):
        laplace_draws(jax.random.key(0), posterior, target, starts, 2)
