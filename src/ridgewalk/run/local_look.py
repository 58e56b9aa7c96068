"""Curvature, gradient noise and predictions at some places, seen through a preconditioner; compiled."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._types import Key, PyTree, Scalar, Vector
from ridgewalk.data import Streamed
from ridgewalk.gradients import GradientEstimator
from ridgewalk.ravel import Layout, layout_of
from ridgewalk.run.rows import Rows
from ridgewalk.target import Posterior

LANCZOS_STEPS = 24
EXAMPLES = 2048
"""Examples of the Hessian at each place; every place takes others, so that the average sees them all."""

GRADIENTS = 24
"""Minibatch gradients at each place, from which the noise is estimated."""

READINGS = 128
"""Examples at each place whose predictions are judged."""


class Places(NamedTuple):
    """Positions of chains (leading axis: place), and earlier ones of the same chains, where SVRG would look back to."""

    here: PyTree
    before: PyTree

    @property
    def layout(self) -> Layout:
        """That of one position."""
        return layout_of(jax.tree.map(lambda x: x[0], self.here))

    @property
    def number(self) -> int:
        """How many there are."""
        return int(jax.tree.leaves(self.here)[0].shape[0])


def _batch(key: Key, estimator: GradientEstimator, count: int, replace: bool) -> PyTree:
    """Random examples, of the data in memory or of the sketch of what stays on the host."""
    target = estimator.target
    if not isinstance(target, Posterior):
        return None
    data = target.data.examples if isinstance(target.data, Streamed) else target.data
    size = jax.tree.leaves(data)[0].shape[0]
    if count >= size and not replace:
        return data
    chosen = jax.random.randint(key, (count,), 0, size) if replace else jax.random.permutation(key, size)[:count]
    return jax.tree.map(lambda x: x[chosen], data)


def _at_place(
    estimator: GradientEstimator, operator: Any, key: Key, here: PyTree, directions: jax.Array, prior: bool = False
) -> jax.Array:
    """Sᵀ H S v at one place for the rows v of `directions`; with `prior`, H of the prior alone."""
    form = layout_of(here)
    target = estimator.target
    batch = _batch(key, estimator, EXAMPLES, replace=False)

    def gradient(vector: Vector) -> Vector:
        if prior and isinstance(target, Posterior):
            return form.ravel(target.prior_gradient(form.unravel(vector)))
        return form.ravel(jax.grad(target.potential)(form.unravel(vector), batch))

    def product(direction: Vector) -> Vector:
        image = jax.jvp(gradient, (form.ravel(here),), (operator.factor(direction),))[1]
        return operator.factor_transpose(image)

    return jax.lax.map(product, directions, batch_size=32)


def _deviations(key: Key, estimator: GradientEstimator, operator: Any, places: Places, rows: Rows, axes: Any) -> Any:
    """Σ over places of the centred whitened gradients' products: (d, d), or (m,) along the rows of `axes`."""
    form = places.layout
    count = places.number

    def at(total: jax.Array, place: tuple[Key, PyTree, PyTree]) -> tuple[jax.Array, None]:
        key, here, before = place
        memory = estimator.init(before)

        def gradient(key: Key) -> Vector:
            batch = _batch(key, estimator, rows.batch_size, replace=True)
            flat = form.ravel(jax.grad(estimator.target.potential)(here, batch))
            correction = estimator.correction(memory, batch)
            flat = operator.factor_transpose(flat if correction is None else flat + form.ravel(correction))
            return flat if axes is None else axes @ flat

        made = jax.lax.map(gradient, jax.random.split(key, GRADIENTS))
        made = made - jnp.mean(made, axis=0, keepdims=True)
        return total + (made.T @ made if axes is None else jnp.sum(made**2, axis=0)), None

    width = form.size if axes is None else axes.shape[0]
    start = jnp.zeros((width, width) if axes is None else (width,), form.dtype)
    if rows.whole:
        return start
    total, _ = jax.lax.scan(at, start, (jax.random.split(key, count), places.here, places.before))
    return total / (count * (GRADIENTS - 1))


