"""Estimators of ∇U: minibatch, control variates and SVRG.

Each is the plain minibatch gradient plus a correction that does not depend on where the chain is:
`g(θ) = ∇Ũ(θ; batch) + correction(batch)`. Differences of gradients on one batch, and so curvature pairs,
therefore need the plain gradient only. Corrections are of the likelihood alone: the prior's gradient is always exact,
and that of the prior as it is now.
"""

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import PyTree, Scalar
from ridgewalk.data import Batches, on_host, read_rows, streamed
from ridgewalk.target import EXAMPLES_AT_ONCE, Density, Posterior, Target


class GradientEstimator(Protocol):
    """What a kernel asks of an estimator; `state` travels with the chain."""

    @property
    def target(self) -> Target:
        """The density whose potential is estimated."""

    def init(self, position: PyTree) -> Any:
        """The state before the first step."""

    def correction(self, state: Any, batch: PyTree) -> PyTree | None:
        """What is added to the minibatch gradient, or None for nothing."""

    def refresh(self, state: Any, position: PyTree, step: Scalar) -> Any:
        """The state for the step after `step` (counted from 1), which ended at `position`."""


@pytree_dataclass
class Minibatch:
    """g = ∇Ũ(θ; batch): unbiased, with a variance that does not vanish at the mode."""

    target: Target = array_field()

    def init(self, position: PyTree) -> None:
        """Nothing to remember."""
        return

    def correction(self, state: None, batch: PyTree) -> None:
        """Nothing to add."""
        return

    def refresh(self, state: None, position: PyTree, step: Scalar) -> None:
        """Nothing to renew."""
        return


def _centred(target: Posterior, centre: PyTree, whole: PyTree, batch: PyTree) -> PyTree:
    """∇U(c) − ∇Ũ(c; batch), which has mean zero over batches; `whole` is the likelihood's part of the first."""
    scale = target.size / jax.tree.leaves(batch)[0].shape[0]
    minibatch = target.unit_gradient(centre, batch)
    return target.in_noise(jax.tree.map(lambda full, part: full - scale * part, whole, minibatch))


@pytree_dataclass
class ControlVariates:
    """g = ∇U(c) + ∇Ũ(θ; batch) − ∇Ũ(c; batch) with a fixed centre c, best a mode (Baker et al. 2019)."""

    target: Posterior = array_field()
    centre: PyTree = array_field()
    likelihood_gradient: PyTree = array_field()
    """∇ of −Σ_i log p(d_i | c) over all data; a noise shared with the prior counts as 1."""

    def init(self, position: PyTree) -> None:
        """Nothing to remember: the centre is fixed."""
        return

    def correction(self, state: None, batch: PyTree) -> PyTree:
        """∇U(c) − ∇Ũ(c; batch)."""
        return _centred(self.target, self.centre, self.likelihood_gradient, batch)

    def refresh(self, state: None, position: PyTree, step: Scalar) -> None:
        """Nothing to renew."""
        return


class Anchor(NamedTuple):
    """Where SVRG last looked at all the data."""

    position: PyTree
    likelihood_gradient: PyTree
    """∇ of −Σ_i log p(d_i | θ) there; a noise shared with the prior counts as 1."""


@pytree_dataclass
class SVRG:
    """Control variates whose centre is the chain's own position, renewed every `every` steps (Dubey et al. 2016)."""

    target: Posterior = array_field()
    every: int

    def init(self, position: PyTree) -> Anchor:
        """The first anchor is the starting point."""
        return Anchor(position, self.target.full_unit_gradient(position))

    def correction(self, state: Anchor, batch: PyTree) -> PyTree:
        """∇U(a) − ∇Ũ(a; batch) at the anchor a."""
        return _centred(self.target, state.position, state.likelihood_gradient, batch)

    def refresh(self, state: Anchor, position: PyTree, step: Scalar) -> Anchor:
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

    One pass over the data happens here; every later gradient costs two minibatch gradients.
    """
    posterior = _posterior(target, "control_variates")
    centre = jax.tree.map(jnp.asarray, centre)
    if isinstance(posterior.data, Batches):
        raise ValueError(
            "target: control_variates needs every example once, which Batches does not promise; use arrays"
        )
    whole = full_unit_gradient_from_host if on_host(posterior.data) else jax.jit(Posterior.full_unit_gradient)
    return ControlVariates(posterior, centre, whole(posterior, centre))


def full_unit_gradient_from_host(posterior: Posterior, centre: PyTree) -> PyTree:
    """∇ of −Σ_i log p(d_i | c) over arrays that stay on the host, a slice at a time (see `Posterior.unit_gradient`)."""
    seen = replace(posterior, data=streamed(posterior.data))
    gradient = jax.tree.map(jnp.zeros_like, centre)
    for start in range(0, posterior.size, EXAMPLES_AT_ONCE):
        rows = np.arange(start, min(start + EXAMPLES_AT_ONCE, posterior.size))
        batch = jax.tree.map(lambda leaf, rows=rows: read_rows(leaf, rows), posterior.data)
        part = jax.jit(Posterior.unit_gradient)(seen, centre, batch)
        gradient = jax.tree.map(jnp.add, gradient, part)
    return gradient


def full_gradient_from_host(posterior: Posterior, position: PyTree) -> PyTree:
    """∇U(θ) over arrays that stay on the host."""
    likelihood = posterior.in_noise(full_unit_gradient_from_host(posterior, position))
    seen = replace(posterior, data=streamed(posterior.data))
    return jax.tree.map(jnp.add, jax.jit(Posterior.prior_gradient)(seen, position), likelihood)


def svrg(target: Posterior, every: int) -> SVRG:
    """Estimate gradients of `target` by SVRG with a full pass every `every` steps, for use in place of `target`."""
    if every < 1:
        raise ValueError(f"every: {every} is not a positive number of steps between passes; use for example N/n")
    posterior = _posterior(target, "svrg")
    if on_host(posterior.data):
        raise ValueError(
            "target: svrg passes over all data inside the run, so they must be arrays in memory; "
            "use control_variates, or load the data with np.asarray"
        )
    return SVRG(posterior, every)


def with_prior(estimator: GradientEstimator, prior_state: Any) -> GradientEstimator:
    """The estimator with an adaptive prior frozen at a chain's state; as it is where there is none (None)."""
    if prior_state is None:
        return estimator
    frozen: Any = replace(estimator, target=estimator.target.frozen(prior_state))  # type: ignore[type-var]
    return frozen


def as_estimator(target: Target | GradientEstimator) -> GradientEstimator:
    """An estimator as it is; a target with its plain minibatch gradient."""
    return Minibatch(target) if isinstance(target, Posterior | Density) else target
