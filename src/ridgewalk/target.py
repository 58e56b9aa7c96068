"""Targets: a posterior with data, or a density without; and bijections to constrained parameters.

Positions are unconstrained. A target may say how they are shown: `constrain` maps a position to the values of interest,
`names` names them. Targets of `from_numpyro` and `from_pymc` take both, and a start, from their `model`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk._pytree import array_field, is_file, leaf_names, pytree_dataclass
from ridgewalk._types import Key, PyTree, Scalar, Vector
from ridgewalk.data import SUBSAMPLE_SIZE, Batches, DataPlaceholder, placeholder
from ridgewalk.distributed.shards import Sharded, sum_of_shards, vector_over_shards, vectors_of_shards
from ridgewalk.priors.base import AdaptivePrior, Prior, Residuals
from ridgewalk.priors.spike_slab import SharedNoise

EXAMPLES_AT_ONCE = 1024
"""Examples per block of a gradient over all data."""

START_STREAM = 0x57A7
"""Folded into the run's key for the starts, which are then independent of the chains' noise."""


class SourceModel(Protocol):
    """What a target takes from the model it was made of (`from_numpyro`, `from_pymc`)."""

    @property
    def dims(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the axes of each variable, without chain and draw."""

    @property
    def coords(self) -> Mapping[str, Any]:
        """Labels along each of these axes."""

    def start(self, key: Key, target: "Target") -> PyTree:
        """A position to start a chain from, of finite density."""

    def constrain(self, position: PyTree, data: PyTree) -> dict[str, Any]:
        """The variables at a position by name; `data` is None where they are not in memory."""

    def predictive(self, result: Any, key: Key | None, args: Any, kwargs: Any) -> dict[str, np.ndarray]:
        """Draws of the observed variables, (chain, draw, …)."""


class _WithModel:
    """Methods of targets that were made of a model."""

    model: SourceModel | None

    def predictive(self, result: Any, *args: Any, key: Key | None = None, **kwargs: Any) -> dict[str, np.ndarray]:
        """Draws from the posterior predictive distribution by site, (chain, draw, …), for a target made of a model.

        Args:
            result: a run of this target.
            args: new arguments of a NumPyro model, or none for those that the target was made with. Observed values
                among them are not used.
            key: a JAX random key; `jax.random.key(0)` if left out.
            kwargs: new keyword arguments of a NumPyro model; of a PyMC model new values of its `pm.Data` by name.
        """
        if self.model is None:
            raise ValueError(
                f"predictive: this {type(self).__name__} was not made of a model; use from_numpyro or from_pymc, or "
                "map your own function over result.positions"
            )
        return self.model.predictive(result, key, args, kwargs)