@partial(jax.jit, static_argnames=("rows",))
def hessians(
    key: Key, estimator: GradientEstimator, operator: Any, places: Places, rows: Rows
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sᵀ H S at every place, that of the prior on average, and V."""
    form = places.layout
    first, second = jax.random.split(key)
    every = jnp.eye(form.size, dtype=form.dtype)
    keys = jax.random.split(first, places.number)
    matrices = jax.lax.map(lambda place: _at_place(estimator, operator, place[0], place[1], every), (keys, places.here))
    symmetric = (matrices + jnp.swapaxes(matrices, 1, 2)) / 2
    prior = jnp.zeros_like(symmetric[0])
    if isinstance(estimator.target, Posterior):

        def of_prior(place: tuple[Key, PyTree]) -> jax.Array:
            return _at_place(estimator, operator, place[0], place[1], every, prior=True)

        prior = jnp.mean(jax.lax.map(of_prior, (keys, places.here)), axis=0)
        prior = (prior + prior.T) / 2
    return symmetric, prior, _deviations(second, estimator, operator, places, rows, None)


@partial(jax.jit, static_argnames=("rows",))
def lanczos(
    key: Key, estimator: GradientEstimator, operator: Any, places: Places, rows: Rows
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, Scalar]:
    """Ritz vectors and values of the mean Sᵀ H S, the share of all directions each stands for, noise, the steepest.

    Every product uses the same examples, so that all come from one matrix.
    """
    form = places.layout
    first, second, third = jax.random.split(key, 3)
    start = jax.random.normal(first, (form.size,), form.dtype)
    count = places.number
    where = (jax.random.split(second, count), places.here)

    def grow(basis: jax.Array, k: Scalar) -> tuple[jax.Array, Vector]:
        def add(total: Vector, place: tuple[Key, PyTree]) -> tuple[Vector, None]:
            return total + _at_place(estimator, operator, place[0], place[1], basis[k][None])[0] / count, None

        image, _ = jax.lax.scan(add, jnp.zeros_like(start), where)
        column = basis @ image
        rest = image - column @ basis
        rest = rest - (basis @ rest) @ basis
        length = jnp.linalg.norm(rest)
        return basis.at[k + 1].set(rest / jnp.where(length > 0, length, 1), mode="drop"), column

    empty = jnp.zeros((LANCZOS_STEPS, form.size), form.dtype)
    begun = empty.at[0].set(start / jnp.linalg.norm(start))
    basis, columns = jax.lax.scan(grow, begun, jnp.arange(LANCZOS_STEPS))
    # Column k is known against the vectors up to k; the rest follows by symmetry.
    upper = jnp.triu(columns.T)
    values, vectors = jnp.linalg.eigh(upper + jnp.triu(upper, 1).T)
    axes = vectors.T @ basis

    def steepness(place: tuple[Key, PyTree]) -> Scalar:
        """Power iteration from the steepest direction of the mean."""

        def again(direction: Vector, _: None) -> tuple[Vector, Scalar]:
            image = _at_place(estimator, operator, place[0], place[1], direction[None])[0]
            length = jnp.linalg.norm(image)
            return image / jnp.where(length > 0, length, 1), length

        return jnp.max(jax.lax.scan(again, axes[-1], None, length=3)[1])

    if isinstance(estimator.target, Posterior):
        one = jax.tree.map(lambda x: x[0], places.here)
        prior = _at_place(estimator, operator, second, one, axes, prior=True)
        values = jnp.maximum(values, jnp.sum(prior * axes, axis=1))
    steepest = jnp.maximum(jnp.max(jnp.abs(values)), jnp.median(jax.lax.map(steepness, where)))
    noise = _deviations(third, estimator, operator, places, rows, axes)
    return axes, values, vectors[0] ** 2, noise, steepest


@jax.jit
def readings(key: Key, estimator: GradientEstimator, operator: Any, places: Places, axes: jax.Array) -> jax.Array:
    """Sᵀ ∇ log p(d_i | θ) along the rows of `axes`, for some examples at every place: (reading, direction)."""
    form = places.layout

    def at(place: tuple[Key, PyTree]) -> jax.Array:
        batch = _batch(place[0], estimator, READINGS, replace=True)

        def along(example: PyTree) -> Vector:
            one = jax.tree.map(lambda x: x[None], example)
            gradient = estimator.target.likelihood_gradient(place[1], one)  # type: ignore[union-attr]
            return axes @ operator.factor_transpose(form.ravel(gradient))

        return jax.lax.map(along, batch)

    keys = jax.random.split(key, places.number)
    return jax.lax.map(at, (keys, places.here)).reshape(-1, axes.shape[0])
