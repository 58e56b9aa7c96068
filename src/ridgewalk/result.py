"""The result of a run, and posterior expectations from it.

Expectations weight every draw by its step size: E[φ] ≈ Σ_k ε_k φ(θ_k) / Σ_k ε_k.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk._pytree import layout_of, leaf_names
from ridgewalk._types import PyTree, Scalar
from ridgewalk.dynamics import BAOAB
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Info, Sampler, State
from ridgewalk.preconditioners.base import DENSE_UP_TO, ByDimension
from ridgewalk.preconditioners.dense import Dense
from ridgewalk.priors.base import AdaptivePrior
from ridgewalk.target import Posterior, Target, constrained, is_plain, on_device

if TYPE_CHECKING:
    from ridgewalk.diagnostics.check import CheckReport
    from ridgewalk.diagnostics.summary import SummaryTable


@dataclass(frozen=True)
class ChainStatus:
    """Outcome of one chain: `finished`, `diverged` or `interrupted`, the number of steps, and the cause.

    `unfinished`: of a run that still goes on, or was killed, as `open_result` finds it.
    """

    outcome: Literal["finished", "diverged", "interrupted", "unfinished"]
    steps: int
    cause: str = ""
    hint: str = ""

    @property
    def alive(self) -> bool:
        """Whether the chain's draws can be used."""
        return self.outcome != "diverged"

    def __str__(self) -> str:
        """One line."""
        if self.outcome == "unfinished":
            return f"unfinished; draws up to step {self.steps:,} are stored"
        if self.outcome != "diverged":
            return f"{self.outcome} after {self.steps:,} steps"
        return f"diverged after {self.steps:,} steps: {self.cause}; {self.hint}"


class Moments(NamedTuple):
    """Running mean and variance of the positions, each draw weighted by its step size; leading axis: chain."""

    weight: Scalar
    mean: PyTree
    squares: PyTree
    """Σ ε (θ − mean)², so that variance = squares / weight."""

    def add(self, position: PyTree, weight: Scalar) -> "Moments":
        """The moments after one more draw (West 1979)."""
        total = self.weight + weight
        before = jax.tree.map(jnp.subtract, position, self.mean)
        mean = jax.tree.map(lambda m, b: m + (weight / total).astype(b.dtype) * b, self.mean, before)
        squares = jax.tree.map(
            lambda s, b, x, m: s + weight.astype(b.dtype) * b * (x - m), self.squares, before, position, mean
        )
        return Moments(total, mean, squares)


