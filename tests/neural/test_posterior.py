"""The posterior that a fit samples: priors of the weights and of the noise, and padded data."""

import inspect
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.neural.fits import NETWORK

import ridgewalk as rw
from ridgewalk import neural
from ridgewalk.neural import cli as commands
from ridgewalk.neural.estimator import SAMPLERS
from ridgewalk.neural.likelihoods import FIRST_NOISE, NOISE_WIDTH, Noisy
from ridgewalk.neural.networks import mlp
from ridgewalk.neural.posterior import PosteriorSpec, build, cold_weight, is_large, padded, padded_rows

SPEC = PosteriorSpec(
    network=NETWORK, input_shape=(2,), likelihood=Noisy(3), prior=1.0, learnt_scales=True, dtype="float32"
)


def position(prior=1.0):
    made = build(SPEC._replace(prior=prior)).start(jax.random.key(0))
    return made | {"log_noise": jnp.array([-1.0, 0.5, 2.0], jnp.float32)}


def noise_prior(log_noise):
    return -0.5 * np.sum(((np.asarray(log_noise) - np.log(FIRST_NOISE)) / NOISE_WIDTH) ** 2)


def test_a_prior_of_ones_own_is_of_the_weights_alone():
    prior = rw.gaussian_prior(0.5)
    here = position(prior)
    found = build(SPEC._replace(prior=prior)).log_prior(here)
    assert float(found) == pytest.approx(float(prior(here["network"])) + noise_prior(here["log_noise"]), rel=1e-6)


def test_an_adaptive_prior_learns_from_the_weights_alone():
    prior, here = build(SPEC._replace(prior=rw.spike_and_slab())).log_prior, position(rw.spike_and_slab())
    alone, weights = rw.spike_and_slab(), here["network"]
    state = prior.init(here, None)
    for step in range(1, 4):
        state = prior.update(state, here, None, jnp.asarray(step))
    expected = alone.init(weights, None)
    for step in range(1, 4):
        expected = alone.update(expected, weights, None, jnp.asarray(step))
    learnt = state[1]
    assert float(learnt.sigma) == pytest.approx(float(expected.sigma), rel=1e-5)
    assert float(learnt.delta) == pytest.approx(float(expected.delta), rel=1e-5)
    total = alone.log_density(expected, weights)
    assert float(prior.log_density(state, here)) == pytest.approx(
        float(total) + noise_prior(here["log_noise"]), rel=1e-5
    )
    assert np.all(np.asarray(prior.inclusion_probabilities(state, here)["log_noise"]) == 1)


def test_positions_and_parameters():
    """Chains start where the network's initialisation is, at scales of 1; the posterior is of the weights."""
    posterior, here = build(SPEC), position()
    assert here["scales"].shape == (2,)
    weights = SPEC.network.build((2,), 3).init(jax.random.key(0))
    found = posterior.parameters(here)
    assert sorted(found) == ["log_noise", "network"]
    for one, other in zip(jax.tree.leaves(found["network"]), jax.tree.leaves(weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 2)).astype("float32"), rng.normal(size=(5, 3)).astype("float32")
    each = np.arange(5.0, dtype="float32")
    raw = SPEC.network.build((2,), 3).apply(weights, jnp.asarray(x))
    expected = each * np.asarray(SPEC.likelihood.log_likelihood(here, raw, jnp.asarray(y)))
    np.testing.assert_allclose(posterior.log_likelihood(here, (x, y, each)), expected, rtol=1e-4)
    squares = sum(float(jnp.sum(z**2)) for z in jax.tree.leaves(here["network"]))
    assert float(posterior.log_prior(here)) == pytest.approx(-0.5 * squares + noise_prior(here["log_noise"]), rel=1e-5)


def test_the_rule_for_cold_posteriors():
    assert not is_large(SPEC)
    assert cold_weight(SPEC, 10) == pytest.approx((2 * 50 + 50 + 50 * 3 + 3) / 30)
    assert cold_weight(SPEC, 1_000) == 1
    assert is_large(SPEC._replace(network=mlp(hidden=(200, 200))))


def test_scales_are_numbers_of_any_kind():
    here = position()
    expected = float(build(SPEC).log_prior(here))
    for scale in (np.float32(1), np.int64(1)):
        fresh = SPEC._replace(prior=scale, network=mlp())  # another network, so that nothing cached is returned
        assert float(build(fresh).log_prior(here)) == expected


def test_the_command_has_the_default_prior_and_the_names_of_the_class():
    for name in ("prior", "network", "r_hat", "likelihood"):
        default = inspect.signature(rw.NeuralRegressor).parameters[name].default
        assert inspect.signature(commands.fit).parameters[name].default == default
    assert set(get_args(neural.SamplerName)) == {"auto", *SAMPLERS}


@pytest.mark.parametrize("examples", [7, 500, 513, 700])
def test_padded_data_have_the_posterior_of_the_examples(examples):
    """The weighted sum over padded rows is the sum over the examples times the data weight."""
    rng = np.random.default_rng(examples)
    x, y = rng.normal(size=(examples, 2)), rng.normal(size=(examples, 3))
    data = padded(x, y, np.ones(examples), 2.5, weights=100, whole=False)
    assert len(data.x) == (1024 if examples <= 512 else 4096)
    assert data.examples == examples
    np.testing.assert_allclose((data.weights[:, None] * data.y).sum(0), 2.5 * y.sum(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose((data.weights * data.x[:, 0] * data.y[:, 1]).sum(), 2.5 * x[:, 0] @ y[:, 1], rtol=1e-9)
    # The variance of a minibatch gradient, relative to that of the examples themselves.
    assert len(data.weights) * np.sum((data.weights / 2.5) ** 2) / examples**2 < 1.05


@pytest.mark.parametrize(("examples", "rows"), [(7, 128), (128, 128), (129, 256), (1000, 1024), (5000, 5120)])
def test_whole_data_are_padded_with_rows_of_weight_zero(examples, rows):
    rng = np.random.default_rng(0)
    x, y, each = rng.normal(size=(examples, 2)), rng.normal(size=(examples, 1)), rng.uniform(size=examples)
    data = padded(x, y, each, 1.0, weights=100, whole=True)
    assert len(data.x) == rows
    np.testing.assert_array_equal(data.x[:examples], x)
    np.testing.assert_allclose(data.weights[:examples], each)
    assert np.all(data.weights[examples:] == 0)


def test_large_data_are_not_padded():
    assert padded_rows(60, 10**6, 4, whole=False) == 256
    assert padded_rows(5_000, 100, 2**16, whole=False) == 5_000
    assert padded_rows(5_001, 100, 2**16, whole=True) == 5_001
