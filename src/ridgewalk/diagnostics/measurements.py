"""What `check` measures: mixing, whether the chains have arrived, step size, preconditioner and temperature.

All of it costs about a tenth of the run's gradients, or less.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import layout_of
from ridgewalk._types import Scalar, Vector
from ridgewalk.data import SUBSAMPLE_SIZE, Batches
from ridgewalk.diagnostics.curvature import (
    CurvaturePairStats,
    PreconditionedCurvature,
    curvature_pair_stats,
    gradient_noise_fraction,
    is_finite,
    is_metropolis_adjusted,
    preconditioned_curvature,
    stability_bound,
    stability_fraction,
)
from ridgewalk.diagnostics.draw_access import (
    MIN_DRAWS,
    Coordinates,
    alive_info,
    coordinate_labels,
    map_gradients,
    select_coordinates,
    thinned_positions,
    thinning,
    weighted_step_size,
)
from ridgewalk.diagnostics.mixing import (
    deinterleave_draws,
    ess,
    interleaved_chains,
    leaf_moments,
    r_hat,
    standard_error,
)
from ridgewalk.dynamics import BAOAB, AsPrinted, MomentumDynamics, NoseHoover
from ridgewalk.pruning import degrees_of_freedom
from ridgewalk.result import Result, posterior_mean, weighted_mean
from ridgewalk.target import Density

TRANSIENT = 6.0
"""Standard deviations of later draws by which the first ones exceed them if burn-in was too short."""

SAMPLED_PARAMETERS = 100
"""Parameters, or collected values, chosen at random, whose ESS and R-hat are computed."""

SCREENED_DRAWS = 1_000
"""Draws of each chain from which the worst of them are found; ESS and R-hat of those are then of all draws."""

GRADIENTS = 400
"""Gradients for the configurational temperature, at most."""

MIN_GRADIENTS = 20

MAX_NUMBERS = 2**25
"""Numbers in the draws used for it."""

MAX_FULL_GRADIENT = 10_000
"""Up to this many examples gradients use all of them, above an independent batch for each draw."""

BATCH_SIZE = 4096

MAX_SHARE = 0.03
"""Of the run's gradients, how many each of temperature, curvature and gradient noise may cost."""

CURVATURE_GRADIENTS = 100
"""Gradients that the curvature at one state costs: 28 Hessian-vector products."""

NOISE_BATCHES = 64
MAX_CHAINS = 4
"""Chains at whose final states curvature and noise are measured, at most."""

ARRIVAL_DRAWS = 32
"""Draws of each chain without which no drift of the potential is looked for."""

LARGE = 4.0
DRIFT_ERRORS = 5.0
"""Standard errors by which potentials must differ to be called different."""

OWN_ESS = 10
"""The ESS of a chain on its own from which on it explores the place where it is."""

MODE_ESS = 20
"""The ESS of the potential in the second half of a chain from which on it is in a mode, if it is above others."""

GAP = 3.0
"""Standard deviations within chains by which the means of two groups of chains in different modes differ."""


class Extreme(NamedTuple):
    """The parameter with the smallest ESS or the largest R-hat, and the value."""

    label: str
    value: float


class Arrival(NamedTuple):
    """Mean potentials (chain, quarter of the draws), and what they tell.

    `scale` is the standard deviation of the potential under a Gaussian posterior, T √(d/2): differences below it are
    of no account.
    """

    quarters: np.ndarray
    scale: float
    drifting: tuple[int, ...]
    """Chains whose potential still changes between the third and the last quarter."""
    late: bool
    """Whether the first quarter differs from the last, though the third does not."""
    above: tuple[int, ...]
    """Chains that stay at a higher potential than the lowest."""
    stuck: bool
    """Whether one of these does not even explore the place where it is, so that it is in no mode."""

    @property
    def lowest(self) -> int:
        """The chain with the lowest potential."""
        return int(self.quarters[:, 2:].mean(axis=1).argmin())


