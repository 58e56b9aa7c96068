"""The methods that the Darcy studies compare, each with the grid that its step size is chosen from."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ridgewalk.kernel import Sampler
from ridgewalk.precondition.identity import Identity
from ridgewalk.precondition.limited import Limited
from ridgewalk.precondition.rescaled import rescaled
from ridgewalk.samplers import hasgld_sa, psgld, sghmc, sgld
from ridgewalk.studies.darcy_look import LEAST, SCALE_GRADIENTS, Look
from ridgewalk.studies.darcy_names import ADAM, DIAGONAL, MEMORIES, OURS, PRINTED, PSGLD, SGLD

PAIR_EVERY = 10
"""Steps for each curvature pair of the limited form: one costs a gradient."""
BASE_GROWTH = 5.0
"""How far γ⁻¹ may exceed 1/λ_max: with momentum, steps follow valleys, and pairs see little of the steep directions."""
FRICTION = 0.1


class Method(NamedTuple):
    """How a chain moves. Step sizes are tried at `shares` of `unit(look)`."""

    name: str
    build: Callable[[float, Look], Sampler]
    """The sampler at a temperature, knowing what was measured at the start."""
    unit: Callable[[Look], float]
    shares: tuple[float, ...]
    usual: float
    """A share near those that the full studies chose, for studies that do not tune."""
    pays_for_scales: bool = False
    pair_every: int = 0
    """Steps for each of which a pair costs one gradient more; 0 for none."""

    @property
    def about(self) -> dict[str, Any]:
        """What results depend on besides the step sizes."""
        scaled = {"least": LEAST, "friction": FRICTION} if self.pays_for_scales else {}
        return scaled | ({"growth": BASE_GROWTH, "pair_every": PAIR_EVERY} if self.pair_every > 1 else {})

    def steps(self, gradients: int) -> int:
        """How many steps so many gradients pay for."""
        left = gradients - (SCALE_GRADIENTS if self.pays_for_scales else 0)
        return left if not self.pair_every else left * self.pair_every // (self.pair_every + 1)


SHARES = (0.4, 0.2, 0.1, 0.05)


def _sgld() -> Method:
    def build(temperature: float, look: Look) -> Sampler:
        return sgld(temperature=temperature)

    return Method(SGLD, build, lambda look: 2 / look.steepest, (0.8, 0.4, 0.1, 0.02), 0.8)


def _psgld() -> Method:
    def build(temperature: float, look: Look) -> Sampler:
        return psgld(temperature=temperature, second_moment=look.second_moment)

    return Method(PSGLD, build, lambda _: 1.0, (1e-5, 3e-6, 1e-6, 3e-7), 3e-6, pays_for_scales=True)


def _printed(memory: int) -> Method:
    def build(temperature: float, look: Look) -> Sampler:
        return hasgld_sa(form="as_printed", memory=memory, temperature=temperature)

    return Method(PRINTED.format(memory), build, lambda _: 1.0, (1e-4, 1e-5, 1e-6, 1e-7), 1e-6, pair_every=1)


def _diagonal() -> Method:
    def build(temperature: float, look: Look) -> Sampler:
        return sghmc(preconditioner=rescaled(Identity(), look.scale), friction=FRICTION, temperature=temperature)

    return Method(
        DIAGONAL, build, lambda look: 1 / look.steepest_rescaled, (0.8, *SHARES[:3]), 0.4, pays_for_scales=True
    )


def _ours(memory: int) -> Method:
    def build(temperature: float, look: Look) -> Sampler:
        pairs = Limited(
            memory=memory,
            curvature_every=PAIR_EVERY,
            first_curvature=look.steepest_rescaled,
            base_growth=BASE_GROWTH,
        )
        return sghmc(preconditioner=rescaled(pairs, look.scale), friction=FRICTION, temperature=temperature)

    name = OURS.format(memory)
    return Method(name, build, lambda _: 1.0, SHARES, 0.2, pays_for_scales=True, pair_every=PAIR_EVERY)


METHODS = (_sgld(), _psgld(), *map(_printed, MEMORIES), _diagonal(), *map(_ours, MEMORIES))
SAMPLERS: dict[str, Method] = {method.name: method for method in METHODS}

ADAM_RATES = (1e-3, 3e-4, 1e-4, 3e-5)
USUAL_RATE = 3e-4


def shares_of(name: str) -> tuple[float, ...]:
    """Four step sizes, or learning rates, for every method alike."""
    return ADAM_RATES if name == ADAM else SAMPLERS[name].shares


def usual_share(name: str) -> float:
    """One near those that the full studies chose."""
    return USUAL_RATE if name == ADAM else SAMPLERS[name].usual


def about(name: str) -> dict[str, Any]:
    """What the results of a method depend on."""
    return {"method": name, "shares": list(shares_of(name))} | ({} if name == ADAM else SAMPLERS[name].about)
