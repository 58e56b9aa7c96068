"""Samplers by name: each composes dynamics and a preconditioner.

All step sizes ε follow one convention: the drift is `−ε G ∇U` and the noise has covariance `2 ε T G`. With momentum
this holds at friction 1; `as_printed` does not follow it. Libraries with drift ε/2 and noise ε (TensorFlow
Probability, and SGMCMCJax's pSGLD) need twice the step size.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from jax.flatten_util import ravel_pytree

from ridgewalk._random import Noise
from ridgewalk._types import Adaptation, PyTree
from ridgewalk._validation import check_choice, check_whole
from ridgewalk.dynamics import BAOAB, AsPrinted, DelayedLangevin, Friction, Hamiltonian, Langevin, NoseHoover
from ridgewalk.kernel import Sampler
from ridgewalk.preconditioners.base import ByDimension, PreconditionerSpec
from ridgewalk.preconditioners.dense import Dense, DenseOrLeafScaled, DenseScaled
from ridgewalk.preconditioners.diagonal import RMSProp
from ridgewalk.preconditioners.lbfgs import LBFGS, SnapshotLBFGS
from ridgewalk.preconditioners.low_rank import LowRank
from ridgewalk.preconditioners.rescaled import rescaled
from ridgewalk.preconditioners.static import Identity, InverseMetric
from ridgewalk.pruning import Leaves, Pruning, Schedule, Scope
from ridgewalk.schedules import DEFAULT_ADAPTATION

Form = Literal["auto", "dense", "low_rank", "snapshot_lbfgs", "as_printed"]
Base = Literal["auto", "running", "scaled_identity"]


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

    `regularizer` is λ, added to the root mean square of the gradient of the full potential. The correction Γ is
    omitted, as in the paper, unless `curvature_correction` is set (d Hessian-vector products per step). The
    second moment is initialised with `first_curvature`, by default the largest curvature at the starting point, or with
    `second_moment`, a pytree like the position.
    """
    first = None if second_moment is None else ravel_pytree(second_moment)[0]
    diagonal = RMSProp(decay, regularizer, curvature_correction, first_curvature, first)
    return Sampler(Langevin(temperature, noise), diagonal)


def sgrld(
    inverse_metric: Callable[[PyTree], PyTree], *, temperature: float = 1.0, noise: Noise = "gaussian"
) -> Sampler:
    """Stochastic gradient Riemannian Langevin dynamics (Patterson and Teh 2013), eq. 3 of the paper.

    `inverse_metric(position)` returns G(θ), the inverse of the metric tensor: a (d, d) matrix in the order of
    `ravel_pytree(position)`, its diagonal (d,), or the diagonal as a pytree like the position. The
    correction Γ_i = Σ_j ∂G_ij/∂θ_j is computed by automatic differentiation, one derivative per parameter.
    """
    return Sampler(Langevin(temperature, noise), InverseMetric(inverse_metric))


def hamcmc(
    *,
    memory: int = 3,
    damping: float = 0.2,
    first_curvature: float | None = None,
    temperature: float = 1.0,
    noise: Noise = "gaussian",
) -> Sampler:
    """Hessian-approximated MCMC (Şimşekli et al. 2016): θ_k from θ_{k−M}, G from the M − 1 pairs in between.

    `memory` is M ≥ 2; history is θ_{k−2M+1} … θ_{k−1} without θ_{k−M}. The M positions are interleaved.
    """
    check_whole("memory", memory, 2, "with M = 1 every pair depends on the current point")
    window = LBFGS(memory=memory - 1, damping=damping, first_curvature=first_curvature)
    return Sampler(DelayedLangevin(temperature, noise, delay=memory), window)


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
    """Langevin dynamics preconditioned by an inverse Hessian estimated by stochastic approximation (Algorithm 2).

    Args:
        memory: M, the number of curvature pairs of an update.
        form: "dense" stores G (the default for up to 2,000 parameters); "low_rank" tracks the `rank` leading
            eigenvectors of the Hessian (the default above); "snapshot_lbfgs" keeps `snapshots` windows of pairs;
            "as_printed" is Algorithm 2 as printed, which does **not** sample the posterior (see `AsPrinted`).
        base: where the BFGS recursion starts. "running": the current G (dense only, and its default).
            "scaled_identity": γ⁻¹ I, as in the paper's text; above 2,000 parameters this selects "snapshot_lbfgs".
        adaptation: ω_k of G_k = (1−ω_k) G_{k−1} + ω_k G̃_k, a `PowerDecay` or any function of k = 1, 2, …
        curvature_every: steps between curvature pairs, or Hessian-vector products.
        damping: r of Powell's damping, in (0, 1); like `memory`, not used by "low_rank".
        rank: number of eigenvectors of the low-rank form.
        snapshots: number of windows of form "snapshot_lbfgs".
        first_curvature: G₀ = I / first_curvature; by default the largest curvature at the starting point.
        temperature: T = 1/τ; the target is p(θ)^{1/T}.
        noise: "gaussian", or "two_point" for ±1 increments (one random bit each).
    """
    check_choice("form", form, get_args(Form))
    check_choice("base", base, get_args(Base))
    if base == "scaled_identity" and form == "low_rank":
        raise ValueError(
            "base: form='low_rank' has no BFGS recursion to start; leave base out, or use form='snapshot_lbfgs'"
        )
    if base == "running" and form not in ("auto", "dense"):
        raise ValueError(f"base: 'running' needs a stored G, which form={form!r} does not have; use form='dense'")
    common: dict[str, Any] = {
        "adaptation": adaptation,
        "curvature_every": curvature_every,
        "first_curvature": first_curvature,
    }
    pairs: dict[str, Any] = {**common, "memory": memory, "damping": damping}
    dense: PreconditionerSpec = DenseScaled(**pairs) if base == "scaled_identity" else Dense(**pairs)
    snapshot_lbfgs = SnapshotLBFGS(**pairs, snapshots=snapshots)
    low_rank = LowRank(rank=rank, **common)
    if base == "running":
        form = "dense"
    if form == "as_printed":
        first = 1.0 if first_curvature is None else first_curvature
        window = LBFGS(memory, damping, curvature_every, first_curvature=first)
        return Sampler(AsPrinted(adaptation, temperature, noise), window)
    forms: dict[str, PreconditionerSpec] = {
        "auto": ByDimension(dense, low_rank if base == "auto" else snapshot_lbfgs),
        "dense": dense,
        "low_rank": low_rank,
        "snapshot_lbfgs": snapshot_lbfgs,
    }
    return Sampler(Langevin(temperature, noise), forms[form])


