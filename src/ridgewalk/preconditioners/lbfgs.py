"""Online damped L-BFGS: a window of curvature pairs as an inverse Hessian, and the mean of several windows (snapshots).

`LBFGS` is the paper's Algorithm 1, which is printed with errors; this implementation is tested against the dense
recursion.

`SnapshotLBFGS` is stochastic approximation with a limited number of windows, for networks.
G_k = (1−ω_k) G_{k−1} + ω_k G̃_k is a weighted sum of all windows so far; a few windows of equal weight approximate it.
Each G̃ is a multiple of the identity plus a low-rank part, so their mean is G = c I + Pᵀ Q P, whose exact symmetric root
has the same form: one noise vector suffices, where a sum of independent noises would need one per window.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._compilation import every, when
from ridgewalk._pytree import apply_mask, pytree_dataclass
from ridgewalk._types import Adaptation, GradientAt, Scalar, Vector
from ridgewalk._validation import check_between, check_whole
from ridgewalk.preconditioners.base import (
    Pair,
    PairSettings,
    Transition,
    UpdateInfo,
    bfgs_core,
    blocked_gram,
    clipped_core,
    initial_curvature,
    inverse,
    is_usable,
    measure_pair,
    mixed_root,
    powell_damping,
    prune_core,
)
from ridgewalk.schedules import DEFAULT_ADAPTATION, adaptation_weight

LARGEST_DECREASE = 10.0
"""The largest factor by which γ may decrease from one pair to the next."""


def base_curvature(
    ss: Scalar, sy: Scalar, yy: Scalar, r: Scalar | float, floor: Scalar | float, previous: Scalar
) -> Scalar:
    """γ = max(yᵀy / sᵀy, δ) (paper, below eq. 5, with y for ȳ), bounded from both sides.

    The cosine of s and y counts as at least r: a nearly orthogonal pair would make G vanish, and a chain at a point of
    negative curvature, where the paper leaves γ unchanged, would never move again. γ decreases by at most a factor 10
    per pair: with a constant gradient y is 0, and G would jump to 1/δ.
    """
    along = jnp.maximum(sy, r * jnp.sqrt(ss * yy))
    measured = jnp.where(yy > 0, yy * inverse(along), previous)
    return jnp.maximum(jnp.maximum(measured, previous / LARGEST_DECREASE), floor)


class Damped(NamedTuple):
    """A damped pair: s, ȳ and 1/(sᵀȳ), which is 0 for an empty slot."""

    s: Vector
    y: Vector
    rho: Scalar


class Window(NamedTuple):
    """The newest M pairs as the operator G̃ = B̃⁻¹, with B̃ the BFGS updates of γ I, oldest pair first.

    A ring: pair number n sits in row n mod M, so a new pair moves no other.
    """

    s: jax.Array
    y: jax.Array
    scale: Scalar
    pushed: Scalar
    damping: Scalar

    @property
    def memory(self) -> int:
        """M."""
        return int(self.s.shape[0])

    def push(self, pair: Pair, floor: float) -> tuple["Window", UpdateInfo]:
        """The window with one more pair and its γ; unchanged if the pair is not usable."""
        ss, sy, yy = pair.s @ pair.s, pair.s @ pair.y, pair.y @ pair.y
        good = is_usable(ss, sy, yy)
        row = self.pushed % self.memory
        scale = jnp.where(good, base_curvature(ss, sy, yy, self.damping, floor, self.scale), self.scale)
        s = self.s.at[row].set(jnp.where(good, pair.s, self.s[row]))
        y = self.y.at[row].set(jnp.where(good, pair.y, self.y[row]))
        info = UpdateInfo(powell_damping(scale * ss, sy, self.damping), ~good)
        return Window(s, y, scale, self.pushed + good, self.damping), info

    def damped(self) -> list[Damped]:
        """The pairs, oldest first, damped against B₀ = γ I."""
        pairs = []
        for age in range(self.memory):
            row = (self.pushed + age) % self.memory
            s, y = self.s[row], self.y[row]
            sbs = self.scale * (s @ s)
            theta = powell_damping(sbs, s @ y, self.damping)
            y = theta * y + (1 - theta) * self.scale * s
            pairs.append(Damped(s, y, inverse(s @ y)))
        return pairs

    def multiply(self, vector: Vector) -> Vector:
        """G̃ v by the two-loop recursion."""
        pairs, q = self.damped(), vector
        weights = []
        for pair in reversed(pairs):
            weights.append(pair.rho * (pair.s @ q))
            q = q - weights[-1] * pair.y
        q = q / self.scale
        for pair, weight in zip(pairs, reversed(weights), strict=True):
            q = q + (weight - pair.rho * (pair.y @ q)) * pair.s
        return q

    def _reflections(self) -> list[tuple[Vector, Vector]]:
        """s and q of every `S_{i+1} = (I − s qᵀ) S_i`, q = ȳ / sᵀȳ + a / √(sᵀȳ sᵀa), a = B_i s."""
        images: list[tuple[Vector, Vector, Scalar, Scalar]] = []
        result = []
        for s, y, rho in self.damped():
            a = self.scale * s
            for y_old, a_old, rho_old, sigma_old in images:
                a = a + rho_old * (y_old @ s) * y_old - sigma_old * (a_old @ s) * a_old
            sigma = inverse(s @ a)
            images.append((y, a, rho, sigma))
            result.append((s, rho * y + jnp.sqrt(rho * sigma) * a))
        return result

    def factor(self, noise: Vector) -> Vector:
        """S̃ z with S̃ S̃ᵀ = G̃."""
        eta = noise / jnp.sqrt(self.scale)
        for s, q in self._reflections():
            eta = eta - (q @ eta) * s
        return eta

    def factor_transpose(self, vector: Vector) -> Vector:
        """S̃ᵀ v: the same reflections, transposed, newest first."""
        for s, q in reversed(self._reflections()):
            vector = vector - (s @ vector) * q
        return vector / jnp.sqrt(self.scale)

    def drift_plus_noise(self, covector: Vector, noise: Vector) -> Vector:
        """G̃ v + S̃ z."""
        return self.multiply(covector) + self.factor(noise)


def empty_window(memory: int, scale: Scalar, position: Vector, damping: float) -> Window:
    """No pairs yet: G̃ = I / γ."""
    zeros = jnp.zeros((memory, position.shape[0]), position.dtype)
    return Window(zeros, zeros, scale, jnp.zeros((), jnp.int32), jnp.asarray(damping, position.dtype))


def prune_window(old: Window, mask: Vector, position: Vector, gradient_at: GradientAt, floor: float) -> Window:
    """The window's steps without their pruned part, and the change of the gradient along each measured again.

    Masking both vectors of an old pair would not do: y = H s includes the effect of the pruned part of s.
    """
    rows = (old.pushed + jnp.arange(old.memory)) % old.memory
    steps, here = apply_mask(old.s[rows], mask), gradient_at(position)
    changes = jax.lax.map(lambda s: gradient_at(position + s) - here, steps)
    window = Window(jnp.zeros_like(old.s), jnp.zeros_like(old.y), old.scale, jnp.zeros_like(old.pushed), old.damping)
    for age in range(old.memory):
        window, _ = window.push(Pair(steps[age], changes[age]), floor)
    return window


@pytree_dataclass
class LBFGS(PairSettings):
    """G = G̃ of the newest pairs alone, without averaging: what HAMCMC uses; γ is at least `curvature_floor`."""

    reads: ClassVar[tuple[str, ...]] = ("before", "after", "gradient")
    memory: int = 4
    curvature_floor: float = 1e-8

    def init(self, position: Vector, gradient_at: GradientAt) -> Window:
        """An empty window."""
        scale = initial_curvature(self.first_curvature, gradient_at, position)
        return empty_window(self.memory, scale, position, self.damping)

    def adapt(self, operator: Window, transition: Transition) -> tuple[Window, UpdateInfo]:
        """The window with the pair of this step."""
        return operator.push(measure_pair(transition), self.curvature_floor)

    def prune(self, operator: Window, mask: Vector, position: Vector, gradient_at: GradientAt) -> Window:
        """The pairs measured again, one gradient each."""
        return prune_window(operator, mask, position, gradient_at, self.curvature_floor)


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

    reads: ClassVar[tuple[str, ...]] = ("before", "after", "gradient")
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
