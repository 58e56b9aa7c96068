"""A Gaussian likelihood whose noise is the prior's own σ, as in the regression of the spike-and-slab papers."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import PyTree, Scalar
from ridgewalk.priors.base import Residuals


@pytree_dataclass
class SharedNoise:
    """r_i(θ) ~ N(0, σ²) for every residual, σ of the adaptive prior."""

    residual: Callable[[PyTree, PyTree], Any]

    def residuals(self, position: PyTree, batch: PyTree) -> jax.Array:
        """One row per example."""
        values = jnp.asarray(self.residual(position, batch))
        if values.ndim == 0:
            raise ValueError("residual: it returned a scalar; return one residual (or one row of them) per example")
        return values.reshape(values.shape[0], -1)

    def values(self, position: PyTree, batch: PyTree, sigma: Scalar | float) -> jax.Array:
        """log p(d_i | θ, σ) of each example: Σ over its residuals of −r²/(2σ²) − log σ − ½ log 2π."""
        rows = self.residuals(position, batch)
        sigma = jnp.asarray(sigma, rows.dtype)
        constant = rows.shape[1] * (jnp.log(sigma) + 0.5 * math.log(2 * math.pi))
        return -0.5 * jnp.sum((rows / sigma) ** 2, axis=1) - constant

    def measure(self, position: PyTree, batch: PyTree, size: int) -> Residuals:
        """Σ r² of a batch scaled to `size` examples, which is unbiased, and how many residuals those have."""
        rows = self.residuals(position, batch)
        return Residuals((size / rows.shape[0]) * jnp.sum(rows**2), size * rows.shape[1])


def shared_noise(residual: Callable[[PyTree, PyTree], Any]) -> SharedNoise:
    """A likelihood N(0, σ²) of `residual(position, batch)`, one row per example, with the prior's σ; `log_likelihood`
    of a posterior whose prior learns a σ:

        target = rw.Posterior(
            rw.spike_and_slab(), rw.shared_noise(lambda w, batch: batch[1] - batch[0] @ w), (x, y)
        )
    """
    if not callable(residual):
        raise ValueError(f"residual: {residual!r} is not a function of position and batch; return y − f(x) per example")
    return SharedNoise(residual)
