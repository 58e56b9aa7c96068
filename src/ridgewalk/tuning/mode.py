"""`find_mode`: a local minimum of the potential, for `control_variates` and as the start of a chain.

Adam runs in a compiled loop, in blocks. A block that reduces the potential by more than its standard error raises the
learning rate, any other one lowers it, and the search ends when the rate has fallen far below its largest value. The
result is then refined: with full-data gradients by L-BFGS; after minibatches, for up to 500 parameters, by Newton steps
with the Hessian of a subsample and a few passes over all data.
"""

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ridgewalk._pytree import layout_of, leaf_names
from ridgewalk._types import Key, PyTree, Scalar, Vector
from ridgewalk._validation import check_positive, check_whole
from ridgewalk.data import SUBSAMPLE_SIZE, Batches, DataPlaceholder, read_rows
from ridgewalk.distributed.shards import refuse_shards
from ridgewalk.gradients import GradientEstimator, as_estimator, full_gradient_from_host
from ridgewalk.target import Posterior, Target, model_starts, on_device, on_host

BLOCK = 100
"""Steps of Adam between two decisions about the learning rate."""
RISE, FALL = 1.5, 0.5
"""Factors of the learning rate after a block with and without progress."""
LEAST_GAIN = 1e-2
"""A smaller decrease of the potential in a block is no progress."""
LAST_RATE = 2.0**-8
"""The search ends when the learning rate is below this fraction of its largest value."""
POLISH_STEPS = 2_000
"""L-BFGS iterations at most."""
STALLED = 5
"""L-BFGS ends after so many iterations without a lower potential."""
NEWTON_STEPS = 20
"""Newton steps at most; each is a pass over the data."""
NEWTON_TOLERANCE = 1e-4
"""The Newton decrement gᵀ H⁻¹ g at which the refinement ends: 0.01 posterior standard deviations."""
LARGEST_HESSIAN = 500
"""Hessians are computed for at most so many parameters."""
LARGEST_CHECK = 2**24
"""Rows times parameters up to which a Hessian that is indefinite on the subsample is computed on all rows."""
LARGE_OFFSET = 1.0
"""Posterior standard deviations between mode and mean from which a warning is given."""


class _Search(NamedTuple):
    position: Vector
    optimizer: Any
    mean: Vector
    """The average position of the block."""


def find_mode(
    key: Key,
    target: Target | GradientEstimator,
    position: PyTree | None = None,
    *,
    batch_size: int | None = None,
    learning_rate: float = 0.05,
    max_steps: int = 50_000,
    check_mean: bool = True,
) -> PyTree:
    """Minimise the potential from `position` and return the minimiser, with the same structure.

    It stops by itself. A warning is given if it stops at `max_steps`, if the potential has no minimum there, and if the
    posterior mean is far from the mode, as in hierarchical models: control variates centred at such a mode reduce
    little noise.

    Parameters
    ----------
    key
        A JAX random key, for the minibatches.
    target
        A `Posterior`, a `Density`, or a gradient estimator, of which the target is used. An adaptive prior is held at
        its first state.
    position
        Where the search starts: any pytree of float arrays; None for the start of a model (`from_numpyro`,
        `from_pymc`).
    batch_size
        Examples per gradient; None uses all data (or the batches that `Batches` yields).
    learning_rate
        The first learning rate of Adam; it is adapted.
    max_steps
        Gradients at most, without those of the refinement.
    check_mean
        Whether to look at the Hessian, for up to 500 parameters, and warn as described. Means of a network's weights
        have no meaning, so pass False for networks.
    """
    density = as_estimator(target).target
    refuse_shards(target, "find_mode")
    check_positive("learning_rate", learning_rate, "the default is 0.05")
    check_whole("max_steps", max_steps, 1, "the default is 50,000")
    if position is None:
        position = jax.tree.map(lambda leaf: leaf[0], model_starts(key, density, 1))
    position = jax.tree.map(jnp.asarray, position)
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(position)):
        raise ValueError("position: it has leaves that are not float arrays; leave them out of the position")
    density = density.at_first_prior(position)
    batches = _Minibatches(key, density, batch_size)
    inside = on_device(density)
    flat = layout_of(position).ravel(position)
    if not math.isfinite(float(_potential(inside, position, flat, batches.whole_batch()))):
        raise ValueError("position: the potential is not finite there; start at a point of positive density")
    flat, converged = _descend(inside, position, flat, batches, learning_rate, max_steps)
    if batches.exact:
        flat = _polish(inside, position, flat, batches.whole_batch())
    elif isinstance(density, Posterior) and batches.stream is None and flat.size <= LARGEST_HESSIAN:
        flat = _refine(density, position, flat)
    if not converged:
        warnings.warn(
            f"find_mode: the potential still decreased after max_steps = {max_steps:,} steps; raise max_steps, or "
            "check that the density is bounded",
            UserWarning,
            stacklevel=2,
        )
    elif check_mean and flat.size <= LARGEST_HESSIAN:
        _warn_if_far_from_mean(inside, position, flat)
    return layout_of(position).unravel(flat)


