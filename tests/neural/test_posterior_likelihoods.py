"""Likelihoods against SciPy's densities, the learnt noise against the truth, and relative errors by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import ridgewalk as rw
from ridgewalk.neural.assessment import mean_relative_error, relative_errors
from ridgewalk.neural.posterior import gaussian, relative_l2


def apply(parameters, x):
    return x @ parameters["w"]


def case(noise=0.5, examples=40):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(examples, 3)), rng.normal(size=(3, 2))
    return {"w": jnp.asarray(w)}, jnp.asarray(x), jnp.asarray(x @ w + noise * rng.normal(size=(examples, 2)))


@pytest.mark.parametrize("outputs", [None, 2])
def test_gaussian_is_the_density(outputs):
    parameters, x, y = case()
    likelihood = gaussian(apply, prior_scale=2.0, noise=0.3, noise_width=0.7, outputs=outputs)
    position = likelihood.start(parameters)
    np.testing.assert_allclose(likelihood.noise(position), np.full(() if outputs is None else 2, 0.3))
    sigma = 0.4 if outputs is None else np.array([0.4, 0.9])
    position["log_noise"] = jnp.log(jnp.asarray(sigma))
    expected = norm.logpdf(y, x @ parameters["w"], sigma).sum(1)
    np.testing.assert_allclose(likelihood.log_likelihood(position, (x, y)), expected, rtol=1e-10)
    prior = norm.logpdf(parameters["w"], 0, 2).sum() + norm.logpdf(np.log(sigma), np.log(0.3), 0.7).sum()
    at_start = likelihood.log_prior(likelihood.start(parameters)) - likelihood.log_prior(position)
    start = (
        norm.logpdf(parameters["w"], 0, 2).sum() + norm.logpdf(np.full_like(sigma, np.log(0.3)), np.log(0.3), 0.7).sum()
    )
    assert float(at_start) == pytest.approx(start - prior)
    np.testing.assert_allclose(likelihood.predict(position, x), x @ parameters["w"])


def test_fixed_noise_leaves_the_parameters_as_they_are():
    parameters, x, y = case()
    likelihood = gaussian(apply, noise=0.3, noise_width=0)
    assert likelihood.start(parameters) is parameters
    expected = norm.logpdf(y, x @ parameters["w"], 0.3).sum(1)
    np.testing.assert_allclose(likelihood.log_likelihood(parameters, (x, y)), expected, rtol=1e-10)
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (parameters, x, y))
    assert likelihood.log_likelihood(single[0], single[1:]).dtype == jnp.float32


def test_the_noise_is_learnt():
    """Started at a fifth of the truth, σ ends near the posterior of a known-variance problem: ± 4 σ/√(2n)."""
    parameters, x, y = case(noise=0.5, examples=200)
    likelihood = gaussian(apply, prior_scale=10.0, noise=0.1, noise_width=2.0)
    target = rw.Posterior(likelihood.log_prior, likelihood.log_likelihood, (x, y))
    position = likelihood.start({"w": jnp.zeros((3, 2))})
    result = rw.sample(
        jax.random.key(0), rw.sgld(), target, position, steps=6_000, step_size=1e-5, burn_in=3_000, progress=False
    )
    residual = float(jnp.std(y - x @ parameters["w"]))
    assert float(jnp.exp(result.positions["log_noise"]).mean()) == pytest.approx(residual, rel=4 / np.sqrt(2 * 400))


def test_relative_l2_is_the_tempered_loss():
    parameters, x, y = case()
    likelihood = relative_l2(apply, temperature=0.05)
    errors = relative_errors(x @ parameters["w"], y)
    np.testing.assert_allclose(likelihood.log_likelihood(parameters, (x, y)), -errors / 0.05, rtol=1e-10)
    exact = (x, x @ parameters["w"])
    slope = jax.grad(lambda p: likelihood.log_likelihood(p, exact).sum())(parameters)
    assert jnp.all(slope["w"] == 0), "the root's slope at zero must not be NaN"


def test_relative_errors_by_hand():
    true = np.array([[3.0, 4.0], [0.0, 2.0]])
    guessed = np.array([[3.0, 4.5], [1.0, 2.0]])
    np.testing.assert_allclose(relative_errors(guessed, true), [0.1, 0.5])
    assert mean_relative_error(guessed, true) == pytest.approx(30.0)
    with pytest.raises(ValueError, match="example 1 is zero"):
        relative_errors(guessed, np.array([[1.0, 1.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="does not fit"):
        relative_errors(guessed[:1], true)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"prior_scale": 0.0}, "prior_scale"),
        ({"noise": -1.0}, "noise"),
        ({"noise_width": -1.0}, "noise_width"),
        ({"outputs": 0}, "outputs"),
    ],
)
def test_bad_settings_are_named(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        gaussian(apply, **options)
    with pytest.raises(ValueError, match="temperature"):
        relative_l2(apply, temperature=0.0)
