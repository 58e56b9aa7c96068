"""JAX's random words, made in one pass: the same numbers as `jax.random.bits`, on CPU at half the cost.

JAX compiles threefry on CPU as a loop over groups of rounds, which passes over the whole array each time. Written out,
the rounds of a number stay in registers.
"""

import jax
import jax.numpy as jnp

from ridgewalk.types import Key

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry(key: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) of counters (`first`, `second`); `key` is two words."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x, y = first + keys[0], second + keys[1]
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << jnp.uint32(turn)) | (y >> jnp.uint32(32 - turn)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def is_threefry(key: Key) -> bool:
    """Whether the key is of JAX's own generator."""
    return jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and jax.random.key_impl(key) == "threefry2x32"


def words(key: Key, count: int, bits: int) -> jax.Array:
    """`jax.random.bits(key, (count,), uint32 or uint64)`, for `bits` of 32 or 64."""
    written_out = is_threefry(key) and jax.threefry_partitionable.value and count < 2**32
    if not written_out:
        return jax.random.bits(key, (count,), f"uint{bits}")
    places = jax.lax.iota(jnp.uint32, count)
    high, low = threefry(jax.random.key_data(key), jnp.zeros_like(places), places)
    if bits == 32:
        return high ^ low
    return (high.astype(jnp.uint64) << jnp.uint64(32)) | low.astype(jnp.uint64)
