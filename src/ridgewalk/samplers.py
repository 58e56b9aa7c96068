"""The named recipes: each a few lines over dynamics × preconditioner.

All step sizes ε follow one convention: the drift is `−ε G ∇U`, the noise has covariance `2 ε T G`. With momentum that
is what a step comes to at friction 1; `as_printed` has no such law. Libraries that write ε/2 and ε (TensorFlow
Probability, and SGMCMCJax's pSGLD) need twice the step size given here.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from jax.flatten_util import ravel_pytree

from ridgewalk._random import Noise
from ridgewalk._types import Adaptation, PyTree
from ridgewalk.dynamics.as_printed import AsPrinted
from ridgewalk.dynamics.delayed import Delayed
from ridgewalk.dynamics.hamiltonian import Hamiltonian
from ridgewalk.dynamics.langevin import Langevin
from ridgewalk.dynamics.thermostat import Thermostat
from ridgewalk.kernel import Sampler
from ridgewalk.precondition.adaptive import ByDimension
from ridgewalk.precondition.base import Choice
from ridgewalk.precondition.dense import Dense
from ridgewalk.precondition.dense_scaled import DenseScaled
from ridgewalk.precondition.identity import Identity
from ridgewalk.precondition.lbfgs import LBFGS
from ridgewalk.precondition.limited import Limited
from ridgewalk.precondition.low_rank import LowRank
from ridgewalk.precondition.metric import Metric
from ridgewalk.precondition.rmsprop import RMSProp
from ridgewalk.pruning import Leaves, Pruning, Schedule, Scope
from ridgewalk.schedules import DEFAULT_ADAPTATION

Form = Literal["auto", "dense", "low_rank", "limited", "as_printed"]
Base = Literal["auto", "running", "scaled_identity"]

FORMS: tuple[Form, ...] = ("auto", "dense", "low_rank", "limited", "as_printed")
BASES: tuple[Base, ...] = ("auto", "running", "scaled_identity")


def sgld(*, temperature: float = 1.0, noise: Noise = "gaussian") -> Sampler:
    """Stochastic gradient Langevin dynamics (Welling and Teh 2011): θ' = θ − ε g + √(2 ε T) z."""
    return Sampler(Langevin(temperature, noise), Identity())


def psgld(
    *,
    decay: float = 0.99,
    regularizer: float = 1e-5,
    curvature_correction: bool = False,
    first_curvature: float | None = None,
    second_moment: PyTree | None = None,
    temperature: float = 1.0,
    noise: Noise = "gaussian",
) -> Sampler:
    """Preconditioned SGLD (Li et al. 2016): Langevin dynamics with the RMSprop diagonal.

    `regularizer` is λ, added to the root mean square of the gradient of the whole potential. Γ is left out as
    in its paper, unless `curvature_correction` (d Hessian products a step) asks for it. The second moment starts at
    `first_curvature`, by default the largest curvature at the starting point, or at `second_moment`, a pytree like the
    position.
    """
    first = None if second_moment is None else ravel_pytree(second_moment)[0]
    diagonal = RMSProp(decay, regularizer, curvature_correction, first_curvature, first)
    return Sampler(Langevin(temperature, noise), diagonal)


def sgrld(metric: Callable[[PyTree], PyTree], *, temperature: float = 1.0, noise: Noise = "gaussian") -> Sampler:
    """Stochastic gradient Riemannian Langevin dynamics (Patterson and Teh 2013), eq. 3 of the paper.

    `metric(position)` returns G(θ), the inverse of the metric tensor: a (d, d) matrix in the order of
    `ravel_pytree(position)`, its diagonal (d,), or the diagonal as a pytree like the position. The
    correction Γ_i = Σ_j ∂G_ij/∂θ_j is found by automatic differentiation, one derivative per parameter.
    """
    return Sampler(Langevin(temperature, noise), Metric(metric))


def hamcmc(
    *,
    memory: int = 3,
    damping: float = 0.2,
    first_curvature: float | None = None,
    temperature: float = 1.0,
    noise: Noise = "gaussian",
) -> Sampler:
    """Hessian-approximated MCMC (Şimşekli et al. 2016): θ_k from θ_{k−M}, G from the M − 1 pairs in between.

    `memory` is M ≥ 2; history is θ_{k−2M+1} … θ_{k−1} without θ_{k−M}. M positions take turns.
    """
    if memory < 2:
        raise ValueError(f"memory: HAMCMC with M = {memory} has no pair free of the current point; use at least 2")
    window = LBFGS(memory=memory - 1, damping=damping, first_curvature=first_curvature)
    return Sampler(Delayed(memory, temperature, noise), window)


