"""Who takes part in the regression, and with which step sizes: the best is at no end of them, as printed aside."""

from collections.abc import Callable
from typing import NamedTuple

from ridgewalk.kernel import Sampler
from ridgewalk.samplers import hasgld_sa, sgld

PLAIN, SPARSE, OURS, PRINTED = "SGLD", "SGLD-SA", "HASGLD-SA", "HASGLD-SA, as printed"

PAPER_STEP_SIZE = 0.1
"""The learning rate that the paper gives, for all samplers."""


class Entrant(NamedTuple):
    """A sampler with the step sizes it is tuned over: all in the paper preset, `quick` in the other."""

    name: str
    make: Callable[[], Sampler]
    step_sizes: tuple[float, ...]
    quick: tuple[float, ...]
    sparse: bool = True
    """Whether its prior is the spike-and-slab one."""
    gradients: int = 1
    """Minibatch gradients a step: the curvature pair of HASGLD-SA takes a second one."""


ENTRANTS = (
    Entrant(PLAIN, sgld, (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 8e-4), (2e-5, 5e-5, 1e-4), sparse=False),
    Entrant(SPARSE, sgld, (2e-4, 4e-4, 8e-4, 1.1e-3, 1.6e-3, 2.2e-3), (8e-4, 1.1e-3, 1.6e-3)),
    Entrant(OURS, hasgld_sa, (0.05, 0.1, 0.15, 0.2, 0.3, 0.4), (0.1, 0.15, 0.2), gradients=2),
    Entrant(
        PRINTED,
        lambda: hasgld_sa(form="as_printed", memory=2),
        (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1),
        (1e-3, 1e-2, 0.1),
        gradients=2,
    ),
)


def entrant_named(name: str) -> Entrant:
    """One of them."""
    return next(entrant for entrant in ENTRANTS if entrant.name == name)
