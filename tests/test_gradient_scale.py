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
    ("given", "named"), [({"batch_size": 65}, "batch_size: 65"), ({"batch_size": 8, "batches": 0}, "batches: 0")]
)
def test_bad_input(given, named):
    with pytest.raises(ValueError, match=named):
        rw.gradient_scale(jax.random.key(0), regression(plain), POSITION, **given)


def test_data_on_disk_are_refused():
    target = regression(plain)
    batches = rw.Batches([target.data], size=64)
    with pytest.raises(ValueError, match="memory"):
        rw.gradient_scale(
            jax.random.key(0), rw.Posterior(plain, target.log_likelihood, batches), POSITION, batch_size=8
        )
