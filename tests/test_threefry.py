"""Words and rows are JAX's own, number for number."""

import jax
import numpy as np
import pytest

from ridgewalk.run.rows import uniform
from ridgewalk.threefry import words


@pytest.mark.parametrize("bits", [32, 64])
def test_words_are_those_of_jax(bits):
    for seed, count in ((0, 1), (1, 33), (2**40 + 5, 1000)):
        key = jax.random.key(seed)
        np.testing.assert_array_equal(words(key, count, bits), jax.random.bits(key, (count,), f"uint{bits}"))


def test_words_of_another_generator():
    key = jax.random.key(0, impl="rbg")
    np.testing.assert_array_equal(words(key, 9, 32), jax.random.bits(key, (9,), "uint32"))


@pytest.mark.parametrize("wide", [False, True])
def test_rows_are_those_of_randint(wide):
    with jax.enable_x64(wide):
        for size in (1, 7, 400, 2**16, 2**16 + 1, 10**6, 2**31 - 1):
            key = jax.random.key(size)
            expected = jax.random.randint(key, (50,), 0, size)
            found = uniform(key, 50, size)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
