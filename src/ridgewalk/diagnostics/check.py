"""`check`: known faults of a run, each found by a measurement, with the remedy to try."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.data import Batches
from ridgewalk.diagnostics.curvature import (
    CurvaturePairStats,
    PreconditionedCurvature,
    curvature_pair_stats,
    gradient_noise_fraction,
    is_finite,
    is_isotropic,
    preconditioned_curvature,
    resolved_preconditioner,
    stability_bound,
    stability_fraction,
)
from ridgewalk.diagnostics.draw_access import (
    MIN_DRAWS,
    alive_info,
    coordinate_labels,
    select_coordinates,
    weighted_step_size,
)
from ridgewalk.diagnostics.mixing import deinterleave_draws, ess, leaf_moments, r_hat
from ridgewalk.diagnostics.temperature import Estimate, configurational_series, has_momentum, mean_estimate
from ridgewalk.dynamics.as_printed import AsPrinted
from ridgewalk.dynamics.hamiltonian import NoseHoover
from ridgewalk.preconditioners.base import AdaptivePreconditioner
from ridgewalk.result import Result
from ridgewalk.target import Density

MIN_ESS = 100
"""A smaller ESS leaves a mean with an error above a tenth of the posterior standard deviation."""

MAX_R_HAT = 1.05

MAX_STABILITY_FRACTION = 0.25
"""At this fraction of the stability limit the variance along the steepest direction is a third too large."""

MAX_NOISE_FRACTION = 0.25
"""Variances are too large by about this."""

MAX_REJECTED = 0.5
MIN_DAMPING = 0.1

MIN_ANISOTROPY = 1.2
"""λ_max(G H) over the mean eigenvalue from which on a preconditioner should have adapted."""

MAX_TEMPERATURE, MIN_TEMPERATURE = 1.35, 0.75
"""Relative to the expected temperature. A wrong factor √2 in the noise gives 2 or 1/2."""

TEMPERATURE_ERRORS = 3.0
"""Standard errors by which a temperature must be outside these bounds."""

TRANSIENT = 6.0
"""Standard deviations of later draws by which the first ones exceed them if burn-in was too short."""

SAMPLED_PARAMETERS = 100
"""Parameters, chosen at random, whose ESS and R-hat are computed."""

GRADIENTS = 400
"""Gradients for the configurational temperature."""

MAX_NUMBERS = 2**25
"""Numbers in the draws used for it."""

MAX_FULL_GRADIENT = 10_000
"""Up to this many examples gradients use all of them, above an independent batch for each draw."""

BATCH_SIZE = 4096


@dataclass(frozen=True)
class Finding:
    """One fault: its name, what was measured, and what to try."""

    name: str
    message: str
    advice: str

    def __str__(self) -> str:
        """Two lines."""
        return f"{self.name}: {self.message}\n    try: {self.advice}"


@dataclass(frozen=True)
class CheckReport:
    """The findings of `Result.check()`, none for a healthy run, and the measurements they are based on."""

    findings: tuple[Finding, ...]
    numbers: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What was not measured, and why."""

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the findings."""
        return tuple(finding.name for finding in self.findings)

    def __iter__(self) -> Iterator[Finding]:
        """The findings."""
        return iter(self.findings)

    def __len__(self) -> int:
        """Number of findings."""
        return len(self.findings)

    def __str__(self) -> str:
        """All findings, notes and numbers as text."""
        lines = [str(finding) for finding in self.findings] or ["no problems found"]
        lines += [f"note: {note}" for note in self.notes]
        if self.numbers:
            lines.append("numbers: " + ", ".join(f"{name} {value:.3g}" for name, value in self.numbers.items()))
        return "\n".join(lines)

    __repr__ = __str__


class Extreme(NamedTuple):
    """The parameter with the smallest ESS or the largest R-hat, and the value."""

    label: str
    value: float


class Measurements(NamedTuple):
    """What the findings are based on; None or NaN if it could not be measured."""

    min_ess: Extreme | None
    max_r_hat: Extreme | None
    constant: tuple[str, ...]
    """Parameters that never changed."""
    curvature: PreconditionedCurvature | None
    stability: float
    """Step size relative to the stability limit."""
    noise_fraction: float
    pairs: CurvaturePairStats
    configurational: np.ndarray | None
    """(θ − θ̄)·∇U / d, (chain, draw)."""
    kinetic: np.ndarray | None
    notes: tuple[str, ...]

    def numbers(self) -> dict[str, float]:
        """The finite measurements by name."""
        found = {
            "min ESS": self.min_ess.value if self.min_ess else math.nan,
            "max R-hat": self.max_r_hat.value if self.max_r_hat else math.nan,
            "step size / stability limit": self.stability,
            "gradient noise fraction": self.noise_fraction,
            "damped pairs": self.pairs.damped if self.pairs.pairs else math.nan,
            "rejected pairs": self.pairs.rejected if self.pairs.pairs else math.nan,
            "configurational temperature": _mean(self.configurational),
            "kinetic temperature": _mean(self.kinetic),
        }
        return {name: value for name, value in found.items() if math.isfinite(value)}


def check(result: Result) -> CheckReport:
    """Check a run for known faults: outcome, mixing, step size, preconditioner and temperature.

    Costs a few hundred gradients. A fault that explains another is reported once: an excess temperature explained by
    the step size is reported as `step_size`.
    """
    measured = measure(result)
    findings = [
        *check_outcome(result),
        *check_sampler(result),
        *check_mixing(measured),
        *check_preconditioner(result, measured),
        *check_steps(result, measured),
        *check_temperature(result, measured),
    ]
    return CheckReport(tuple(findings), measured.numbers(), measured.notes)


def measure(result: Result) -> Measurements:
    """Compute every measurement once."""
    notes = []
    min_ess: Extreme | None = None
    max_r_hat: Extreme | None = None
    constant: tuple[str, ...] = ()
    configurational = None
    if result.positions is None:
        notes.append("the draws were not kept, so ESS and temperature were not computed")
        max_r_hat = _moment_r_hat(result)
    elif result.draws < MIN_DRAWS:
        notes.append(f"with {result.draws} draws of each chain, ESS, R-hat and temperature were not computed")
    else:
        min_ess, max_r_hat, constant = _measure_mixing(result)
        d = result.dimension
        if d > SAMPLED_PARAMETERS:
            notes.append(f"ESS and R-hat are of {SAMPLED_PARAMETERS} of {d:,} parameters, chosen at random")
        masks = [np.asarray(state.mask) for state in result.final_states if state.mask is not None]
        if any(np.any(mask != masks[0]) for mask in masks):
            notes.append("each chain is pruned on its own, so R-hat compares posteriors of different weights")
        max_draws = max(20, min(GRADIENTS, MAX_NUMBERS // d))
        series = configurational_series(result, max_draws, _gradient_batch_size(result))
        if series.size:
            configurational = series
        else:
            notes.append("fewer draws than interleaved chains, so the temperature was not computed")
    usable = result.draws > 0 and all(is_finite(state) for state in result.alive_states)
    curvature = preconditioned_curvature(result) if usable else None
    kinetic = alive_info(result, "temperature") if has_momentum(result) and result.draws >= MIN_DRAWS else None
    return Measurements(
        min_ess=min_ess,
        max_r_hat=max_r_hat,
        constant=constant,
        curvature=curvature,
        stability=stability_fraction(result, curvature) if curvature else math.nan,
        noise_fraction=gradient_noise_fraction(result) if usable else math.nan,
        pairs=curvature_pair_stats(result),
        configurational=configurational,
        kinetic=kinetic,
        notes=tuple(notes),
    )


def _mean(values: np.ndarray | None) -> float:
    return math.nan if values is None else float(values.mean())


def _measure_mixing(result: Result) -> tuple[Extreme | None, Extreme | None, tuple[str, ...]]:
    """Smallest ESS, largest R-hat, and parameters that never changed."""
    sizes, hats, constant = [], [], []
    for part in select_coordinates(result, SAMPLED_PARAMETERS):
        for i, label in enumerate(part.labels):
            values = part.values[:, :, i]
            if result.sampler.pruning is not None:
                values = values[np.any(values != 0, axis=1)]  # of the chains that kept it
                if not len(values):
                    continue
            if np.all(values == values[:, :1]):
                constant.append(label)
                continue
            sizes.append(Extreme(label, ess(deinterleave_draws(result, values))))
            hats.append(Extreme(label, r_hat(values)))
    return _extreme(sizes, sign=-1), _extreme(hats), tuple(constant)


def _extreme(values: list[Extreme], sign: int = 1) -> Extreme | None:
    """The largest finite value; with sign −1 the smallest."""
    finite = [one for one in values if math.isfinite(one.value)]
    return max(finite, key=lambda one: sign * one.value, default=None)


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


def _gradient_batch_size(result: Result) -> int | None:
    """Examples per gradient for the configurational temperature; None for all."""
    target = result.estimator.target
    if isinstance(target, Density):
        return None
    return None if target.size <= MAX_FULL_GRADIENT and not isinstance(target.data, Batches) else BATCH_SIZE


def check_outcome(result: Result) -> Iterator[Finding]:
    """Chains that diverged, NaN in the draws of the others, and a run that was interrupted."""
    diverged = [(i, status) for i, status in enumerate(result.status) if not status.alive]
    if diverged:
        details = "; ".join(f"chain {i} {status}" for i, status in diverged)
        yield Finding(
            "diverged",
            f"{len(diverged)} of {len(result.status)} chains diverged and are left out everywhere: {details}",
            "lower step_size: the other chains may diverge in a longer run",
        )
    lost = nan_draws(result)
    if lost:
        yield Finding(
            "nan_draws",
            f"{lost:,} draws of chains that did not diverge are NaN",
            "if the draws are in a store, its files were damaged or replaced: restore them, or run again",
        )
    if any(status.outcome == "interrupted" for status in result.status):
        yield Finding(
            "interrupted",
            f"the run was interrupted after {result.steps:,} steps",
            "resume it: the same call with resume=True, if it had a checkpoint folder",
        )


def nan_draws(result: Result) -> int:
    """How many draws of chains that did not diverge hold NaN."""
    lost = np.zeros((result.chains, result.draws), bool)
    for leaf in jax.tree.leaves((result.positions, result.info.potential)):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        at_once = max(1, MAX_NUMBERS // max(1, leaf.shape[0] * math.prod(leaf.shape[2:])))
        for first in range(0, result.draws, at_once):
            part = np.asarray(leaf[:, first : min(first + at_once, result.draws)])
            lost[:, first : first + part.shape[1]] |= np.isnan(part).any(axis=tuple(range(2, part.ndim)))
    return int(lost[result.alive].sum())


def check_mixing(measured: Measurements) -> Iterator[Finding]:
    """Constant parameters, large R-hat, small ESS."""
    if measured.constant:
        shown = ", ".join(measured.constant[:5]) + (" and others" if len(measured.constant) > 5 else "")
        yield Finding(
            "constant",
            f"{shown} never changed",
            "check that log_prior and log_likelihood depend on it, and that steps are not lost to rounding "
            "(float32 has 7 digits)",
        )
    worst = measured.max_r_hat
    if worst is not None and worst.value > MAX_R_HAT:
        yield Finding(
            "high_r_hat",
            f"R-hat of {worst.label} is {worst.value:.3g}, above {MAX_R_HAT}: the chains have different distributions",
            "a longer run, a longer burn_in, a larger step_size or a preconditioner (hasgld_sa); if it stays large, "
            "the posterior has several modes between which the chains do not move",
        )
    smallest = measured.min_ess
    if smallest is not None and smallest.value < MIN_ESS:
        yield Finding(
            "low_ess",
            f"the ESS of {smallest.label} is {smallest.value:.0f}, below {MIN_ESS}: the error of its mean is "
            f"{smallest.value**-0.5:.0%} of its posterior standard deviation",
            "more steps, a larger step_size if it is far below the stability limit, or a preconditioner (hasgld_sa)",
        )


def check_sampler(result: Result) -> Iterator[Finding]:
    """Samplers that do not sample the posterior."""
    dynamics = result.sampler.dynamics
    if isinstance(dynamics, AsPrinted):
        yield Finding(
            "sampler",
            "form='as_printed' does not sample the posterior: its steps have unit length whatever the gradient",
            "another form of hasgld_sa(), except to compare with the paper's tables",
        )
    if dynamics.temperature == 0:
        yield Finding(
            "sampler",
            "temperature 0 is gradient descent without noise: the draws converge to a mode",
            "temperature=1.0 for the posterior",
        )


def check_steps(result: Result, measured: Measurements) -> Iterator[Finding]:
    """Step sizes too large for the curvature or for the gradient noise."""
    step_size = weighted_step_size(result)
    if measured.stability > MAX_STABILITY_FRACTION:
        safe = 0.1 * step_size / measured.stability
        yield Finding(
            "step_size",
            f"step_size {step_size:.3g} is {measured.stability:.0%} of the stability limit "
            f"{step_size / measured.stability:.2g}: variances along directions of high curvature are too large",
            f"step_size={safe:.1g}",
        )
    if measured.noise_fraction > MAX_NOISE_FRACTION and not isinstance(result.sampler.dynamics, NoseHoover):
        safe = 0.1 * step_size / measured.noise_fraction
        yield Finding(
            "gradient_noise",
            f"step_size {step_size:.3g} is too large for the noise of the minibatch gradients, which adds "
            f"{measured.noise_fraction:.0%} to the noise of a step: variances are too large by about as much",
            f"step_size={safe:.1g}, larger batches, control_variates(target, mode), or sgnht",
        )


def check_preconditioner(result: Result, measured: Measurements) -> Iterator[Finding]:
    """A preconditioner that is not finite, or did not adapt."""
    rule, states = resolved_preconditioner(result).unwrapped, result.alive_states
    if not all(is_finite(state) for state in states):
        yield Finding(
            "preconditioner",
            "G is not finite",
            "check that gradients are finite everywhere; with hasgld_sa, a smaller step_size or a larger "
            "first_curvature",
        )
        return
    if not isinstance(rule, AdaptivePreconditioner):
        return
    name, pairs = type(rule).__name__, measured.pairs
    if pairs.pairs and pairs.rejected > MAX_REJECTED:
        yield Finding(
            "preconditioner",
            f"{name} rejected {pairs.rejected:.0%} of its curvature pairs: the chain did not move, or gradients "
            "were not finite",
            "a larger step_size, or float64 if steps are lost to rounding; otherwise check gradients for NaN",
        )
    elif pairs.pairs and pairs.mean_damping < MIN_DAMPING:
        yield Finding(
            "preconditioner",
            f"the curvature pairs of {name} were damped to {pairs.mean_damping:.0%} on average, so G does not adapt: "
            "the curvature is negative along most steps",
            "a start nearer a mode, or form='low_rank', which uses absolute curvatures",
        )
    elif result.dimension > 1 and any(map(is_isotropic, states)) and _is_anisotropic(measured.curvature):
        yield Finding(
            "preconditioner",
            f"{name} never changed: G is still a multiple of the identity after {result.steps:,} steps, though "
            "the curvature differs between directions",
            f"an adaptation schedule with positive weights, and more steps than the first update needs "
            f"({_first_update(rule):,})",
        )


def _is_anisotropic(curvature: PreconditionedCurvature | None) -> bool:
    return curvature is not None and curvature.largest > MIN_ANISOTROPY * abs(curvature.mean)


def _first_update(rule: AdaptivePreconditioner) -> int:
    """Steps until the first update of G."""
    return rule.interval * int(getattr(rule, "memory", 1))


def check_temperature(result: Result, measured: Measurements) -> Iterator[Finding]:
    """Positions or momenta whose temperature is not the sampler's, and is not explained by another finding."""
    dynamics = result.sampler.dynamics
    if not dynamics.temperature > 0 or isinstance(dynamics, AsPrinted):
        return
    if measured.configurational is not None and is_transient(measured.configurational):
        yield Finding(
            "burn_in",
            "the first draws are far from the later ones: the chains had not reached the stationary distribution",
            "a longer burn_in, or a start nearer a mode",
        )
        return
    expected = expected_temperature(result, measured)
    mixed = measured.min_ess is None or measured.min_ess.value >= MIN_ESS
    for name, series in (("draws", measured.configurational), ("momenta", measured.kinetic)):
        if series is None:
            continue
        sign, estimate = _compare(series / dynamics.temperature, expected)
        if sign == 0 or (sign < 0 and not mixed):  # low ESS explains a low temperature
            continue
        yield Finding(
            "temperature",
            f"the temperature of the {name} is too {'high' if sign > 0 else 'low'}: {estimate} times the sampler's "
            f"temperature {dynamics.temperature:g}; step size and gradient noise explain {expected:.3g}",
            "check the factors in the noise: that of a step must have covariance 2 ε T G, and `multiply` and `factor` "
            "of a preconditioner must agree, S Sᵀ = G",
        )
        return


