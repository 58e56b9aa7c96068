"""Dataclasses as pytrees, positions as flat vectors, and the names of their leaves."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw
from ridgewalk._pytree import array_field, layout_of, leaf_names, pytree_dataclass


def test_a_position_becomes_a_flat_vector_and_back():
    position = {
        "w": jnp.arange(6, dtype=jnp.float32).reshape(2, 3),
        "b": jnp.full(2, 7, jnp.bfloat16),
        "s": jnp.ones(()),
    }
    layout = layout_of(position)
    flat = layout.ravel(position)
    assert (layout.size, layout.dtype, flat.shape, flat.dtype) == (9, flat.dtype, (9,), layout.dtype)
    np.testing.assert_array_equal(flat, [7, 7, 1, 0, 1, 2, 3, 4, 5])
    back = layout.unravel(flat)
    assert layout.matches(back)
    jax.tree.map(np.testing.assert_array_equal, back, position)
    assert not layout.matches({**position, "b": position["b"].astype(jnp.float32)})


def test_only_array_fields_are_traced():
    @pytree_dataclass
    class Settings:
        order: int
        scale: jax.Array = array_field()

    one = Settings(2, jnp.ones(3))
    assert leaf_names(one) == ["scale"]
    assert jax.tree.structure(one) == jax.tree.structure(Settings(2, jnp.zeros(3)))
    assert jax.tree.structure(one) != jax.tree.structure(Settings(3, jnp.ones(3)))
    with pytest.raises(AttributeError):
        one.order = 4


def test_classes_with_the_same_fields_are_told_apart():
    """Also by `==`, not only by their hashes: a compiled program of one must not run for the other."""

    def structures(base):
        @pytree_dataclass
        class Other(base):
            pass

        return jax.tree.structure(base()), jax.tree.structure(Other())

    for base in (rw.Langevin, rw.Identity, rw.Dense):
        own, other = structures(base)
        assert own != other
    assert jax.tree.structure(rw.gaussian_prior(1.0)) != jax.tree.structure(rw.laplace_prior(1.0))


def test_names_of_leaves():
    assert leaf_names(0) == ["position"]
    assert leaf_names({"layer": [0, 1], "bias": 2}) == ["bias", "layer.0", "layer.1"]
    assert leaf_names({"a/b": 0, "a_b": 1}) == ["a_b_0", "a_b_1"]


def test_names_of_leaves_are_unique():
    keys = ["a/b", "a_b", "a_b_0", "a_b_1", "a_b_0_", "a/b_0", "", "position"]
    for count in range(2, len(keys) + 1):
        for chosen in itertools.combinations(keys, count):
            names = leaf_names(dict.fromkeys(chosen, 0))
            assert len(set(names)) == len(chosen), (chosen, names)
            assert all(names)
