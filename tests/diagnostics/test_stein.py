"""The kernelised Stein discrepancy: against a slow formula by automatic differentiation; right and wrong draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.diagnostics.runs import REGRESSION, healthy

import ridgewalk as rw

COVARIANCE = np.array([[1.0, 0.6], [0.6, 2.0]])
PRECISION = np.linalg.inv(COVARIANCE)


def draws(count, seed=0, scale=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    return scale * rng.multivariate_normal(np.zeros(2), COVARIANCE, count) + shift


def naive(x, scores, metric):
    """Pair by pair, every derivative of the kernel by JAX; distances are (x − y)ᵀ metric⁻¹ (x − y)."""
    inverse = np.linalg.inv(metric)

    def kernel(a, b):
        return (1 + (a - b) @ inverse @ (a - b)) ** -0.5

    def stein(a, sa, b, sb):
        # In whitened coordinates derivatives carry the factor L: traces and products go through the metric.
        cross = jax.jacfwd(jax.grad(kernel, 0), 1)(a, b)
        along = sa @ metric @ jax.grad(kernel, 1)(a, b) + sb @ metric @ jax.grad(kernel, 0)(a, b)
        return sa @ metric @ sb * kernel(a, b) + along + jnp.trace(metric @ cross)

    one = jax.vmap(stein, (None, None, 0, 0))
    table = jax.vmap(one, (0, 0, None, None))(x, scores, x, scores)
    return float(np.sqrt(np.mean(np.asarray(table))))


@pytest.mark.parametrize("scaling", ["none", "diagonal", "covariance"])
def test_equals_the_slow_formula(scaling):
    x = draws(30)
    gradients = x @ PRECISION
    centred = x - x.mean(0)
    spread = centred.T @ centred / len(x)
    metric = {"none": np.eye(2), "diagonal": np.diag(np.diag(spread)), "covariance": spread}[scaling]
    got = rw.stein_discrepancy_of(x, gradients, scaling=scaling, temperature=2.0)
    assert got == pytest.approx(naive(jnp.asarray(x), jnp.asarray(-gradients / 2.0), metric), rel=1e-9)


@pytest.mark.parametrize("scaling", ["none", "covariance"])
def test_small_on_right_draws_and_large_on_wrong_ones(scaling):
    def discrepancy(x):
        return rw.stein_discrepancy_of(x, x @ PRECISION, scaling=scaling)

    right, fewer = (np.mean([discrepancy(draws(n, seed)) for seed in range(10)]) for n in (1000, 250))
    assert right == pytest.approx(fewer / 2, rel=0.15), "falls as the root of the number of draws"
    for wrong in (draws(1000, scale=2**0.5), draws(1000, scale=0.5), draws(1000, shift=0.5)):
        assert discrepancy(wrong) > 2 * right


def test_of_a_run():
    run = healthy("sgld, control variates")
    got = rw.stein_discrepancy(run, max_draws=400, scaling="covariance")
    rng = np.random.default_rng(1)
    exact = rng.multivariate_normal(REGRESSION.mean, REGRESSION.covariance, 400)
    gradients = (exact - REGRESSION.mean) @ np.linalg.inv(REGRESSION.covariance)
    reference = rw.stein_discrepancy_of(exact, gradients, scaling="covariance")
    wrong = rw.stein_discrepancy_of(exact, 2 * gradients, scaling="covariance")
    assert got < 2 * reference < wrong
    assert rw.stein_discrepancy(run, max_draws=400, scaling="covariance", examples=200) > got, "gradient noise"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradients": np.zeros((3, 2))}, "gradients: shapes"),
        ({"gradients": np.full((4, 2), np.nan)}, "gradients: .* not finite"),
        ({"scaling": "whole"}, "scaling: 'whole' is unknown"),
        ({"beta": -2.0}, "beta: -2.0"),
        ({"positions": np.ones((2, 4)), "gradients": np.ones((2, 4)), "scaling": "covariance"}, "more draws than 2"),
    ],
)
def test_bad_input(arguments, message):
    given = {"positions": np.zeros((4, 2)), "gradients": np.zeros((4, 2))} | arguments
    with pytest.raises(ValueError, match=message):
        rw.stein_discrepancy_of(given.pop("positions"), given.pop("gradients"), **given)