def sghmc(
    *,
    preconditioner: PreconditionerSpec | None = None,
    friction: Friction = "auto",
    gradient_noise: float = 0.0,
    temperature: float = 1.0,
    noise: Noise = "gaussian",
) -> Sampler:
    """Stochastic gradient Hamiltonian Monte Carlo (Chen et al. 2014), with any position-independent preconditioner.

    The step size is their η; `friction` 1 gives SGLD with the same step size. "auto" is chosen by the warm-up of
    `sample`, and is 0.1 in a run without warm-up.
    """
    return Sampler(Hamiltonian(friction, gradient_noise, temperature, noise), preconditioner or Identity())


def sgnht(
    *,
    preconditioner: PreconditionerSpec | None = None,
    diffusion: float = 0.1,
    temperature: float = 1.0,
    noise: Noise = "gaussian",
) -> Sampler:
    """Stochastic gradient Nosé–Hoover thermostat (Ding et al. 2014), with any position-independent preconditioner."""
    return Sampler(NoseHoover(diffusion, temperature, noise), preconditioner or Identity())


def auto(*, temperature: float = 1.0, noise: Noise = "gaussian") -> Sampler:
    """The sampler for those who do not want to choose: momentum, and a preconditioner that fits the target.

    Momentum is that of `BAOAB`, or of `Hamiltonian` where steps are accepted by Metropolis's rule.

    For `sample(step_size="auto")`, whose warm-up finds step size and friction (1, Langevin dynamics, where gradient
    noise dominates). Up to 2,000 parameters G is dense; if warm-up finds that no constant G describes the posterior, as
    for neural networks at temperature 1, it is `LeafScaled`, with less friction. Above, G is a limited-memory L-BFGS
    estimate over the diagonal that warm-up learns, with a curvature pair every ten steps. `result.tuning_report` says
    what was found.
    """
    limited = SnapshotLBFGS(memory=2, curvature_every=10, base_growth=5.0)
    preconditioner = ByDimension(DenseOrLeafScaled(), rescaled(limited, "auto"))
    return Sampler(BAOAB("auto", temperature=temperature, noise=noise), preconditioner)


PRUNING_EVENTS = 20
"""The number of pruning events if `every` is not given."""


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

    At the end of step `start` (counted from 1), and every `every` steps up to `stop`, the weights of least magnitude
    are set to exactly zero and remain zero: they have no drift and no noise, and G is restricted to the others. After
    the last event exactly round(sparsity × number of eligible weights) weights are zero, and the chain samples the
    posterior of the others conditional on that. Each chain has its own mask. With `stop` at most `burn_in` this holds
    for every stored draw; otherwise the first draws have fewer zeros.

    Args:
        sampler: any sampler.
        sparsity: the final fraction of zeros among the eligible weights.
        stop: the step after which nothing is pruned.
        start: the step of the first event.
        every: steps between events; the default makes about 20 events.
        schedule: "cubic" prunes most at first, "linear" evenly; or a function from the fraction of events, (0, 1], to
            the fraction of `sparsity`, non-decreasing to 1.
        scope: "global" ranks the eligible weights together; "layer" prunes every leaf by the same fraction.
        leaves: which leaves are eligible: names, or a predicate of a leaf's name and shape; by default arrays with two
            or more axes, which excludes biases.
    """
    if every is None:
        every = max(1, (stop - start) // (PRUNING_EVENTS - 1)) if stop > start else 1
    chosen = leaves if leaves is None or callable(leaves) else tuple([leaves] if isinstance(leaves, str) else leaves)
    return replace(sampler, pruning=Pruning(sparsity, start, stop, every, schedule, scope, chosen))