def expected_temperature(result: Result, measured: Measurements) -> float:
    """Temperature over T expected from step size and gradient noise: (1 + fraction) / (1 − ε tr(G H) / (d bound)).

    A thermostat removes the gradient noise.
    """
    noise = 0.0 if isinstance(result.sampler.dynamics, NoseHoover) else measured.noise_fraction
    mean = 0.0 if measured.curvature is None else max(measured.curvature.mean, 0.0)
    length = min(weighted_step_size(result) * mean / stability_bound(result), 0.9)
    return (1 + (noise if np.isfinite(noise) else 0.0)) / (1 - length)


def _compare(values: np.ndarray, expected: float) -> tuple[int, Estimate]:
    """1 if the temperature is too high, −1 if too low, 0 if neither beyond its Monte Carlo error; in units of T."""
    estimate = mean_estimate(values)
    if not np.isfinite(estimate.error):
        return 0, estimate
    margin = TEMPERATURE_ERRORS * estimate.error
    high = estimate.value - margin > MAX_TEMPERATURE * expected
    low = estimate.value + margin < MIN_TEMPERATURE * min(1.0, expected)
    return int(high) - int(low), estimate


def is_transient(values: np.ndarray) -> bool:
    """Whether the first tenth of (chain, draw) is far above the values of the second half."""
    first, later = values[:, : -(-values.shape[1] // 10)], values[:, values.shape[1] // 2 :]
    return bool(first.mean() > later.mean() + TRANSIENT * later.std())
