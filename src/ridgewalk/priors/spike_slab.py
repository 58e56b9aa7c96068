"""The spike-and-slab Gaussian–Laplace prior of SGLD-SA (Deng et al. 2019), fitted by stochastic approximation.

`shared_noise` is a Gaussian likelihood whose noise scale is the prior's σ, as in the regression of the papers.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import Adaptation, PyTree, Scalar
from ridgewalk._validation import check_between, check_choice, check_positive, check_whole
from ridgewalk.priors.base import AdaptivePrior, Residuals, absolute, total
from ridgewalk.schedules import DEFAULT_ADAPTATION

Penalty = Literal["mixture", "averaged"]


class SpikeSlabState(NamedTuple):
    """The hyper-parameters, and the averaged sufficient statistics that they maximise EM's objective for."""

    inclusion: PyTree
    """ρ_j, the average of P(γ_j = 1 | θ, σ, δ), in the position's structure."""
    sigma: Scalar
    delta: Scalar
    spike: Scalar
    """Average of Σ_j (1−ρ_j) |θ_j| / v₀."""
    slab: Scalar
    """Average of Σ_j ρ_j θ_j² / v₁."""
    residual: Scalar | None
    """Average of Σ r²; None if the likelihood does not share σ."""
    kept: Scalar
    """The number of parameters in the sums."""


