"""What is sampled: a posterior with data, or a density without."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.data import SKETCH_EXAMPLES, Batches, Streamed
from ridgewalk.settings import array, settings
from ridgewalk.types import PyTree, Scalar

EXAMPLES_AT_ONCE = 1024
"""How many examples one gradient of the whole data set holds in memory at a time."""


@settings
class Posterior:
    """p(θ) Π_i p(d_i | θ), of which minibatches can be drawn.

    `log_prior(position)` is a scalar; `log_likelihood(position, batch)` gives one value per example of the
    batch; `data` is a pytree of arrays whose leading axis counts the N examples. Arrays may also stay on disk
    (numpy memmap, zarr, h5py), and `Batches` takes any iterable of batches.
    """

    log_prior: Callable[[PyTree], Any]
    log_likelihood: Callable[[PyTree, PyTree], Any]
    data: PyTree = array()

    @property
    def size(self) -> int:
        """N, the number of examples."""
        if isinstance(self.data, Batches | Streamed):
            return self.data.size
        return int(np.shape(jax.tree.leaves(self.data)[0])[0])

    def potential(self, position: PyTree, batch: PyTree) -> Scalar:
        """Ũ(θ) = −log p(θ) − (N/n) Σ_batch log p(d_i | θ), whose expectation over batches is U(θ)."""
        values = self.log_likelihood(position, batch)
        prior = jnp.asarray(self.log_prior(position))
        return -prior - (self.size / values.shape[0]) * jnp.sum(values)

    def likelihood_gradient(self, position: PyTree, batch: PyTree) -> PyTree:
        """∇ of −Σ_batch log p(d_i | θ), not scaled to the whole data."""
        return jax.grad(lambda p: -jnp.sum(self.log_likelihood(p, batch)))(position)

    def prior_gradient(self, position: PyTree) -> PyTree:
        """∇ of −log p(θ)."""
        return jax.grad(lambda p: -jnp.asarray(self.log_prior(p)))(position)

    def full_gradient(self, position: PyTree) -> PyTree:
        """∇U(θ) over all data, a slice of the examples at a time."""
        slices, rest = divmod(self.size, EXAMPLES_AT_ONCE)
        gradient = self.prior_gradient(position)
        if slices:
            whole = jax.tree.map(
                lambda x: x[: slices * EXAMPLES_AT_ONCE].reshape(slices, EXAMPLES_AT_ONCE, *x.shape[1:]),
                self.data,
            )

            def add(total: PyTree, batch: PyTree) -> tuple[PyTree, None]:
                return jax.tree.map(jnp.add, total, self.likelihood_gradient(position, batch)), None

            gradient, _ = jax.lax.scan(add, gradient, whole)
        if rest:
            batch = jax.tree.map(lambda x: x[self.size - rest :], self.data)
            gradient = jax.tree.map(jnp.add, gradient, self.likelihood_gradient(position, batch))
        return gradient

    def sketch(self) -> PyTree:
        """At most 1,024 examples spread evenly over the data, for a first look at the curvature."""
        if isinstance(self.data, Streamed):
            return self.data.examples
        stride = -(-self.size // SKETCH_EXAMPLES)
        return jax.tree.map(lambda x: x[::stride], self.data)


@settings
class Density:
    """exp(log_density(θ)), a target without data: every gradient is exact."""

    log_density: Callable[[PyTree], Any]

    def potential(self, position: PyTree, batch: PyTree = None) -> Scalar:
        """U(θ) = −log_density(θ); the batch is ignored."""
        return -jnp.asarray(self.log_density(position))

    def sketch(self) -> None:
        """A density has no data."""
        return


Target = Posterior | Density