@pytree_dataclass
class Posterior(_WithModel):
    """p(θ) Π_i p(d_i | θ), of which minibatches can be drawn.

    `log_prior(position)` is a scalar; `log_likelihood(position, batch)` gives one value per example of the
    batch; `data` is a pytree of arrays whose leading axis counts the N examples. Arrays may also stay on disk
    (numpy memmap, zarr, h5py), `Batches` takes any iterable of batches, and `distributed.shard` splits rows over
    devices.

    `log_prior` may also be an adaptive prior, such as `spike_and_slab()`, whose hyper-parameters each chain learns, and
    with it `log_likelihood` may be `shared_noise(residual)`. Such a posterior has a potential once its hyper-parameters
    are given: `posterior.frozen(state.prior)`, which can itself be sampled.

    `constrain(position)` gives the values that `result.posterior`, summaries and plots show, such as
    `{"sigma": rw.positive(position["log_sigma"])}`; it does not change the density. `names` names the entries of a
    position (or of what `constrain` returns) that is a vector, or its leaves.
    """

    log_prior: Prior
    log_likelihood: Callable[[PyTree, PyTree], Any] | SharedNoise
    data: PyTree = array_field()
    prior_state: Any = array_field(default=None)
    """The state that an adaptive prior is frozen at."""
    constrain: Callable[[PyTree], PyTree] | None = None
    names: Sequence[str] | None = None
    model: SourceModel | None = None
    """The model that this was made of, by `from_numpyro` or `from_pymc`."""

    def __post_init__(self) -> None:
        """Check that a shared noise has a prior to share it with."""
        _check_shown(self)
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
        shared, data = self.log_likelihood, self.data
        if not isinstance(shared, SharedNoise):
            return None
        if not isinstance(data, Sharded):
            return shared.measure(position, batch, self.size)
        whole = Residuals(jnp.zeros(()), self.size * shared.width(position, batch))

        def of_shard(position: PyTree, rows: PyTree) -> Vector:
            return shared.measure(position, rows, data.rows_per_shard).squares[None]

        return whole._replace(squares=vector_over_shards(data, of_shard, position, batch)[0])

    def first_prior(self, position: PyTree) -> Any:
        """The state that a chain's prior starts with; None for a plain prior."""
        if not (isinstance(self.log_prior, AdaptivePrior) and self.adaptive):
            return None
        return self.log_prior.init(position, self._residuals(position, self.subsample()))

    def at_first_prior(self, position: PyTree) -> "Posterior":
        """The posterior at the hyper-parameters that a chain starts with; itself where the prior is plain or frozen."""
        return self.frozen(self.first_prior(position)) if self.adaptive else self

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
        if isinstance(self.data, Batches | DataPlaceholder | Sharded):
            return self.data.size
        return int(np.shape(jax.tree.leaves(self.data)[0])[0])

    def potential(self, position: PyTree, batch: PyTree) -> Scalar:
        """Ũ(θ) = −log p(θ) − (N/n) Σ_batch log p(d_i | θ), whose expectation over batches is U(θ)."""
        likelihood = self._sum(self.likelihood_values, position, batch)  # before the prior: the order decides rounding
        return -self.prior_value(position) - self.scale(batch) * likelihood

    def centred_potential(self, centre: PyTree, origin: PyTree, batch: PyTree) -> Callable[[PyTree], Scalar]:
        """θ ↦ Ũ(θ) − ⟨θ − origin, k⟩ on a batch of `Sharded` data, k the likelihood's part of ∇Ũ(centre).

        Its gradient is the difference of two, formed on every shard, so one sum over devices gives both. At the origin
        its value is Ũ.
        """
        data, flat_origin = self.data, ravel_pytree(origin)[0]

        def log_likelihood(position: PyTree, rows: PyTree) -> Scalar:
            return jnp.sum(self.likelihood_values(position, rows))

        def slope(position: PyTree, rows: PyTree) -> Vector:
            return ravel_pytree(jax.grad(log_likelihood)(position, rows))[0]

        def centred(position: PyTree, given: tuple[PyTree, jax.Array]) -> Scalar:
            rows, slopes = given  # one slope: that of the shard
            return log_likelihood(position, rows) - (ravel_pytree(position)[0] - flat_origin) @ slopes[0]

        slopes = vectors_of_shards(data, slope, centre, batch)

        def potential(position: PyTree) -> Scalar:
            likelihood = sum_of_shards(data, centred, position, (batch, slopes))
            return -self.prior_value(position) - self.scale(batch) * likelihood

        return potential

    def scale(self, batch: PyTree) -> float:
        """N/n, by which sums over a batch are multiplied."""
        data = self.data
        rows = data.rows_of_all(batch) if isinstance(data, Sharded) else jax.tree.leaves(batch)[0].shape[0]
        return self.size / rows

    def _sum(self, values: Callable[[PyTree, PyTree], Any], position: PyTree, batch: PyTree) -> Scalar:
        """The sum of one value per example of a batch, over all shards of sharded data."""

        def total(position: PyTree, rows: PyTree) -> Scalar:
            return jnp.sum(values(position, rows))

        data = self.data
        return sum_of_shards(data, total, position, batch) if isinstance(data, Sharded) else total(position, batch)

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
        return jax.grad(lambda p: -self._sum(values, p, batch))(position)

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
        data = self.data
        if not isinstance(data, Sharded):
            return self._gradient_in_blocks(position, data)

        def of_shard(position: PyTree, rows: PyTree) -> Vector:
            return ravel_pytree(replace(self, data=rows)._gradient_in_blocks(position, rows))[0]

        return ravel_pytree(position)[1](vector_over_shards(data, of_shard, position, data.arrays))

    def _gradient_in_blocks(self, position: PyTree, data: PyTree) -> PyTree:
        size = self.size
        slices, rest = divmod(size, EXAMPLES_AT_ONCE)
        gradient = jax.tree.map(jnp.zeros_like, position)
        if slices:
            whole = jax.tree.map(
                lambda x: x[: slices * EXAMPLES_AT_ONCE].reshape(slices, EXAMPLES_AT_ONCE, *x.shape[1:]), data
            )

            def add(total: PyTree, batch: PyTree) -> tuple[PyTree, None]:
                return jax.tree.map(jnp.add, total, self.unit_noise_gradient(position, batch)), None

            gradient, _ = jax.lax.scan(add, gradient, whole)
        if rest:
            batch = jax.tree.map(lambda x: x[size - rest :], data)
            gradient = jax.tree.map(jnp.add, gradient, self.unit_noise_gradient(position, batch))
        return gradient

    def subsample(self) -> PyTree:
        """At most 1,024 examples, evenly spaced over the data, to measure curvature on."""
        if isinstance(self.data, DataPlaceholder):
            return self.data.examples
        if isinstance(self.data, Sharded):
            return self.data.spaced(SUBSAMPLE_SIZE)
        stride = -(-self.size // SUBSAMPLE_SIZE)
        return jax.tree.map(lambda x: x[::stride], self.data)


@pytree_dataclass
class Density(_WithModel):
    """exp(log_density(θ)), a target without data: every gradient is exact.

    `constrain` and `names` are as in `Posterior`.
    """

    log_density: Callable[[PyTree], Any]
    constrain: Callable[[PyTree], PyTree] | None = None
    names: Sequence[str] | None = None
    model: SourceModel | None = None
    """The model that this was made of, by `from_numpyro` or `from_pymc`."""

    def __post_init__(self) -> None:
        """Check what is shown of a position."""
        _check_shown(self)

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

    def at_first_prior(self, position: PyTree) -> "Density":
        """The density: it has no prior of its own."""
        return self

    def next_prior(
        self, prior_state: Any, position: PyTree, batch: PyTree, step: Scalar, kept: PyTree | None = None
    ) -> None:
        """No prior of its own."""
        return


Target = Posterior | Density


def _check_shown(target: Any) -> None:
    """`constrain` is a function; `names` are strings that differ, kept as a tuple, which JAX can hash."""
    if target.constrain is not None and not callable(target.constrain):
        raise ValueError(f"constrain: {target.constrain!r} is not a function of the position")
    names = target.names
    if names is None:
        return
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"names: {names!r} is not a sequence of strings, one for each entry or leaf")
    if len(set(names)) < len(names):
        raise ValueError(f"names: {list(names)} has repeated names; make them differ")
    object.__setattr__(target, "names", tuple(names))


