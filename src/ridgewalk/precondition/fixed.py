"""A constant G that the user knows: a covariance, or its diagonal."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import GradientAt, Vector
from ridgewalk.precondition.base import Unchanging
from ridgewalk.precondition.restrict import restrict_root


class DiagonalOperator(NamedTuple):
    """G = diag(root²), S = diag(root)."""

    root: Vector

    def multiply(self, vector: Vector) -> Vector:
        """G v."""
        return self.root**2 * vector

    def factor(self, noise: Vector) -> Vector:
        """S z."""
        return self.root * noise

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v."""
        return self.root * vector

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z."""
        return self.root * (self.root * covector + noise)


class MatrixOperator(NamedTuple):
    """G = R Rᵀ with the factor R stored whole."""

    root: jax.Array

    def multiply(self, vector: Vector) -> Vector:
        """G v."""
        return self.root @ (vector @ self.root)

    def factor(self, noise: Vector) -> Vector:
        """S z."""
        return self.root @ noise

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v."""
        return vector @ self.root

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z."""
        return self.root @ (covector @ self.root + noise)


def matrix_or_diagonal(root: jax.Array) -> MatrixOperator | DiagonalOperator:
    """The operator of a factor given whole (d, d), or by its diagonal (d,)."""
    return MatrixOperator(root) if root.ndim == 2 else DiagonalOperator(root)


@pytree_dataclass
class Fixed(Unchanging):
    """G = `root rootᵀ`, constant; build one with `fixed(covariance)`."""

    root: jax.Array = array_field()

    def init(self, position: Vector, gradient_at: GradientAt) -> MatrixOperator | DiagonalOperator:
        """The given G."""
        if self.root.shape[0] != position.shape[0]:
            raise ValueError(
                f"covariance: it is for {self.root.shape[0]} parameters, the position has {position.shape[0]}; "
                "pass one row per parameter, in the order of jax.flatten_util.ravel_pytree"
            )
        return matrix_or_diagonal(self.root.astype(position.dtype))

    def restrict(
        self,
        operator: MatrixOperator | DiagonalOperator,
        mask: Vector,
        position: Vector,
        gradient_at: GradientAt,
    ) -> MatrixOperator | DiagonalOperator:
        """The covariance given that the pruned coordinates are fixed."""
        return operator if operator.root.ndim == 1 else MatrixOperator(restrict_root(operator.root, mask))


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