@dataclass(frozen=True)
class Result:
    """Draws and final states of all chains.

    `positions`, `collected` and `info` are host arrays with leading axes (chain, draw); `step_sizes` (draw,) holds ε of
    each draw. `positions` is None if only moments or collected values were kept, and a pytree of arrays on disk if the
    draws were streamed to a store. A chain that diverged keeps its index and holds NaN from then on; expectations and
    summaries leave it out.
    """

    positions: PyTree
    final_states: tuple[State, ...]
    info: Info
    step_sizes: np.ndarray
    sampler: Sampler
    estimator: GradientEstimator
    batch_size: int | None
    status: tuple[ChainStatus, ...]
    steps: int
    """Steps made; fewer than requested if the run was interrupted."""
    collected: Any = None
    moments: Moments | None = None
    store: Path | None = None
    burn_in: int = 0
    thin: int = 1
    warmup: int = 0
    """Steps of warm-up, the first of the burn-in."""
    kept_steps: np.ndarray | None = None
    """The step after which each draw was kept, where the step-size schedule says which steps are kept (`cycles`)."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of `sample` that were not its defaults, from `steps` on, and the `sampler` as it was given."""

    @property
    def tuning_report(self) -> str:
        """What warm-up found: step size and friction, what they were chosen from, and how many steps were undone."""
        tuned = self.final_states[0].tuning if self.final_states else None
        if not self.final_states:
            raise ValueError(
                "tuning_report: this result was opened from a store, which has no states; make the run's own call "
                "again with resume=True"
            )
        if tuned is None or tuned.measured is None:
            raise ValueError("tuning_report: this run had no warm-up; use step_size='auto', or warmup=")
        found, dynamics = tuned.measured, self.sampler.dynamics
        friction = f", friction {dynamics.friction:.3g}" if hasattr(dynamics, "friction") else ""
        undone = np.mean([float(state.tuning.undone) for state in self.final_states]) / self.steps
        lines = [
            *self._sampler_report(),
            f"warm-up of {self.warmup:,} steps: step size {float(np.median(self.step_sizes)):.3g}{friction}",
            f"largest curvature in whitened coordinates {float(found.curvature):.3g}, posterior standard deviation "
            f"{float(found.scale):.3g} (slowest {float(found.slow_scale):.3g}); both are 1 if G is the covariance",
            "gradients are exact"
            if float(found.noise) == 0
            else f"variance of the gradient noise {float(found.noise):.3g}, in the direction of most noise "
            f"{float(found.largest_noise):.3g}; the injected noise is reduced accordingly",
            f"{undone:.1%} of the steps were rejected (by the Metropolis criterion, or because of a large energy "
            "error)",
        ]
        return "\n".join(lines)

    @property
    def fell_back(self) -> bool:
        """Whether warm-up took another preconditioner than the sampler was given, because no constant G fits."""
        return bool(self.sampler.preconditioner != self.arguments.get("sampler", self.sampler).preconditioner)

    def _sampler_report(self) -> list[str]:
        """What of the sampler was left to the warm-up, and why it is as it is."""
        given = self.arguments.get("sampler", self.sampler)
        resolved = self.sampler.resolve(layout_of(self.final_states[0].position)).unwrapped
        rule = "Dense" if isinstance(resolved, Dense) else type(resolved).__name__
        dynamics = type(self.sampler.dynamics).__name__
        lines = []
        if self.fell_back:
            lines = [
                f"preconditioner {rule}: no constant preconditioner fits this posterior (its curvature depends on the "
                "position): fell back to a multiple of the identity for each leaf, and less friction"
            ]
        elif isinstance(given.preconditioner, ByDimension):
            bound = "up to" if self.dimension <= DENSE_UP_TO else "more than"
            lines = [f"preconditioner {rule}: {bound} {DENSE_UP_TO:,} parameters ({self.dimension:,})"]
        if type(given.dynamics) is BAOAB:
            adjusted = type(self.sampler.dynamics) is not BAOAB
            reason = "exact gradients and few parameters" if adjusted else "minibatches or many parameters"
            lines.append(f"dynamics {dynamics}, {'' if adjusted else 'not '}Metropolis-adjusted: {reason}")
        return lines

    @property
    def chains(self) -> int:
        """Number of chains."""
        return len(self.status)

    @property
    def draws(self) -> int:
        """Number of draws kept of each chain."""
        return int(self.step_sizes.shape[0])

    @property
    def draw_steps(self) -> np.ndarray:
        """The step, counted from 1, after which each draw was kept."""
        if self.kept_steps is not None:
            return self.kept_steps
        return self.burn_in + self.thin * np.arange(1, self.draws + 1)

    @property
    def draw_weights(self) -> np.ndarray:
        """ε_k / Σ ε of every draw: equal if the step size is constant."""
        sizes = np.asarray(self.step_sizes)
        return sizes / sizes.sum()

    @property
    def alive(self) -> np.ndarray:
        """Boolean (chain,): which chains did not diverge."""
        return np.array([status.alive for status in self.status])

    @property
    def alive_states(self) -> list[State]:
        """Final states of the chains that did not diverge."""
        if not self.final_states:  # opened from a store
            return []
        return [state for state, alive in zip(self.final_states, self.alive, strict=True) if alive]

    @property
    def final_positions(self) -> PyTree:
        """Final positions of the chains that did not diverge, stacked: a start for `start_per_chain=True`."""
        return jax.tree.map(lambda *leaves: np.stack(leaves), *[state.position for state in self.alive_states])

    @property
    def dimension(self) -> int:
        """Number of parameters d."""
        if self.final_states:
            return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.final_states[0].position))
        return sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(self._require_positions()))

    @property
    def delay(self) -> int:
        """M, where θ_k depends on θ_{k−M}: above 1 only for HAMCMC, whose chain is M interleaved ones."""
        return int(getattr(self.sampler.dynamics, "delay", 1))

    @property
    def shows_positions(self) -> bool:
        """Whether `posterior` has the leaves of `positions`: the target does not say otherwise, or is not known."""
        return not self.final_states or is_plain(self.estimator.target)

    @cached_property
    def posterior(self) -> dict[str, np.ndarray]:
        """The draws by name, (chain, draw, …), in memory, of the chains that did not diverge.

        Constrained where the target says how (`constrain=`, `from_numpyro`, `from_pymc`), with the deterministic sites
        of a model; else the leaves of `positions`, also for a result that was opened from a store.
        """
        positions = self._require_positions()
        leaves = jax.tree.map(self.load_leaf, positions)
        if self.shows_positions:
            return dict(zip(leaf_names(positions), jax.tree.leaves(leaves), strict=True))
        target = self.estimator.target
        shape = (int(self.alive.sum()), self.draws)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), leaves)
        values = _constrain_draws(on_device(target), flat)
        return {name: np.asarray(value).reshape(*shape, *value.shape[1:]) for name, value in values.items()}

    @property
    def inclusion_probabilities(self) -> PyTree:
        """P(γ = 1) of every parameter at the end of each chain: leading axis chain, then the position's structure.

        Parameters without a spike-and-slab prior have 1.
        """
        target = self.estimator.target  # of a result opened from a store, this says that there is none
        prior = target.log_prior if isinstance(target, Posterior) else None
        if not isinstance(prior, AdaptivePrior) or self.final_states[0].prior is None:
            raise ValueError(
                "inclusion_probabilities: the prior of this run has none; use log_prior=spike_and_slab(), not frozen"
            )
        each = [prior.inclusion_probabilities(state.prior, state.position) for state in self.final_states]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *each)

    def load_leaf(self, leaf: Any, every: int = 1) -> np.ndarray:
        """Every `every`-th draw of one leaf of `positions`, in memory, of the chains that did not diverge."""
        return np.asarray(leaf[:, : self.draws : every])[self.alive]

    def kept_positions(self) -> PyTree:
        """Positions (chain, draw, …) of the chains that did not diverge, as JAX arrays."""
        return jax.tree.map(lambda leaf: jnp.asarray(self.load_leaf(leaf)), self._require_positions())

    def _require_positions(self) -> PyTree:
        if self.positions is None:
            raise ValueError("positions: this run kept none; use keep='draws' or store=path")
        return self.positions

    def predict(self, function: Callable[[PyTree, Any], Any], new_data: Any, *, batch: int | None = None) -> Any:
        """`function(position, new_data)` of every draw, as NumPy arrays with leading axes (chain, draw).

        One draw is evaluated after the other, and draws on disk are read in blocks: beside the values returned, the
        memory is that of a block of draws and of one evaluation. Chains that diverged are left out.

        Args:
            function: a function of a position and data, such as a network's outputs, in JAX.
            new_data: an array or a pytree of arrays, in memory or on disk.
            batch: rows of `new_data` that are given to the function at a time, if it returns one value per row; None
                gives it all at once.
        """
        from ridgewalk.diagnostics.draw_access import predict  # noqa: PLC0415

        return predict(self, function, new_data, batch)

    def summary(self, *, max_parameters: int = 1000) -> "SummaryTable":
        """Table of means, standard deviations, Monte Carlo errors, ESS and R-hat (see `diagnostics.summary`)."""
        from ridgewalk.diagnostics.summary import summary  # noqa: PLC0415  (diagnostics import this module)

        return summary(self, max_parameters=max_parameters)

    def check(self) -> "CheckReport":
        """Findings about the run and what to try; empty for a healthy run."""
        from ridgewalk.diagnostics.check import check  # noqa: PLC0415

        report = check(self)
        self.__dict__["_report"] = report  # for `last_check`; nothing that is compared
        return report

    @property
    def last_check(self) -> "CheckReport | None":
        """The report of the last `check()` of this result; None before the first."""
        return self.__dict__.get("_report")

    def to_arviz(self, *, log_likelihood: bool = False, observed_data: bool = False) -> Any:
        """An `xarray.DataTree` for ArviZ, optionally with the data and the pointwise log likelihood."""
        from ridgewalk.diagnostics.arviz import to_arviz  # noqa: PLC0415

        return to_arviz(self, log_likelihood=log_likelihood, observed_data=observed_data)

    def plot_trace(self, parameters: Sequence[str] | None = None, *, max_parameters: int = 8) -> Any:
        """Marginal densities and traces. `parameters` are names as in the summary, or whole leaves."""
        from ridgewalk.diagnostics import plots  # noqa: PLC0415

        return plots.plot_trace(self, parameters, max_parameters=max_parameters)

    def plot_autocorrelation(
        self, parameters: Sequence[str] | None = None, *, max_parameters: int = 8, max_lag: int | None = None
    ) -> Any:
        """Autocorrelation of the draws."""
        from ridgewalk.diagnostics import plots  # noqa: PLC0415

        return plots.plot_autocorrelation(self, parameters, max_parameters=max_parameters, max_lag=max_lag)

    def plot_pairs(self, parameters: Sequence[str] | None = None, *, max_parameters: int = 5) -> Any:
        """Scatter plots of every pair of parameters."""
        from ridgewalk.diagnostics import plots  # noqa: PLC0415

        return plots.plot_pairs(self, parameters, max_parameters=max_parameters)

    def plot_posterior(self, parameters: Sequence[str] | None = None, *, max_parameters: int = 8) -> Any:
        """Marginal densities with mean and 94 % interval."""
        from ridgewalk.diagnostics import plots  # noqa: PLC0415

        return plots.plot_posterior(self, parameters, max_parameters=max_parameters)

    def plot_steps(self) -> Any:
        """Potential, gradient norm and temperature against the step number."""
        from ridgewalk.diagnostics import plots  # noqa: PLC0415

        return plots.plot_steps(self)

    def _repr_html_(self) -> str:
        """The summary and the findings, for notebooks; a second at most."""
        from ridgewalk.diagnostics.summary import result_html  # noqa: PLC0415

        return result_html(self)

    def __repr__(self) -> str:
        """One line."""
        diverged = self.chains - int(self.alive.sum())
        note = f", {diverged} diverged" if diverged else ""
        return f"Result({self.chains} chains x {self.draws} draws of {self.dimension} parameters{note})"


