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
        return _normals(key, size, dtype)
    words = jax.random.bits(key, (-(-size // 32),), "uint32")
    shifts = jnp.arange(32, dtype=jnp.uint32)
    bits = (words[:, None] >> shifts[None, :]) & 1
    return jnp.where(bits.reshape(-1)[:size] == 1, 1.0, -1.0).astype(dtype)


def _normals(key: Key, size: int, dtype: jnp.dtype) -> Vector:
    """As `jax.random.normal`: Φ⁻¹ of uniform numbers.

    For 32 bits JAX takes half of what each call of its generator gives; both halves cost half the time, and noise is a
    large part of a step with millions of parameters.
    """
    if dtype != jnp.float32 or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jax.random.normal(key, (size,), dtype)
    if str(jax.random.key_impl(key)) != "threefry2x32":
        return jax.random.normal(key, (size,), dtype)
    words = threefry_2x32(jax.random.key_data(key), jnp.arange(size, dtype=jnp.uint32))
    one = jnp.uint32(0x3F80_0000)
    unit = jax.lax.bitcast_convert_type((words >> 9) | one, jnp.float32) - 1  # 23 random bits, in [0, 1)
    lowest = np.nextafter(np.float32(-1), np.float32(0))
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(jnp.maximum(lowest, 2 * unit + lowest))


def check_noise(noise: str) -> None:
    """Raise where `noise` is no known kind."""
    if noise not in get_args(Noise):
        raise ValueError(f"noise: {noise!r} is unknown; use one of {', '.join(map(repr, get_args(Noise)))}")
