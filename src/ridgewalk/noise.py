"""The random increments of a step."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp

from ridgewalk.types import Key, Vector

Noise = Literal["gaussian", "two_point"]
"""gaussian: standard normals. two_point: ±1 with equal probability, the simplified weak Euler scheme
(Kloeden and Platen, section 14.1): means and covariances, and so the stationary covariance of a linear
target, are those of the Gaussian scheme; fourth moments differ by O(ε). It costs one random bit a coordinate.
"""


def draw(key: Key, kind: Noise, size: int, dtype: jnp.dtype) -> Vector:
    """`size` independent numbers of mean 0 and variance 1."""
    if kind == "gaussian":
        return jax.random.normal(key, (size,), dtype)
    words = jax.random.bits(key, (-(-size // 32),), "uint32")
    shifts = jnp.arange(32, dtype=jnp.uint32)
    bits = (words[:, None] >> shifts[None, :]) & 1
    return jnp.where(bits.reshape(-1)[:size] == 1, 1.0, -1.0).astype(dtype)


def check_noise(noise: str) -> None:
    """Raise where `noise` is no known kind."""
    if noise not in get_args(Noise):
        raise ValueError(f"noise: {noise!r} is unknown; use one of {', '.join(map(repr, get_args(Noise)))}")
