"""Constant preconditioners: the identity, and a G that the user knows, such as a covariance or its diagonal."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import GradientAt, Vector
from ridgewalk.preconditioners._linalg import prune_root
from ridgewalk.preconditioners.base import FactorMethods, StaticPreconditioner


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
