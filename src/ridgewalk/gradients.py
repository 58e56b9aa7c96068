"""Estimators of ∇U: minibatch, control variates and SVRG.

Each is the plain minibatch gradient plus a correction that does not depend on the position:
`g(θ) = ∇Ũ(θ; batch) + correction(batch)`. Differences of gradients on one batch, and so curvature pairs,
therefore need the plain gradient only. On data over devices, the part of the correction that depends on the batch is in
the potential instead (`on_batch`), which changes no difference. Corrections concern the likelihood alone: the prior's
gradient is always exact, at its current hyper-parameters.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import PyTree, Scalar
from ridgewalk._validation import check_whole
from ridgewalk.data import Batches, read_rows
from ridgewalk.distributed.shards import Sharded
from ridgewalk.target import EXAMPLES_AT_ONCE, Density, Posterior, Target, on_device, on_host


class GradientEstimator(Protocol):
    """The interface of an estimator; `state` is part of the chain's state."""

    @property
    def target(self) -> Target:
        """The density whose potential is estimated."""

    def init(self, position: PyTree) -> Any:
        """The state before the first step."""

    def correction(self, state: Any, batch: PyTree) -> PyTree | None:
        """The term added to the minibatch gradient, or None."""

    def update(self, state: Any, position: PyTree, step: Scalar) -> Any:
        """The state for the step after `step` (counted from 1), which ended at `position`."""


@pytree_dataclass
class Minibatch:
    """g = ∇Ũ(θ; batch): unbiased, with a variance that is not zero at the mode."""

    target: Target = array_field()

    def init(self, position: PyTree) -> None:
        """No state."""
        return

    def correction(self, state: None, batch: PyTree) -> None:
        """No correction."""
        return

    def update(self, state: None, position: PyTree, step: Scalar) -> None:
        """No state."""
        return


class Anchor(NamedTuple):
    """A position at which the gradient over all data is known."""

    position: PyTree
    likelihood_gradient: PyTree
    """∇ of −Σ_i log p(d_i | θ) there; with a noise shared with the prior set to 1."""


def _centred(target: Posterior, centre: Anchor, batch: PyTree) -> PyTree:
    """∇U(c) − ∇Ũ(c; batch), of mean zero over batches."""
    scale = target.scale(batch)
    minibatch = target.unit_noise_gradient(centre.position, batch)
    whole = centre.likelihood_gradient
    return target.scale_by_noise(jax.tree.map(lambda full, part: full - scale * part, whole, minibatch))


@pytree_dataclass
class ControlVariates:
    """g = ∇U(c) + ∇Ũ(θ; batch) − ∇Ũ(c; batch) with a centre c, ideally the posterior mean (Baker et al. 2019).

    A mode may be far from where the posterior has its mass: each chain moves the centre at the end of every phase of
    warm-up, and more often where it is cheap, to its position and then to its mean over the last window, with one pass
    over the data each time.
    """

    target: Posterior = array_field()
    centre: PyTree = array_field()
    likelihood_gradient: PyTree = array_field()
    """∇ of −Σ_i log p(d_i | c) over all data; with a noise shared with the prior set to 1."""

    def init(self, position: PyTree) -> Anchor | None:
        """No state: the centre is the given one."""
        return None

    def anchor(self, state: Anchor | None) -> Anchor:
        """The centre."""
        return Anchor(self.centre, self.likelihood_gradient) if state is None else state

    def correction(self, state: Anchor | None, batch: PyTree) -> PyTree:
        """∇U(c) − ∇Ũ(c; batch)."""
        return _centred(self.target, self.anchor(state), batch)

    def update(self, state: Anchor | None, position: PyTree, step: Scalar) -> Anchor | None:
        """Unchanged."""
        return state


@pytree_dataclass
class SVRG:
    """Control variates whose centre is the chain's own position, updated every `every` steps (Dubey et al. 2016)."""

    target: Posterior = array_field()
    every: int

    def init(self, position: PyTree) -> Anchor:
        """The first anchor is the starting point."""
        return Anchor(position, self.target.full_unit_noise_gradient(position))

    def anchor(self, state: Anchor) -> Anchor:
        """The chain's own."""
        return state

    def correction(self, state: Anchor, batch: PyTree) -> PyTree:
        """∇U(a) − ∇Ũ(a; batch) at the anchor a."""
        return _centred(self.target, state, batch)

    def update(self, state: Anchor, position: PyTree, step: Scalar) -> Anchor:
        """A new anchor every `every` steps: one pass over the data."""
        return jax.lax.cond(step % self.every == 0, lambda: self.init(position), lambda: state)


def _posterior(target: Target, name: str) -> Posterior:
    if not isinstance(target, Posterior):
        raise ValueError(
            f"target: {name} corrects minibatch gradients, but {type(target).__name__} has no data; "
            "pass a ridgewalk.Posterior, or sample the density directly"
        )
    return target


