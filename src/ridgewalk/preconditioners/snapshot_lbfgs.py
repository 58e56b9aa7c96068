"""Stochastic approximation with a limited number of L-BFGS windows (snapshots), for networks.

G_k = (1−ω_k) G_{k−1} + ω_k G̃_k is a weighted sum of all windows so far; a few windows of equal weight approximate it.
Each G̃ is a multiple of the identity plus a low-rank part, so their mean is G = c I + Pᵀ Q P, whose exact symmetric root
has the same form: one noise vector suffices, where a sum of independent noises would need one per window.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._control_flow import every, when
from ridgewalk._pytree import apply_mask, pytree_dataclass
from ridgewalk._types import Adaptation, GradientAt, Scalar, Vector
from ridgewalk._validation import check_between, check_whole
from ridgewalk.preconditioners._curvature import PairSettings, initial_curvature, is_usable, measure_pair
from ridgewalk.preconditioners._linalg import (
    bfgs_core,
    blocked_gram,
    clipped_core,
    mixed_root,
    powell_damping,
    prune_core,
)
from ridgewalk.preconditioners.base import Transition, UpdateInfo
from ridgewalk.preconditioners.lbfgs import base_curvature
from ridgewalk.schedules import DEFAULT_ADAPTATION, adaptation_weight


class Snapshots(NamedTuple):
    """The K stored windows without their vectors: small arrays only.

    `due` is Σω since the last replacement; `oldest` the snapshot that is replaced next.
    """

    gram: jax.Array
    scales: jax.Array
    cores: jax.Array
    oldest: Scalar
    due: Scalar


class SnapshotOperator(NamedTuple):
    """G = c I + Pᵀ Q P and S = √c I + Pᵀ X P, with the pairs of all stored windows as the rows of P.

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

    def drift_plus_noise(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z: three passes over P (one product of both vectors with P at once takes longer than two)."""
        back = self.core @ (self.vectors @ covector) + self.root @ (self.vectors @ noise)
        return self.identity * covector + jnp.sqrt(self.identity) * noise + back @ self.vectors


@pytree_dataclass
class SnapshotLBFGS(PairSettings):
    """The mean of `snapshots` L-BFGS windows of `memory` pairs each; the base of every window is γ⁻¹ I.

    Pairs are collected M at a time. A full window replaces the oldest snapshot when Σω since the last replacement has
    reached 1/snapshots: G is the mean over about the last 1/ω windows, as in the recursion above. In between it is
    constant, which preserves the chain's stationary distribution (a G that follows the newest pairs does not).
    Damping guarantees curvatures of at least r γ, and eigenvalues of a window are clipped at the corresponding
    1 / (r γ): inconsistent pairs, on a target that is not Gaussian, could otherwise multiply without bound.
    Steps along valleys measure only the curvature along them, and γ applies it to every direction. With momentum, set
    `base_growth`, the factor by which γ⁻¹ may exceed its first value 1/λ_max (networks: 5); eigenvalues of G then stay
    below base_growth / (r λ_max). Memory is 2 M (snapshots + 1) vectors.
    """

    adaptation: Adaptation = DEFAULT_ADAPTATION
    snapshots: int = 2
    curvature_floor: float = 1e-8
    base_growth: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_whole("snapshots", self.snapshots, 1, "the default is 2")
        if self.base_growth is not None:
            hint = "G starts at I / λ_max; try 5, or None for no bound"
            check_between("base_growth", self.base_growth, 1, float("inf"), "[]", hint)

    def init(self, position: Vector, gradient_at: GradientAt) -> SnapshotOperator:
        """G₀ = I / λ_max in all snapshots."""
        d, dtype, size = position.shape[0], position.dtype, 2 * self.memory
        curvature = initial_curvature(self.first_curvature, gradient_at, position)
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
        return SnapshotOperator(vectors, window, curvature, least, snapshots, 1 / curvature, square, square)

    def adapt(self, old: SnapshotOperator, transition: Transition) -> tuple[SnapshotOperator, UpdateInfo]:
        """Store the pair of this step; after M pairs, replace a snapshot if that is due."""
        s, y = measure_pair(transition)
        ss, sy, yy = s @ s, s @ y, y @ y
        good = is_usable(ss, sy, yy)
        pairs = transition.step // self.curvature_every
        row = 2 * ((pairs - 1) % self.memory)
        fresh = jnp.where(good, jnp.stack([s, y]), 0)
        scale = jnp.where(good, base_curvature(ss, sy, yy, self.damping, old.least, old.scale), old.scale)
        now = old._replace(window=jax.lax.dynamic_update_slice_in_dim(old.window, fresh, row, 0), scale=scale)
        hot = self.hot_pairs(transition)
        windows = pairs // self.memory, None if hot is None else hot // self.memory
        after = every(self.memory, pairs, self._maybe_replace, now, windows)
        return after, UpdateInfo(powell_damping(scale * ss, sy, self.damping), ~good)

    def _maybe_replace(self, now: SnapshotOperator, windows: tuple[Scalar, Scalar | None]) -> SnapshotOperator:
        due = now.snapshots.due + adaptation_weight(self.adaptation, windows[0], now.identity.dtype, windows[1])
        share = 1 / self.snapshots
        waiting = now._replace(snapshots=now.snapshots._replace(due=due))
        return when(due >= share, self._replace_oldest, waiting, jnp.minimum(due - share, share))

    def _replace_oldest(self, now: SnapshotOperator, due: Scalar) -> SnapshotOperator:
        """The window in place of the oldest snapshot."""
        old, size = now.snapshots, 2 * self.memory
        start = old.oldest * size
        vectors = jax.lax.dynamic_update_slice_in_dim(now.vectors, now.window, start, 0)
        products = blocked_gram(vectors, now.window)
        gram = jax.lax.dynamic_update_slice_in_dim(old.gram, products, start, 1)
        gram = jax.lax.dynamic_update_slice_in_dim(gram, products.T, start, 0)
        core = jnp.zeros_like(gram)
        for pair in range(self.memory):
            core = bfgs_core(gram, core, now.scale, start + 2 * pair, start + 2 * pair + 1, self.damping)
        core = clipped_core(gram, now.scale * core, 1 / self.damping) / now.scale
        snapshots = Snapshots(
            gram=gram,
            scales=old.scales.at[old.oldest].set(now.scale),
            cores=old.cores.at[old.oldest].set(core),
            oldest=(old.oldest + 1) % self.snapshots,
            due=due,
        )
        return self._mean(now._replace(vectors=vectors, snapshots=snapshots))

    def _mean(self, now: SnapshotOperator) -> SnapshotOperator:
        """G as the mean of the snapshots."""
        snapshots = now.snapshots
        identity = jnp.mean(1 / snapshots.scales)
        total = jnp.mean(snapshots.cores, axis=0)
        root = jnp.sqrt(identity) * mixed_root(snapshots.gram, total / identity, 1.0, jnp.inf)
        return now._replace(identity=identity, core=total, root=root)

    def prune(
        self, operator: SnapshotOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> SnapshotOperator:
        """G⁻¹ of every snapshot restricted; the pairs of the incomplete window are dropped."""
        old, vectors = operator.snapshots, apply_mask(operator.vectors, mask)
        gram = vectors @ vectors.T
        cores = [
            prune_core(core, 1 / scale, old.gram - gram) for core, scale in zip(old.cores, old.scales, strict=True)
        ]
        snapshots = old._replace(gram=gram, cores=jnp.stack(cores))
        window = jnp.zeros_like(operator.window)
        return self._mean(operator._replace(vectors=vectors, window=window, snapshots=snapshots))
