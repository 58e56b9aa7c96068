"""What is sampled: a posterior with data, or a density without."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import PyTree, Scalar
from ridgewalk.data import SKETCH_EXAMPLES, Batches, Streamed
from ridgewalk.priors.base import AdaptivePrior, Prior, Residuals
from ridgewalk.priors.shared_noise import SharedNoise

EXAMPLES_AT_ONCE = 1024
"""How many examples one gradient of the whole data set holds in memory at a time."""


@pytree_dataclass
class Posterior:
    """p(θ) Π_i p(d_i | θ), of which minibatches can be drawn.

    `log_prior(position)` is a scalar; `log_likelihood(position, batch)` gives one value per example of the
    batch; `data` is a pytree of arrays whose leading axis counts the N examples. Arrays may also stay on disk
    (numpy memmap, zarr, h5py), and `Batches` takes any iterable of batches.

    `log_prior` may also be an adaptive prior, such as `spike_and_slab()`, whose hyper-parameters each chain learns, and
    with it `log_likelihood` may be `shared_noise(residual)`. Such a posterior has a potential once its hyper-parameters
    are given: `posterior.frozen(state.prior)`, which can also be sampled, as it stays.
    """

    log_prior: Prior
    log_likelihood: Callable[[PyTree, PyTree], Any] | SharedNoise
    data: PyTree = array_field()
    prior_state: Any = array_field(default=None)
    """The state that an adaptive prior is frozen at."""

    def __post_init__(self) -> None:
        """A noise that is shared needs a prior to share it with."""
        prior = self.log_prior
        if isinstance(self.log_likelihood, SharedNoise) and not (isinstance(prior, AdaptivePrior) and prior.has_noise):
            raise ValueError(
                "log_likelihood: shared_noise takes σ from the prior, and this log_prior has not exactly one; use "
                "spike_and_slab(), with prior_by_leaf in one group only, or write the likelihood with its own noise"
            )

    @property
    def adaptive(self) -> bool:
        """Whether chains learn the prior's hyper-parameters."""
        return isinstance(self.log_prior, AdaptivePrior) and self.prior_state is None

    def frozen(self, prior_state: Any) -> "Posterior":
        """The posterior at these hyper-parameters, as `state.prior` of a chain holds them: its prior learns no more."""
        return replace(self, prior_state=prior_state)

    def _residuals(self, position: PyTree, batch: PyTree) -> Residuals | None:
        shared = self.log_likelihood
        return shared.measure(position, batch, self.size) if isinstance(shared, SharedNoise) else None

    def first_prior(self, position: PyTree) -> Any:
        """The state that the prior of a chain starts with; None where it has nothing to learn."""
        if not (isinstance(self.log_prior, AdaptivePrior) and self.adaptive):
            return None
        return self.log_prior.init(position, self._residuals(position, self.sketch()))

    def next_prior(
        self, prior_state: Any, position: PyTree, batch: PyTree, step: Scalar, kept: PyTree | None = None
    ) -> Any:
        """The prior's state after a step from `position` on `batch`; `kept` has zeros for what is pruned, else ones."""
        if not isinstance(self.log_prior, AdaptivePrior) or prior_state is None:
            return None
        return self.log_prior.update(prior_state, position, self._residuals(position, batch), step, kept)

    @property
    def size(self) -> int:
        """N, the number of examples."""
        if isinstance(self.data, Batches | Streamed):
            return self.data.size
        return int(np.shape(jax.tree.leaves(self.data)[0])[0])

    def potential(self, position: PyTree, batch: PyTree) -> Scalar:
        """Ũ(θ) = −log p(θ) − (N/n) Σ_batch log p(d_i | θ), whose expectation over batches is U(θ)."""
        values = self.likelihood_values(position, batch)
        return -self.prior_value(position) - (self.size / values.shape[0]) * jnp.sum(values)

    def prior_value(self, position: PyTree) -> Scalar:
        """log p(θ)."""
        if isinstance(self.log_prior, AdaptivePrior):
            return self.log_prior.log_density(self._known_prior(), position)
        return jnp.asarray(self.log_prior(position))

    def likelihood_values(self, position: PyTree, batch: PyTree) -> Any:
        """log p(d_i | θ), one value per example."""
        if isinstance(self.log_likelihood, SharedNoise):
            return self.log_likelihood.values(position, batch, self._noise())
        return self.log_likelihood(position, batch)

    def _known_prior(self) -> Any:
        if self.prior_state is None:
            raise ValueError(
                f"log_prior: {type(self.log_prior).__name__} learns its hyper-parameters, so there is no potential "
                "without them; use posterior.frozen(state.prior) with the state of a chain"
            )
        return self.prior_state

    def _noise(self) -> Scalar:
        assert isinstance(self.log_prior, AdaptivePrior)  # checked when made
        return self.log_prior.noise(self._known_prior())

    def unit_gradient(self, position: PyTree, batch: PyTree) -> PyTree:
        """∇ of −Σ_batch log p(d_i | θ), not scaled to the whole data; a noise shared with the prior counts as 1."""
        shared = self.log_likelihood
        values = (lambda p, b: shared.values(p, b, 1.0)) if isinstance(shared, SharedNoise) else shared
        return jax.grad(lambda p: -jnp.sum(values(p, batch)))(position)

    def in_noise(self, unit_gradient: PyTree) -> PyTree:
        """A sum of `unit_gradient` for the noise as it is: over σ² where it is the prior's."""
        if not isinstance(self.log_likelihood, SharedNoise):
            return unit_gradient
        sigma = self._noise()
        return jax.tree.map(lambda g: g / sigma.astype(g.dtype) ** 2, unit_gradient)

    def likelihood_gradient(self, position: PyTree, batch: PyTree) -> PyTree:
        """∇ of −Σ_batch log p(d_i | θ), not scaled to the whole data."""
        return self.in_noise(self.unit_gradient(position, batch))

    def prior_gradient(self, position: PyTree) -> PyTree:
        """∇ of −log p(θ)."""
        return jax.grad(lambda p: -self.prior_value(p))(position)

    def full_gradient(self, position: PyTree) -> PyTree:
        """∇U(θ) over all data."""
        likelihood = self.in_noise(self.full_unit_gradient(position))
        return jax.tree.map(jnp.add, self.prior_gradient(position), likelihood)

    def full_unit_gradient(self, position: PyTree) -> PyTree:
        """`unit_gradient` over all data, a slice of the examples at a time."""
        slices, rest = divmod(self.size, EXAMPLES_AT_ONCE)
        gradient = jax.tree.map(jnp.zeros_like, position)
        if slices:
            whole = jax.tree.map(
                lambda x: x[: slices * EXAMPLES_AT_ONCE].reshape(slices, EXAMPLES_AT_ONCE, *x.shape[1:]),
                self.data,
            )

            def add(total: PyTree, batch: PyTree) -> tuple[PyTree, None]:
                return jax.tree.map(jnp.add, total, self.unit_gradient(position, batch)), None

            gradient, _ = jax.lax.scan(add, gradient, whole)
        if rest:
            batch = jax.tree.map(lambda x: x[self.size - rest :], self.data)
            gradient = jax.tree.map(jnp.add, gradient, self.unit_gradient(position, batch))
        return gradient

    def sketch(self) -> PyTree:
        """At most 1,024 examples spread evenly over the data, for a first look at the curvature."""
        if isinstance(self.data, Streamed):
            return self.data.examples
        stride = -(-self.size // SKETCH_EXAMPLES)
        return jax.tree.map(lambda x: x[::stride], self.data)


@pytree_dataclass
class Density:
    """exp(log_density(θ)), a target without data: every gradient is exact."""

    log_density: Callable[[PyTree], Any]

    def potential(self, position: PyTree, batch: PyTree = None) -> Scalar:
        """U(θ) = −log_density(θ); the batch is ignored."""
        return -jnp.asarray(self.log_density(position))

    def sketch(self) -> None:
        """A density has no data."""
        return

    def frozen(self, prior_state: Any) -> "Density":
        """The density: it has no prior to freeze."""
        return self

    def first_prior(self, position: PyTree) -> None:
        """No prior of its own."""
        return

    def next_prior(
        self, prior_state: Any, position: PyTree, batch: PyTree, step: Scalar, kept: PyTree | None = None
    ) -> None:
        """No prior of its own."""
        return


Target = Posterior | Density
