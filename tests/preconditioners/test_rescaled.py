"""A rescaled preconditioner does to θ what its inner one does to θ/scale: the same chain, in other units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw
from ridgewalk._pytree import layout_of
from ridgewalk.diagnostics.curvature import curvature_pair_stats

SCALE = {"a": jnp.array([1 / 64, 1.0]), "b": jnp.array([[32.0], [0.5]])}
START = {"a": jnp.array([0.02, -1.0]), "b": jnp.array([[10.0], [0.3]])}


def log_density(p):
    """A correlated Gaussian in units of the scale, and a fourth power, so that curvature changes."""
    x = jnp.concatenate([(p["a"] / SCALE["a"]).ravel(), (p["b"] / SCALE["b"]).ravel()])
    mixed = x + 0.5 * jnp.roll(x, 1)
    return -0.5 * jnp.sum(mixed**2) - 0.05 * jnp.sum(x**4)


def in_units(p):
    return log_density(jax.tree.map(jnp.multiply, p, SCALE))


@pytest.mark.parametrize(
    "inner",
    [
        rw.SnapshotLBFGS(memory=2, curvature_every=3),
        pytest.param(rw.RMSProp(curvature_correction=True), marks=pytest.mark.slow),
        pytest.param(rw.Dense(), marks=pytest.mark.slow),
        pytest.param(rw.LowRank(rank=1, spare=1), marks=pytest.mark.slow),
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_it_is_the_inner_chain_in_other_units(inner):
    def run(preconditioner, density, start):
        sampler = rw.Sampler(rw.Langevin(), preconditioner)
        key = jax.random.key(0)
        return rw.sample(key, sampler, rw.Density(density), start, steps=60, step_size=0.03, progress=False).positions

    here = run(rw.rescaled(inner, SCALE), log_density, START)
    there = run(inner, in_units, jax.tree.map(jnp.divide, START, SCALE))
    for name, scale in SCALE.items():
        np.testing.assert_allclose(here[name], np.asarray(there[name]) * np.asarray(scale), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scale", [{"a": jnp.array([1.0, -2.0])}, {"a": jnp.array([1.0, jnp.nan])}])
def test_scales_must_be_positive(scale):
    with pytest.raises(ValueError, match=r"scale: 1 of 2 numbers are not positive"):
        rw.rescaled(rw.Dense(), scale)


@pytest.mark.parametrize("count", [3, 5])
def test_scales_must_fit_the_position(count):
    sampler = rw.Sampler(rw.Langevin(), rw.rescaled(rw.Dense(), jnp.ones(count)))
    with pytest.raises(ValueError, match=f"scale: it has {count} numbers, the position 4"):
        rw.sample(jax.random.key(0), sampler, rw.Density(log_density), START, steps=2, step_size=0.1, progress=False)


def test_what_learns_inside_is_known_outside():
    """`find_step_size` and `check` treat a preconditioner by what it learns."""
    twice = rw.rescaled(rw.rescaled(rw.Dense(), SCALE), SCALE)
    assert isinstance(twice.resolve(layout_of(START)).unwrapped, rw.Dense)
    sampler = rw.Sampler(rw.Langevin(), rw.rescaled(rw.SnapshotLBFGS(memory=2, curvature_every=3), SCALE))
    density = rw.Density(log_density)
    result = rw.sample(jax.random.key(0), sampler, density, START, steps=30, step_size=0.03, progress=False)
    assert curvature_pair_stats(result).pairs == 10


def test_scales_are_rounded_to_powers_of_two():
    np.testing.assert_array_equal(rw.rescaled(rw.Dense(), jnp.array([0.3, 1.0, 90.0])).scale, [0.25, 1.0, 64.0])
