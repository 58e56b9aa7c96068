"""Any preconditioner in rescaled coordinates: a diagonal base for what it learns, and scales from gradients."""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk._pytree import Layout, array_field, layout_of, pytree_dataclass
from ridgewalk._types import GradientAt, Key, PyTree, Scalar, Vector
from ridgewalk._validation import check_between, check_choice, check_whole
from ridgewalk.data import DataPlaceholder
from ridgewalk.preconditioners.base import (
    AdaptivePreconditioner,
    Preconditioner,
    PreconditionerSpec,
    StepContext,
    Transition,
    UpdateInfo,
)
from ridgewalk.target import Posterior, on_host

SMALLEST_CURVATURE = 1e-12
"""Relative to the largest: the curvature of a parameter without a gradient and without a proper prior."""
MOST_SPREAD = 1e6
"""The largest ratio of a learnt diagonal's entry to their median, or of the median to an entry."""
HIGH_QUANTILE = 0.99
"""The quantile of curvatures that `least` refers to."""
PROBES = 20
"""Random signs for the diagonal of the prior's Hessian; one is exact if it is diagonal."""


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

    def drift_plus_noise(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z."""
        return self.scale * self.inner.drift_plus_noise(self.scale * covector, noise)


@pytree_dataclass
class Rescaled(Preconditioner):
    """The inner preconditioner for θ̃ = D⁻¹ θ, D = diag(scale): a BFGS recursion in it starts from γ⁻¹ D².

    `scale` is flat, in the order of `ravel_pytree(position)`. Being constant, it does not change the stationary
    distribution. Gradients in θ̃ are D ∇Ũ(D θ̃), and curvature is D H D.
    """

    inner: Preconditioner = array_field()
    scale: jax.Array | None = array_field()
    """None: the root of the diagonal that warm-up learns; 1 without warm-up."""

    def check_dimension(self, dimension: int) -> None:
        """Raise if the inner preconditioner does not fit."""
        self.inner.check_dimension(dimension)

    @property
    def unwrapped(self) -> Preconditioner:
        """The innermost preconditioner."""
        return self.inner.unwrapped

    def _rescaled_gradient(self, gradient_at: GradientAt, scale: Vector) -> GradientAt:
        return lambda x: scale * gradient_at(scale * x)

    def init(self, position: Vector, gradient_at: GradientAt) -> RescaledOperator:
        """The inner operator at θ̃."""
        if self.scale is None:
            return RescaledOperator(jnp.ones_like(position), self.inner.init(position, gradient_at))
        if self.scale.shape != position.shape:
            raise ValueError(
                f"scale: it has {self.scale.shape[0]} numbers, the position {position.shape[0]}; give one for each "
                "parameter"
            )
        scale = self.scale.astype(position.dtype)
        return RescaledOperator(scale, self.inner.init(position / scale, self._rescaled_gradient(gradient_at, scale)))

    def init_from_diagonal(self, position: Vector, gradient_at: GradientAt, diagonal: Vector) -> RescaledOperator:
        """The inner operator from the diagonal in its coordinates, D⁻² G."""
        if self.scale is None:
            median = jnp.median(diagonal)
            diagonal = jnp.clip(diagonal, median / MOST_SPREAD, median * MOST_SPREAD)
            scale = jnp.exp2(jnp.round(jnp.log2(jnp.sqrt(diagonal))))
            rescaled = self._rescaled_gradient(gradient_at, scale)
            return RescaledOperator(scale, self.inner.init(position / scale, rescaled))
        scale = self.scale.astype(position.dtype)
        rescaled = self._rescaled_gradient(gradient_at, scale)
        return RescaledOperator(scale, self.inner.init_from_diagonal(position / scale, rescaled, diagonal / scale**2))

    def prepare(self, operator: RescaledOperator, context: StepContext) -> RescaledOperator:
        """As the inner preconditioner."""
        scale = operator.scale
        inner_context = context._replace(
            position=context.position / scale,
            gradient=scale * context.gradient,
            gradient_at=self._rescaled_gradient(context.gradient_at, scale),
        )
        return operator._replace(inner=self.inner.prepare(operator.inner, inner_context))

    def correction(self, operator: RescaledOperator) -> Vector | None:
        """Γ = D Γ̃."""
        gamma = self.inner.correction(operator.inner)
        return None if gamma is None else operator.scale * gamma

    def update(self, operator: RescaledOperator, transition: Transition) -> tuple[RescaledOperator, UpdateInfo]:
        """As the inner preconditioner, with the step in its coordinates."""
        scale = operator.scale

        def rescale(known: Transition) -> Transition:
            return known._replace(
                before=known.before / scale,
                after=known.after / scale,
                gradient=scale * known.gradient,
                covector=scale * known.covector,
                gradient_at=self._rescaled_gradient(known.gradient_at, scale),
            )

        if isinstance(self.inner, AdaptivePreconditioner):  # which converts only where an update is due
            inner, info = self.inner.update(operator.inner, transition, rescale)
        else:
            inner, info = self.inner.update(operator.inner, rescale(transition))
        return operator._replace(inner=inner), info

    def limit(
        self, operator: RescaledOperator, gradient: Vector, variance: Scalar, largest: Scalar
    ) -> RescaledOperator:
        """As the inner preconditioner."""
        return operator._replace(inner=self.inner.limit(operator.inner, operator.scale * gradient, variance, largest))

    def prune(
        self, operator: RescaledOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> RescaledOperator:
        """As the inner preconditioner: a diagonal does not mix parameters."""
        scale = operator.scale
        inner = self.inner.prune(operator.inner, mask, position / scale, self._rescaled_gradient(gradient_at, scale))
        return operator._replace(inner=inner)


@pytree_dataclass
class RescaledSpec(PreconditionerSpec):
    """What `rescaled(preconditioner, scale)` returns: `Rescaled` once the inner preconditioner is resolved."""

    inner: PreconditionerSpec = array_field()
    scale: jax.Array | None = array_field()

    def resolve(self, layout: Layout) -> Rescaled:
        """The inner preconditioner resolved; it sees flat vectors, so the structure is that of the position."""
        return Rescaled(self.inner.resolve(layout), self.scale)


def rescaled(preconditioner: PreconditionerSpec, scale: PyTree | Literal["auto"]) -> RescaledSpec:
    """`preconditioner` in coordinates θ / scale.

    `scale` has the structure of the position (or is the flat vector): about the standard deviation of each parameter,
    or something between that and 1, such as its square root, (second moment of the gradient)^(−1/4). Only ratios matter
    if the inner preconditioner finds its own first scale, as `SnapshotLBFGS`, `LowRank` and `Dense` do. Scales are
    rounded to powers of 2, so that rescaling is exact. "auto" takes the diagonal that the warm-up of `sample` learns.
    """
    if isinstance(scale, str):
        check_choice("scale", scale, ("auto",), "a pytree like the position")
        return RescaledSpec(preconditioner, None)
    flat = ravel_pytree(scale)[0]
    values = np.asarray(flat)
    if not (values.size and jnp.issubdtype(values.dtype, jnp.floating)):
        raise ValueError(f"scale: dtype {values.dtype} and size {values.size}; give one float for each parameter")
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if bad.size:
        raise ValueError(
            f"scale: {bad.size} of {values.size} numbers are not positive and finite, the first is {values[bad[0]]} "
            f"(number {bad[0]}); replace them, for example by a lower bound"
        )
    powers = np.round(np.log2(values)).astype(int)
    return RescaledSpec(preconditioner, jnp.asarray(np.ldexp(np.ones_like(values), powers)))


def gradient_scale(
    key: Key, target: Posterior, position: PyTree, *, batch_size: int, batches: int = 50, least: float = 0.0
) -> PyTree:
    """(n/N mean of g² over batches + diagonal of the prior's curvature)^(−1/4), g = ∇Ũ on batches of n: for `rescaled`.

    At a mode of a well-specified likelihood the mean of g² is N/n times the curvature of the likelihood; the power is
    that of RMSprop, whose G is the inverse root of the mean of g². It costs `batches` gradients; the data must be in
    memory. Weights of a network's inactive units have no curvature at the mode and much beside it: set `least` to about
    0.01, and no curvature counts as less than this fraction of their 99 % quantile.
    """
    if isinstance(target.data, DataPlaceholder) or on_host(target.data):
        raise ValueError("target: its data are not in memory; pass a Posterior of some of them, held in jax arrays")
    if check_whole("batch_size", batch_size, 1) > target.size:
        raise ValueError(f"batch_size: {batch_size} is not between 1 and the {target.size} examples of the data")
    check_whole("batches", batches, 1, "the default is 50")
    check_between("least", least, 0, 1, "[)", "0 sets no bound, 0.01 is for networks")
    position = jax.tree.map(jnp.asarray, position)
    return _scale(key, target, position, jnp.asarray(least), batch_size=batch_size, batches=batches)


@partial(jax.jit, static_argnames=("batch_size", "batches"))
def _scale(key: Key, target: Posterior, position: PyTree, least: Scalar, *, batch_size: int, batches: int) -> PyTree:
    form = layout_of(position)

    def add(total: Vector, key: Key) -> tuple[Vector, None]:
        rows = jax.random.randint(key, (batch_size,), 0, target.size)
        batch = jax.tree.map(lambda x: x[rows], target.data)
        return total + form.ravel(jax.grad(target.potential)(position, batch)) ** 2 / batches, None

    def probe(total: Vector, key: Key) -> tuple[Vector, None]:
        signs = jax.random.rademacher(key, (form.size,), form.dtype)
        image = jax.jvp(target.prior_gradient, (position,), (form.unravel(signs),))[1]
        return total + signs * form.ravel(image) / PROBES, None

    nothing = jnp.zeros(form.size, form.dtype)
    squares = jax.lax.scan(add, nothing, jax.random.split(key, batches))[0]
    prior = jax.lax.scan(probe, nothing, jax.random.split(jax.random.fold_in(key, 1), PROBES))[0]
    curvature = (batch_size / target.size) * squares + jnp.maximum(prior, 0)
    floor = jnp.maximum(SMALLEST_CURVATURE * jnp.max(curvature), least * jnp.quantile(curvature, HIGH_QUANTILE))
    return form.unravel(jnp.maximum(curvature, floor.astype(form.dtype)) ** -0.25)