@jax.jit
def _constrain_draws(target: Target, positions: PyTree) -> dict[str, jax.Array]:
    """The variables of every draw, one draw at a time: they may be computed from all data."""
    return jax.lax.map(partial(constrained, target), positions)


def weighted_mean(weights: np.ndarray, values: Any) -> Any:
    """Σ_k w_k mean_c values[c, k] of one NumPy or JAX array (chain, draw, …), in its own dtype."""
    xp: Any = jnp if isinstance(values, jax.Array) else np
    if not jnp.issubdtype(values.dtype, jnp.inexact):
        values = values.astype(jnp.result_type(float))  # indicators and counts
    return xp.mean(xp.tensordot(xp.asarray(weights, values.dtype), values, axes=(0, 1)), axis=0)


def _leafwise(result: Result, function: Callable[..., Any], *others: PyTree) -> PyTree:
    """`function` of every leaf's draws, one leaf in memory at a time."""
    positions = result._require_positions()
    return jax.tree.map(lambda leaf, *rest: function(jnp.asarray(result.load_leaf(leaf)), *rest), positions, *others)


def posterior_expectation(result: Result, function: Callable[[PyTree], PyTree]) -> PyTree:
    """E[function(θ)] over all chains and draws."""
    values = jax.jit(jax.vmap(jax.vmap(function)))(result.kept_positions())
    return jax.tree.map(lambda leaf: weighted_mean(result.draw_weights, leaf), values)


