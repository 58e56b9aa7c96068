"""The samplers of the Gaussian study and their step sizes, the target, and the rows of results."""

import math
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ridgewalk.dynamics.langevin import Langevin
from ridgewalk.kernel import Sampler
from ridgewalk.preconditioners.dense import Dense
from ridgewalk.preconditioners.low_rank import LowRank
from ridgewalk.samplers import hamcmc, hasgld_sa, psgld, sghmc, sgld, sgrld
from ridgewalk.studies.framework.comparison import BenchmarkPosterior, Contender
from ridgewalk.target import Density

OURS = "HASGLD-SA, "
"""Prefix of the names of all forms of HASGLD-SA."""

PRINTED = OURS + "as printed"
ORACLE = "SGRLD, true covariance"
DENSE = OURS + "dense"
MOMENTUM = OURS + "dense, with momentum"

MEMORY = 2
"""M of all forms: the larger of the two values in the paper, and the dimension."""

PAPER_GRID = tuple(0.02 * 0.8**j for j in (0, 1, 2, 4))
"""The step sizes that the paper gives for both of its samplers."""


class GaussianRow(NamedTuple):
    """Results of one sampler at one step size, over the seeds; NaN if all chains diverged."""

    sampler: str
    step_size: float
    gradients: int
    """Gradients per step."""
    diverged: int
    """Number of chains that diverged."""
    options: dict[str, Any]
    covariance_error: float = math.nan
    """Mean absolute error of the four entries of the sample covariance."""
    covariance_error_se: float = math.nan
    autocorrelation_time: float = math.nan
    """Of the slower coordinate, in steps."""
    autocorrelation_time_se: float = math.nan
    worst_condition: float = math.nan
    """The largest cond(G H) over the seeds, at the end of the chain."""
    first_draws: list[list[float]] | None = None
    """Draws of the first chain for figure (a)."""


@cache
def paper_gaussian() -> BenchmarkPosterior:
    """The paper's 2D Gaussian: σ_x = 0.12, σ_y = 1, correlation −0.95."""
    covariance = np.array([[0.12**2, -0.95 * 0.12], [-0.95 * 0.12, 1.0]])
    hessian = np.linalg.inv(covariance)
    precision = jnp.asarray(hessian)
    return BenchmarkPosterior(Density(lambda x: -0.5 * x @ precision @ x), np.zeros(2), hessian)


@cache
def _true_covariance() -> Sampler:
    covariance = jnp.asarray(np.linalg.inv(paper_gaussian().hessian))
    return sgrld(lambda position: covariance)


def _momentum(friction: float) -> Contender:
    return Contender(
        MOMENTUM,
        lambda: sghmc(preconditioner=Dense(memory=MEMORY), friction=friction),
        (0.02, 0.035, 0.05, 0.07, 0.1),
        (0.05, 0.07) if friction == 0.3 else (),
        {"memory": MEMORY, "friction": friction},
        gradients=2,
    )


def _sghmc(friction: float) -> Contender:
    return Contender(
        "SGHMC",
        lambda: sghmc(friction=friction),
        (0.002, 0.003, 0.0035, 0.004, 0.0045),
        (0.0035, 0.004) if friction == 0.07 else (),
        {"friction": friction},
    )


CONTENDERS: tuple[Contender, ...] = (
    Contender("SGLD", sgld, (0.0006, 0.0012, 0.002, 0.0023, 0.0026), (0.002, 0.0026)),
    Contender("pSGLD", psgld, (0.03, 0.06, 0.1, 0.14, 0.2), (0.06, 0.1)),
    Contender("HAMCMC", hamcmc, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2), {"memory": 3}, gradients=2, interleaved=3),
    _sghmc(0.05),
    _sghmc(0.07),
    _sghmc(0.1),
    Contender(ORACLE, _true_covariance, (0.02, 0.035, 0.05, 0.07, 0.1), (0.035, 0.05, 0.07)),
    Contender(
        DENSE,
        lambda: hasgld_sa(form="dense", memory=MEMORY),
        (0.02, 0.035, 0.05, 0.07, 0.1, 0.2),
        (0.035, 0.05, 0.07, 0.2),
        {"memory": MEMORY},
        gradients=2,
    ),
    Contender(
        OURS + "low rank",
        lambda: Sampler(Langevin(), LowRank(rank=1, spare=1)),
        (0.02, 0.035, 0.05, 0.07, 0.1),
        (0.05,),
        {"rank": 1, "spare": 1},
        gradients=2,
    ),
    Contender(
        OURS + "limited",
        lambda: hasgld_sa(form="limited", memory=MEMORY),
        (0.02, 0.05, 0.1, 0.2, 0.3),
        (0.2,),
        {"memory": MEMORY, "snapshots": 2},
        gradients=2,
    ),
    Contender(
        OURS + "dense, base γ⁻¹I",
        lambda: hasgld_sa(form="dense", base="scaled_identity", memory=MEMORY),
        (0.05, 0.1, 0.2, 0.3, 0.5),
        (0.3,),
        {"memory": MEMORY},
        gradients=2,
    ),
    _momentum(0.2),
    _momentum(0.3),
    Contender(
        PRINTED,
        lambda: hasgld_sa(form="as_printed", memory=MEMORY),
        (1e-4, 1e-5, 1e-6),
        (1e-4,),
        {"memory": MEMORY},
        gradients=2,
    ),
)
"""Every sampler with step sizes at which it is stable: SGLD diverges above 2/λ_max = 0.0028."""


def on_paper_grid(contenders: tuple[Contender, ...] = CONTENDERS) -> tuple[Contender, ...]:
    """The paper's two samplers, and the valid form of its method, at the paper's step sizes."""
    chosen = [next(c for c in contenders if c.name == name) for name in ("SGLD", PRINTED, DENSE)]
    return tuple(contender._replace(step_sizes=PAPER_GRID, quick=PAPER_GRID) for contender in chosen)
