"""Targets: a posterior with data, or a density without."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import PyTree, Scalar
from ridgewalk.data import SUBSAMPLE_SIZE, Batches, DataPlaceholder, placeholder
from ridgewalk.priors.base import AdaptivePrior, Prior, Residuals
from ridgewalk.priors.spike_slab import SharedNoise

EXAMPLES_AT_ONCE = 1024
"""Examples per block of a gradient over all data."""


@pytree_dataclass
class Posterior:
    """p(θ) Π_i p(d_i | θ), of which minibatches can be drawn.

    `log_prior(position)` is a scalar; `log_likelihood(position, batch)` gives one value per example of the
    batch; `data` is a pytree of arrays whose leading axis counts the N examples. Arrays may also stay on disk
    (numpy memmap, zarr, h5py), and `Batches` takes any iterable of batches.

    `log_prior` may also be an adaptive prior, such as `spike_and_slab()`, whose hyper-parameters each chain learns, and
    with it `log_likelihood` may be `shared_noise(residual)`. Such a posterior has a potential once its hyper-parameters
    are given: `posterior.frozen(state.prior)`, which can itself be sampled.
    """

    log_prior: Prior
    log_likelihood: Callable[[PyTree, PyTree], Any] | SharedNoise
    data: PyTree = array_field()
    prior_state: Any = array_field(default=None)
    """The state that an adaptive prior is frozen at."""

    def __post_init__(self) -> None:
        """Check that a shared noise has a prior to share it with."""
        prior = self.log_prior
        if isinstance(self.log_likelihood, SharedNoise) and not (isinstance(prior, AdaptivePrior) and prior.has_noise):
            raise ValueError(
                "log_likelihood: shared_noise takes σ from the prior, which must have exactly one; use "
                "spike_and_slab(), with prior_by_leaf in one group only, or write the likelihood with its own noise"
            )

    @property
    def adaptive(self) -> bool:
        """Whether chains learn the prior's hyper-parameters."""
        return isinstance(self.log_prior, AdaptivePrior) and self.prior_state is None

    def frozen(self, prior_state: Any) -> "Posterior":
        """The posterior at these hyper-parameters, as in `state.prior` of a chain; its prior is no longer adaptive."""
        return replace(self, prior_state=prior_state)

    def _residuals(self, position: PyTree, batch: PyTree) -> Residuals | None:
        shared = self.log_likelihood
        return shared.measure(position, batch, self.size) if isinstance(shared, SharedNoise) else None

    def first_prior(self, position: PyTree) -> Any:
        """The state that a chain's prior starts with; None for a plain prior."""
        if not (isinstance(self.log_prior, AdaptivePrior) and self.adaptive):
            return None
        return self.log_prior.init(position, self._residuals(position, self.subsample()))

    def next_prior(
        self, prior_state: Any, position: PyTree, batch: PyTree, step: Scalar, kept: PyTree | None = None
    ) -> Any:
        """The prior's state after a step from `position` on `batch`; `kept` is 0 for pruned parameters, else 1."""
        if not isinstance(self.log_prior, AdaptivePrior) or prior_state is None:
            return None
        return self.log_prior.update(prior_state, position, self._residuals(position, batch), step, kept)

    @property
    def size(self) -> int:
        """N, the number of examples."""
        if isinstance(self.data, Batches | DataPlaceholder):
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

    def unit_noise_gradient(self, position: PyTree, batch: PyTree) -> PyTree:
        """∇ of −Σ_batch log p(d_i | θ), not scaled to the whole data; with a noise shared with the prior set to 1."""
        shared = self.log_likelihood
        values = (lambda p, b: shared.values(p, b, 1.0)) if isinstance(shared, SharedNoise) else shared
        return jax.grad(lambda p: -jnp.sum(values(p, batch)))(position)

    def scale_by_noise(self, gradient: PyTree) -> PyTree:
        """A sum of `unit_noise_gradient` at the current noise: divided by σ² if that is the prior's."""
        if not isinstance(self.log_likelihood, SharedNoise):
            return gradient
        sigma = self._noise()
        return jax.tree.map(lambda g: g / sigma.astype(g.dtype) ** 2, gradient)

    def likelihood_gradient(self, position: PyTree, batch: PyTree) -> PyTree:
        """∇ of −Σ_batch log p(d_i | θ), not scaled to the whole data."""
        return self.scale_by_noise(self.unit_noise_gradient(position, batch))

    def prior_gradient(self, position: PyTree) -> PyTree:
        """∇ of −log p(θ)."""
        return jax.grad(lambda p: -self.prior_value(p))(position)

    def full_gradient(self, position: PyTree) -> PyTree:
        """∇U(θ) over all data."""
        likelihood = self.scale_by_noise(self.full_unit_noise_gradient(position))
        return jax.tree.map(jnp.add, self.prior_gradient(position), likelihood)

    def full_unit_noise_gradient(self, position: PyTree) -> PyTree:
        """`unit_noise_gradient` over all data, in blocks of examples."""
        slices, rest = divmod(self.size, EXAMPLES_AT_ONCE)
        gradient = jax.tree.map(jnp.zeros_like, position)
        if slices:
            whole = jax.tree.map(
                lambda x: x[: slices * EXAMPLES_AT_ONCE].reshape(slices, EXAMPLES_AT_ONCE, *x.shape[1:]),
                self.data,
            )

            def add(total: PyTree, batch: PyTree) -> tuple[PyTree, None]:
                return jax.tree.map(jnp.add, total, self.unit_noise_gradient(position, batch)), None

            gradient, _ = jax.lax.scan(add, gradient, whole)
        if rest:
            batch = jax.tree.map(lambda x: x[self.size - rest :], self.data)
            gradient = jax.tree.map(jnp.add, gradient, self.unit_noise_gradient(position, batch))
        return gradient

    def subsample(self) -> PyTree:
        """At most 1,024 examples, evenly spaced over the data, to measure curvature on."""
        if isinstance(self.data, DataPlaceholder):
            return self.data.examples
        stride = -(-self.size // SUBSAMPLE_SIZE)
        return jax.tree.map(lambda x: x[::stride], self.data)


@pytree_dataclass
class Density:
    """exp(log_density(θ)), a target without data: every gradient is exact."""

    log_density: Callable[[PyTree], Any]

    def potential(self, position: PyTree, batch: PyTree = None) -> Scalar:
        """U(θ) = −log_density(θ); the batch is ignored."""
        return -jnp.asarray(self.log_density(position))

    def subsample(self) -> None:
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


def on_device(target: Target) -> Target:
    """The target as compiled code gets it: data on the host are replaced by their `placeholder`."""
    if isinstance(target, Posterior) and on_host(target.data):
        return replace(target, data=placeholder(target.data))
    return target


def on_host(data: PyTree) -> bool:
    """Whether the data stay on the host: a `Batches`, or leaves on disk (memmap, zarr, h5py)."""
    return isinstance(data, Batches) or any(map(_is_file, jax.tree.leaves(data)))


def _is_file(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return isinstance(leaf, np.memmap) or isinstance(leaf.base, np.memmap)
    is_array_like = all(hasattr(leaf, name) for name in ("shape", "dtype", "__getitem__"))
    return is_array_like and not isinstance(leaf, jax.Array | np.generic)
