"""The posterior that a fit samples: what the prior is of, what the optimiser sees of a weight, what notes are for."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fits import NETWORK

import ridgewalk as rw
from ridgewalk.surrogates import commands, fitting
from ridgewalk.surrogates.optimise import Schedule, _advance, begin
from ridgewalk.surrogates.problem import FIRST_NOISE, NOISE_WIDTH, Spec, _define, define

SPEC = Spec(
    network=NETWORK,
    input_shape=(2,),
    outputs=3,
    examples=5,
    likelihood="gaussian",
    prior=1.0,
    noise="each",
    relative_error=0.02,
    data_weight=1.0,
    units=None,
    dtype="float32",
)


def position():
    made = define(SPEC).start(jax.random.key(0))
    return made | {"log_noise": jnp.array([-1.0, 0.5, 2.0], jnp.float32)}


def noise_prior(log_noise):
    return -0.5 * np.sum(((np.asarray(log_noise) - np.log(FIRST_NOISE)) / NOISE_WIDTH) ** 2)


def test_a_prior_of_ones_own_is_of_the_weights_alone():
    prior = rw.gaussian_prior(0.5)
    here = position()
    found = define(SPEC._replace(prior=prior)).log_prior(here)
    assert float(found) == pytest.approx(float(prior(here["network"])) + noise_prior(here["log_noise"]), rel=1e-6)


def test_an_adaptive_prior_learns_from_the_weights_alone():
    prior, here = define(SPEC._replace(prior=rw.spike_and_slab())).log_prior, position()
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
    """NumPy's too; and the optimiser of a prior that learns takes the default scale."""
    here = position()
    expected = float(define(SPEC._replace(prior=2.0)).log_prior(here))
    for scale in (np.float32(2), np.int64(2)):  # equal to 2.0, so `define` would give what it remembers
        assert float(_define(SPEC._replace(prior=scale)).log_prior(here)) == expected
    spec, data = SPEC._replace(prior=rw.spike_and_slab()), (jnp.ones((5, 2)), jnp.ones((5, 3)))
    plain = fitting._with_plain_prior(spec, define(spec).posterior(*data))
    default = inspect.signature(rw.SurrogateRegressor).parameters["prior"].default
    assert inspect.signature(commands.fit).parameters["prior"].default == default
    assert float(plain.log_prior(here)) == float(define(SPEC._replace(prior=default)).log_prior(here))


def test_the_optimiser_goes_the_same_way_whatever_examples_count():
    """Gradients are cut at a length of 1, which they must not reach sooner because each example counts ten times."""
    x = jax.random.normal(jax.random.key(1), (20, 2))

    def end(weight):
        target = rw.Posterior(
            lambda w: -0.5 * weight * jnp.sum(w**2), lambda w, batch: -5 * weight * (batch @ w - 3) ** 2, x
        )
        schedule = Schedule(30, 0.01, 5, 1, weight)
        made = begin(jnp.array([2.0, -2.0]), schedule=schedule)
        return _advance(target, jax.random.key(0), made, jnp.asarray(0), jnp.asarray(30), schedule=schedule)

    one, ten = end(1.0), end(10.0)
    np.testing.assert_allclose(one.position, ten.position, rtol=1e-6)
    np.testing.assert_allclose(one.losses, ten.losses, rtol=1e-6)


def test_a_noted_step_size_is_for_one_fit_only(tmp_path, monkeypatch):
    settings = fitting.Settings(0, 1e-3, 10, 5, 4, 2, 5, "auto", 0, tmp_path, "5 min", False)
    found = iter([0.1, 0.2, 0.3, 0.4, 0.5])
    monkeypatch.setattr(fitting, "stable_step_size", lambda *_: next(found))

    def noted(spec=SPEC, sampler=None, shift=0.0, here=None):
        target = define(spec).posterior(jnp.ones((5, 2)) + shift, jnp.ones((5, 3)))
        return fitting._step_size(spec, sampler or rw.sgld(), target, here or position(), settings)

    assert noted() == noted() == 0.1
    assert noted(SPEC._replace(data_weight=2.0)) == 0.2
    assert noted(shift=1.0) == 0.3
    assert noted(sampler=rw.pruned(rw.sgld(), 0.5, stop=3)) == 0.4
    assert noted(here=define(SPEC).start(jax.random.key(5))) == 0.5


def test_streams_of_random_numbers_are_distinct():
    keys = [np.asarray(jax.random.key_data(key)).tolist() for key in fitting._streams(0)]
    keys += [
        np.asarray(jax.random.key_data(key)).tolist() for one in fitting._streams(0) for key in jax.random.split(one, 8)
    ]
    assert len({tuple(key) for key in keys}) == len(keys)
