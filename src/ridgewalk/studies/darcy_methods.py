"""The methods that the Darcy studies compare, each with the grid that its step size is chosen from."""

from collections.abc import Callable
from typing import NamedTuple

from ridgewalk.gradients import as_estimator
from ridgewalk.kernel import Sampler
from ridgewalk.precondition.identity import Identity
from ridgewalk.precondition.limited import Limited
from ridgewalk.precondition.rescaled import rescaled
from ridgewalk.run.health import stability_limit
from ridgewalk.samplers import hasgld_sa, psgld, sghmc, sgld
from ridgewalk.target import Posterior
from ridgewalk.types import PyTree

PAIR_EVERY = 10
"""Steps for each curvature pair of the limited form: one costs a gradient."""
BASE_GROWTH = 5.0
"""How far γ⁻¹ may exceed 1/λ_max: with momentum, steps follow valleys, and pairs see little of the steep directions."""
SCALE_GRADIENTS = 50
FRICTION = 0.1
ADAM = "Adam"
SGLD = "SGLD"
PSGLD = "pSGLD"
DIAGONAL = "SGHMC, fixed diagonal"
"""HASGLD-SA's base and momentum without what it learns: what is left is the gain of the pairs."""
OURS = "HASGLD-SA, M={}"
PRINTED = "HASGLD-SA, M={}, as printed"
MEMORIES = (1, 2)
BEST = OURS.format(2)
"""The form that is held against the paper's best number, chosen beforehand."""


class Method(NamedTuple):
    """How a chain moves. Step sizes are tried at `shares` of `unit(target, position)`."""

    name: str
    build: Callable[[float, PyTree | None], Sampler]
    """The sampler at a temperature, given the scale of every weight where `wants_scale`."""
    shares: tuple[float, ...]
    usual: float
    """The share that the full studies chose, for those that do not tune."""
    stable: bool = False
    """Whether shares are of the largest stable step size; else of 1."""
    wants_scale: bool = False
    pair_every: int = 0
    """Steps for each of which a pair costs one gradient more; 0 for none."""

    def steps(self, gradients: int) -> int:
        """How many steps so many gradients pay for."""
        left = gradients - (SCALE_GRADIENTS if self.wants_scale else 0)
        return left if not self.pair_every else left * self.pair_every // (self.pair_every + 1)

    def unit(self, sampler: Sampler, target: Posterior, position: PyTree) -> float:
        """What the shares are shares of."""
        return stability_limit(sampler, as_estimator(target), position) if self.stable else 1.0


def _diagonal() -> Method:
    def build(temperature: float, scale: PyTree | None) -> Sampler:
        return sghmc(preconditioner=rescaled(Identity(), scale), friction=FRICTION, temperature=temperature)

    return Method(DIAGONAL, build, (0.2, 0.1, 0.04, 0.015), 0.1, stable=True, wants_scale=True)


def _ours(memory: int) -> Method:
    def build(temperature: float, scale: PyTree | None) -> Sampler:
        pairs = Limited(memory=memory, curvature_every=PAIR_EVERY, base_growth=BASE_GROWTH)
        return sghmc(preconditioner=rescaled(pairs, scale), friction=FRICTION, temperature=temperature)

    # G starts from the largest curvature, so that 2 is near the stable limit whatever the target.
    return Method(OURS.format(memory), build, (0.2, 0.1, 0.04, 0.015), 0.1, wants_scale=True, pair_every=PAIR_EVERY)


def _printed(memory: int) -> Method:
    def build(temperature: float, scale: PyTree | None) -> Sampler:
        return hasgld_sa(form="as_printed", memory=memory, temperature=temperature)

    return Method(PRINTED.format(memory), build, (1e-4, 1e-5, 1e-6, 1e-7), 1e-6, pair_every=1)


SAMPLERS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(SGLD, lambda temperature, _: sgld(temperature=temperature), (0.5, 0.1, 0.02, 0.004), 0.1, stable=True),
        Method(PSGLD, lambda temperature, _: psgld(temperature=temperature), (3e-5, 1e-5, 3e-6, 1e-6), 1e-5),
        *map(_printed, MEMORIES),
        _diagonal(),
        *map(_ours, MEMORIES),
    )
}

ADAM_RATES = (1e-3, 3e-4, 1e-4, 3e-5)
USUAL_RATE = 3e-4

NAMES = (*SAMPLERS, ADAM)


def shares_of(name: str) -> tuple[float, ...]:
    """Four step sizes, or learning rates, for every method alike."""
    return ADAM_RATES if name == ADAM else SAMPLERS[name].shares


def usual_share(name: str) -> float:
    """The one that the full studies chose."""
    return USUAL_RATE if name == ADAM else SAMPLERS[name].usual
