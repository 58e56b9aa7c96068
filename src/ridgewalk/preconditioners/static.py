"""Preconditioners that do not adapt.

The identity, a constant G, a multiple of the identity for each leaf, and a position-dependent G(θ) given by the user.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk._pytree import Layout, array_field, pytree_dataclass
from ridgewalk._types import GradientAt, Key, Mask, PyTree, Unravel, Vector
from ridgewalk.preconditioners.base import (
    FactorMethods,
    Preconditioner,
    StaticPreconditioner,
    StepContext,
    Transition,
    UpdateInfo,
    hessian_product,
    no_update,
    prune_matrix,
    prune_root,
)


class IdentityOperator(NamedTuple):
    """G = S = I."""

    def multiply(self, vector: Vector) -> Vector:
        """v."""
        return vector

    def factor(self, noise: Vector) -> Vector:
        """z."""
        return noise

    def factor_transpose(self, vector: Vector) -> Vector:
        """v."""
        return vector

    def drift_plus_noise(self, covector: Vector, noise: Vector) -> Vector:
        """v + z."""
        return covector + noise


@pytree_dataclass
class Identity(StaticPreconditioner):
    """G = I: no preconditioning."""

    def init(self, position: Vector, gradient_at: GradientAt) -> IdentityOperator:
        """G = I."""
        return IdentityOperator()

    def prune(
        self, operator: IdentityOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> IdentityOperator:
        """G = I."""
        return operator


class _Root(NamedTuple):
    root: jax.Array


class FixedOperator(_Root, FactorMethods):
    """G = S Sᵀ with S = `root`, a (d, d) matrix or a diagonal (d,)."""


@pytree_dataclass
class Fixed(StaticPreconditioner):
    """G = `root rootᵀ`, constant; build one with `fixed(covariance)`."""

    root: jax.Array = array_field()

    def init(self, position: Vector, gradient_at: GradientAt) -> FixedOperator:
        """The given G."""
        if self.root.shape[0] != position.shape[0]:
            raise ValueError(
                f"covariance: it is for {self.root.shape[0]} parameters, the position has {position.shape[0]}; "
                "pass one row per parameter, in the order of jax.flatten_util.ravel_pytree"
            )
        return FixedOperator(self.root.astype(position.dtype))

    def prune(self, operator: FixedOperator, mask: Vector, position: Vector, gradient_at: GradientAt) -> FixedOperator:
        """The conditional covariance given the pruned parameters; a diagonal is unchanged."""
        return operator if operator.root.ndim == 1 else FixedOperator(prune_root(operator.root, mask))


PROBES = 20
"""Random signs for the diagonal of the Hessian."""

LEAST_CURVATURE = 1e-3
"""Of a leaf, relative to that of the leaf with the largest."""


@pytree_dataclass
class LeafScaled(StaticPreconditioner):
    """G = c_j I for each leaf j of the position, c_j ∝ (mean of H_ii over the leaf)^(−1/2), at the first position.

    For networks at temperature 1, whose curvature turns with the position: the entries of a leaf (the weights of a
    layer, its biases) are exchangeable, so a constant G can only be a multiple of the identity in each. The power −1/2
    is half the way from G = I to one over the curvature, as in RMSprop. The mean of G_ii is 1. With a position of one
    leaf, or sharded over devices, G = I.
    """

    sizes: tuple[int, ...] = ()
    """Parameters in each leaf; the sampler sets it."""

    def resolve(self, layout: Layout) -> "LeafScaled":
        """With the sizes of the leaves."""
        if layout.placement is not None:
            return replace(self, sizes=(layout.size,))
        return replace(self, sizes=tuple(math.prod(leaf.shape) for leaf in jax.tree.leaves(layout.position)))

    def init(self, position: Vector, gradient_at: GradientAt) -> FixedOperator:
        """From Hessian-vector products with random signs: H_ii is the mean of z_i (H z)_i."""
        if len(self.sizes) < 2:
            return FixedOperator(jnp.ones_like(position))
        product = hessian_product(gradient_at, position)

        def probe(total: Vector, key: Key) -> tuple[Vector, None]:
            signs = jax.random.rademacher(key, position.shape, position.dtype)
            return total + signs * product(signs) / PROBES, None

        keys = jax.random.split(jax.random.key(0), PROBES)
        diagonal = jax.lax.scan(probe, jnp.zeros_like(position), keys)[0]
        starts = np.cumsum((0, *self.sizes))[:-1]
        parts = [diagonal[i : i + n] for i, n in zip(starts, self.sizes, strict=True) if n]
        curvature = jnp.abs(jnp.stack([jnp.mean(part) for part in parts]))
        curvature = jnp.where(jnp.isfinite(curvature), curvature, 0)
        curvature = jnp.maximum(curvature, LEAST_CURVATURE * jnp.max(curvature))
        scale = jnp.where(curvature > 0, curvature, 1) ** -0.25
        root = jnp.concatenate([jnp.broadcast_to(c, part.shape) for c, part in zip(scale, parts, strict=True)])
        return FixedOperator(root / jnp.sqrt(jnp.mean(root**2)))

    def prune(self, operator: FixedOperator, mask: Vector, position: Vector, gradient_at: GradientAt) -> FixedOperator:
        """Unchanged."""
        return operator


def fixed(covariance: jax.Array | np.ndarray) -> Fixed:
    """Precondition with a constant G: a positive definite (d, d) matrix, or its diagonal (d,).

    Rows are in the order of `jax.flatten_util.ravel_pytree(position)`. The posterior's covariance is ideal.
    """
    covariance = jnp.asarray(covariance)
    if covariance.ndim == 1:
        root = jnp.sqrt(covariance)
    elif covariance.ndim == 2 and covariance.shape[0] == covariance.shape[1]:
        root = jnp.linalg.cholesky(covariance)
    else:
        raise ValueError(f"covariance: shape {covariance.shape} is neither (d,) nor (d, d)")
    diagonal = root if root.ndim == 1 else jnp.diagonal(root)
    if not bool(jnp.all(jnp.isfinite(root))) or not bool(jnp.all(diagonal > 0)):
        raise ValueError("covariance: it is not positive definite; check its eigenvalues, or add a small diagonal")
    return Fixed(root)


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
class InverseMetric(Preconditioner):
    """G(θ) = `inverse_metric(position)`: the inverse of the metric tensor, as in the paper's update.

    `inverse_metric` gets the position in the user's structure (`unravel` makes it from the flat vector; the sampler
    sets it) and returns a positive definite (d, d) matrix, its diagonal (d,), or a pytree shaped like the position that
    holds the diagonal.
    """

    inverse_metric: Callable[[PyTree], PyTree]
    unravel: Unravel | None = None

    def resolve(self, layout: Layout) -> "InverseMetric":
        """The same with `unravel` set."""
        return replace(self, unravel=layout.unravel)

    def flat(self, position: Vector) -> jax.Array:
        """G(θ) as a (d, d) matrix or a (d,) diagonal."""
        value = self.inverse_metric(position if self.unravel is None else self.unravel(position))
        d = position.shape[0]
        if hasattr(value, "shape") and value.shape == (d, d):
            return jnp.asarray(value).astype(position.dtype)
        flat = ravel_pytree(value)[0].astype(position.dtype)
        if flat.shape != (d,):
            raise ValueError(
                f"inverse_metric: it returned {flat.shape[0]} numbers for {d} parameters; return G(θ) as a ({d}, {d}) "
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