class _Minibatches:
    """The batches of the search: stacked for one block, or the whole data."""

    def __init__(self, key: Key, target: Target, batch_size: int | None) -> None:
        self.key, self.block = key, 0
        self.data = target.data if isinstance(target, Posterior) else None
        self.size = target.size if isinstance(target, Posterior) else 0
        self.stream = self.data.forever() if isinstance(self.data, Batches) else None
        self.batch_size = batch_size
        if batch_size is not None:
            check_whole("batch_size", batch_size, 1, "None uses all data")
            if self.data is None:
                raise ValueError("batch_size: a Density has no data; leave batch_size out")
            if self.stream is None and batch_size > self.size:
                raise ValueError(f"batch_size: {batch_size} exceeds the {self.size} examples of the data")
        if on_host(self.data) and self.stream is None and batch_size is None:
            raise ValueError("batch_size: the data are on disk; give the number of examples per gradient")

    @property
    def exact(self) -> bool:
        """Whether gradients are over all data."""
        return self.stream is None and self.batch_size is None

    def whole_batch(self) -> PyTree:
        """All data; a subsample where gradients are over minibatches."""
        if self.data is None:
            return None
        if self.stream is not None:
            return jax.tree.map(jnp.asarray, next(self.stream))
        if self.exact:
            return jax.tree.map(jnp.asarray, self.data)
        rows = np.arange(0, self.size, -(-self.size // SUBSAMPLE_SIZE))
        return jax.tree.map(lambda leaf: jnp.asarray(read_rows(leaf, rows)), self.data)

    def next_block(self) -> PyTree:
        """Batches for `BLOCK` steps, with a leading axis; None for exact gradients."""
        if self.exact:
            return None
        self.block += 1
        if self.stream is not None:
            items = [next(self.stream) for _ in range(BLOCK)]
            return jax.tree.map(lambda *leaves: np.stack(leaves), *items)
        generator = np.random.default_rng(
            [int(word) for word in np.ravel(jax.random.key_data(self.key))] + [self.block]
        )
        rows = generator.integers(0, self.size, (BLOCK, int(self.batch_size or 0)))
        return jax.tree.map(
            lambda leaf: read_rows(leaf, rows.reshape(-1)).reshape(*rows.shape, *leaf.shape[1:]), self.data
        )


def _descend(
    target: Target, like: PyTree, flat: Vector, batches: _Minibatches, rate: float, max_steps: int
) -> tuple[Vector, bool]:
    """Adam with a learning rate that follows the progress; whether the rate has decayed."""
    search, best = _Search(flat, _adam().init(flat), flat), flat
    whole = batches.whole_batch() if batches.exact else None
    largest, block = rate, batches.next_block()
    for _ in range(-(-max_steps // BLOCK)):
        search = _run_block(target, like, search, jnp.asarray(rate, flat.dtype), block, whole)
        block = batches.next_block()
        gains = np.asarray(_gains(target, like, best, search.mean, block, whole), float)
        gain, error = float(np.mean(gains)), float(np.std(gains) / math.sqrt(len(gains)))
        if not math.isfinite(gain):  # overshot
            search, rate = _Search(best, _adam().init(best), best), rate * FALL**3
        else:
            best = search.mean if gain > 0 else best
            rate *= RISE if gain > 2 * error + LEAST_GAIN else FALL
        largest = max(largest, rate)
        if rate < LAST_RATE * largest:
            return best, True
    return best, False


def _adam() -> optax.GradientTransformation:
    return optax.scale_by_adam(b1=0.9, b2=0.99)


def _potential(target: Target, like: PyTree, flat: Vector, batch: PyTree) -> Scalar:
    return target.potential(layout_of(like).unravel(flat), batch)


@jax.jit
def _run_block(target: Target, like: PyTree, search: _Search, rate: Scalar, batches: PyTree, whole: PyTree) -> _Search:
    """`BLOCK` steps of Adam, and the average position of the second half."""

    def step(carry: tuple[Vector, Any, Vector], inputs: tuple[Scalar, PyTree]) -> tuple[Any, None]:
        flat, state, total = carry
        number, batch = inputs
        gradient = jax.grad(lambda x: _potential(target, like, x, batch if whole is None else whole))(flat)
        update, state = _adam().update(gradient, state)
        flat = flat - rate * update
        return (flat, state, total + jnp.where(number >= BLOCK // 2, flat, 0)), None

    start = (search.position, search.optimizer, jnp.zeros_like(search.position))
    flat, state, total = jax.lax.scan(step, start, (jnp.arange(BLOCK), batches))[0]
    return _Search(flat, state, total / (BLOCK - BLOCK // 2))


@jax.jit
def _gains(target: Target, like: PyTree, before: Vector, after: Vector, batches: PyTree, whole: PyTree) -> jax.Array:
    """Ũ(before) − Ũ(after) on each of a block's batches: pairs, whose difference has little noise."""

    def gain(batch: PyTree) -> Scalar:
        return _potential(target, like, before, batch) - _potential(target, like, after, batch)

    return gain(whole)[None] if batches is None else jax.lax.map(gain, batches)


class _Polish(NamedTuple):
    position: Vector
    solver: Any
    best: Vector
    lowest: Scalar
    stalled: Scalar
    """Iterations since the lowest potential."""
    iterations: Scalar


@jax.jit
def _polish(target: Target, like: PyTree, flat: Vector, whole: PyTree) -> Vector:
    """L-BFGS with line search until the potential no longer decreases."""
    solver = optax.lbfgs()

    def potential(x: Vector) -> Scalar:
        return _potential(target, like, x, whole)

    value_and_grad = optax.value_and_grad_from_state(potential)

    def step(carry: _Polish) -> _Polish:
        value, gradient = value_and_grad(carry.position, state=carry.solver)
        better = value < carry.lowest
        update, state = solver.update(
            gradient, carry.solver, carry.position, value=value, grad=gradient, value_fn=potential
        )
        return _Polish(
            position=optax.apply_updates(carry.position, update),
            solver=state,
            best=jnp.where(better, carry.position, carry.best),
            lowest=jnp.where(better, value, carry.lowest),
            stalled=jnp.where(better, 0, carry.stalled + 1),
            iterations=carry.iterations + 1,
        )

    def unfinished(carry: _Polish) -> Scalar:
        return (carry.stalled < STALLED) & (carry.iterations < POLISH_STEPS)

    zero = jnp.zeros((), jnp.int32)
    start = _Polish(flat, solver.init(flat), flat, jnp.full((), jnp.inf, flat.dtype), zero, zero)
    return jax.lax.while_loop(unfinished, step, start).best


def _refine(posterior: Posterior, like: PyTree, flat: Vector) -> Vector:
    """Newton steps with full gradients and the Hessian of a subsample, halved where they overshoot."""
    layout, inside = layout_of(like), on_device(posterior)
    full = full_gradient_from_host if on_host(posterior.data) else jax.jit(Posterior.full_gradient)
    best, lowest, step = flat, math.inf, jnp.zeros_like(flat)
    for _ in range(NEWTON_STEPS):
        direction, decrement = _newton(inside, like, flat, layout.ravel(full(posterior, layout.unravel(flat))))
        if float(decrement) < lowest:
            best, lowest, step = flat, float(decrement), -direction
        else:
            step = step / 2
        if lowest < NEWTON_TOLERANCE:
            break
        flat = best + step
    return best


@jax.jit
def _newton(target: Target, like: PyTree, flat: Vector, gradient: Vector) -> tuple[Vector, Scalar]:
    """H⁻¹ g and gᵀ H⁻¹ g, with the absolute eigenvalues of the subsample's Hessian."""
    values, vectors, scale = _spectrum(target, like, flat, target.subsample())
    size = jnp.abs(values)
    inverse = 1 / jnp.maximum(size, jnp.finfo(flat.dtype).eps * jnp.max(size))
    direction = scale * (vectors @ (inverse * ((scale * gradient) @ vectors)))
    return direction, gradient @ direction


def _spectrum(target: Target, like: PyTree, flat: Vector, rows: PyTree) -> tuple[Vector, jax.Array, Vector]:
    """Eigenvalues and eigenvectors of D H D, with the Hessian H on some rows, and D = |diag(H)|^(−1/2)."""
    hessian = jax.hessian(lambda x: _potential(target, like, x, rows))(flat)
    scale = jax.lax.rsqrt(jnp.maximum(jnp.abs(jnp.diagonal(hessian)), jnp.finfo(flat.dtype).tiny))
    values, vectors = jnp.linalg.eigh(scale[:, None] * hessian * scale[None, :])
    return values, vectors, scale


class _Offset(NamedTuple):
    smallest: Scalar
    """The smallest eigenvalue of the Hessian relative to the one of largest size."""
    offset: Vector
    """The estimated posterior mean minus the mode, in posterior standard deviations."""


@jax.jit
def _mean_offset(target: Target, like: PyTree, flat: Vector, rows: PyTree) -> _Offset:
    """Mean − mode to first order, −½ H⁻¹ ∇ tr(H(θ) C) with C = H⁻¹ at the mode, over √diag(C), on some rows."""

    def potential(x: Vector) -> Scalar:
        return _potential(target, like, x, rows)

    values, vectors, scale = _spectrum(target, like, flat, rows)
    positive = jnp.where(values > 0, values, jnp.inf)
    root = scale[:, None] * vectors * jax.lax.rsqrt(positive)[None, :]  # C = root rootᵀ

    def curvature(x: Vector, column: Vector) -> Scalar:
        return jax.jvp(lambda y: jax.jvp(potential, (y,), (column,))[1], (x,), (column,))[1]

    def add(total: Vector, column: Vector) -> tuple[Vector, None]:
        return total + jax.grad(curvature)(flat, column), None

    gradient = jax.lax.scan(add, jnp.zeros_like(flat), root.T)[0]
    spread = jnp.sqrt(jnp.sum(root**2, axis=1))
    return _Offset(values[0] / jnp.max(jnp.abs(values)), -0.5 * (root @ (gradient @ root)) / spread)


def _warn_if_far_from_mean(target: Target, like: PyTree, flat: Vector) -> None:
    smallest, offset = jax.tree.map(np.asarray, _mean_offset(target, like, flat, target.subsample()))
    if (
        not smallest > 0
        and isinstance(target, Posterior)
        and not isinstance(target.data, DataPlaceholder)
        and SUBSAMPLE_SIZE < target.size <= LARGEST_CHECK // flat.size
    ):
        # A mode of all rows is none of the subsample, whose Hessian may be indefinite there.
        smallest, offset = jax.tree.map(np.asarray, _mean_offset(target, like, flat, target.data))
    if not smallest > 0:
        warnings.warn(
            "find_mode: the Hessian is not positive definite there, so the potential has no strict minimum (a flat or "
            "unbounded direction); check the priors before using it as the centre of control variates",
            UserWarning,
            stacklevel=3,
        )
    elif not np.max(np.abs(offset)) < LARGE_OFFSET:
        leaves = [
            f"{name}[{index}]" if leaf.ndim else name
            for name, leaf in zip(leaf_names(like), jax.tree.leaves(like), strict=True)
            for index in range(leaf.size)
        ]
        worst = int(np.nanargmax(np.abs(offset)))
        warnings.warn(
            f"find_mode: the posterior mean of {leaves[worst]} is estimated to be {abs(offset[worst]):.1f} posterior "
            "standard deviations from the mode, as in hierarchical models; use the mode as a start only, and centre "
            "control variates at a posterior mean from a short run",
            UserWarning,
            stacklevel=3,
        )
