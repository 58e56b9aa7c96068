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
from ridgewalk.neural.networks import mlp
from ridgewalk.neural.posterior import FIRST_NOISE, NOISE_WIDTH, PosteriorSpec, build, padded, padded_rows
from ridgewalk.neural.regressor import NETWORKS, SAMPLERS

SPEC = PosteriorSpec(
    network=NETWORK,
    input_shape=(2,),
    outputs=3,
    likelihood="gaussian",
    prior=1.0,
    noise="each",
    relative_error=0.02,
    units=None,
    dtype="float32",
)


def position():
    made = build(SPEC).start(jax.random.key(0))
    return made | {"log_noise": jnp.array([-1.0, 0.5, 2.0], jnp.float32)}


def noise_prior(log_noise):
    return -0.5 * np.sum(((np.asarray(log_noise) - np.log(FIRST_NOISE)) / NOISE_WIDTH) ** 2)


def test_a_prior_of_ones_own_is_of_the_weights_alone():
    prior = rw.gaussian_prior(0.5)
    here = position()
    found = build(SPEC._replace(prior=prior)).log_prior(here)
    assert float(found) == pytest.approx(float(prior(here["network"])) + noise_prior(here["log_noise"]), rel=1e-6)


def test_an_adaptive_prior_learns_from_the_weights_alone():
    prior, here = build(SPEC._replace(prior=rw.spike_and_slab())).log_prior, position()
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


def test_scales_are_numbers_of_any_kind():
    here = position()
    expected = float(build(SPEC._replace(prior=2.0)).log_prior(here))
    for scale in (np.float32(2), np.int64(2)):
        fresh = SPEC._replace(prior=scale, network=mlp())  # another network, so that nothing cached is returned
        assert float(build(fresh).log_prior(here)) == expected


def test_the_command_has_the_default_prior_and_the_names_of_the_class():
    default = inspect.signature(rw.SurrogateRegressor).parameters["prior"].default
    assert inspect.signature(commands.fit).parameters["prior"].default == default
    assert set(get_args(neural.NetworkName)) == set(NETWORKS)
    assert set(get_args(neural.SamplerName)) == set(SAMPLERS)


@pytest.mark.parametrize("examples", [7, 500, 513, 700])
def test_padded_data_have_the_posterior_of_the_examples(examples):
    """The weighted sum over padded rows is the sum over the examples times the data weight."""
    rng = np.random.default_rng(examples)
    x, y = rng.normal(size=(examples, 2)), rng.normal(size=(examples, 3))
    data = padded(x, y, 2.5, weights=100)
    assert len(data.x) == (1024 if examples <= 512 else 4096)
    assert data.examples == examples
    np.testing.assert_allclose((data.weights[:, None] * data.y).sum(0), 2.5 * y.sum(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose((data.weights * data.x[:, 0] * data.y[:, 1]).sum(), 2.5 * x[:, 0] @ y[:, 1], rtol=1e-9)
    # The variance of a minibatch gradient, relative to that of the examples themselves.
    assert len(data.weights) * np.sum((data.weights / 2.5) ** 2) / examples**2 < 1.05


def test_large_data_are_not_padded():
    assert padded_rows(60, 10**6, 4) == 256
    assert padded_rows(5_000, 100, 2**16) == 5_000
