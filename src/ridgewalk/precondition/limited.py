"""Stochastic approximation with a fixed number of remembered windows, for networks.

G_k = (1−ω_k) G_{k−1} + ω_k G̃_k is a weighted sum of all windows so far; a few stand for all. Each G̃ is a multiple
of the identity plus a low-rank part, so their sum is G = c I + Pᵀ Q P, whose exact symmetric root has the same
shape: one noise vector is enough, where a sum of independent noises would need one per window.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk.precondition.adaptation import DEFAULT_ADAPTATION, Adaptation, weight
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
from ridgewalk.precondition.compact import bfgs_core, held_core, mixed_root
from ridgewalk.precondition.pairs import Pair, base_curvature, check_pairs, observe, powell, usable
from ridgewalk.precondition.spectrum import check_first_curvature, first_scale
from ridgewalk.settings import settings
from ridgewalk.types import Scalar, Vector


class Windows(NamedTuple):
    """What is known of the remembered windows besides their vectors: everything small.

    `weights[0]` and `scales[0]` belong to G₀, the others to the windows; `newest` is the window that takes the next
    pair, of which it has taken `pushed`.
    """

    gram: jax.Array
    scales: jax.Array
    weights: jax.Array
    cores: jax.Array
    newest: Scalar
    pushed: Scalar


class LimitedOperator(NamedTuple):
    """G = c I + Pᵀ Q P and S = √c I + Pᵀ X P, with the pairs of all remembered windows as the rows of P.

    Row 2 (M window + pair) of P is s, the row after it y.
    """

    vectors: jax.Array
    windows: Windows
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
    Damping promises curvatures of at least r γ, and eigenvalues of a window are held below the 1 / (r γ) that follows:
    pairs that contradict each other, on a target that is not Gaussian, can otherwise multiply to anything.
    """

    memory: int = 4
    adaptation: Adaptation = DEFAULT_ADAPTATION
    curvature_every: int = 1
    damping: float = 0.2
    snapshots: int = 2
    curvature_floor: float = 1e-8
    first_curvature: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_pairs(self.memory, self.damping, self.curvature_every)
        check_first_curvature(self.first_curvature)
        if self.snapshots < 1:
            raise ValueError(f"snapshots: {self.snapshots} windows is not at least 1; the default is 2")

    def specialise(self, dimension: int, unravel: Unravel) -> "Limited":
        """Itself."""
        return self

    def init(self, position: Vector, gradient_at: GradientAt) -> LimitedOperator:
        """G₀ = I / λ_max."""
        dtype = position.dtype
        curvature = first_scale(self.first_curvature, gradient_at, position)
        rows = 2 * self.snapshots * self.memory
        square = jnp.zeros((rows, rows), dtype)
        windows = Windows(
            gram=square,
            scales=jnp.full((self.snapshots + 1,), curvature, dtype),
            weights=jnp.zeros((self.snapshots + 1,), dtype).at[0].set(1),
            cores=jnp.zeros((self.snapshots, rows, rows), dtype),
            newest=jnp.zeros((), jnp.int32),
            pushed=jnp.zeros((), jnp.int32),
        )
        vectors = jnp.zeros((rows, position.shape[0]), dtype)
        return LimitedOperator(vectors, windows, 1 / curvature, square, square)

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

        return every(self.curvature_every, transition.step, push, lambda: (operator, no_lesson(operator.identity)))

    def _push(self, old: LimitedOperator, pair: Pair, omega: Scalar) -> tuple[LimitedOperator, Lesson]:
        ss, sy, yy = pair.s @ pair.s, pair.s @ pair.y, pair.y @ pair.y
        good = usable(ss, sy, yy)
        now = self._opened(old.windows)
        window, size = now.newest, 2 * self.memory
        row = window * size + 2 * (now.pushed % self.memory)

        before = jax.lax.dynamic_slice_in_dim(old.vectors, row, 2)
        fresh = jnp.where(good, jnp.stack([pair.s, pair.y]), before)
        vectors = jax.lax.dynamic_update_slice_in_dim(old.vectors, fresh, row, 0)
        products = vectors @ fresh.T
        gram = jax.lax.dynamic_update_slice_in_dim(now.gram, products, row, 1)
        gram = jax.lax.dynamic_update_slice_in_dim(gram, products.T, row, 0)
        scale = base_curvature(ss, sy, yy, self.damping, self.curvature_floor)

        core = jnp.zeros_like(gram)
        for age in range(self.memory):
            slot = window * size + 2 * ((now.pushed + 1 + age) % self.memory)
            core = bfgs_core(gram, core, scale, slot, slot + 1, self.damping)
        core = held_core(gram, scale * core, 1 / self.damping) / scale
        windows = Windows(
            gram=gram,
            scales=now.scales.at[1 + window].set(scale),
            weights=((1 - omega) * now.weights).at[1 + window].add(omega),
            cores=now.cores.at[window].set(core),
            newest=window,
            pushed=now.pushed + 1,
        )
        identity = windows.weights @ (1 / windows.scales)
        total = jnp.tensordot(windows.weights[1:], windows.cores, 1)
        root = jnp.sqrt(identity) * mixed_root(gram, total / identity, 1.0, jnp.inf)
        small = jax.tree.map(lambda new, kept: jnp.where(good, new, kept), (windows, identity, total, root), old[1:])
        return LimitedOperator(vectors, *small), Lesson(powell(scale * ss, sy, self.damping), ~good)

    def _opened(self, old: Windows) -> Windows:
        """The oldest window emptied for new pairs, where the newest one has its share.

        Its rows of P stay as they are: without entries in the Gram matrix and the cores they do nothing.
        """
        following = (old.newest + 1) % self.snapshots
        weights = old.weights.at[1 + following].set(0)
        keep = jnp.arange(old.gram.shape[0]) // (2 * self.memory) != following
        emptied = Windows(
            gram=jnp.where(keep[:, None] & keep[None, :], old.gram, 0),
            scales=old.scales,
            weights=weights / jnp.sum(weights),
            cores=old.cores.at[following].set(0),
            newest=following,
            pushed=jnp.zeros_like(old.pushed),
        )
        full = (old.weights[1 + old.newest] >= 1 / self.snapshots) & (self.snapshots > 1)
        return jax.tree.map(lambda new, kept: jnp.where(full, new, kept), emptied, old)