def is_plain(target: Target) -> bool:
    """Whether positions are shown as they are: no model, `constrain` or `names`."""
    return target.model is None and target.constrain is None and target.names is None


def constrained(target: Target, position: PyTree) -> dict[str, Any]:
    """The variables that are shown of a position, by name."""
    if target.model is not None:
        data = target.data if isinstance(target, Posterior) and not isinstance(target.data, DataPlaceholder) else None
        return target.model.constrain(position, data)
    values = position if target.constrain is None else target.constrain(position)
    leaves, names = jax.tree.leaves(values), target.names
    if names is None:
        return dict(zip(leaf_names(values), leaves, strict=True))
    if len(leaves) == len(names):
        return dict(zip(names, leaves, strict=True))
    if len(leaves) == 1 and jnp.shape(leaves[0]) == (len(names),):
        return dict(zip(names, leaves[0], strict=True))
    shapes = ", ".join(f"{name} {jnp.shape(leaf)}" for name, leaf in zip(leaf_names(values), leaves, strict=True))
    raise ValueError(
        f"names: there are {len(names)}, for {shapes}; give one for each leaf, or for a single vector one for each "
        "entry"
    )


def on_device(target: Target) -> Target:
    """The target as compiled code gets it: data on the host are replaced by their `placeholder`."""
    if isinstance(target, Posterior) and on_host(target.data):
        data = target.data
        return replace(target, data=replace(data, source=None) if isinstance(data, Sharded) else placeholder(data))
    return target


def on_host(data: PyTree) -> bool:
    """Whether the data stay on the host: a `Batches`, or leaves on disk (memmap, zarr, h5py), also of shards."""
    if isinstance(data, Sharded):
        return data.source is not None
    return isinstance(data, Batches) or any(map(is_file, jax.tree.leaves(data)))


STARTS = 100
"""How many starts are tried until one has a finite density and gradient."""


@jax.jit
def _is_finite(target: Any, position: PyTree) -> Scalar:
    """Whether potential and gradient on the subsample are finite."""
    found = jax.value_and_grad(target.potential)(position, target.subsample())
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(found)]))


