"""G = I: no preconditioning."""

from typing import NamedTuple

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import GradientAt, Vector
from ridgewalk.precondition.base import Unchanging


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

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """v + z."""
        return covector + noise


@pytree_dataclass
class Identity(Unchanging):
    """Every direction alike: plain Langevin or Hamiltonian dynamics."""

    def init(self, position: Vector, gradient_at: GradientAt) -> IdentityOperator:
        """G = I."""
        return IdentityOperator()

    def restrict(
        self, operator: IdentityOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> IdentityOperator:
        """G = I."""
        return operator
