"""Random numbers of a step: threefry bits, integers in a range, Gaussian and two-point increments.

JAX's generator costs more than the rest of a small SGLD step on CPU. `benchmarks/primitives.py` measures, against
`jax.random`, what the functions here save; `random_bits` and `uniform_integers` give the same numbers, bit for bit.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p, threefry_2x32

from ridgewalk._compilation import WORD
from ridgewalk._types import Key, Vector

Noise = Literal["gaussian", "two_point"]
"""Distribution of the increments of a step.

gaussian: standard normal. two_point: ±1 with equal probability, the simplified weak Euler scheme (Kloeden and Platen
1992, section 14.1). It has the mean and covariance of the Gaussian scheme, hence the same stationary covariance for a
Gaussian target; fourth moments differ by O(ε). It needs one random bit per coordinate.
"""

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA

BLOCK = 2**20
"""Normals generated at a time: the random bits of a block stay in the cache."""


def threefry(key: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) of counters (`first`, `second`); `key` is two words.

    JAX compiles threefry on CPU as a loop over groups of rounds, which passes over the whole array each time.
    Unrolled, the intermediate values stay in registers.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x, y = first + keys[0], second + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def is_threefry(key: Key) -> bool:
    """Whether the key is a typed key of JAX's default generator."""
    return jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and jax.random.key_impl(key) == "threefry2x32"


def random_bits(key: Key, count: int, bits: int) -> jax.Array:
    """`jax.random.bits(key, (count,), uint32 or uint64)`, for `bits` of 32 or 64."""
    unrolled = is_threefry(key) and jax.threefry_partitionable.value and count < 2**32
    if not unrolled:
        return jax.random.bits(key, (count,), f"uint{bits}")
    counters = jax.lax.iota(jnp.uint32, count)
    high, low = threefry(jax.random.key_data(key), jnp.zeros_like(counters), counters)
    if bits == 32:
        return high ^ low
    return (high.astype(jnp.uint64) << jnp.uint64(32)) | low.astype(jnp.uint64)


def uniform_integers(key: Key, count: int, size: int) -> jax.Array:
    """`jax.random.randint(key, (count,), 0, size)`, at a fraction of its cost (`benchmarks/primitives.py`).

    `randint` combines two words h and l of b bits into (h 2ᵇ + l) mod N. It takes N as an array, which XLA carries
    through the loop; division by a constant N is faster.
    """
    dtype = jnp.result_type(int)
    bits = jnp.iinfo(dtype).bits
    root = 2 ** (bits // 2) % size
    high, low = (random_bits(one, count, bits) for one in jax.random.split(key))

    def remainder(word: jax.Array) -> jax.Array:
        return jax.lax.rem(word, jax.lax.full_like(word, size))

    scale = root**2 % 2**bits % size  # as in randint, where the square overflows
    return remainder(remainder(high) * jax.lax.full_like(high, scale) + remainder(low)).astype(dtype)


def draw_noise(key: Key, kind: Noise, size: int, dtype: jnp.dtype) -> Vector:
    """`size` independent numbers of mean 0 and variance 1."""
    if kind == "gaussian":
        if dtype == jnp.float32 and is_threefry(key):
            return _normal_float32(key, size)
        return jax.random.normal(key, (size,), dtype)
    words = jax.random.bits(key, (-(-size // 32),), "uint32")
    shifts = jnp.arange(32, dtype=jnp.uint32)
    bits = (words[:, None] >> shifts[None, :]) & 1
    return jnp.where(bits.reshape(-1)[:size] == 1, 1.0, -1.0).astype(dtype)


def _normal_float32(key: Key, size: int) -> Vector:
    """Standard normals as by `jax.random.normal`, but other numbers, at a third to a half of the cost on CPU.

    Both words of each threefry hash are used, where `jax.random.bits` combines them into one (so that shards agree).
    Large arrays are generated in blocks, because the generator passes over its array several times.
    """
    data = jax.random.key_data(key)
    if size <= BLOCK:
        return _to_normal(threefry_2x32(data, jax.lax.iota(jnp.uint32, size)))
    half = BLOCK // 2
    counters = jax.lax.iota(jnp.uint32, half)

    def add(block: jax.Array, normals: Vector) -> Vector:
        count = counters + block.astype(jnp.uint32) * jnp.uint32(half)
        words = threefry2x32_p.bind(data[0], data[1], count, count + jnp.uint32(2**31))
        start = jnp.minimum(block * BLOCK, size - BLOCK)  # the last block overlaps the one before
        for number, some in enumerate(words):
            normals = jax.lax.dynamic_update_slice(normals, _to_normal(some), (start + number * half,))
        return normals

    return jax.lax.fori_loop(0, -(-size // BLOCK), add, jnp.zeros(size, jnp.float32))


def _to_normal(words: jax.Array) -> Vector:
    """√2 erf⁻¹(u), u one of the 2²³ odd multiples of 2⁻²³ in (−1, 1): symmetric, and up to 5.3 in size."""
    odd = 2 * (words >> 9).astype(jnp.int32) + (1 - 2**23)  # in integers: XLA would round 3 − 2⁻²³ to 3
    u = odd.astype(jnp.float32) * jnp.float32(2.0**-23)
    return jnp.float32(np.sqrt(2)) * jax.lax.erf_inv(u)


def keys_at(keys: Key, step: int) -> Key:
    """The keys into which the low word of `step` (see `StepCount`) is folded: below 2³¹ the chains' own."""
    high = step // WORD
    if high == 0:
        return keys

    def of_chain(key: Key) -> Key:
        return jax.random.fold_in(jax.random.fold_in(key, HIGH_WORD_STREAM), high)

    return jax.vmap(of_chain)(keys)


HIGH_WORD_STREAM = 0x73746570
"""Folded into a chain's key, with the high word, for the random numbers of steps from 2³¹ on."""
