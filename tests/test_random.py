"""Random bits and integers equal JAX's; the distribution of the normals, their tails and their independence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from ridgewalk._random import BLOCK, draw_noise, random_bits, uniform_integers
from ridgewalk.schedules import enable_x64

SIZE = 10_000_000
FLOAT32 = jnp.dtype("float32")


@pytest.fixture(scope="module")
def numbers():
    return np.asarray(jax.jit(lambda key: draw_noise(key, "gaussian", SIZE, FLOAT32))(jax.random.key(7)))


@pytest.mark.slow
def test_the_law_of_ten_million(numbers):
    """Kolmogorov–Smirnov at the 1 % level, and the first six moments within four standard errors."""
    assert numbers.dtype == np.float32
    assert np.all(np.isfinite(numbers))
    ordered = ndtr(np.sort(numbers).astype(float))
    ranks = np.arange(1, SIZE + 1) / SIZE
    distance = max(np.max(ranks - ordered), np.max(ordered - ranks + 1 / SIZE))
    assert distance < 1.63 / np.sqrt(SIZE)
    z = numbers.astype(float)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10_170)):
        assert abs(np.mean(z**power) - mean) < 4 * np.sqrt(variance / SIZE), power


@pytest.mark.parametrize("limit", [3.0, 4.0, 5.0])
def test_the_tails(numbers, limit):
    """As many beyond the limit on either side as a Poisson count of that mean allows."""
    expected = SIZE * ndtr(-limit)
    for side in (1, -1):
        assert abs(np.sum(side * numbers > limit) - expected) < 4 * np.sqrt(expected) + 1


def test_neighbours_halves_and_keys_are_independent(numbers):
    """Both words of one hash lie half a part apart; keys of following steps are what `fold_in` makes of one."""
    keys = jax.vmap(lambda k: jax.random.fold_in(jax.random.key(7), k))(jnp.arange(2))
    one, other = np.asarray(jax.vmap(lambda key: draw_noise(key, "gaussian", 1_000_001, FLOAT32))(keys), float)
    parts = numbers[: 8 * BLOCK].reshape(8, 2, BLOCK // 2)
    pairs = [(numbers[1:], numbers[:-1]), (parts[:, 0], parts[:, 1]), (parts[1:], parts[:-1]), (one, other)]
    for left, right in pairs:
        for power in (1, 2):
            a, b = (np.ravel(x).astype(float) ** power for x in (left, right))
            assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(a.size)


def test_one_key_one_stream():
    key = jax.random.key(3)
    np.testing.assert_array_equal(draw_noise(key, "gaussian", 999, FLOAT32), draw_noise(key, "gaussian", 999, FLOAT32))
    assert draw_noise(jax.random.key(0, impl="rbg"), "gaussian", 5, FLOAT32).shape == (5,)
    assert draw_noise(jax.random.PRNGKey(0), "gaussian", 5, FLOAT32).dtype == np.float32


@pytest.mark.parametrize("kind", ["gaussian", "two_point"])
def test_noise_has_mean_0_and_variance_1(kind):
    z = np.asarray(draw_noise(jax.random.key(1), kind, 100_003, jnp.dtype("float64")))
    assert z.shape == (100_003,)
    assert abs(z.mean()) < 4 / np.sqrt(z.size)
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / z.size)
    assert abs((z[1:] * z[:-1]).mean()) < 4 / np.sqrt(z.size)
    fourth = {"gaussian": 3.0, "two_point": 1.0}[kind]
    assert abs((z**4).mean() - fourth) < 4 * np.sqrt(96 / z.size)


@pytest.mark.parametrize("bits", [32, 64])
def test_words_are_those_of_jax(bits):
    for seed, count in ((0, 1), (1, 33), (2**40 + 5, 1000)):
        key = jax.random.key(seed)
        np.testing.assert_array_equal(random_bits(key, count, bits), jax.random.bits(key, (count,), f"uint{bits}"))


def test_words_of_another_generator():
    key = jax.random.key(0, impl="rbg")
    np.testing.assert_array_equal(random_bits(key, 9, 32), jax.random.bits(key, (9,), "uint32"))


@pytest.mark.parametrize("wide", [pytest.param(False, marks=pytest.mark.slow), True])
def test_rows_are_those_of_randint(wide):
    with enable_x64(wide):
        for size in (1, 7, 400, 2**16, 2**16 + 1, 10**6, 2**31 - 1):
            key = jax.random.key(size)
            expected = jax.random.randint(key, (50,), 0, size)
            found = uniform_integers(key, 50, size)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
