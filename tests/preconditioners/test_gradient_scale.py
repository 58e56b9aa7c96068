"""Scales from gradients: the formula, and what they are for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw

SIZES = jnp.array([1e-2, 1.0, 100.0, 0.0])


def regression(log_prior):
    """The last weight is in no example."""
    x = jax.random.normal(jax.random.key(0), (64, 4)) * SIZES[None, :]
    y = x @ jnp.array([200.0, 0.0, 0.0002, 0.0]) + 0.1 * jax.random.normal(jax.random.key(1), (64,))
    return rw.Posterior(log_prior, lambda w, batch: -50 * (batch[1] - batch[0] @ w["w"]) ** 2, (x, y))


def plain(w):
    return -0.5 * jnp.sum(w["w"] ** 2) / 0.25


POSITION = {"w": jnp.array([200.0, 0.1, 0.0, -1.0])}


def test_it_is_the_fourth_root_of_squared_gradients_and_the_priors_curvature():
    target, key = regression(plain), jax.random.key(2)
    found = rw.gradient_scale(key, target, POSITION, batch_size=8, batches=5)["w"]
    squares = []
    for one in jax.random.split(key, 5):
        rows = jax.random.randint(one, (8,), 0, 64)
        batch = jax.tree.map(lambda a, rows=rows: a[rows], target.data)
        squares.append(jax.grad(target.potential)(POSITION, batch)["w"] ** 2)
    np.testing.assert_allclose(found, (8 / 64 * np.mean(squares, axis=0) + 4.0) ** -0.25, rtol=1e-10)


def test_without_a_proper_prior_it_stays_finite():
    found = rw.gradient_scale(jax.random.key(2), regression(lambda w: 0.0 * jnp.sum(w["w"])), POSITION, batch_size=8)
    assert np.all(np.isfinite(found["w"]))
    assert np.argmax(found["w"]) == 3
    np.testing.assert_allclose(found["w"][3] / np.min(found["w"]), 1000, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"batch_size": 65}, "batch_size: 65"),
        ({"batch_size": 8, "batches": 0}, "batches: 0"),
        ({"batch_size": 8, "least": 1.0}, "least: 1.0"),
    ],
)
def test_bad_input(given, named):
    with pytest.raises(ValueError, match=named):
        rw.gradient_scale(jax.random.key(0), regression(plain), POSITION, **given)


def test_data_on_disk_are_refused(tmp_path):
    target = regression(plain)
    on_disk = np.memmap(tmp_path / "x", dtype=float, mode="w+", shape=(64, 4))
    for data in (rw.Batches([target.data], size=64), (on_disk, target.data[1])):
        with pytest.raises(ValueError, match="memory"):
            rw.gradient_scale(
                jax.random.key(0), rw.Posterior(plain, target.log_likelihood, data), POSITION, batch_size=8
            )


def test_at_the_mode_of_a_true_model_it_tells_the_curvature():
    """Noise 0.1 as the likelihood has it: scale⁻⁴ is the diagonal of the Hessian, within what 64 residuals tell."""
    x = jax.random.normal(jax.random.key(0), (2_000, 3)) * jnp.array([[0.1, 1.0, 10.0]])
    y = x @ jnp.array([1.0, -2.0, 0.5]) + 0.1 * jax.random.normal(jax.random.key(1), (2_000,))
    target = rw.Posterior(rw.gaussian_prior(10.0), lambda w, batch: -50 * (batch[1] - batch[0] @ w) ** 2, (x, y))
    mode = jnp.linalg.lstsq(x, y)[0]
    found = rw.gradient_scale(jax.random.key(2), target, mode, batch_size=50, batches=2_000)
    np.testing.assert_allclose(found**-4, 100 * np.sum(x**2, axis=0) + 0.01, rtol=0.2)


def test_a_prior_that_ties_weights_counts_by_its_diagonal():
    precision = 1e4 * (2 * jnp.eye(4) - jnp.eye(4, k=1) - jnp.eye(4, k=-1))
    target = rw.Posterior(lambda w: -0.5 * w @ precision @ w, lambda w, batch: 0 * batch * jnp.sum(w), jnp.ones(8))
    found = rw.gradient_scale(jax.random.key(2), target, jnp.zeros(4), batch_size=4, batches=2)
    np.testing.assert_allclose(found**-4, 2e4, rtol=0.5)  # rows sum to 1e4 or to 0


def test_least_bounds_the_scales_of_idle_weights():
    target, key = regression(plain), jax.random.key(2)
    free, bound = (rw.gradient_scale(key, target, POSITION, batch_size=8, least=least)["w"] for least in (0.0, 0.01))
    high = np.quantile(np.asarray(free) ** -4, 0.99)
    np.testing.assert_allclose(bound**-4, np.maximum(np.asarray(free) ** -4, 0.01 * high), rtol=1e-6)
    assert bound[3] < free[3]