@pytree_dataclass
class SpikeAndSlab(AdaptivePrior):
    """θ_j ~ δ N(0, σ²v₁) + (1−δ) Laplace(0, σ v₀), with adaptive σ and δ; see `spike_and_slab`."""

    spike_scale: float
    slab_variance: float
    delta: float
    a: float
    b: float | None
    nu: float
    lam: float
    sigma: float | None
    penalty: Penalty
    delay: int
    adaptation: Adaptation

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, value in (
            ("spike_scale", self.spike_scale),
            ("slab_variance", self.slab_variance),
            ("nu", self.nu),
            ("lam", self.lam),
            ("sigma", 1.0 if self.sigma is None else self.sigma),
        ):
            check_positive(name, value, "try 1.0")
        check_between("delta", self.delta, 0, 1, "()", "it is a probability; try 0.5")
        for name, value in (("a", self.a), ("b", 1.0 if self.b is None else self.b)):
            check_between(name, value, 1, float("inf"), "[)", "below 1, Beta(a, b) has no mode")
        check_whole("delay", self.delay, 0, "0 learns from the first step on")
        check_choice("penalty", self.penalty, get_args(Penalty))
        if self.slab_variance <= self.spike_scale**2:
            raise ValueError(
                f"slab_variance: {self.slab_variance} is not wider than the spike, whose scale is {self.spike_scale}; "
                "use more than spike_scale²"
            )

    @property
    def has_noise(self) -> bool:
        """Yes."""
        return True

    def noise(self, state: SpikeSlabState) -> Scalar:
        """σ."""
        return state.sigma

    def inclusion_probabilities(self, state: SpikeSlabState, position: PyTree) -> PyTree:
        """ρ, the average over the chain."""
        return state.inclusion

    def inclusion_at(self, state: SpikeSlabState, position: PyTree) -> PyTree:
        """P(γ_j = 1 | θ_j, σ, δ) at one position."""
        return jax.tree.map(lambda x: jax.nn.sigmoid(self._log_odds(state, x)), position)

    def _log_slab(self, state: SpikeSlabState, x: jax.Array) -> jax.Array:
        """log δ N(x; 0, σ²v₁)."""
        sigma, delta = (s.astype(x.dtype) for s in (state.sigma, state.delta))
        constant = jnp.log(delta) - jnp.log(sigma) - 0.5 * math.log(2 * math.pi * self.slab_variance)
        return constant - 0.5 * (x / (sigma * math.sqrt(self.slab_variance))) ** 2

    def _log_spike(self, state: SpikeSlabState, x: jax.Array) -> jax.Array:
        """log (1−δ) Laplace(x; 0, σv₀)."""
        sigma, delta = (s.astype(x.dtype) for s in (state.sigma, state.delta))
        constant = jnp.log1p(-delta) - jnp.log(sigma) - math.log(2 * self.spike_scale)
        return constant - absolute(x) / (sigma * self.spike_scale)

    def _log_odds(self, state: SpikeSlabState, x: jax.Array) -> jax.Array:
        """log P(γ = 1 | x) / P(γ = 0 | x), in logarithms because the densities underflow."""
        return self._log_slab(state, x) - self._log_spike(state, x)

    def log_density(self, state: SpikeSlabState, position: PyTree) -> Scalar:
        """log p(θ | σ, δ), or with the averaged penalty −Σ_j (1−ρ_j)|θ_j|/(σv₀) + ρ_j θ_j²/(2σ²v₁)."""
        if self.penalty == "mixture":
            return total(position, lambda x: jnp.logaddexp(self._log_slab(state, x), self._log_spike(state, x)))

        def penalised(x: jax.Array, rho: jax.Array) -> jax.Array:
            z = x / state.sigma.astype(x.dtype)
            return -(1 - rho) * absolute(z) / self.spike_scale - 0.5 * rho * z**2 / self.slab_variance

        return total(jax.tree.map(penalised, position, state.inclusion), lambda x: x)

    def init(self, position: PyTree, residuals: Residuals | None) -> SpikeSlabState:
        """The initial σ and δ, and the sufficient statistics that they imply."""
        dtype = jnp.result_type(*jax.tree.leaves(position))
        size = _size(position)
        delta = jnp.asarray(self.delta, dtype)
        if self.sigma is not None or residuals is None:
            sigma = jnp.asarray(math.sqrt(self.lam) if self.sigma is None else self.sigma, dtype)
        else:
            mean = residuals.squares.astype(dtype) / residuals.number
            sigma = jnp.sqrt(jnp.where(mean > 0, mean, self.lam))
        return SpikeSlabState(
            inclusion=jax.tree.map(lambda x: jnp.full(x.shape, self.delta, x.dtype), position),
            sigma=sigma,
            delta=delta,
            spike=(1 - delta) * size * sigma,
            slab=delta * size * sigma**2,
            residual=None if residuals is None else residuals.number * sigma**2,
            kept=jnp.asarray(size, jnp.int32),
        )

    def update(
        self,
        state: SpikeSlabState,
        position: PyTree,
        residuals: Residuals | None,
        step: Scalar,
        kept: PyTree | None = None,
    ) -> SpikeSlabState:
        """One step of stochastic-approximation EM: average the sufficient statistics with weight ω_k, then maximise.

        Sums, and p, are over the parameters that are `kept`; a pruned one has ρ = 0. When parameters are pruned, the
        averages of Σ (1−ρ)|θ|/v₀ and Σ ρθ²/v₁ restart at the current position, because they include pruned parameters.
        """
        dtype = state.sigma.dtype
        begun = step > self.delay
        number = jnp.maximum((step - self.delay).astype(dtype), 1)
        omega = jnp.clip(jnp.asarray(self.adaptation(number), dtype), 0.0, 1.0) * begun

        def mix(old: jax.Array, new: jax.Array, rate: jax.Array = omega) -> jax.Array:
            return old + rate.astype(old.dtype) * (new.astype(old.dtype) - old)

        odds = jax.tree.map(lambda x: self._log_odds(state, x), position)
        inclusion = jax.tree.map(lambda old, lo: mix(old, jax.nn.sigmoid(lo)), state.inclusion, odds)
        if kept is not None:  # the sums below need no mask: a pruned parameter is zero in them
            inclusion = jax.tree.map(jnp.multiply, inclusion, kept)
        if self.penalty == "mixture":
            slab_share, spike_share = (jax.tree.map(lambda lo, s=s: jax.nn.sigmoid(s * lo), odds) for s in (1, -1))
        else:
            slab_share, spike_share = inclusion, jax.tree.map(lambda rho: 1 - rho, inclusion)
        spike = total(jax.tree.map(lambda x, w: w * jnp.abs(x), position, spike_share), lambda x: x / self.spike_scale)
        slab = total(jax.tree.map(lambda x, w: w * x**2, position, slab_share), lambda x: x / self.slab_variance)
        residual = None if residuals is None or state.residual is None else mix(state.residual, residuals.squares)
        count = 0 if residuals is None else residuals.number
        number_kept, rate = state.kept, omega
        size: Scalar | int = _size(position)
        if kept is not None:
            found = jnp.maximum(total(kept, lambda one: one != 0), 1).astype(jnp.int32)
            # Parameters pruned during the delay are counted when it ends.
            number_kept = jnp.where(begun, found, state.kept)
            rate = jnp.where(number_kept < state.kept, jnp.ones_like(omega), omega)
            size = found.astype(dtype)
        averages = state._replace(
            inclusion=inclusion,
            spike=mix(state.spike, spike, rate),
            slab=mix(state.slab, slab, rate),
            residual=residual,
            kept=number_kept,
        )
        return averages._replace(
            sigma=jnp.where(begun, self._best_sigma(averages, size, count), state.sigma),
            delta=jnp.where(begun, self._best_delta(averages, size), state.delta),
        )

    def _best_sigma(self, state: SpikeSlabState, size: Scalar | int, count: int) -> Scalar:
        """The positive root of R_a σ² − R_b σ − R_c = 0."""
        order = count + size + self.nu + 2
        linear = state.spike / order
        constant = (state.slab + self.nu * self.lam + (0.0 if state.residual is None else state.residual)) / order
        return 0.5 * (linear + jnp.sqrt(linear**2 + 4 * constant))

    def _best_delta(self, state: SpikeSlabState, size: Scalar | int) -> Scalar:
        """(a − 1 + Σρ) / (a + b + p − 2), clipped to the open interval (0, 1)."""
        b = size if self.b is None else self.b
        dtype = state.delta.dtype
        included = total(state.inclusion, lambda rho: rho).astype(dtype)
        limits = jnp.finfo(dtype)
        return jnp.clip((self.a - 1 + included) / (self.a + b + size - 2), limits.tiny, 1 - limits.eps)


