"""Stochastic approximation with a fixed number of remembered windows, for networks.

G_k = (1−ω_k) G_{k−1} + ω_k G̃_k is a weighted sum of all windows so far; a few of equal weight stand for them all. Each
G̃ is a multiple of the identity plus a low-rank part, so their mean is G = c I + Pᵀ Q P, whose exact symmetric root has
the same shape: one noise vector is enough, where a sum of independent noises would need one per window.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._control_flow import every, when
from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import Adaptation, GradientAt, Scalar, Unravel, Vector
from ridgewalk.precondition.base import Lesson, Settling, Transition
from ridgewalk.precondition.compact import bfgs_core, held_core, mixed_root
from ridgewalk.precondition.long_rows import long_products
from ridgewalk.precondition.pairs import base_curvature, check_pairs, observe, powell, usable
from ridgewalk.precondition.restrict import restrict_core
from ridgewalk.precondition.spectrum import check_first_curvature, first_scale
from ridgewalk.pruning import apply_mask
from ridgewalk.schedules import DEFAULT_ADAPTATION, adaptation_weight


class Snapshots(NamedTuple):
    """What is known of the K remembered windows besides their vectors: everything small.

    `due` is Σω since the last exchange; `oldest` the snapshot that the next exchange replaces.
    """

    gram: jax.Array
    scales: jax.Array
    cores: jax.Array
    oldest: Scalar
    due: Scalar


class LimitedOperator(NamedTuple):
    """G = c I + Pᵀ Q P and S = √c I + Pᵀ X P, with the pairs of all remembered windows as the rows of P.

    Row 2 (M snapshot + pair) of P is s, the row after it y. `window` collects the next M pairs in the same order, and
    `scale` is their γ, which never falls below `least`.
    """

    vectors: jax.Array
    window: jax.Array
    scale: Scalar
    least: Scalar
    snapshots: Snapshots
    identity: Scalar
    core: jax.Array
    root: jax.Array

    def multiply(self, vector: Vector) -> Vector:
        """G v."""
        return self.identity * vector + (self.core @ (self.vectors @ vector)) @ self.vectors

    def factor(self, noise: Vector) -> Vector:
        """S z."""
        return jnp.sqrt(self.identity) * noise + (self.root @ (self.vectors @ noise)) @ self.vectors

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v: S is symmetric."""
        return self.factor(vector)

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z: two looks along P, one move along it (a look at both at once takes longer than two)."""
        back = self.core @ (self.vectors @ covector) + self.root @ (self.vectors @ noise)
        return self.identity * covector + jnp.sqrt(self.identity) * noise + back @ self.vectors


@pytree_dataclass
class Limited(Settling):
    """The mean of `snapshots` windows of `memory` pairs each; the base of every window is γ⁻¹ I.

    Pairs are collected M at a time. A full window takes the place of the oldest snapshot whenever Σω since the last
    exchange has come to its share, 1/snapshots: G is the mean over the last 1/ω windows or so, as in the recursion
    above, and in between it stands still, which is what keeps the chain's stationary law (a G that follows the newest
    pairs does not).
    Damping promises curvatures of at least r γ, and eigenvalues of a window are held below the 1 / (r γ) that follows:
    pairs that contradict each other, on a target that is not Gaussian, can otherwise multiply to anything.
    Steps that follow valleys see only the curvature along them, and γ takes it for that of every direction: with
    momentum give `base_growth`, a number of times that γ⁻¹ may exceed its first value 1/λ_max (networks: 5);
    eigenvalues of G then stay below base_growth / (r λ_max).
    Memory is 2 M (snapshots + 1) vectors.
    """

    memory: int = 8
    adaptation: Adaptation = DEFAULT_ADAPTATION
    curvature_every: int = 1
    damping: float = 0.2
    snapshots: int = 2
    curvature_floor: float = 1e-8
    first_curvature: float | None = None
    base_growth: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_pairs(self.memory, self.damping, self.curvature_every)
        check_first_curvature(self.first_curvature)
        if self.base_growth is not None and not self.base_growth >= 1:
            raise ValueError(
                f"base_growth: {self.base_growth} is below 1, so that G could not start at I / λ_max; try 5, or leave "
                "it out for no bound"
            )
        if self.snapshots < 1:
            raise ValueError(f"snapshots: {self.snapshots} windows is not at least 1; the default is 2")

    def specialise(self, dimension: int, unravel: Unravel) -> "Limited":
        """Itself."""
        return self

    def init(self, position: Vector, gradient_at: GradientAt) -> LimitedOperator:
        """G₀ = I / λ_max in all snapshots."""
        d, dtype, size = position.shape[0], position.dtype, 2 * self.memory
        curvature = first_scale(self.first_curvature, gradient_at, position)
        rows = size * self.snapshots
        square = jnp.zeros((rows, rows), dtype)
        snapshots = Snapshots(
            gram=square,
            scales=jnp.full((self.snapshots,), curvature),
            cores=jnp.zeros((self.snapshots, rows, rows), dtype),
            oldest=jnp.zeros((), jnp.int32),
            due=jnp.zeros((), dtype),
        )
        vectors, window = jnp.zeros((rows, d), dtype), jnp.zeros((size, d), dtype)
        floor = jnp.full((), self.curvature_floor, dtype)
        least = floor if self.base_growth is None else jnp.maximum(curvature / self.base_growth, floor)
        return LimitedOperator(vectors, window, curvature, least, snapshots, 1 / curvature, square, square)

    @property
    def interval(self) -> int:
        """Every `curvature_every`-th step gives a pair."""
        return self.curvature_every

    def update(self, old: LimitedOperator, transition: Transition) -> tuple[LimitedOperator, Lesson]:
        """Collect the pair of this step; with the last of M, exchange a snapshot if one is due."""
        s, y = observe(transition)
        ss, sy, yy = s @ s, s @ y, y @ y
        good = usable(ss, sy, yy)
        pairs = transition.step // self.curvature_every
        row = 2 * ((pairs - 1) % self.memory)
        fresh = jnp.where(good, jnp.stack([s, y]), 0)
        scale = jnp.where(good, base_curvature(ss, sy, yy, self.damping, old.least, old.scale), old.scale)
        now = old._replace(window=jax.lax.dynamic_update_slice_in_dim(old.window, fresh, row, 0), scale=scale)
        after = every(self.memory, pairs, self._consider, now, pairs // self.memory)
        return after, Lesson(powell(scale * ss, sy, self.damping), ~good)

    def _consider(self, now: LimitedOperator, windows: Scalar) -> LimitedOperator:
        due = now.snapshots.due + adaptation_weight(self.adaptation, windows, now.identity.dtype)
        share = 1 / self.snapshots
        waiting = now._replace(snapshots=now.snapshots._replace(due=due))
        return when(due >= share, self._exchange, waiting, jnp.minimum(due - share, share))

    def _exchange(self, now: LimitedOperator, due: Scalar) -> LimitedOperator:
        """The window in the place of the oldest snapshot."""
        old, size = now.snapshots, 2 * self.memory
        start = old.oldest * size
        vectors = jax.lax.dynamic_update_slice_in_dim(now.vectors, now.window, start, 0)
        products = long_products(vectors, now.window)
        gram = jax.lax.dynamic_update_slice_in_dim(old.gram, products, start, 1)
        gram = jax.lax.dynamic_update_slice_in_dim(gram, products.T, start, 0)
        core = jnp.zeros_like(gram)
        for pair in range(self.memory):
            core = bfgs_core(gram, core, now.scale, start + 2 * pair, start + 2 * pair + 1, self.damping)
        core = held_core(gram, now.scale * core, 1 / self.damping) / now.scale
        snapshots = Snapshots(
            gram=gram,
            scales=old.scales.at[old.oldest].set(now.scale),
            cores=old.cores.at[old.oldest].set(core),
            oldest=(old.oldest + 1) % self.snapshots,
            due=due,
        )
        return self._mean(now._replace(vectors=vectors, snapshots=snapshots))

    def _mean(self, now: LimitedOperator) -> LimitedOperator:
        """G as the mean of the snapshots."""
        snapshots = now.snapshots
        identity = jnp.mean(1 / snapshots.scales)
        total = jnp.mean(snapshots.cores, axis=0)
        root = jnp.sqrt(identity) * mixed_root(snapshots.gram, total / identity, 1.0, jnp.inf)
        return now._replace(identity=identity, core=total, root=root)

    def restrict(
        self, operator: LimitedOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> LimitedOperator:
        """G⁻¹ of every snapshot restricted; the pairs of the window in flight are dropped."""
        old, vectors = operator.snapshots, apply_mask(operator.vectors, mask)
        gram = vectors @ vectors.T
        cores = [
            restrict_core(core, 1 / scale, old.gram - gram) for core, scale in zip(old.cores, old.scales, strict=True)
        ]
        snapshots = old._replace(gram=gram, cores=jnp.stack(cores))
        window = jnp.zeros_like(operator.window)
        return self._mean(operator._replace(vectors=vectors, window=window, snapshots=snapshots))