def hasgld_sa(
    *,
    memory: int = 8,
    form: Form = "auto",
    base: Base = "auto",
    adaptation: Adaptation = DEFAULT_ADAPTATION,
    curvature_every: int = 1,
    damping: float = 0.2,
    rank: int = 20,
    snapshots: int = 2,
    first_curvature: float | None = None,
    temperature: float = 1.0,
    noise: Noise = "gaussian",
) -> Sampler:
    """Langevin dynamics preconditioned by an inverse Hessian that stochastic approximation refines (Algorithm 2).

    Args:
        memory: M, how many curvature pairs an update uses.
        form: "dense" stores G (the default for up to 2,000 parameters); "low_rank" follows the `rank` largest
            directions of the Hessian (the default above); "limited" keeps `snapshots` windows of pairs;
            "as_printed" is Algorithm 2 as printed, which does **not** sample the posterior (see `AsPrinted`).
        base: where the BFGS recursion starts. "running": the current G (dense only, and its default).
            "scaled_identity": γ⁻¹ I, as in the paper's text; above 2,000 parameters the limited form has it.
        adaptation: ω_k of G_k = (1−ω_k) G_{k−1} + ω_k G̃_k, a `PowerDecay` or any function of k = 1, 2, …
        curvature_every: a pair, or a Hessian product, every so many steps.
        damping: r of Powell's damping, in (0, 1); like `memory`, of the forms that use pairs, not of "low_rank".
        rank: directions of the low-rank form.
        snapshots: windows of the limited form.
        first_curvature: G₀ = I / first_curvature; by default the largest curvature at the starting point.
        temperature: T = 1/τ; the target is p(θ)^{1/T}.
        noise: "gaussian", or "two_point" for ±1 increments (one random bit each).
    """
    if form not in FORMS:
        raise ValueError(f"form: {form!r} is unknown; use one of {', '.join(FORMS)}")
    if base not in BASES:
        raise ValueError(f"base: {base!r} is unknown; use one of {', '.join(BASES)}")
    if base == "scaled_identity" and form == "low_rank":
        raise ValueError("base: form='low_rank' has no BFGS recursion to start; leave base out, or use form='limited'")
    if base == "running" and form not in ("auto", "dense"):
        raise ValueError(f"base: 'running' needs a stored G, which form={form!r} has not; use form='dense'")
    common: dict[str, Any] = {
        "adaptation": adaptation,
        "curvature_every": curvature_every,
        "first_curvature": first_curvature,
    }
    pairs: dict[str, Any] = {**common, "memory": memory, "damping": damping}
    dense: Choice = DenseScaled(**pairs) if base == "scaled_identity" else Dense(**pairs)
    limited = Limited(**pairs, snapshots=snapshots)
    low_rank = LowRank(rank=rank, **common)
    if base == "running":
        form = "dense"
    if form == "as_printed":
        first = 1.0 if first_curvature is None else first_curvature
        window = LBFGS(memory, damping, curvature_every, first_curvature=first)
        return Sampler(AsPrinted(adaptation, temperature, noise), window)
    forms: dict[str, Choice] = {
        "auto": ByDimension(dense, low_rank if base == "auto" else limited),
        "dense": dense,
        "low_rank": low_rank,
        "limited": limited,
    }
    return Sampler(Langevin(temperature, noise), forms[form])


def sghmc(
    *,
    preconditioner: Choice | None = None,
    friction: float = 0.1,
    gradient_noise: float = 0.0,
    temperature: float = 1.0,
    noise: Noise = "gaussian",
) -> Sampler:
    """Stochastic gradient Hamiltonian Monte Carlo (Chen et al. 2014), with any preconditioner whose G settles.

    The step size is their η: at `friction` 1 it is SGLD with the same step size.
    """
    return Sampler(Hamiltonian(friction, gradient_noise, temperature, noise), preconditioner or Identity())


def sgnht(
    *,
    preconditioner: Choice | None = None,
    diffusion: float = 0.1,
    temperature: float = 1.0,
    noise: Noise = "gaussian",
) -> Sampler:
    """The stochastic gradient Nosé–Hoover thermostat (Ding et al. 2014), with any preconditioner whose G settles."""
    return Sampler(Thermostat(diffusion, temperature, noise), preconditioner or Identity())


PRUNING_EVENTS = 20
"""How many times a chain is pruned, where the user does not say how often."""


def pruned(
    sampler: Sampler,
    sparsity: float = 0.7,
    *,
    stop: int,
    start: int = 1,
    every: int | None = None,
    schedule: Schedule = "cubic",
    scope: Scope = "global",
    leaves: Sequence[str] | Leaves = None,
) -> Sampler:
    """The sampler with magnitude pruning inside the chain.

    At the end of step `start` (counted from 1), and every `every` steps up to `stop`, the weights of least magnitude go
    to exactly zero and stay there: no drift, no noise and no curvature in them, and G is restricted to the others. From
    the last event on the chain samples the posterior of the kept weights given that the pruned ones are zero, and
    exactly round(sparsity × number of chosen weights) are. Each chain chooses its own. With `stop` at most `burn_in`
    this holds for every draw that is kept; draws made before have fewer zeros.

    Args:
        sampler: any sampler.
        sparsity: the share of the chosen weights that is zero in the end.
        stop: no event comes after this step.
        start: the first event.
        every: steps between events; by default there are about 20.
        schedule: "cubic" prunes most at first, "linear" evenly; or a function from the share of events, (0, 1], to the
            share of `sparsity`, which grows to 1.
        scope: "global" ranks the chosen weights together; "layer" prunes every leaf by the same share.
        leaves: which may be pruned: names, or a function of a leaf's name and shape; by default arrays with two axes
            or more, and so no biases.
    """
    if every is None:
        every = max(1, (stop - start) // (PRUNING_EVENTS - 1)) if stop > start else 1
    chosen = leaves if leaves is None or callable(leaves) else tuple([leaves] if isinstance(leaves, str) else leaves)
    return replace(sampler, pruning=Pruning(sparsity, start, stop, every, schedule, scope, chosen))