def _size(position: PyTree) -> int:
    return max(1, sum(int(leaf.size) for leaf in jax.tree.leaves(position)))


def spike_and_slab(
    *,
    spike_scale: float = 0.1,
    slab_variance: float = 100.0,
    delta: float = 0.5,
    a: float = 1.0,
    b: float | None = None,
    nu: float = 1.0,
    lam: float = 1.0,
    sigma: float | None = None,
    penalty: Penalty = "mixture",
    delay: int = 0,
    adaptation: Adaptation = DEFAULT_ADAPTATION,
) -> SpikeAndSlab:
    """A sparse prior for use as `log_prior` with any sampler; with `sgld()` it is SGLD-SA.

    The model, with p parameters and inclusion indicators γ:

        θ_j | σ², γ_j ~ γ_j N(0, σ²v₁) + (1−γ_j) Laplace(0, σ v₀),   γ_j ~ Bernoulli(δ),
        σ² ~ IG(ν/2, νλ/2),   δ ~ Beta(a, b).

    The chain samples θ; σ and δ are point estimates, updated while it runs. With the likelihood
    `shared_noise(residual)`, σ is also the noise scale of the m residuals of each of N examples, as in the papers'
    regression (M = N m residuals). Otherwise the likelihood has its own noise scale, σ is that of the prior alone, and
    M = 0. The complete-data log density is

        log p(data, θ, γ, σ², δ) = −(M + p + ν + 2) log σ − (Σr² + Σγ_jθ_j²/v₁ + νλ) / (2σ²)
            − Σ(1−γ_j)|θ_j| / (v₀σ) + (a − 1 + Σγ_j) log δ + (b − 1 + p − Σγ_j) log(1−δ)
            + constant,

    so the sufficient statistics of EM are Σr², Σγθ²/v₁, Σ(1−γ)|θ|/v₀ and Σγ, and its M-step is
    σ = (R_b + √(R_b² + 4 R_a R_c)) / (2 R_a), R_a = M + p + ν + 2, R_b = E Σ(1−γ)|θ|/v₀,
    R_c = E[Σr² + Σγθ²/v₁] + νλ, and δ = (a − 1 + E Σγ) / (a + b + p − 2). Given θ, P(γ_j = 1) =
    ρ_j(θ) in closed form; the expectation over θ is an average over the chain, s ← s + ω_k (s(θ_k) − s), with Σr² from
    the step's batch scaled by N/n. This is stochastic-approximation EM, whose fixed points are those of EM. Deng et al.
    instead average σ̃(θ_k), the maximiser for a single draw; the difference is small if M + p is large.

    `result.inclusion_probabilities` gives ρ; σ and δ of a chain are in `state.prior`. With `pruned(sampler, …)` the
    model is that of the kept parameters, and its averages restart when parameters are pruned.

    For |θ| > 2σv₁/v₀ the Laplace spike has the heavier tail: choose v₁ large enough that no parameter gets there.
    If the likelihood has its own noise scale, EM can have several fixed points (at one of them the spike is so wide
    that the slab is empty): compare chains from different starting points.

    Args:
        spike_scale: v₀; the spike is Laplace(0, σ v₀).
        slab_variance: v₁; the slab is N(0, σ² v₁).
        delta: the initial δ.
        a: of the Beta prior of δ, 1 or more.
        b: of the Beta prior of δ, 1 or more; None is p, the number of kept parameters, which favours sparsity.
        nu: ν of the prior of σ².
        lam: λ of the prior of σ².
        sigma: the initial σ; None is the residuals' initial root mean square if the likelihood shares σ, else √λ.
        penalty: "mixture" samples the posterior under the mixture prior at the current σ and δ. "averaged" is the
            update of Deng et al. as printed: the drift of θ uses the averaged ρ instead of ρ(θ), so the prior of θ is
            exp(−Σ (1−ρ_j)|θ_j|/(σv₀) + ρ_jθ_j²/(2σ²v₁)), which is unimodal.
        delay: number of steps before σ and δ are first updated. Updates during the transient can be irreversible: from
            a start at zero, δ collapses before the large parameters have grown. Start near a mode, or set a delay.
        adaptation: ω_k, capped at 1; k counts from the end of the delay.
    """
    return SpikeAndSlab(
        spike_scale=spike_scale,
        slab_variance=slab_variance,
        delta=delta,
        a=a,
        b=b,
        nu=nu,
        lam=lam,
        sigma=sigma,
        penalty=penalty,
        delay=delay,
        adaptation=adaptation,
    )


