"""`check`: known faults of a run, each found by a measurement, with the call to make next."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from ridgewalk._compilation import quick_compilation
from ridgewalk.diagnostics.curvature import PreconditionedCurvature, is_finite, is_isotropic, resolved_preconditioner
from ridgewalk.diagnostics.draw_access import weighted_step_size
from ridgewalk.diagnostics.measurements import (
    Arrival,
    Estimate,
    Measurements,
    expected_temperature,
    is_transient,
    mean_estimate,
    measure,
    measure_draws,
    nan_draws,
)
from ridgewalk.diagnostics.next_call import (
    continued,
    next_call,
    preconditioned,
    rounded_up,
    sampler_text,
)
from ridgewalk.dynamics import BAOAB, AsPrinted, Langevin, NoseHoover
from ridgewalk.gradients import Minibatch
from ridgewalk.preconditioners.base import AdaptivePreconditioner
from ridgewalk.result import Result

MIN_ESS = 100
"""A smaller ESS leaves a mean with an error above a tenth of the posterior standard deviation."""

MAX_R_HAT = 1.05

MAX_STABILITY_FRACTION, MAX_STABILITY_FRACTION_OF_SPLITTING = 0.25, 0.9
"""At this fraction of the stability limit the variance along the steepest direction is a third too large; with BAOAB it
is right up to the limit."""

MAX_NOISE_FRACTION = 0.25
"""Variances are too large by about this."""

SAFE_FRACTION = 0.1
"""Of the stability limit, and of the injected noise, that a proposed step size has."""

SMALL_FRACTION = 0.03
"""A step size below this fraction of both can be raised before more steps are made."""

MAX_REJECTED = 0.5
MAX_DAMPED = 0.5
MIN_DAMPING = 0.1

MIN_ANISOTROPY = 1.2
"""λ_max(G H) over the mean eigenvalue from which on a preconditioner should have adapted."""

MAX_TEMPERATURE, MIN_TEMPERATURE = 1.35, 0.75
"""Relative to the expected temperature. A wrong factor √2 in the noise gives 2 or 1/2."""

TEMPERATURE_ERRORS = 3.0
"""Standard errors by which a temperature must be outside these bounds."""

LONGER = 4
"""How many times the steps a run that has not arrived is to make."""

MOST_LONGER = 100


@dataclass(frozen=True)
class Finding:
    """One fault: its name, what was measured, what to try, and the next call to make, which runs as printed.

    In `call`, `key`, `target` and `position` are the variables of the run that was checked, and `result` is its
    result. It is empty where no call helps.
    """

    name: str
    message: str
    advice: str
    call: str = ""

    def __str__(self) -> str:
        """Two or three lines."""
        return f"{self.name}: {self.message}\n    try: {self.advice}" + (f"\n    {self.call}" if self.call else "")


@dataclass(frozen=True)
class CheckReport:
    """The findings of `Result.check()`, empty where none was found, and the measurements they are based on."""

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


def check(result: Result) -> CheckReport:
    """Check a run for known faults: outcome, arrival, mixing, step size, preconditioner and temperature.

    Costs up to a tenth of the run's gradients. A fault that explains another is reported once: an excess temperature
    explained by the step size is reported as `step_size`, and the R-hat of chains that have not arrived as
    `not_arrived`. A result that was opened from a store has no target, so outcome, arrival and mixing alone are
    checked, and no call is proposed.
    """
    if not result.final_states:
        note = (
            "this result was opened from a store, which has no target and no states, so step size, preconditioner and "
            "temperature were not checked; make the run's own call again with resume=True for that"
        )
        report = check_draws(result)
        return CheckReport(report.findings, report.numbers, (*report.notes, note))
    with quick_compilation():  # most of the time goes into compiling
        measured = measure(result)
    arrival = [*check_arrival(result, measured)]
    found = [
        *check_outcome(result),
        *check_sampler(result),
        *arrival,
        *_check_mixing_of(result, measured, arrival),
    ]
    onwards = arrival[0].call if arrival else next_call(result, **continued(result))
    found += [*check_preconditioner(result, measured, onwards), *check_steps(result, measured)]
    if not arrival:
        found += check_temperature(result, measured)
    return CheckReport(tuple(found), measured.numbers(), measured.notes)


def check_draws(result: Result) -> CheckReport:
    """The part of `check` that needs the draws alone, and no gradients: outcome, arrival and mixing."""
    measured = measure_draws(result)
    arrival = [*check_arrival(result, measured)]
    found = (*check_outcome(result), *arrival, *_check_mixing_of(result, measured, arrival))
    return CheckReport(found, measured.numbers(), measured.notes)


def _check_mixing_of(result: Result, measured: Measurements, arrival: list[Finding]) -> Iterator[Finding]:
    explained = not {"not_arrived", "modes"}.isdisjoint(finding.name for finding in arrival)
    return check_mixing(result, measured, explained=explained)


def check_outcome(result: Result) -> Iterator[Finding]:
    """Chains that diverged, NaN in the draws of the others, and a run that was interrupted."""
    diverged = [(i, status) for i, status in enumerate(result.status) if not status.alive]
    if diverged:
        details = "; ".join(f"chain {i} {status}" for i, status in diverged)
        yield Finding(
            "diverged",
            f"{len(diverged)} of {len(result.status)} chains diverged and are left out everywhere: {details}",
            "a smaller step_size, from the ends of the other chains: those may diverge in a longer run",
            next_call(result, **continued(result), step_size=_rounded(weighted_step_size(result) / 4)),
        )
    lost = nan_draws(result)
    if lost:
        yield Finding(
            "nan_draws",
            f"{lost:,} draws of chains that did not diverge are NaN",
            "if the draws are in a store, its files were damaged or replaced: restore them, or run again; if only "
            "collected values are NaN, mend the collect function",
            next_call(result),
        )
    if any(status.outcome == "interrupted" for status in result.status):
        kept = result.arguments.get("checkpoint") is not None
        yield Finding(
            "interrupted",
            f"the run was interrupted after {result.steps:,} steps",
            "resume it" if kept else "run it again, with a checkpoint folder to be able to resume",
            next_call(result, resume=True) if kept else next_call(result, checkpoint="checkpoint"),
        )


def check_arrival(result: Result, measured: Measurements) -> Iterator[Finding]:
    """A potential that still drifts or did so for a part of the draws, and chains in different modes."""
    arrival = measured.arrival
    if arrival is not None and (arrival.drifting or (arrival.above and arrival.stuck)):
        yield _not_arrived(result, arrival)
        return
    series = measured.configurational
    sampled = result.sampler.dynamics.temperature > 0 and not isinstance(result.sampler.dynamics, AsPrinted)
    if (sampled and series is not None and is_transient(series)) or (arrival is not None and arrival.late):
        half = result.burn_in + (result.steps - result.burn_in) // 2
        yield Finding(
            "burn_in",
            "the first draws are far from the later ones: the chains had not reached the stationary distribution",
            "a longer burn_in, or a start nearer a mode",
            next_call(result, steps=rounded_up(result.steps + half), burn_in=rounded_up(half)),
        )
    if arrival is not None and arrival.above:
        yield Finding(
            "modes",
            f"the chains are in different modes: {_potentials(result, arrival)}",
            "pooled draws weight the modes by the number of chains that fell into them; start all chains from the one "
            "of the lowest potential",
            _from_chain(result, arrival.lowest),
        )
    elif measured.separated and measured.max_r_hat is not None:
        yield Finding(
            "modes",
            f"the chains stay in different ranges of {measured.max_r_hat.label}, whose R-hat is "
            f"{measured.max_r_hat.value:.3g}, at about the same potential: they are in different modes, and pooled "
            "draws weight the modes by the number of chains that fell into them",
            "if the modes mirror each other (exchangeable components, units of a network), order them in the model, or "
            "judge what does not depend on the order: collect=function. To sample one mode, start all chains in it",
            _from_chain(result, arrival.lowest if arrival else 0),
        )


def _not_arrived(result: Result, arrival: Arrival) -> Finding:
    """From the lowest chain if that has arrived, else longer from where all chains are."""
    middle = arrival.quarters[:, 2:].mean(axis=1)
    said = []
    if arrival.drifting:
        change = (arrival.quarters[:, 3] - arrival.quarters[:, 2])[list(arrival.drifting)]
        said.append(
            f"the potential still drifts in {_chains(result, arrival.drifting)}: from the third to the last quarter of "
            f"the draws it changed by {change[np.abs(change).argmax()]:+.3g}, its fluctuation at rest is about "
            f"{arrival.scale:.2g}"
        )
    if arrival.above:
        said.append(_potentials(result, arrival))
    advice = "these draws are not of the posterior; start all chains from the one of the lowest potential"
    call = _from_chain(result, arrival.lowest, **preconditioned(result))
    if arrival.lowest in arrival.drifting or np.ptp(middle) < arrival.scale:
        steps = {"steps": rounded_up(LONGER * result.steps), "burn_in": rounded_up(LONGER * result.steps / 2)}
        advice = "these draws are not of the posterior; go on from where the chains are, with more steps"
        call = next_call(result, **{**continued(result), **preconditioned(result), **steps})
    return Finding("not_arrived", "; ".join(said), advice + _preconditioner_advice(result), call)


def _preconditioner_advice(result: Result) -> str:
    return " and a preconditioner" if preconditioned(result) else ""


def _potentials(result: Result, arrival: Arrival) -> str:
    middle = arrival.quarters[:, 2:].mean(axis=1)
    return (
        f"{_chains(result, arrival.above)} stay at potentials up to {middle[list(arrival.above)].max():.5g}, chain "
        f"{np.flatnonzero(result.alive)[arrival.lowest]} is at {middle[arrival.lowest]:.5g}, and fluctuations are "
        f"about {arrival.scale:.2g}"
    )


def _chains(result: Result, indices: tuple[int, ...]) -> str:
    """Chains by their number in the run, given those among the chains that did not diverge."""
    numbers = [str(np.flatnonzero(result.alive)[i]) for i in indices]
    if len(numbers) == int(result.alive.sum()):
        return "all chains" if len(numbers) > 1 else "the chain"
    return ("chain " if len(numbers) == 1 else "chains ") + ", ".join(numbers)


def _from_chain(result: Result, chain: int, **changes: Any) -> str:
    """A run that starts where one of the chains that did not diverge ended, longer if all began at the same place."""
    index = int(np.flatnonzero(result.alive)[chain])
    apart = bool(result.arguments.get("start_per_chain"))
    longer = {} if apart else {"steps": rounded_up(LONGER * result.steps)}
    start = f"result.final_states[{index}].position"
    return next_call(result, position=start, start_per_chain=None, **longer, **changes)


def check_mixing(result: Result, measured: Measurements, *, explained: bool = False) -> Iterator[Finding]:
    """Constant parameters; and unless explained by chains that have not arrived, large R-hat and small ESS."""
    if measured.constant:
        shown = ", ".join(measured.constant[:5]) + (" and others" if len(measured.constant) > 5 else "")
        yield Finding(
            "constant",
            f"{shown} never changed",
            "check that log_prior and log_likelihood depend on it, and that steps are not lost to rounding "
            "(float32 has 7 digits)",
        )
    if explained:
        return
    worst, smallest = measured.max_r_hat, measured.min_ess
    factor = LONGER if smallest is None else float(np.clip(1.5 * MIN_ESS / smallest.value, LONGER, MOST_LONGER))
    advice, changes = _faster(result, measured, factor)
    if worst is not None and worst.value > MAX_R_HAT:
        yield Finding(
            "high_r_hat",
            f"R-hat of {worst.label} is {worst.value:.3g}, above {MAX_R_HAT}: the chains have different distributions",
            advice + "; if R-hat stays large, the posterior has several modes between which the chains do not move",
            next_call(result, **changes),
        )
    if smallest is not None and smallest.value < MIN_ESS:
        yield Finding(
            "low_ess",
            f"the ESS of {smallest.label} is {smallest.value:.0f}, below {MIN_ESS}: the error of its mean is "
            f"{smallest.value**-0.5:.0%} of its posterior standard deviation",
            advice,
            next_call(result, **changes),
        )


def _faster(result: Result, measured: Measurements, factor: float) -> tuple[str, dict[str, Any]]:
    """How to mix faster: by a preconditioner, by larger steps, or with `factor` times as many steps."""
    change = preconditioned(result)
    if change and _is_anisotropic(measured.curvature):
        return "a preconditioner, because the curvature differs between directions", change
    used = np.nanmax([measured.stability, measured.noise_fraction, 1e-6])
    if "step_size" in result.arguments and not callable(result.arguments["step_size"]) and used < SMALL_FRACTION:
        larger = min(SAFE_FRACTION / used, factor)
        return "a larger step_size: it is far below its limits", {
            "step_size": _rounded(larger * weighted_step_size(result))
        }
    steps = rounded_up(factor * result.steps)
    thin = max(1, int(result.thin * steps / result.steps / LONGER))
    changes = {"steps": steps, "thin": None if thin == 1 else thin}
    if result.arguments.get("burn_in"):
        changes["burn_in"] = rounded_up(LONGER * result.burn_in)
    return "more steps", changes


def _rounded(step_size: float) -> float:
    return float(f"{step_size:.1g}")


def check_sampler(result: Result) -> Iterator[Finding]:
    """Samplers that do not sample the posterior."""
    dynamics = result.sampler.dynamics
    if isinstance(dynamics, AsPrinted):
        yield Finding(
            "sampler",
            "form='as_printed' does not sample the posterior: its steps have unit length whatever the gradient",
            "another form of hasgld_sa(), except to compare with the paper's tables",
            next_call(result, sampler="rw.hasgld_sa()", step_size=None),
        )
    if dynamics.temperature == 0:
        warm = replace(cast("Langevin", dynamics), temperature=1.0)  # any dataclass of dynamics
        yield Finding(
            "sampler",
            "temperature 0 is gradient descent without noise: the draws converge to a mode",
            "temperature=1.0 for the posterior",
            next_call(result, sampler=sampler_text(replace(result.sampler, dynamics=warm))),
        )


def check_steps(result: Result, measured: Measurements) -> Iterator[Finding]:
    """Step sizes too large for the curvature or for the gradient noise."""
    step_size = weighted_step_size(result)
    safe = SAFE_FRACTION * step_size / np.nanmax([measured.stability, measured.noise_fraction, 1e-300])
    call = next_call(result, step_size=_rounded(safe))
    split = isinstance(result.sampler.dynamics, BAOAB)
    if measured.stability > (MAX_STABILITY_FRACTION_OF_SPLITTING if split else MAX_STABILITY_FRACTION):
        effect = "steps may diverge" if split else "variances along directions of high curvature are too large"
        yield Finding(
            "step_size",
            f"step_size {step_size:.3g} is {measured.stability:.0%} of the stability limit "
            f"{step_size / measured.stability:.2g}: {effect}",
            f"step_size={_rounded(safe)}",
            call,
        )
    if measured.noise_fraction > MAX_NOISE_FRACTION and not isinstance(result.sampler.dynamics, NoseHoover):
        others = ["larger batches"]
        if isinstance(result.estimator, Minibatch):
            others.append("rw.control_variates(target, rw.find_mode(key, target, position)) as the target")
        yield Finding(
            "gradient_noise",
            f"step_size {step_size:.3g} is too large for the noise of the minibatch gradients, which adds "
            f"{measured.noise_fraction:.0%} to the noise of a step: variances are too large by about as much",
            f"step_size={_rounded(safe)}, {', '.join(others)}, or rw.sgnht()",
            call,
        )


def check_preconditioner(result: Result, measured: Measurements, onwards: str) -> Iterator[Finding]:
    """A preconditioner that is not finite, or did not adapt; `onwards` is the call that leads on from these chains."""
    rule, states = resolved_preconditioner(result).unwrapped, result.alive_states
    step_size = weighted_step_size(result)
    if not all(is_finite(state) for state in states):
        yield Finding(
            "preconditioner",
            "G is not finite",
            "check that gradients are finite everywhere; with hasgld_sa, a smaller step_size or a larger "
            "first_curvature",
            next_call(result, step_size=_rounded(step_size / 4)),
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
            next_call(result, step_size=_rounded(10 * step_size)),
        )
    elif pairs.pairs and pairs.mean_damping < MIN_DAMPING:
        yield Finding(
            "preconditioner",
            f"the curvature pairs of {name} were damped to {pairs.mean_damping:.0%} on average, so G does not adapt: "
            "the curvature along most steps is negative, or far below what G was started with",
            "a run from where the chains have got to, where G is started anew; with negative curvature "
            "form='low_rank', which uses absolute curvatures",
            onwards,
        )
    elif pairs.pairs and pairs.damped > MAX_DAMPED:
        yield Finding(
            "preconditioner",
            f"{pairs.damped:.0%} of the curvature pairs of {name} were damped, in the worst chain: along most steps "
            "the curvature is far below that of G⁻¹, so G is still too small there",
            "a run from where the chains have got to, where G is started anew",
            onwards,
        )
    elif result.dimension > 1 and any(map(is_isotropic, states)) and _is_anisotropic(measured.curvature):
        first = _first_update(rule)
        yield Finding(
            "preconditioner",
            f"{name} never changed: G is still a multiple of the identity after {result.steps:,} steps, though "
            "the curvature differs between directions",
            f"an adaptation schedule with positive weights, and more steps than the first update needs ({first:,})",
            next_call(result, sampler="rw.hasgld_sa()", steps=rounded_up(max(result.steps, 100 * first))),
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


def _compare(values: np.ndarray, expected: float) -> tuple[int, Estimate]:
    """1 if the temperature is too high, −1 if too low, 0 if neither beyond its Monte Carlo error; in units of T."""
    estimate = mean_estimate(values)
    if not np.isfinite(estimate.error):
        return 0, estimate
    margin = TEMPERATURE_ERRORS * estimate.error
    high = estimate.value - margin > MAX_TEMPERATURE * expected
    low = estimate.value + margin < MIN_TEMPERATURE * min(1.0, expected)
    return int(high) - int(low), estimate
