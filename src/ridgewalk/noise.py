"""The random increments of a step."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from ridgewalk.types import Key, Vector

Noise = Literal["gaussian", "two_point"]
"""gaussian: standard normals. two_point: ±1 with equal probability, the simplified weak Euler scheme
(Kloeden and Platen, section 14.1): means and covariances, and so the stationary covariance of a linear
target, are those of the Gaussian scheme; fourth moments differ by O(ε). It costs one random bit a coordinate.
"""


def draw(key: Key, kind: Noise, size: int, dtype: jnp.dtype) -> Vector:
    """`size` independent numbers of mean 0 and variance 1."""
    if kind == "gaussian":
        if dtype == jnp.float32 and _is_threefry(key):
            return _single_precision(key, size)
        return jax.random.normal(key, (size,), dtype)
    words = jax.random.bits(key, (-(-size // 32),), "uint32")
    shifts = jnp.arange(32, dtype=jnp.uint32)
    bits = (words[:, None] >> shifts[None, :]) & 1
    return jnp.where(bits.reshape(-1)[:size] == 1, 1.0, -1.0).astype(dtype)


def _is_threefry(key: Key) -> bool:
    return jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and jax.random.key_impl(key) == "threefry2x32"


def _single_precision(key: Key, size: int) -> Vector:
    """√2 erf⁻¹(u), u one of the 2²³ odd multiples of 2⁻²³ in (−1, 1): symmetric, and up to 5.3 in size.

    The numbers of `jax.random.normal` but for their order and that shift, at a third of its cost on CPU: both words of
    each threefry hash are used, where `jax.random.bits` (so that shards agree) makes one word of them.
    """
    words = threefry_2x32(jax.random.key_data(key), jax.lax.iota(jnp.uint32, size))
    odd = 2 * (words >> 9).astype(jnp.int32) + (1 - 2**23)  # whole numbers: XLA would round 3 − 2⁻²³ to 3
    u = odd.astype(jnp.float32) * jnp.float32(2.0**-23)
    return jnp.float32(np.sqrt(2)) * jax.lax.erf_inv(u)


def check_noise(noise: str) -> None:
    """Raise where `noise` is no known kind."""
    if noise not in get_args(Noise):
        raise ValueError(f"noise: {noise!r} is unknown; use one of {', '.join(map(repr, get_args(Noise)))}")