@pytree_dataclass
class SharedNoise:
    """r_i(θ) ~ N(0, σ²) for every residual, with the adaptive prior's σ."""

    residual: Callable[[PyTree, PyTree], Any]

    def residuals(self, position: PyTree, batch: PyTree) -> jax.Array:
        """One row per example."""
        values = jnp.asarray(self.residual(position, batch))
        if values.ndim == 0:
            raise ValueError("residual: it returned a scalar; return one residual (or one row of them) per example")
        return values.reshape(values.shape[0], -1)

    def values(self, position: PyTree, batch: PyTree, sigma: Scalar | float) -> jax.Array:
        """log p(d_i | θ, σ) of each example: Σ over its residuals of −r²/(2σ²) − log σ − ½ log 2π."""
        rows = self.residuals(position, batch)
        sigma = jnp.asarray(sigma, rows.dtype)
        constant = rows.shape[1] * (jnp.log(sigma) + 0.5 * math.log(2 * math.pi))
        return -0.5 * jnp.sum((rows / sigma) ** 2, axis=1) - constant

    def width(self, position: PyTree, batch: PyTree) -> int:
        """The number of residuals of an example."""
        return int(jax.eval_shape(self.residuals, position, batch).shape[1])

    def measure(self, position: PyTree, batch: PyTree, size: int) -> Residuals:
        """The unbiased estimate of Σ r² over `size` examples from a batch, and their number of residuals."""
        rows = self.residuals(position, batch)
        return Residuals((size / rows.shape[0]) * jnp.sum(rows**2), size * rows.shape[1])


def shared_noise(residual: Callable[[PyTree, PyTree], Any]) -> SharedNoise:
    """Gaussian likelihood of `residual(position, batch)`, one row per example, with the σ of an adaptive prior.

    For use as `log_likelihood`:

        target = rw.Posterior(
            rw.spike_and_slab(), rw.shared_noise(lambda w, batch: batch[1] - batch[0] @ w), (x, y)
        )
    """
    if not callable(residual):
        raise ValueError(f"residual: {residual!r} is not a function of position and batch; return y − f(x) per example")
    return SharedNoise(residual)