class Measurements(NamedTuple):
    """What the findings are based on; None or NaN if it could not be measured."""

    min_ess: Extreme | None
    max_r_hat: Extreme | None
    constant: tuple[str, ...]
    """Parameters that never changed."""
    separated: bool
    """Whether the chains stay apart in the parameter of largest R-hat, each mixing within its own range."""
    arrival: Arrival | None
    curvature: PreconditionedCurvature | None
    stability: float
    """Step size relative to the stability limit."""
    noise_fraction: float
    pairs: CurvaturePairStats
    """Of the chain with the largest fraction of damped pairs."""
    configurational: np.ndarray | None
    """(θ − θ̄)·∇U / d, (chain, draw)."""
    kinetic: np.ndarray | None
    notes: tuple[str, ...]

    def numbers(self) -> dict[str, float]:
        """The finite measurements by name."""
        arrival = self.arrival
        found = {
            "min ESS": self.min_ess.value if self.min_ess else math.nan,
            "max R-hat": self.max_r_hat.value if self.max_r_hat else math.nan,
            "drift of the potential": _drift(arrival) if arrival else math.nan,
            "step size / stability limit": self.stability,
            "gradient noise fraction": float(np.maximum(self.noise_fraction, 0)),
            "damped pairs": self.pairs.damped if self.pairs.pairs else math.nan,
            "rejected pairs": self.pairs.rejected if self.pairs.pairs else math.nan,
            "configurational temperature": _mean(self.configurational),
            "kinetic temperature": _mean(self.kinetic),
        }
        return {name: value for name, value in found.items() if math.isfinite(value)}


def _mean(values: np.ndarray | None) -> float:
    return math.nan if values is None else float(values.mean())


def _drift(arrival: Arrival) -> float:
    """The change of the potential from the third to the last quarter, in units of its fluctuation."""
    return float((arrival.quarters[:, 3] - arrival.quarters[:, 2]).mean() / arrival.scale)


def measure_draws(result: Result) -> Measurements:
    """What can be measured without gradients."""
    notes: list[str] = []
    mixing = _Mixing(None, None, (), False)
    if result.draws < MIN_DRAWS:
        notes.append(f"with {result.draws} draws of each chain, ESS, R-hat and temperature were not computed")
    else:
        mixing = _measure_mixing(result, notes)
    nothing = CurvaturePairStats(0, 0.0, 0.0, 1.0)
    arrival = measure_arrival(result)
    return Measurements(*mixing, arrival, None, math.nan, math.nan, nothing, None, None, tuple(notes))


def measure(result: Result) -> Measurements:
    """Compute every measurement once."""
    of_draws = measure_draws(result)
    notes = list(of_draws.notes)
    configurational = None
    if result.draws >= MIN_DRAWS and result.positions is None:
        notes.append("the draws were not kept, so the temperature was not computed")
    elif result.draws >= MIN_DRAWS:
        max_draws, examples = _gradient_plan(result)
        series = configurational_series(result, max_draws, examples)
        if series.size:
            configurational = series
        else:
            notes.append("fewer draws than interleaved chains, so the temperature was not computed")
    usable = result.draws > 0 and all(is_finite(state) for state in result.alive_states)
    curvature = noise = None
    if usable:
        curvature = preconditioned_curvature(result, max_chains=_affordable(result, CURVATURE_GRADIENTS, _subsample))
        chains = _affordable(result, NOISE_BATCHES, _batch_rows)
        noise = gradient_noise_fraction(result, batches=NOISE_BATCHES, max_chains=chains)
    kinetic = alive_info(result, "temperature") if has_momentum(result) and result.draws >= MIN_DRAWS else None
    return of_draws._replace(
        curvature=curvature,
        stability=stability_fraction(result, curvature) if curvature else math.nan,
        noise_fraction=math.nan if noise is None else noise,
        pairs=max(
            (curvature_pair_stats(result, chain=i) for i in range(len(result.alive_states))), key=lambda one: one.damped
        ),
        configurational=configurational,
        kinetic=kinetic,
        notes=tuple(notes),
    )


# How much a measurement may cost, in gradients of one example; a density counts as one example.


def _size(result: Result) -> int:
    target = result.estimator.target
    return 1 if isinstance(target, Density) else target.size


def _batch_rows(result: Result) -> int:
    """Examples of a step's batch."""
    target = result.estimator.target
    if not isinstance(target, Density) and isinstance(target.data, Batches):
        return int(np.shape(jax.tree.leaves(target.data.first())[0])[0])
    return result.batch_size or _size(result)


def _subsample(result: Result) -> int:
    """Examples that curvature is measured on."""
    return min(_size(result), SUBSAMPLE_SIZE)


def _allowance(result: Result) -> float:
    return MAX_SHARE * result.steps * result.chains * _batch_rows(result)


