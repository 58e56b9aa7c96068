"""A position-dependent G(θ) given by the user, with its drift correction Γ by automatic differentiation (SGRLD)."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import GradientAt, Mask, PyTree, Unravel, Vector
from ridgewalk.preconditioners._linalg import prune_matrix
from ridgewalk.preconditioners.base import FactorMethods, Preconditioner, StepContext, Transition, UpdateInfo, no_update
from ridgewalk.ravel import Layout


class _MetricFields(NamedTuple):
    root: jax.Array
    gamma: Vector


class MetricOperator(_MetricFields, FactorMethods):
    """G(θ) at the current position by its factor, and Γ(θ)."""


def divergence(g: Callable[[Vector], jax.Array], position: Vector) -> Vector:
    """Γ_i = Σ_j ∂G_ij/∂θ_j, one forward derivative per parameter; G is whole (d, d) or a diagonal (d,)."""
    if jax.eval_shape(g, position).ndim == 1:
        return jnp.diagonal(jax.jacfwd(g)(position))

    def column(j: jax.Array) -> Vector:
        direction = jnp.zeros_like(position).at[j].set(1)
        return jax.jvp(lambda x: g(x)[:, j], (position,), (direction,))[1]

    return jnp.sum(jax.lax.map(column, jnp.arange(position.shape[0])), axis=0)


@pytree_dataclass
class Metric(Preconditioner):
    """G(θ) = `metric(position)`: the inverse of the metric tensor, as in the paper's update.

    `metric` gets the position in the user's structure (`unravel` makes it from the flat vector; the sampler sets
    it) and returns a positive definite (d, d) matrix, its diagonal (d,), or a pytree shaped like the position
    that holds the diagonal.
    """

    metric: Callable[[PyTree], PyTree]
    unravel: Unravel | None = None

    def resolve(self, layout: Layout) -> "Metric":
        """The same with `unravel` set."""
        return replace(self, unravel=layout.unravel)

    def flat(self, position: Vector) -> jax.Array:
        """G(θ) as a (d, d) matrix or a (d,) diagonal."""
        value = self.metric(position if self.unravel is None else self.unravel(position))
        d = position.shape[0]
        if hasattr(value, "shape") and value.shape == (d, d):
            return jnp.asarray(value).astype(position.dtype)
        flat = ravel_pytree(value)[0].astype(position.dtype)
        if flat.shape != (d,):
            raise ValueError(
                f"metric: it returned {flat.shape[0]} numbers for {d} parameters; return G(θ) as a ({d}, {d}) "
                f"matrix, as its diagonal ({d},), or as a pytree like the position"
            )
        return flat

    def _at(self, position: Vector, mask: Mask = None) -> MetricOperator:
        def kept(x: Vector) -> jax.Array:
            return self.flat(x) if mask is None else prune_matrix(self.flat(x), mask)

        g = kept(position)
        root = jnp.linalg.cholesky(g) if g.ndim == 2 else jnp.sqrt(g)
        return MetricOperator(root, divergence(kept, position))

    def init(self, position: Vector, gradient_at: GradientAt) -> MetricOperator:
        """G at the starting point."""
        return self._at(position)

    def prepare(self, operator: MetricOperator, context: StepContext) -> MetricOperator:
        """G at the current position."""
        return self._at(context.position, context.mask)

    def correction(self, operator: MetricOperator) -> Vector:
        """Γ(θ)."""
        return operator.gamma

    def update(self, operator: MetricOperator, transition: Transition) -> tuple[MetricOperator, UpdateInfo]:
        """No update: G is given."""
        return operator, no_update(transition.before)

    def prune(
        self, operator: MetricOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> MetricOperator:
        """The metric tensor G⁻¹ restricted to the kept parameters, as in every later step."""
        return self._at(position, mask)
