"""Any preconditioner in coordinates of a known scale: a diagonal base under what it learns."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import GradientAt, PyTree, Unravel, Vector
from ridgewalk.precondition.base import Choice, Departure, Lesson, Preconditioner, Transition


class RescaledOperator(NamedTuple):
    """G = D G̃ D and S = D S̃, with D = diag(scale) and an inner operator G̃ = S̃ S̃ᵀ."""

    scale: Vector
    inner: Any

    def multiply(self, vector: Vector) -> Vector:
        """G v."""
        return self.scale * self.inner.multiply(self.scale * vector)

    def factor(self, noise: Vector) -> Vector:
        """S z."""
        return self.scale * self.inner.factor(noise)

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v."""
        return self.inner.factor_transpose(self.scale * vector)

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z."""
        return self.scale * self.inner.displace(self.scale * covector, noise)


@pytree_dataclass
class Rescaled(Preconditioner):
    """The inner preconditioner for θ̃ = D⁻¹ θ, D = diag(scale): a BFGS recursion in it starts from γ⁻¹ D².

    `scale` is flat, in the order of `ravel_pytree(position)`; build one with `rescaled(preconditioner, scale)`. Being
    constant, it leaves the sampled law what it was. Gradients there are D ∇Ũ(D θ̃), and curvature is D H D.
    """

    inner: Choice = array_field()
    scale: jax.Array = array_field()

    def specialise(self, dimension: int, unravel: Unravel) -> "Rescaled":
        """With the inner preconditioner for d parameters; it sees flat vectors only, so structure stays as it is."""
        return Rescaled(self.inner.specialise(dimension, unravel), self.scale)

    @property
    def learner(self) -> Preconditioner:
        """The inner one's."""
        return self._chosen.learner

    @property
    def _chosen(self) -> Preconditioner:
        if not isinstance(self.inner, Preconditioner):
            raise TypeError("inner: not specialised yet")
        return self.inner

    def _seen(self, gradient_at: GradientAt, scale: Vector) -> GradientAt:
        return lambda x: scale * gradient_at(scale * x)

    def init(self, position: Vector, gradient_at: GradientAt) -> RescaledOperator:
        """The inner operator at θ̃."""
        if self.scale.shape != position.shape:
            raise ValueError(
                f"scale: it has {self.scale.shape[0]} numbers, the position {position.shape[0]}; give one for each "
                "parameter"
            )
        scale = self.scale.astype(position.dtype)
        return RescaledOperator(scale, self._chosen.init(position / scale, self._seen(gradient_at, scale)))

    def prepare(self, operator: RescaledOperator, departure: Departure) -> RescaledOperator:
        """As the inner one."""
        scale = operator.scale
        inside = departure._replace(
            position=departure.position / scale,
            gradient=scale * departure.gradient,
            gradient_at=self._seen(departure.gradient_at, scale),
        )
        return operator._replace(inner=self._chosen.prepare(operator.inner, inside))

    def correction(self, operator: RescaledOperator) -> Vector | None:
        """Γ = D Γ̃."""
        gamma = self._chosen.correction(operator.inner)
        return None if gamma is None else operator.scale * gamma

    def learn(self, operator: RescaledOperator, transition: Transition) -> tuple[RescaledOperator, Lesson]:
        """As the inner one, from the same step seen in its coordinates."""
        scale = operator.scale
        inside = transition._replace(
            before=transition.before / scale,
            after=transition.after / scale,
            gradient=scale * transition.gradient,
            covector=scale * transition.covector,
            gradient_at=self._seen(transition.gradient_at, scale),
        )
        inner, lesson = self._chosen.learn(operator.inner, inside)
        return operator._replace(inner=inner), lesson

    def restrict(
        self, operator: RescaledOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> RescaledOperator:
        """As the inner one: a diagonal does not mix coordinates."""
        scale = operator.scale
        inner = self._chosen.restrict(operator.inner, mask, position / scale, self._seen(gradient_at, scale))
        return operator._replace(inner=inner)


def rescaled(preconditioner: Choice, scale: PyTree) -> Rescaled:
    """`preconditioner` in coordinates where a parameter of scale 2 counts as 1.

    `scale` has the structure of the position (or is the flat vector): about the standard deviation of each parameter,
    or something between that and 1, such as its square root, (second moment of the gradient)^(−1/4). Only ratios matter
    where the inner preconditioner finds its own first scale, as `Limited`, `LowRank` and `Dense` do. Scales are rounded
    to powers of 2: going there and back then changes no digit.
    """
    flat = ravel_pytree(scale)[0]
    values = np.asarray(flat)
    if not (values.size and jnp.issubdtype(values.dtype, jnp.floating)):
        raise ValueError("scale: give a float for each parameter")
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if bad.size:
        raise ValueError(
            f"scale: {bad.size} of {values.size} numbers are not positive and finite, the first is {values[bad[0]]} "
            f"(number {bad[0]}); floor them"
        )
    powers = np.round(np.log2(values)).astype(int)
    return Rescaled(preconditioner, jnp.asarray(np.ldexp(np.ones_like(values), powers)))
