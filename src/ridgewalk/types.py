"""Names for the arrays that travel between the rooms of the library."""

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
