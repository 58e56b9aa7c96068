"""Who takes part in the Gaussian study, and with which step sizes."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ridgewalk.dynamics.langevin import Langevin
from ridgewalk.kernel import Sampler
from ridgewalk.precondition.dense import Dense
from ridgewalk.precondition.low_rank import LowRank
from ridgewalk.samplers import hamcmc, hasgld_sa, psgld, sghmc, sgld, sgrld
from ridgewalk.studies.problems import paper_gaussian

OURS = "HASGLD-SA, "
"""How the names of all forms of the paper's method begin."""

PRINTED = OURS + "as printed"
ORACLE = "SGRLD, true covariance"
DENSE = OURS + "dense"
MOMENTUM = OURS + "dense, with momentum"

MEMORY = 2
"""M of all forms: the larger of the two that the paper uses; there are only two dimensions."""

PAPER_GRID = tuple(0.02 * 0.8**j for j in (0, 1, 2, 4))
"""The step sizes that the paper gives for both of its samplers."""


class Entrant(NamedTuple):
    """A sampler with the step sizes it is tried at: all in the paper preset, `quick` in the other."""

    name: str
    make: Callable[[], Sampler]
    step_sizes: tuple[float, ...]
    quick: tuple[float, ...]
    options: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple's default; never written to)
    turns: int = 1
    gradients: int = 1
    """Gradients a step."""


@cache
def _true_covariance() -> Sampler:
    covariance = jnp.asarray(np.linalg.inv(paper_gaussian().hessian))
    return sgrld(lambda position: covariance)


def _momentum(friction: float) -> Entrant:
    return Entrant(
        MOMENTUM,
        lambda: sghmc(preconditioner=Dense(memory=MEMORY), friction=friction),
        (0.02, 0.035, 0.05, 0.07, 0.1),
        (0.05, 0.07) if friction == 0.3 else (),
        {"memory": MEMORY, "friction": friction},
        gradients=2,
    )


def _sghmc(friction: float) -> Entrant:
    return Entrant(
        "SGHMC",
        lambda: sghmc(friction=friction),
        (0.002, 0.003, 0.0035, 0.004, 0.0045),
        (0.0035, 0.004) if friction == 0.07 else (),
        {"friction": friction},
    )


ENTRANTS: tuple[Entrant, ...] = (
    Entrant("SGLD", sgld, (0.0006, 0.0012, 0.002, 0.0023, 0.0026), (0.002, 0.0026)),
    Entrant("pSGLD", psgld, (0.03, 0.06, 0.1, 0.14, 0.2), (0.06, 0.1)),
    Entrant("HAMCMC", hamcmc, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2), {"memory": 3}, turns=3, gradients=2),
    _sghmc(0.05),
    _sghmc(0.07),
    _sghmc(0.1),
    Entrant(ORACLE, _true_covariance, (0.02, 0.035, 0.05, 0.07, 0.1), (0.035, 0.05, 0.07)),
    Entrant(
        DENSE,
        lambda: hasgld_sa(form="dense", memory=MEMORY),
        (0.02, 0.035, 0.05, 0.07, 0.1, 0.2),
        (0.035, 0.05, 0.07, 0.2),
        {"memory": MEMORY},
        gradients=2,
    ),
    Entrant(
        OURS + "low rank",
        lambda: Sampler(Langevin(), LowRank(rank=1, spare=1)),
        (0.02, 0.035, 0.05, 0.07, 0.1),
        (0.05,),
        {"rank": 1, "spare": 1},
        gradients=2,
    ),
    Entrant(
        OURS + "limited",
        lambda: hasgld_sa(form="limited", memory=MEMORY),
        (0.02, 0.05, 0.1, 0.2, 0.3),
        (0.2,),
        {"memory": MEMORY, "snapshots": 2},
        gradients=2,
    ),
    Entrant(
        OURS + "dense, base γ⁻¹I",
        lambda: hasgld_sa(form="dense", base="scaled_identity", memory=MEMORY),
        (0.05, 0.1, 0.2, 0.3, 0.5),
        (0.3,),
        {"memory": MEMORY},
        gradients=2,
    ),
    _momentum(0.2),
    _momentum(0.3),
    Entrant(
        PRINTED,
        lambda: hasgld_sa(form="as_printed", memory=MEMORY),
        (1e-4, 1e-5, 1e-6),
        (1e-4,),
        {"memory": MEMORY},
        gradients=2,
    ),
)
"""Every sampler on its own stable grid: SGLD diverges above 2/λ_max = 0.0028."""


def on_paper_grid(entrants: tuple[Entrant, ...] = ENTRANTS) -> tuple[Entrant, ...]:
    """The paper's two samplers, and its method in the form that is valid, at the paper's step sizes."""
    names = ("SGLD", PRINTED, DENSE)
    chosen = [next(entrant for entrant in entrants if entrant.name == name) for name in names]
    return tuple(entrant._replace(step_sizes=PAPER_GRID, quick=PAPER_GRID) for entrant in chosen)
