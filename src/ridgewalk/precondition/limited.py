"""Stochastic approximation with a fixed number of remembered windows, for networks.

G_k = (1−ω_k) G_{k−1} + ω_k G̃_k is a weighted sum of all windows so far; a few of them stand for all. Each G̃ is a multiple
of the identity plus a low-rank part, so their sum is G = c I + Pᵀ Q P, whose exact symmetric root has the same
shape: one noise vector is enough, where a sum of independent noises would need one per window.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk.precondition.adaptation import Adaptation, PowerDecay, weight
from ridgewalk.precondition.base import (
    Departure,
    GradientAt,
    Lesson,
    Preconditioner,
    Transition,
    Unravel,
    every,
    no_lesson,
)
from ridgewalk.precondition.compact import bfgs_core, roots
from ridgewalk.precondition.pairs import Pair, check_pairs, observe, powell, usable
from ridgewalk.precondition.spectrum import largest_curvature
from ridgewalk.settings import settings
from ridgewalk.types import Scalar, Vector


class LimitedOperator(NamedTuple):
    """G = c I + Pᵀ Q P and S = √c I + Pᵀ X P, with the pairs of all remembered windows as the rows of P.

    Row `(window, pair, 0)` of P is s, `(window, pair, 1)` is y. `weights[0]` belongs to G₀, the others to windows.
    """

    vectors: jax.Array
    gram: jax.Array
    scales: jax.Array
    weights: jax.Array
    cores: jax.Array
    open: Scalar
    count: Scalar
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
        """G v + S z, with one pass to look along P and one to move along it."""
        along = self.vectors @ jnp.stack([covector, noise], axis=1)
        back = self.core @ along[:, 0] + self.root @ along[:, 1]
        return self.identity * covector + jnp.sqrt(self.identity) * noise + back @ self.vectors


@settings
class Limited(Preconditioner):
    """`snapshots` weighted windows of `memory` pairs each; the base of every window is γ⁻¹ I.

    The newest window collects weight with every pair; once it holds its share, 1/snapshots, the next pair opens a new
    one in the place of the oldest, whose weight the others share. Memory is 2 · snapshots · memory vectors.
    """

    memory: int = 4
    adaptation: Adaptation = PowerDecay()
    curvature_every: int = 1
    damping: float = 0.2
    snapshots: int = 2
    curvature_floor: float = 1e-8
    first_curvature: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_pairs(self.memory, self.damping, self.curvature_every)
        if self.snapshots < 1:
            raise ValueError(f"snapshots: {self.snapshots} windows is not at least 1; the default is 2")

    def specialise(self, dimension: int, unravel: Unravel) -> "Limited":
        """Itself."""
        return self

    def init(self, position: Vector, gradient_at: GradientAt) -> LimitedOperator:
        """G₀ = I / λ_max."""
        first, dtype = self.first_curvature, position.dtype
        curvature = largest_curvature(gradient_at, position) if first is None else jnp.asarray(first, dtype)
        rows = 2 * self.snapshots * self.memory
        square = jnp.zeros((rows, rows), dtype)
        return LimitedOperator(
            vectors=jnp.zeros((rows, position.shape[0]), dtype),
            gram=square,
            scales=jnp.full((self.snapshots + 1,), curvature, dtype),
            weights=jnp.zeros((self.snapshots + 1,), dtype).at[0].set(1),
            cores=jnp.zeros((self.snapshots, rows, rows), dtype),
            open=jnp.zeros((), jnp.int32),
            count=jnp.zeros((), jnp.int32),
            identity=1 / curvature,
            core=square,
            root=square,
        )

    def prepare(self, operator: LimitedOperator, departure: Departure) -> LimitedOperator:
        """G as it is."""
        return operator

    def correction(self, operator: LimitedOperator) -> None:
        """None: G moves by ω_k and settles, it is no function of the position."""
        return

    def learn(self, operator: LimitedOperator, transition: Transition) -> tuple[LimitedOperator, Lesson]:
        """One step of stochastic approximation."""

        def push() -> tuple[LimitedOperator, Lesson]:
            omega = weight(self.adaptation, transition.step // self.curvature_every, operator.identity.dtype)
            return self._push(operator, observe(transition), omega)

        return every(
            self.curvature_every, transition.step, push, lambda: (operator, no_lesson(operator.identity))
        )

    def _push(self, old: LimitedOperator, pair: Pair, omega: Scalar) -> tuple[LimitedOperator, Lesson]:
        ss, sy, yy = pair.s @ pair.s, pair.s @ pair.y, pair.y @ pair.y
        good = usable(ss, sy, yy)
        now = self._opened(old)

        window, size = now.open, 2 * self.memory
        row = window * size + 2 * (now.count % self.memory)
        before = jax.lax.dynamic_slice_in_dim(old.vectors, row, 2)
        fresh = jnp.where(good, jnp.stack([pair.s, pair.y]), before)
        vectors = jax.lax.dynamic_update_slice_in_dim(old.vectors, fresh, row, 0)
        products = vectors @ fresh.T
        gram = jax.lax.dynamic_update_slice(now.gram, products, (0, row))
        gram = jax.lax.dynamic_update_slice(gram, products.T, (row, 0))
        seen = jnp.maximum(yy / jnp.where(sy > 0, sy, 1), self.curvature_floor)
        scale = jnp.where(sy > 0, seen, now.scales[1 + window])

        core = jnp.zeros_like(gram)
        for age in range(self.memory):
            slot = window * size + 2 * ((now.count + 1 + age) % self.memory)
            core = bfgs_core(gram, core, scale, slot, slot + 1, self.damping)
        scales = now.scales.at[1 + window].set(scale)
        weights = ((1 - omega) * now.weights).at[1 + window].add(omega)
        cores = now.cores.at[window].set(core)
        identity = weights @ (1 / scales)
        total = jnp.tensordot(weights[1:], cores, 1)
        root = jnp.sqrt(identity) * roots(gram, total / identity)[0]
        pushed = LimitedOperator(
            vectors, gram, scales, weights, cores, window, now.count + 1, identity, total, root
        )
        kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), pushed._replace(vectors=()), old._replace(vectors=()))
        return kept._replace(vectors=vectors), Lesson(powell(scale * ss, sy, self.damping), ~good)

    def _opened(self, old: LimitedOperator) -> LimitedOperator:
        """The state with the oldest window emptied for new pairs, where the newest one has its share.

        Its rows of P stay as they are: without entries in the Gram matrix and the cores they do nothing.
        """
        following = (old.open + 1) % self.snapshots
        weights = old.weights.at[1 + following].set(0)
        keep = jnp.arange(old.gram.shape[0]) // (2 * self.memory) != following
        emptied = old._replace(
            gram=jnp.where(keep[:, None] & keep[None, :], old.gram, 0),
            weights=weights / jnp.sum(weights),
            cores=old.cores.at[following].set(0),
            open=following,
            count=jnp.zeros_like(old.count),
            vectors=(),
        )
        full = (old.weights[1 + old.open] >= 1 / self.snapshots) & (self.snapshots > 1)
        chosen = jax.tree.map(lambda a, b: jnp.where(full, a, b), emptied, old._replace(vectors=()))
        return chosen._replace(vectors=old.vectors)
