"""The choice between the forms of stochastic approximation, made when the number of parameters is known."""

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import Unravel
from ridgewalk.precondition.base import Choice, Preconditioner

DENSE_UP_TO = 2_000
"""Parameters for which a dense G is worth its O(M d²) a step."""


@pytree_dataclass
class ByDimension(Choice):
    """`small` for up to 2,000 parameters, `large` above."""

    small: Choice = array_field()
    large: Choice = array_field()

    def specialise(self, dimension: int, unravel: Unravel) -> Preconditioner:
        """The form for d parameters."""
        chosen = self.small if dimension <= DENSE_UP_TO else self.large
        return chosen.specialise(dimension, unravel)
