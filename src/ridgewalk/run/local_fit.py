"""Curvature and gradient noise where a chain has been, seen through its preconditioner."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.gradients import GradientEstimator
from ridgewalk.layout import layout_of
from ridgewalk.run.local_law import LocalModel
from ridgewalk.run.rows import Rows
from ridgewalk.target import Posterior
from ridgewalk.types import Key, PyTree, Scalar, Vector

MOST_DENSE = 400
"""Up to this many parameters the averaged Hessian is formed; above, Lanczos finds its extent."""

LANCZOS_STEPS = 24
EXAMPLES = 1024
"""Examples of the Hessian at each place; every place takes others, so that the average sees them all."""

GRADIENTS = 24
"""Minibatch gradients at each place, from which the noise is estimated."""

JUDGED = 50
"""Of more parameters than this the covariance of so many is judged: of a whole network no run estimates it."""


class Places(NamedTuple):
    """Positions of chains (leading axis: place), and earlier ones of the same chains, where SVRG would look back to."""

    here: PyTree
    before: PyTree


def fit(key: Key, estimator: GradientEstimator, operator: Any, places: Places, rows: Rows) -> LocalModel:
    """A and V averaged over the places, in the directions in which A is diagonal."""
    d = layout_of(jax.tree.map(lambda x: x[0], places.here)).size
    if d <= MOST_DENSE:
        matrix, noise = map(np.asarray, _dense(key, estimator, operator, places, rows))
        values, axes = np.linalg.eigh(np.asarray(matrix, float))
        a = _positive(values)
        factor = np.asarray(jax.vmap(operator.factor)(jnp.asarray(axes.T, matrix.dtype)), float).T
        # Rows of `factor · a^{−½}` are the parameters' spread over the directions; each is scaled to length one.
        spread = factor / np.sqrt(a)
        spread /= np.maximum(np.linalg.norm(spread, axis=1, keepdims=True), np.finfo(float).tiny)
        return LocalModel(a, axes.T @ noise @ axes, spread.T @ spread, np.ones(d), JUDGED)
    values, weights, noise = (np.asarray(x, float) for x in _lanczos(key, estimator, operator, places, rows))
    return LocalModel(_positive(values), np.diag(noise), np.eye(len(values)), np.maximum(weights * d, 1e-6), JUDGED)


def _positive(values: np.ndarray) -> np.ndarray:
    """Curvatures of a posterior are positive on average; what bends the other way in a few places is nearly flat."""
    return np.maximum(np.abs(values), 1e-7 * np.abs(values).max())


def _batch(key: Key, estimator: GradientEstimator, count: int, replace: bool) -> PyTree:
    """Random examples, of the data in memory or of the sketch of what stays on the host."""
    target = estimator.target
    if not isinstance(target, Posterior):
        return None
    data = target.sketch() if hasattr(target.data, "examples") else target.data
    size = jax.tree.leaves(data)[0].shape[0]
    if count >= size and not replace:
        return data
    chosen = jax.random.randint(key, (count,), 0, size) if replace else jax.random.permutation(key, size)[:count]
    return jax.tree.map(lambda x: x[chosen], data)


def _product(key: Key, estimator: GradientEstimator, operator: Any, places: Places, directions: jax.Array) -> jax.Array:
    """Sᵀ H S v for the rows v of `directions`, H averaged over the places."""
    form = layout_of(jax.tree.map(lambda x: x[0], places.here))
    count = jax.tree.leaves(places.here)[0].shape[0]
    moved = jax.vmap(operator.factor)(directions)

    def at(total: jax.Array, place: tuple[Key, PyTree]) -> tuple[jax.Array, None]:
        batch = _batch(place[0], estimator, EXAMPLES, replace=False)

        def gradient(vector: Vector) -> Vector:
            return form.ravel(jax.grad(estimator.target.potential)(form.unravel(vector), batch))

        _, along = jax.linearize(gradient, form.ravel(place[1]))
        return total + jax.lax.map(along, moved, batch_size=64) / count, None

    keys = jax.random.split(key, count)
    total, _ = jax.lax.scan(at, jnp.zeros_like(moved), (keys, places.here))
    return jax.vmap(operator.factor_transpose)(total)


def _deviations(key: Key, estimator: GradientEstimator, operator: Any, places: Places, rows: Rows, axes: Any) -> Any:
    """Σ over places of the centred whitened gradients' products: (d, d), or (m,) along the rows of `axes`."""
    form = layout_of(jax.tree.map(lambda x: x[0], places.here))
    count = jax.tree.leaves(places.here)[0].shape[0]

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
        made = made - jnp.mean(made, axis=0)
        return total + (made.T @ made if axes is None else jnp.sum(made**2, axis=0)), None

    width = form.size if axes is None else axes.shape[0]
    start = jnp.zeros((width, width) if axes is None else (width,), form.dtype)
    if rows.whole:
        return start
    total, _ = jax.lax.scan(at, start, (jax.random.split(key, count), places.here, places.before))
    return total / (count * (GRADIENTS - 1))


@partial(jax.jit, static_argnames=("rows",))
def _dense(
    key: Key, estimator: GradientEstimator, operator: Any, places: Places, rows: Rows
) -> tuple[jax.Array, jax.Array]:
    form = layout_of(jax.tree.map(lambda x: x[0], places.here))
    first, second = jax.random.split(key)
    matrix = _product(first, estimator, operator, places, jnp.eye(form.size, dtype=form.dtype))
    return (matrix + matrix.T) / 2, _deviations(second, estimator, operator, places, rows, None)


@partial(jax.jit, static_argnames=("rows",))
def _lanczos(
    key: Key, estimator: GradientEstimator, operator: Any, places: Places, rows: Rows
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Ritz values of Sᵀ H S, the share of all directions each stands for, and the gradient noise along them."""
    form = layout_of(jax.tree.map(lambda x: x[0], places.here))
    first, second, third = jax.random.split(key, 3)
    start = jax.random.normal(first, (form.size,), form.dtype)
    empty = jnp.zeros((LANCZOS_STEPS, form.size), form.dtype)

    def grow(basis: jax.Array, k: Scalar) -> tuple[jax.Array, Vector]:
        # The same key each time: the products must come from one matrix.
        image = _product(second, estimator, operator, places, basis[k][None])[0]
        column = basis @ image
        rest = image - column @ basis
        rest = rest - (basis @ rest) @ basis
        length = jnp.linalg.norm(rest)
        following = jnp.where(length > 0, rest / jnp.where(length > 0, length, 1), rest)
        return basis.at[k + 1].set(following, mode="drop"), column

    begun = empty.at[0].set(start / jnp.linalg.norm(start))
    basis, columns = jax.lax.scan(grow, begun, jnp.arange(LANCZOS_STEPS))
    # Column k is known against the vectors up to k; the rest follows by symmetry.
    upper = jnp.triu(columns.T)
    small = upper + jnp.triu(upper, 1).T
    values, vectors = jnp.linalg.eigh(small)
    noise = _deviations(third, estimator, operator, places, rows, vectors.T @ basis)
    return values, vectors[0] ** 2, noise
