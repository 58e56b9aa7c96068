"""Findings about how the steps were made: the sampler, its preconditioner and the step size."""

from collections.abc import Iterator

from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.evidence import Evidence
from ridgewalk.diagnostics.operators import chosen_preconditioner, is_finite, is_scalar
from ridgewalk.diagnostics.report import Finding
from ridgewalk.diagnostics.select import dimension, living_states, typical_step_size
from ridgewalk.dynamics.as_printed import AsPrinted
from ridgewalk.dynamics.thermostat import Thermostat
from ridgewalk.precondition.base import Settling

LARGEST_STABILITY_SHARE = 0.25
"""At this share of the stable step size the variance along the steepest direction is a third too large."""

LARGEST_NOISE_SHARE = 0.25
"""Variances come out too large by about this."""

LARGEST_REJECTED = 0.5
SMALLEST_DAMPING = 0.1
UNEVEN = 1.2
"""λ_max(G H) over the mean eigenvalue from which on there is something to learn."""


def check_sampler(result: Draws) -> Iterator[Finding]:
    """A sampler that is known not to sample the posterior, and descent."""
    dynamics = result.sampler.dynamics
    if isinstance(dynamics, AsPrinted):
        yield Finding(
            "sampler",
            "form='as_printed' does not sample the posterior: its steps have unit length whatever the gradient",
            "hasgld_sa() in another form, unless you compare with the paper's tables",
        )
    if dynamics.temperature == 0:
        yield Finding(
            "sampler",
            "temperature 0 is descent without noise: the draws are a path to a mode and have no posterior spread",
            "temperature=1.0 for the posterior",
        )


def check_steps(result: Draws, evidence: Evidence) -> Iterator[Finding]:
    """Steps too long for the curvature, or for the noise of the gradients."""
    step_size = typical_step_size(result)
    if evidence.stability > LARGEST_STABILITY_SHARE:
        safe = 0.1 * step_size / evidence.stability
        yield Finding(
            "step_size",
            f"step_size {step_size:.3g} is {evidence.stability:.0%} of the largest stable one, "
            f"{step_size / evidence.stability:.2g}: variances along steep directions come out too large",
            f"step_size={safe:.1g}",
        )
    if evidence.noise_share > LARGEST_NOISE_SHARE and not isinstance(result.sampler.dynamics, Thermostat):
        safe = 0.1 * step_size / evidence.noise_share
        yield Finding(
            "gradient_noise",
            f"step_size {step_size:.3g} is too large for the noise of the minibatch gradients, which adds "
            f"{evidence.noise_share:.0%} to the noise of a step: variances come out too large by about as much",
            f"step_size={safe:.1g}, larger batches, control_variates(target, mode), or sgnht",
        )


def check_preconditioner(result: Draws, evidence: Evidence) -> Iterator[Finding]:
    """A G that is not finite, never learnt, or had nothing to learn from."""
    rule, states = chosen_preconditioner(result).learner, living_states(result)
    if not all(is_finite(state) for state in states):
        yield Finding(
            "preconditioner",
            "G holds numbers that are not finite",
            "see that gradients are finite everywhere; with hasgld_sa, a smaller step_size or larger first_curvature",
        )
        return
    if not isinstance(rule, Settling):
        return
    name, pairs = type(rule).__name__, evidence.pairs
    if pairs.pairs and pairs.rejected > LARGEST_REJECTED:
        yield Finding(
            "preconditioner",
            f"{name} left out {pairs.rejected:.0%} of its curvature pairs: the chain did not move, or gradients "
            "were not finite",
            "a larger step_size or float64 where steps are lost in rounding; otherwise look for NaN in gradients",
        )
    elif pairs.pairs and pairs.mean_damping < SMALLEST_DAMPING:
        yield Finding(
            "preconditioner",
            f"{name}'s pairs were damped to {pairs.mean_damping:.0%} on average, so that G learns nothing: the "
            "potential bends the wrong way along most steps",
            "start nearer to a mode, or use form='low_rank', which takes curvatures by their size",
        )
    elif dimension(result) > 1 and any(map(is_scalar, states)) and _uneven(evidence):
        yield Finding(
            "preconditioner",
            f"{name} never changed: G still is a multiple of the identity after {result.steps:,} steps, though "
            "the curvature differs between directions",
            f"an adaptation whose weights are not 0, and more steps than one update takes ({_first_update(rule):,})",
        )


def _uneven(evidence: Evidence) -> bool:
    curvature = evidence.curvature
    return curvature is not None and curvature.largest > UNEVEN * abs(curvature.mean)


def _first_update(rule: Settling) -> int:
    """Steps until G can first have changed."""
    return rule.interval * int(getattr(rule, "memory", 1))
