"""Type aliases for arrays and functions that modules pass to each other."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax

PyTree: TypeAlias = Any
"""A nested structure of arrays, as JAX understands it."""

Vector: TypeAlias = jax.Array
"""All parameters of one chain in one flat array of length d."""

Scalar: TypeAlias = jax.Array
"""An array of shape ()."""

Key: TypeAlias = jax.Array
"""A JAX random key."""

Mask: TypeAlias = jax.Array | None
"""Boolean, (d,), True for parameters that are not pruned; None without pruning."""

GradientAt: TypeAlias = Callable[[Vector], Vector]
"""∇Ũ on one batch, as a function of the flat position."""

Unravel: TypeAlias = Callable[[Vector], PyTree]
"""Maps a flat vector to the structure of the user's position."""

Adaptation: TypeAlias = Callable[[Scalar], Scalar | float]
"""Step size ω_k of stochastic approximation as a function of k = 1, 2, …"""
