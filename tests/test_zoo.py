"""The zoo is what it says: densities that can be started, references that can be trusted, a comparison that fails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import zoo

import ridgewalk as rw

BY_DEFAULT = ("eight_schools", "robust")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case.name in BY_DEFAULT else [pytest.mark.slow]) for case in zoo.CASES],
    ids=lambda case: case.name,
)
def test_densities_and_references(case):
    starts = case.starts(jax.random.key(0), 2)
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(case.target.potential)))(starts)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((values, gradients)))
    first = jax.tree.map(lambda leaf: leaf[0], starts)
    if case.log_likelihood is not None:
        posterior = case.posterior
        assert posterior.likelihood_values(first, posterior.data).shape == (posterior.size,)
        np.testing.assert_allclose(posterior.potential(first, posterior.data), values[0])
    reference = case.reference
    assert {name: leaf.shape for name, leaf in reference.mean.items()} == case.shapes
    assert min(float(leaf.min()) for leaf in reference.ess.values()) >= 2_000
    assert reference.max_r_hat < 1.01
    if case.name != "network":  # the mean over mirrored modes is in none of them
        at_mean = float(case.target.potential(jax.tree.map(jnp.asarray, reference.mean)))
        assert at_mean < reference.potential[0] + 4 * reference.potential[1]


def test_starts_are_the_same_in_both_precisions():
    case = zoo.BY_NAME["poisson"]
    starts = case.starts(jax.random.key(0), 3)["beta"]
    assert starts.shape == (3, 5)
    np.testing.assert_array_equal(starts, np.asarray(starts, np.float32))
    assert np.abs(starts).max() <= 2


def test_comparison_names_what_differs():
    case = zoo.BY_NAME["poisson"]
    mean, sd = case.reference.mean["beta"], case.reference.sd["beta"]
    right = mean + sd * np.random.default_rng(0).normal(size=(4, 5_000, 5))
    start = case.starts(jax.random.key(0), 1)["beta"][0]
    options = {"steps": 4, "step_size": 1e-6, "chains": 4, "progress": False}
    made = rw.sample(jax.random.key(0), rw.sgld(), case.target, {"beta": start}, **options)

    def compared(draws):
        result = rw.Result(**{**vars(made), "positions": {"beta": draws}, "step_sizes": np.ones(5_000)})
        return zoo.compare(result, case)

    assert compared(right).agrees
    shifted = compared(right + np.array([0, 0, 0.5, 0, 0]) * sd)
    assert not shifted.agrees
    assert shifted.worst == "beta[2]"
    assert not compared(mean + 0.7 * (right - mean)).agrees