def control_variates(target: Posterior, centre: PyTree) -> ControlVariates:
    """Estimate gradients of `target` by control variates centred at `centre`, for use in place of `target`.

    Computes the gradient over all data once; each estimate then costs two minibatch gradients.
    """
    posterior = _posterior(target, "control_variates")
    if isinstance(getattr(posterior.data, "source", posterior.data), Batches):
        raise ValueError(
            "target: control_variates needs every example once, which Batches does not guarantee; use arrays"
        )
    anchor = anchor_at(posterior, jax.tree.map(jnp.asarray, centre))
    return ControlVariates(posterior, anchor.position, anchor.likelihood_gradient)


_full_unit_noise_gradient = jax.jit(Posterior.full_unit_noise_gradient)


def anchor_at(posterior: Posterior, position: PyTree) -> Anchor:
    """The anchor at a position: one pass over the data, in memory or on the host."""
    whole = full_unit_noise_gradient_from_host if on_host(posterior.data) else _full_unit_noise_gradient
    return Anchor(position, whole(posterior, position))


def full_unit_noise_gradient_from_host(posterior: Posterior, centre: PyTree) -> PyTree:
    """∇ of −Σ_i log p(d_i | c) over arrays on the host, in blocks of examples (see `Posterior.unit_noise_gradient`)."""
    placeholder = on_device(posterior)
    gradient = jax.tree.map(jnp.zeros_like, centre)
    for batch in _blocks_on_host(posterior):
        part = jax.jit(Posterior.unit_noise_gradient)(placeholder, centre, batch)
        gradient = jax.tree.map(jnp.add, gradient, part)
    return gradient


def _blocks_on_host(posterior: Posterior) -> Iterator[PyTree]:
    """All examples of arrays on the host, some at a time."""
    if isinstance(posterior.data, Sharded):
        yield from posterior.data.blocks_on_host(EXAMPLES_AT_ONCE)
        return
    for start in range(0, posterior.size, EXAMPLES_AT_ONCE):
        rows = np.arange(start, min(start + EXAMPLES_AT_ONCE, posterior.size))
        yield jax.tree.map(lambda leaf, rows=rows: read_rows(leaf, rows), posterior.data)


def full_gradient_from_host(posterior: Posterior, position: PyTree) -> PyTree:
    """∇U(θ) over arrays that stay on the host."""
    likelihood = posterior.scale_by_noise(full_unit_noise_gradient_from_host(posterior, position))
    placeholder = on_device(posterior)
    return jax.tree.map(jnp.add, jax.jit(Posterior.prior_gradient)(placeholder, position), likelihood)


def svrg(target: Posterior, every: int) -> SVRG:
    """Estimate gradients of `target` by SVRG with a full pass every `every` steps, for use in place of `target`."""
    check_whole("every", every, 1, "give the number of steps between passes, for example N/n")
    posterior = _posterior(target, "svrg")
    if on_host(posterior.data):
        raise ValueError(
            "target: svrg passes over all data inside the run, so they must be arrays in memory; "
            "use control_variates, or load the data with np.asarray"
        )
    return SVRG(posterior, every)


class OnBatch(NamedTuple):
    """An estimate of ∇U on one batch: the gradient of `potential`, plus `correction`."""

    potential: Callable[[PyTree], Scalar]
    """Ũ, or what differs from it by a linear term that is 0 at the origin of the step."""
    correction: PyTree | None


def on_batch(estimator: GradientEstimator, state: Any, origin: PyTree, batch: PyTree) -> OnBatch:
    """What a step from `origin` evaluates on a batch.

    Of data over devices, ∇Ũ(θ; batch) − ∇Ũ(c; batch) is formed on each before the sum over them.
    """
    target = estimator.target
    if isinstance(estimator, ControlVariates | SVRG) and isinstance(estimator.target.data, Sharded):
        centre = estimator.anchor(state)
        potential = estimator.target.centred_potential(centre.position, origin, batch)
        return OnBatch(potential, estimator.target.scale_by_noise(centre.likelihood_gradient))
    return OnBatch(lambda position: target.potential(position, batch), estimator.correction(state, batch))


def with_prior(estimator: GradientEstimator, prior_state: Any) -> GradientEstimator:
    """The estimator with its adaptive prior frozen at a chain's state; unchanged for None."""
    if prior_state is None:
        return estimator
    frozen: Any = replace(estimator, target=estimator.target.frozen(prior_state))  # type: ignore[type-var]
    return frozen


def as_estimator(target: Target | GradientEstimator) -> GradientEstimator:
    """An estimator unchanged; a target with its plain minibatch gradient."""
    return Minibatch(target) if isinstance(target, Posterior | Density) else target


def estimator_on_device(estimator: GradientEstimator) -> GradientEstimator:
    """The estimator as compiled code gets it, with device arrays; data on the host become a placeholder."""
    if isinstance(estimator.target, Density):
        return estimator
    target = on_device(estimator.target)
    if isinstance(target, Posterior) and isinstance(target.data, Sharded):
        target = replace(target, data=replace(target.data, fingerprint=""))  # other data compile nothing again
    compiled: Any = replace(estimator, target=target)  # type: ignore[type-var]
    return jax.tree.map(jnp.asarray, compiled)