def posterior_mean(result: Result) -> PyTree:
    """E[θ], in the structure of the position."""
    if result.moments is not None:
        return jax.tree.map(lambda means: jnp.mean(means[result.alive], axis=0), result.moments.mean)
    return _leafwise(result, lambda draws: weighted_mean(result.draw_weights, draws))


def posterior_variance(result: Result) -> PyTree:
    """Var[θ] of every parameter, in the structure of the position."""
    centre = posterior_mean(result)
    if result.moments is not None:
        alive, weight = result.alive, result.moments.weight

        def pooled(means: jax.Array, squares: jax.Array, centre: jax.Array) -> jax.Array:
            within = squares[alive] / weight.astype(squares.dtype)
            return jnp.mean(within + (means[alive] - centre[None]) ** 2, axis=0)

        return jax.tree.map(pooled, result.moments.mean, result.moments.squares, centre)
    return _leafwise(result, lambda x, m: weighted_mean(result.draw_weights, (x - m[None, None]) ** 2), centre)


def posterior_std(result: Result) -> PyTree:
    """The posterior standard deviation of every parameter."""
    return jax.tree.map(jnp.sqrt, posterior_variance(result))


def posterior_covariance(result: Result) -> jax.Array:
    """Cov[θ] as a (d, d) matrix, rows in the order of `ravel_pytree(position)`; for small d."""
    flat = jax.vmap(jax.vmap(lambda position: ravel_pytree(position)[0]))(result.kept_positions())
    weights = jnp.asarray(result.draw_weights, flat.dtype)
    centred = flat - weighted_mean(result.draw_weights, flat)[None, None]
    return jnp.einsum("k,cki,ckj->ij", weights, centred, centred) / flat.shape[0]
