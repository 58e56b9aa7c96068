"""Likelihoods against SciPy's densities, the learnt noise against the truth, and relative errors by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm, t

import ridgewalk as rw
from ridgewalk.neural.assessment import mean_relative_error, relative_errors
from ridgewalk.neural.likelihoods import FIRST_NOISE, INPUT_NOISE, NOISE_WIDTH, Categorical, Noisy, RelativeL2


def case(noise=0.5, examples=40):
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(examples, 2))
    return jnp.asarray(raw), jnp.asarray(raw + noise * rng.normal(size=(examples, 2)))


@pytest.mark.parametrize("noise", ["each", "shared"])
@pytest.mark.parametrize("heavy", [False, True])
def test_the_density(noise, heavy):
    raw, y = case()
    likelihood = Noisy(2, noise, heavy)
    sigma, nu = (0.4 if noise == "shared" else np.array([0.4, 0.9])), 2 + np.exp(0.7)
    own = {name: jnp.asarray(leaf) for name, leaf in likelihood.start("float64").items()}
    assert own["log_noise"].shape == np.shape(sigma)
    own["log_noise"] = jnp.log(jnp.asarray(sigma))
    if heavy:
        own["log_tail"] = jnp.asarray(0.7)
    density = t(nu, raw, sigma).logpdf(y) if heavy else norm.logpdf(y, raw, sigma)
    np.testing.assert_allclose(likelihood.log_likelihood(own, raw, y), density.sum(1), rtol=1e-6)
    prior = norm.logpdf(np.log(sigma), np.log(FIRST_NOISE), NOISE_WIDTH) - norm.logpdf(0, 0, NOISE_WIDTH)
    expected = np.sum(prior) + (norm.logpdf(0.7, 1.5) - norm.logpdf(0) if heavy else 0)
    assert float(likelihood.log_prior(own)) == pytest.approx(expected, rel=1e-5)
    observed = likelihood.observe(own, raw)
    np.testing.assert_allclose(observed.scale, np.broadcast_to(sigma, raw.shape), rtol=1e-6)
    assert float(observed.degrees) == pytest.approx(nu if heavy else np.inf)


def test_noise_as_a_function_of_the_input():
    raw, y = case()
    likelihood = Noisy(1, "input")
    assert likelihood.network_outputs == 2
    own = {"log_noise": jnp.array([-1.0])}
    sigma = np.exp(-1.0 + INPUT_NOISE * np.asarray(raw[:, 1:]))
    expected = norm.logpdf(y[:, :1], raw[:, :1], sigma).sum(1)
    np.testing.assert_allclose(likelihood.log_likelihood(own, raw, y[:, :1]), expected, rtol=1e-6)
    np.testing.assert_allclose(likelihood.observe(own, raw).scale, sigma, rtol=1e-6)


def test_fixed_noise_has_no_parameters():
    raw, y = case()
    likelihood = Noisy(2, first_noise=0.3, width=0.0)
    assert likelihood.start("float32") == {}
    np.testing.assert_allclose(likelihood.log_likelihood({}, raw, y), norm.logpdf(y, raw, 0.3).sum(1), rtol=1e-6)
    single = raw.astype(jnp.float32), y.astype(jnp.float32)
    assert likelihood.log_likelihood({}, *single).dtype == jnp.float32


def test_the_noise_is_learnt():
    """Started at two fifths of the truth, σ ends near the posterior of a known-variance problem: ± 4 σ/√(2n)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    y = x @ rng.normal(size=(3, 2)) + 0.5 * rng.normal(size=(200, 2))
    likelihood = Noisy(2, "shared")
    target = rw.Posterior(
        lambda p: rw.gaussian_prior(10.0)(p["w"]) + likelihood.log_prior(p),
        lambda p, batch: likelihood.log_likelihood(p, batch[0] @ p["w"], batch[1]),
        (jnp.asarray(x), jnp.asarray(y)),
    )
    position = {"w": jnp.zeros((3, 2)), **likelihood.start(str(jnp.zeros(()).dtype))}
    result = rw.sample(
        jax.random.key(0), rw.sgld(), target, position, steps=6_000, step_size=1e-5, burn_in=3_000, progress=False
    )
    residual = float(np.std(y - x @ np.linalg.lstsq(x, y, rcond=None)[0]))
    assert float(jnp.exp(result.positions["log_noise"]).mean()) == pytest.approx(residual, rel=4 / np.sqrt(2 * 400))


def test_relative_l2_is_the_tempered_loss():
    raw, y = case()
    likelihood = RelativeL2(2, 0.05)
    np.testing.assert_allclose(likelihood.log_likelihood({}, raw, y), -relative_errors(raw, y) / 0.05, rtol=1e-5)
    slope = jax.grad(lambda value: likelihood.log_likelihood({}, value, raw).sum())(raw)
    assert jnp.all(slope == 0), "the root's slope at zero must not be NaN"
    units = RelativeL2(2, 0.05, ((1.0, 2.0), (3.0, 0.5)))
    expected = -relative_errors(np.array([1.0, 2.0]) + np.array([3.0, 0.5]) * np.asarray(raw), y) / 0.05
    np.testing.assert_allclose(units.log_likelihood({}, raw, y), expected, rtol=1e-5)


@pytest.mark.parametrize("classes", [2, 4])
def test_classes(classes):
    likelihood = Categorical(classes)
    raw = jnp.asarray(np.random.default_rng(0).normal(size=(6, likelihood.network_outputs)))
    logits = np.asarray(raw) if classes > 2 else np.concatenate([np.zeros((6, 1)), raw], axis=1)
    expected = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(likelihood.log_probabilities(raw), expected, rtol=1e-5)
    codes = np.arange(6)[:, None] % classes
    found = likelihood.log_likelihood({}, raw, jnp.asarray(codes, float))
    np.testing.assert_allclose(found, np.take_along_axis(expected, codes, axis=1)[:, 0], rtol=1e-5)


def test_relative_errors_by_hand():
    true = np.array([[3.0, 4.0], [0.0, 2.0]])
    guessed = np.array([[3.0, 4.5], [1.0, 2.0]])
    np.testing.assert_allclose(relative_errors(guessed, true), [0.1, 0.5])
    assert mean_relative_error(guessed, true) == pytest.approx(30.0)
    with pytest.raises(ValueError, match="example 1 is zero"):
        relative_errors(guessed, np.array([[1.0, 1.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="does not fit"):
        relative_errors(guessed[:1], true)


def test_bad_settings_are_named():
    for options, complaint in (({"first_noise": -1.0}, "first_noise"), ({"width": -1.0}, "width")):
        with pytest.raises(ValueError, match=complaint):
            Noisy(1, **options)
    with pytest.raises(ValueError, match="outputs: 0"):
        Noisy(0)
    with pytest.raises(ValueError, match="temperature"):
        RelativeL2(1, 0.0)
    with pytest.raises(ValueError, match="classes: 1"):
        Categorical(1)