def _affordable(result: Result, gradients: int, rows: Any) -> int:
    """At how many chains a measurement of so many gradients can be made; at least one."""
    return int(np.clip(_allowance(result) // (gradients * rows(result)), 1, MAX_CHAINS))


def _gradient_plan(result: Result) -> tuple[int, int | None]:
    """Draws at which the configurational temperature is measured, and examples of each gradient; None for all."""
    target, size, allowance = result.estimator.target, _size(result), _allowance(result)
    most = min(GRADIENTS, MAX_NUMBERS // result.dimension)
    if isinstance(target, Density):
        return max(MIN_GRADIENTS, min(most, int(allowance))), None
    whole = size <= MAX_FULL_GRADIENT and not isinstance(target.data, Batches)
    examples = size if whole else min(BATCH_SIZE, size)
    if allowance < most * examples:  # smaller batches rather than fewer draws
        examples = int(np.clip(allowance // most, min(_batch_rows(result), examples), examples))
    draws = max(MIN_GRADIENTS, min(most, int(allowance // examples)))
    return draws, None if whole and examples == size else examples


# Mixing


class _Mixing(NamedTuple):
    min_ess: Extreme | None
    max_r_hat: Extreme | None
    constant: tuple[str, ...]
    separated: bool


def _measure_mixing(result: Result, notes: list[str]) -> _Mixing:
    """Smallest ESS and largest R-hat of collected values, else of parameters; and parameters that never changed."""
    if result.collected is not None:
        parts = select_coordinates(result, SAMPLED_PARAMETERS, tree=result.collected)
        parts = [part._replace(name=f"collected {part.name}".removesuffix(" position")) for part in parts]
        notes.append("ESS and R-hat are of the collected values")
        return _worst_mixing(result, parts)._replace(constant=())
    if result.positions is None:
        notes.append("the draws were not kept, so ESS was not computed")
        return _Mixing(None, _moment_r_hat(result), (), False)
    d = result.dimension
    if d > SAMPLED_PARAMETERS:
        notes.append(f"ESS and R-hat are of {SAMPLED_PARAMETERS} of {d:,} parameters, chosen at random")
    masks = [np.asarray(state.mask) for state in result.final_states if state.mask is not None]
    if any(np.any(mask != masks[0]) for mask in masks):
        notes.append("each chain is pruned on its own, so R-hat compares posteriors of different weights")
    return _worst_mixing(result, select_coordinates(result, SAMPLED_PARAMETERS))


def _worst_mixing(result: Result, parts: list[Coordinates]) -> _Mixing:
    """Screened by some draws of each chain; the worst of ESS and R-hat are then computed from all draws."""
    every = -(-result.draws // SCREENED_DRAWS)
    series: dict[str, np.ndarray] = {}
    constant, sizes, hats = [], [], []
    for part in parts:
        for i, label in enumerate(part.labels):
            values = part.values[:, :, i]
            if result.sampler.pruning is not None:
                values = values[np.any(values != 0, axis=1)]  # of the chains that kept it
                if not len(values):
                    continue
            if np.all(values == values[:, :1]):
                constant.append(label)
                continue
            series[label] = values
            sizes.append(Extreme(label, ess(deinterleave_draws(result, values[:, ::every], every))))
            hats.append(Extreme(label, r_hat(values[:, ::every])))
    smallest, largest = _extreme(sizes, sign=-1), _extreme(hats)
    if smallest is not None and every > 1:
        smallest = Extreme(smallest.label, ess(deinterleave_draws(result, series[smallest.label])))
    if largest is not None and every > 1:
        largest = Extreme(largest.label, r_hat(series[largest.label]))
    separated = largest is not None and are_separated(series[largest.label][:, ::every])
    return _Mixing(smallest, largest, tuple(constant), separated)


def _extreme(values: list[Extreme], sign: int = 1) -> Extreme | None:
    """The largest finite value; with sign −1 the smallest."""
    finite = [one for one in values if math.isfinite(one.value)]
    return max(finite, key=lambda one: sign * one.value, default=None)


def are_separated(values: np.ndarray) -> bool:
    """Whether chains (chain, draw) stay in ranges far apart, each mixing within its own, as in different modes."""
    means = np.sort(values.mean(axis=1))
    gap = np.diff(means).max(initial=0.0)
    within = math.sqrt(float(values.var(axis=1).mean()))
    return bool(gap > GAP * within) and all(ess(chain[None], "mean") >= OWN_ESS for chain in values)


def _moment_r_hat(result: Result) -> Extreme | None:
    """The largest R-hat from running moments."""
    if result.draws < MIN_DRAWS or result.alive.sum() < 2:
        return None
    found = []
    for leaf in leaf_moments(result):
        if np.isfinite(leaf.r_hat).any():
            at = np.array([np.nanargmax(np.where(np.isfinite(leaf.r_hat), leaf.r_hat, np.nan))])
            found.append(Extreme(coordinate_labels(leaf.name, leaf.shape, at)[0], float(leaf.r_hat[at[0]])))
    return _extreme(found)


# Arrival


def measure_arrival(result: Result) -> Arrival | None:
    """Whether the potential of the draws is stationary and the same in all chains.

    None if there are few draws, if the sampler does not sample the posterior, or if step sizes change by more than a
    factor of two, with which the potential changes too.
    """
    dynamics, pruning = result.sampler.dynamics, result.sampler.pruning
    if isinstance(dynamics, AsPrinted) or not dynamics.temperature > 0:
        return None
    used = result.draw_steps > (0 if pruning is None else pruning.stop)  # pruning raises the potential
    sizes = np.asarray(result.step_sizes)[used]
    if sizes.size < ARRIVAL_DRAWS or sizes.max() > 2 * sizes.min():
        return None
    potential = alive_info(result, "potential")[:, used]
    interleaved = interleaved_chains(result)
    if interleaved > 1:  # the mean over the interleaved chains is correlated as each of them is
        rounds = potential.shape[1] // interleaved
        potential = potential[:, : rounds * interleaved].reshape(-1, rounds, interleaved).mean(axis=2)
    return compare_potentials(potential, potential_scale(result))


def potential_scale(result: Result) -> float:
    """The standard deviation of the potential of a Gaussian posterior, T √(d/2), pruned parameters left out."""
    degrees = [float(degrees_of_freedom(state.mask, result.dimension)) for state in result.alive_states]
    degrees = degrees or [float(result.dimension)]  # of a result opened from a store
    return result.sampler.dynamics.temperature * math.sqrt(max(*degrees, 2.0) / 2)


def compare_potentials(potential: np.ndarray, scale: float) -> Arrival | None:
    """Compare quarters of potentials (chain, draw) with one another, and chains; None if they are few or not finite.

    Differences count if they are significant and above `scale`, the standard deviation at rest; over all chains a drift
    counts from half of `scale` on. Above `LARGE` times `scale`, which no chain at rest reaches however slowly it mixes,
    the standard errors are of what a linear trend leaves.
    """
    length = potential.shape[1] // 4
    if 4 * length < ARRIVAL_DRAWS or not np.isfinite(potential).all():
        return None
    parts = potential[:, -4 * length :].reshape(-1, 4, length)
    means = parts.mean(axis=2)
    plain = np.stack([_errors(parts[:, k]) for k in range(4)], axis=1)
    detrended = np.stack([_errors(_without_trend(parts[:, k])) for k in range(4)], axis=1)

    def different(i: int, j: int) -> np.ndarray:
        """Which chains differ between quarters i and j; all of them if the mean of the others does."""
        change = means[:, i] - means[:, j]
        size, error = np.abs(change), np.hypot(plain[:, i], plain[:, j])
        single = (size > scale) & (size > DRIFT_ERRORS * error)
        single |= (size > LARGE * scale) & (size > DRIFT_ERRORS * np.hypot(detrended[:, i], detrended[:, j]))
        if single.all():
            return single
        together, error_together = (
            abs(change[~single].mean()),
            math.sqrt((error[~single] ** 2).mean() / (~single).sum()),
        )
        return single | (together > scale / 2 and together > DRIFT_ERRORS * error_together)

    halves = parts[:, 2:].reshape(len(parts), -1)
    middle, error = halves.mean(axis=1), _errors(halves)
    lowest = int(middle.argmin())
    distance = middle - middle[lowest]
    above = (distance > scale) & (distance > DRIFT_ERRORS * np.hypot(error, error[lowest]))
    drifting = np.flatnonzero(different(2, 3))
    late = not drifting.size and bool(different(0, 3).any())
    stuck = any(not ess(half[None], "mean") >= MODE_ESS for half in halves[above])
    return Arrival(means, scale, tuple(map(int, drifting)), late, tuple(map(int, np.flatnonzero(above))), stuck)


def _without_trend(values: np.ndarray) -> np.ndarray:
    """What a straight line through each row of (chain, draw) leaves."""
    time = np.arange(values.shape[1]) - (values.shape[1] - 1) / 2
    return values - np.outer(values @ time / (time @ time), time)


def _errors(values: np.ndarray) -> np.ndarray:
    """Standard errors of the means of the rows of (chain, draw); 0 for a constant row.

    The autocorrelation time of a short row is often found too small: it is at least the median of all rows.
    """
    times = np.array([values.shape[1] / ess(row[None], "mean") for row in values])
    if np.isnan(times).all():
        return np.zeros(len(values))
    times = np.fmax(times, np.nanmedian(times))
    return values.std(axis=1) * np.sqrt(times / values.shape[1])


# Temperature


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        """`1.02 ± 0.03`."""
        return f"{self.value:.3g} ± {self.error:.2g}"


def mean_estimate(values: np.ndarray) -> Estimate:
    """The mean of (chain, draw) with its Monte Carlo standard error; NaN without draws."""
    return Estimate(float(values.mean()) if values.size else float("nan"), standard_error(values))


def configurational_series(result: Result, max_draws: int, examples: int | None) -> np.ndarray:
    """(θ − θ̄)·∇U(θ) / d of about `max_draws` draws, (chain, draw); interleaved chains are separated."""
    positions = thinned_positions(result, max_draws, "the configurational temperature")
    if result.moments is not None:
        centre = posterior_mean(result)
    else:  # on the host, where nothing is compiled
        weights = result.draw_weights
        centre = jax.tree.map(lambda leaf: weighted_mean(weights, result.load_leaf(leaf)), result.positions)
    middle = layout_of(centre).ravel(centre)
    d, pruned = result.dimension, result.sampler.pruning is not None

    def virial(position: Vector, gradient: Vector) -> Scalar:
        if not pruned:
            return jnp.vdot(position - middle, gradient) / d
        moves = position != 0  # the expectation is the same for any fixed centre
        return jnp.vdot(jnp.where(moves, position - middle, 0), gradient) / jnp.sum(moves)

    return deinterleave_draws(result, map_gradients(result, positions, virial, examples), thinning(result, max_draws))


def configurational_temperature(result: Result, *, max_draws: int = 1000, examples: int | None = None) -> Estimate:
    """⟨(θ − θ̄)·∇U(θ)⟩ / d, which equals T for draws from p(θ)^{1/T} of any shape (virial theorem).

    Large steps and gradient noise raise it; chains that have not mixed lower it. Gradients use all data, or with
    `examples` an independent batch of that size for each draw, which leaves the mean unbiased.
    """
    return mean_estimate(configurational_series(result, max_draws, examples))


def has_momentum(result: Result) -> bool:
    """Whether the dynamics have a momentum."""
    return isinstance(result.sampler.dynamics, MomentumDynamics)


def kinetic_temperature(result: Result) -> Estimate:
    """⟨|w|²⟩ (1 − α/2) / d of the white momentum w with friction α, which equals T in the stationary distribution.

    Where steps are accepted by Metropolis's rule, ⟨|p|²⟩ / d of the momentum that a leapfrog step begins with.
    """
    if not has_momentum(result):
        raise ValueError(
            f"sampler: {type(result.sampler.dynamics).__name__} dynamics have no momentum; "
            "use configurational_temperature"
        )
    return mean_estimate(alive_info(result, "temperature"))


def is_transient(values: np.ndarray) -> bool:
    """Whether the first tenth of (chain, draw) is far above the values of the second half."""
    first, later = values[:, : -(-values.shape[1] // 10)], values[:, values.shape[1] // 2 :]
    return bool(first.mean() > later.mean() + TRANSIENT * later.std())


def nan_draws(result: Result) -> int:
    """How many draws of chains that did not diverge hold NaN, in positions, collected values or potential."""
    lost = np.zeros((result.chains, result.draws), bool)
    for leaf in jax.tree.leaves((result.positions, result.collected, result.info.potential)):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        at_once = max(1, MAX_NUMBERS // max(1, leaf.shape[0] * math.prod(leaf.shape[2:])))
        for first in range(0, result.draws, at_once):
            part = np.asarray(leaf[:, first : min(first + at_once, result.draws)])
            lost[:, first : first + part.shape[1]] |= np.isnan(part).any(axis=tuple(range(2, part.ndim)))
    return int(lost[result.alive].sum())


def expected_temperature(result: Result, measured: Measurements) -> float:
    """Temperature over T expected from step size and gradient noise: (1 + fraction) / (1 − ε tr(G H) / (d bound)).

    A thermostat removes the gradient noise.
    """
    noise = 0.0 if isinstance(result.sampler.dynamics, NoseHoover) else measured.noise_fraction
    mean = 0.0 if measured.curvature is None else max(measured.curvature.mean, 0.0)
    unbiased = is_metropolis_adjusted(result) or isinstance(result.sampler.dynamics, BAOAB)
    step_size = 0.0 if unbiased else weighted_step_size(result)
    length = min(step_size * mean / stability_bound(result), 0.9)
    return (1 + (noise if np.isfinite(noise) else 0.0)) / (1 - length)
