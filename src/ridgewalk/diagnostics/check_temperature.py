"""Findings about the temperature: draws that are spread too widely or too narrowly for the target."""

from collections.abc import Iterator

import numpy as np

from ridgewalk.diagnostics.check_chains import FEWEST_EFFECTIVE
from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.evidence import Evidence
from ridgewalk.diagnostics.operators import largest_stable
from ridgewalk.diagnostics.report import Finding
from ridgewalk.diagnostics.select import typical_step_size
from ridgewalk.diagnostics.temperature import Measured, measured
from ridgewalk.dynamics.as_printed import AsPrinted
from ridgewalk.dynamics.thermostat import Thermostat

HOTTEST, COLDEST = 1.35, 0.75
"""A wrong factor in the noise, √2, makes it 2 or 1/2."""

STANDARD_ERRORS = 3.0

ARRIVING = 6.0
"""Standard deviations of later draws by which the first ones stand out of a run that began too early."""


def explained_heat(result: Draws, evidence: Evidence) -> float:
    """How much hotter than T long steps and gradient noise make the draws: (1 + share) / (1 − ε tr(G H) / (d limit)).

    A thermostat takes up the gradient noise.
    """
    noise = 0.0 if isinstance(result.sampler.dynamics, Thermostat) else evidence.noise_share
    mean = 0.0 if evidence.curvature is None else max(evidence.curvature.mean, 0.0)
    length = min(typical_step_size(result) * mean / largest_stable(result), 0.9)
    return (1 + (noise if np.isfinite(noise) else 0.0)) / (1 - length)


def _verdict(values: np.ndarray, expected: float) -> tuple[int, Measured]:
    """1 for too hot, −1 for too cold, 0 for neither, beyond the Monte Carlo error; values are in units of T."""
    seen = measured(values)
    if not np.isfinite(seen.error):
        return 0, seen
    hot = seen.value - STANDARD_ERRORS * seen.error > HOTTEST * expected
    cold = seen.value + STANDARD_ERRORS * seen.error < COLDEST * min(1.0, expected)
    return int(hot) - int(cold), seen


def still_arriving(values: np.ndarray) -> bool:
    """Whether the first tenth of (chain, draw) lies far above the spread of the second half."""
    first, later = values[:, : -(-values.shape[1] // 10)], values[:, values.shape[1] // 2 :]
    return bool(first.mean() > later.mean() + ARRIVING * later.std())


def check_temperature(result: Draws, evidence: Evidence) -> Iterator[Finding]:
    """Positions or momenta whose temperature is not the sampler's, and what explains it is not known."""
    dynamics = result.sampler.dynamics
    if not dynamics.temperature > 0 or isinstance(dynamics, AsPrinted):
        return
    if evidence.configurational is not None and still_arriving(evidence.configurational):
        yield Finding(
            "burn_in",
            "the first draws lie far from the others: the chains were still on their way from where they started",
            "a longer burn_in, or a start nearer to the mode",
        )
        return
    expected = explained_heat(result, evidence)
    mixed = evidence.fewest is None or evidence.fewest.value >= FEWEST_EFFECTIVE
    for name, series in (("draws", evidence.configurational), ("momenta", evidence.kinetic)):
        if series is None:
            continue
        verdict, seen = _verdict(series / dynamics.temperature, expected)
        if verdict == 0 or (verdict < 0 and not mixed):  # chains that have not spread out yet are cold, and told so
            continue
        yield Finding(
            "temperature",
            f"the {name} are too {'hot' if verdict > 0 else 'cold'}: {seen} times the sampler's temperature "
            f"{dynamics.temperature:g}, where step size and gradient noise explain {expected:.3g}",
            "look for a wrong factor in the noise: that of a step must have covariance 2 ε T G (a √2 is easily lost), "
            "and multiply and factor of a preconditioner must agree, S Sᵀ = G",
        )
        return