def finite_start(key: Key, target: "Target", draw: Callable[[Key], PyTree]) -> PyTree:
    """The first of some draws at which the density and its gradient are finite."""
    compiled = on_device(target)
    for attempt in range(STARTS):
        position = draw(jax.random.fold_in(key, attempt))
        if _is_finite(compiled, position):
            return position
    raise ValueError(
        f"position: the density or its gradient is not finite at {STARTS} starts drawn for the model; pass position=…, "
        "unconstrained, or give from_numpyro an init_strategy"
    )


def model_starts(key: Key, target: "Target", chains: int) -> PyTree:
    """A start for each chain from the target's model, with a leading axis; an error for a target without a model."""
    if target.model is None:
        raise ValueError(
            f"position: it is missing, and this {type(target).__name__} has no start of its own; pass a pytree of "
            "float arrays, such as jnp.zeros(3) (targets of from_numpyro and from_pymc start by themselves)"
        )
    keys = jax.random.split(jax.random.fold_in(key, START_STREAM), chains)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[target.model.start(one, target) for one in keys])


class Bijection(Protocol):
    """A smooth one-to-one map from unconstrained arrays to constrained ones."""

    def __call__(self, x: Any) -> jax.Array:
        """The constrained array."""

    def inverse(self, y: Any) -> jax.Array:
        """The unconstrained array."""

    def log_det(self, x: Any) -> Scalar:
        """log |det ∂y/∂x|, summed over all entries: add it to the log prior of the constrained array."""


@pytree_dataclass
class _Positive:
    """y = exp(x)."""

    def __call__(self, x: Any) -> jax.Array:
        """The constrained array."""
        return jnp.exp(x)

    def inverse(self, y: Any) -> jax.Array:
        """The unconstrained array."""
        return jnp.log(y)

    def log_det(self, x: Any) -> Scalar:
        """log |det ∂y/∂x|, summed over all entries."""
        return jnp.sum(jnp.asarray(x))


@pytree_dataclass
class _Interval:
    """y = low + (high − low) / (1 + exp(−x))."""

    low: float
    high: float

    def __call__(self, x: Any) -> jax.Array:
        """The constrained array."""
        return self.low + (self.high - self.low) * jax.nn.sigmoid(x)

    def inverse(self, y: Any) -> jax.Array:
        """The unconstrained array."""
        y = jnp.asarray(y)
        return jnp.log(y - self.low) - jnp.log(self.high - y)

    def log_det(self, x: Any) -> Scalar:
        """log |det ∂y/∂x|, summed over all entries."""
        x = jnp.asarray(x)
        return jnp.sum(np.log(self.high - self.low) + jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x))


@pytree_dataclass
class _Simplex:
    """k − 1 numbers to k probabilities along the last axis, by breaking a stick; zeros give equal probabilities."""

    def _logits(self, x: jax.Array) -> jax.Array:
        return x - jnp.log(jnp.arange(x.shape[-1], 0, -1, dtype=x.dtype)).reshape((1,) * (x.ndim - 1) + (-1,))

    def _log_left(self, logits: jax.Array) -> jax.Array:
        """The log of what is left of the stick before each break."""
        left = jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=-1)
        return jnp.concatenate([jnp.zeros_like(left[..., :1]), left], axis=-1)

    def __call__(self, x: Any) -> jax.Array:
        """The constrained array."""
        logits = self._logits(jnp.asarray(x))
        share = jnp.concatenate([jax.nn.log_sigmoid(logits), jnp.zeros_like(logits[..., :1])], axis=-1)
        return jnp.exp(self._log_left(logits) + share)

    def inverse(self, y: Any) -> jax.Array:
        """The unconstrained array."""
        y = jnp.asarray(y)
        after = jnp.flip(jnp.cumsum(jnp.flip(y[..., 1:], -1), axis=-1), -1)
        logits = jnp.log(y[..., :-1]) - jnp.log(after)
        return 2 * logits - self._logits(logits)

    def log_det(self, x: Any) -> Scalar:
        """log |det ∂y/∂x| with the last probability left out, summed over all rows."""
        logits = self._logits(jnp.asarray(x))
        slopes = jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(-logits)
        return jnp.sum(self._log_left(logits)[..., :-1] + slopes)


positive: Bijection = _Positive()
"""Real to positive numbers, exp."""

simplex: Bijection = _Simplex()
"""k − 1 real numbers to k probabilities, along the last axis."""


def interval(low: float, high: float) -> Bijection:
    """Real numbers to the interval from `low` to `high`, a scaled logistic function."""
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise ValueError(f"interval: {low!r} to {high!r} is not an interval; give finite numbers with low < high")
    return _Interval(float(low), float(high))
