"""The posterior of a network's weights: likelihoods, priors, and the `Posterior` that is sampled.

A likelihood can be used by itself with `ridgewalk.sample`:

    likelihood = gaussian(model.apply)
    target = rw.Posterior(likelihood.log_prior, likelihood.log_likelihood, data=(x, y))
    rw.sample(key, sampler, target, likelihood.start(model.init(key)), …)

Data are pairs of inputs (example, …) and targets (example, output). `build` makes the posterior of an estimator from
its settings, a `PosteriorSpec`, for standardised data: `fit_inputs` and `fit_outputs` scale in float64, before numbers
are converted to the network's dtype, and leave out constant outputs.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ridgewalk._compilation import jit, quick_compilation
from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk._validation import check_positive
from ridgewalk.neural import LikelihoodName, OutputScaling
from ridgewalk.neural.networks import Model, Network, Shape, count_weights
from ridgewalk.priors.base import AdaptivePrior, prior_by_leaf
from ridgewalk.target import Posterior

Array = NDArray[np.float64]
Apply = Callable[[PyTree, jax.Array], jax.Array]
Batch = tuple[jax.Array, jax.Array]
LogWeights = Callable[[PyTree], Scalar]
"""A log prior of a network's parameters."""


class Likelihood(NamedTuple):
    """`start` makes a position of a network's parameters; the other functions take positions."""

    start: Callable[[PyTree], PyTree]
    log_prior: Callable[[PyTree], Scalar]
    log_likelihood: Callable[[PyTree, Batch], jax.Array]
    """One value for each example of a batch."""
    predict: Callable[[PyTree, jax.Array], jax.Array]
    """The network's outputs, without noise."""
    noise: Callable[[PyTree], jax.Array]
    """The standard deviation σ of the observations, a number or (output,)."""


def gaussian(
    apply: Apply,
    *,
    prior_scale: float = 1.0,
    noise: float = 0.1,
    noise_width: float = 1.0,
    outputs: int | None = None,
    log_weights: LogWeights | None = None,
) -> Likelihood:
    """y_i ~ N(F(x_i), σ²) for each output, with log σ a parameter: log σ ~ N(log noise, noise_width²).

    Weights have the prior N(0, prior_scale²), or `log_weights`. With `outputs`, each output has its own σ;
    with `noise_width = 0` σ is fixed at `noise`, and positions are the network's parameters as they are.
    """
    check_positive("prior_scale", prior_scale)
    check_positive("noise", noise)
    if not (np.isfinite(noise_width) and noise_width >= 0):
        raise ValueError(f"noise_width: {noise_width} is not a standard deviation; give a number ≥ 0, 0 for a fixed σ")
    if outputs is not None and outputs < 1:
        raise ValueError(f"outputs: {outputs}; give the number of outputs, or None for one σ")
    learnt = noise_width > 0
    weights_prior = log_weights or partial(_log_weights, scale=prior_scale)
    centre = float(np.log(noise))
    shape = () if outputs is None else (outputs,)

    def start(parameters: PyTree) -> PyTree:
        if not learnt:
            return parameters
        dtype = jnp.result_type(*jax.tree.leaves(parameters))
        # Of NumPy: an operation of JAX outside `jit` would be compiled by itself.
        return {"network": parameters, "log_noise": np.full(shape, centre, dtype)}

    def network(position: PyTree) -> PyTree:
        return position["network"] if learnt else position

    def log_noise(position: PyTree) -> jax.Array:
        return position["log_noise"] if learnt else jnp.full(shape, centre)

    def log_prior(position: PyTree) -> Scalar:
        value = weights_prior(network(position))
        return value - 0.5 * jnp.sum(((log_noise(position) - centre) / noise_width) ** 2) if learnt else value

    def log_likelihood(position: PyTree, batch: Batch) -> jax.Array:
        x, y = batch
        guessed = apply(network(position), x)
        logarithm = jnp.broadcast_to(log_noise(position), guessed.shape[1:]).astype(guessed.dtype)[None]
        z = (y - guessed) * jnp.exp(-logarithm)
        return jnp.sum(-0.5 * z**2 - logarithm - 0.5 * float(np.log(2 * np.pi)), axis=1)

    return Likelihood(
        start,
        log_prior,
        log_likelihood,
        lambda position, x: apply(network(position), x),
        lambda position: jnp.exp(log_noise(position)),
    )


def relative_l2(
    apply: Apply, *, temperature: float, prior_scale: float = 1.0, log_weights: LogWeights | None = None
) -> Likelihood:
    """The paper's loss as a tempered likelihood: log p(y_i | θ) = −(‖F(x_i) − y_i‖₂ / ‖y_i‖₂) / temperature.

    This is not a normalised density of y: there is no observation noise (`noise` gives 0), and `temperature` sets the
    width of the posterior, about the relative error of one example. Targets must not be zero everywhere;
    `relative_errors` finds those that are.
    """
    check_positive("temperature", temperature)
    check_positive("prior_scale", prior_scale)

    def log_likelihood(parameters: PyTree, batch: Batch) -> jax.Array:
        x, y = batch
        difference = apply(parameters, x) - y
        tiny = jnp.finfo(difference.dtype).tiny  # the root has no slope at zero
        error = jnp.sqrt(jnp.sum(difference**2, axis=1) + tiny)
        return -error / (jnp.linalg.norm(y, axis=1) * temperature)

    return Likelihood(
        lambda parameters: parameters,
        log_weights or partial(_log_weights, scale=prior_scale),
        log_likelihood,
        apply,
        lambda parameters: jnp.zeros(()),
    )


def _log_weights(parameters: PyTree, scale: float) -> Scalar:
    """log N(0, scale²) of all weights, without its constant."""
    squares = (jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))
    return -0.5 / scale**2 * sum(squares, start=jnp.zeros(()))


NoiseKind = Literal["each", "shared"]

FIRST_NOISE, NOISE_WIDTH = 0.1, 2.0
"""log σ ~ N(log 0.1, 2²) for outputs scaled to a standard deviation of 1."""

LEAST_ROWS = 1024
"""Rows that the data of a small network are padded to at least."""

LEAST_ROWS_LARGE = 256
"""Those of a network of `LARGE` weights or more, for which the first curvature estimate on all rows takes longer."""

LARGE = 2**15

MOST_BYTES = 2**26
"""Data that would take more bytes than this when padded are not padded: their fit takes long against compiling."""


class PosteriorSpec(NamedTuple):
    """What fixes the posterior beside the data. Hashable: equal specifications share compiled programs.

    Nothing here depends on the number of examples, so that a fit to more or fewer compiles nothing.
    """

    network: Network
    input_shape: Shape
    outputs: int
    likelihood: LikelihoodName
    prior: Any
    """A scale, or a log prior of the network's weights; the noise has a prior of its own."""
    noise: NoiseKind
    relative_error: float
    units: tuple[tuple[float, ...], tuple[float, ...]] | None
    """For "relative_l2": mean and scale of the outputs in units of their typical size. These depend on the data."""
    dtype: str


class Data(NamedTuple):
    """Scaled data of a posterior, padded (see `padded`), and how many examples there are."""

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    """What the log likelihood of each row is multiplied by."""
    examples: int
    data_weight: float
    """The power of the likelihood."""


class NetworkPosterior(NamedTuple):
    """Functions of positions, which `start` makes; `outputs` are the network's, in scaled units."""

    start: Callable[[Key], PyTree]
    log_prior: Any
    log_likelihood: Callable[[PyTree, tuple[jax.Array, jax.Array, jax.Array]], jax.Array]
    outputs: Callable[[PyTree, jax.Array], jax.Array]
    noise: Callable[[PyTree], jax.Array]

    def posterior(self, data: Data) -> Posterior:
        """With data."""
        return Posterior(self.log_prior, self.log_likelihood, (data.x, data.y, data.weights))


def padded_rows(examples: int, weights: int, row_bytes: int) -> int:
    """The number of rows that data are padded to: 1,024, 4,096, …, at least twice the number of examples."""
    rows = LEAST_ROWS if weights < LARGE else LEAST_ROWS_LARGE
    while rows < 2 * examples:
        rows *= 4
    return rows if rows * row_bytes <= MOST_BYTES else examples


def padded(x: np.ndarray, y: np.ndarray, data_weight: float, weights: int) -> Data:
    """Data with rows repeated up to `padded_rows`, in random order, so that fits to other numbers of rows share shapes.

    A row that stands m times has the weight `data_weight` / m: the sum over all rows is that over the examples, and
    minibatches of rows estimate it without bias. Rows stand ⌊c⌋ or ⌈c⌉ times, c ≥ 2 the padded number of rows per
    example, which makes the variance of minibatch gradients at most 4 % larger than that of sampling the examples.
    """
    examples = len(x)
    row_bytes = (x.nbytes + y.nbytes) // examples
    rows = padded_rows(examples, weights, row_bytes)
    order = np.arange(examples)
    if rows > examples:
        order = np.random.default_rng(0).permutation(np.arange(rows) % examples)
    copies = np.bincount(order, minlength=examples)
    return Data(x[order], y[order], (data_weight / copies[order]).astype(y.dtype), examples, data_weight)


def relative_gaussian(model: Model, scale: float) -> Callable[[PyTree], Scalar]:
    """log Π N(w; 0, (scale · r)²), r the root mean square of the weight's array at initialisation.

    Layers of any width then give outputs of about the size that they have at initialisation. Arrays that start at zero,
    such as biases, have r = 1.
    """
    start = jax.tree.leaves(model.init(jax.random.key(0)))
    sizes = [float(np.sqrt(np.mean(np.square(np.asarray(leaf, float))))) or 1.0 for leaf in start]

    def log_prior(weights: PyTree) -> Scalar:
        terms = [jnp.sum((w / (scale * r)) ** 2) for w, r in zip(jax.tree.leaves(weights), sizes, strict=True)]
        return -0.5 * sum(terms, start=jnp.zeros((), terms[0].dtype))

    return log_prior


def cold_weight(network: Network, input_shape: Shape, outputs: int, examples: int) -> float:
    """Weights per target, at least 1."""
    weights = count_weights(jax.eval_shape(network.build(input_shape, outputs).init, jax.random.key(0)))
    return max(1.0, weights / (examples * outputs))


def build(spec: PosteriorSpec) -> NetworkPosterior:
    """The posterior of a specification; the same object for equal ones, where they can be hashed."""
    try:
        return _cached_build(spec)
    except TypeError:
        return _build(spec, _model(spec.network, spec.input_shape, spec.outputs))


@lru_cache(maxsize=32)
def _cached_build(spec: PosteriorSpec) -> NetworkPosterior:
    network: Any = spec.network
    return _build(spec, _cached_model(network, spec.input_shape, spec.outputs))


@lru_cache(maxsize=32)
def _cached_model(network: Network, input_shape: Shape, outputs: int) -> Model:
    return _model(network, input_shape, outputs)


def _model(network: Network, input_shape: Shape, outputs: int) -> Model:
    """The network, its initialisation compiled: a layer's random numbers would else be compiled by themselves."""
    model = network.build(input_shape, outputs)
    compiled = jit(model.init)

    def init(key: Key) -> PyTree:
        with quick_compilation():
            return compiled(key)

    return model._replace(init=init)


def _build(spec: PosteriorSpec, model: Model) -> NetworkPosterior:
    log_weights = _plain_prior(spec.prior, model)
    if spec.likelihood == "gaussian":
        each = spec.outputs if spec.noise == "each" else None
        known = gaussian(model.apply, noise=FIRST_NOISE, noise_width=NOISE_WIDTH, outputs=each, log_weights=log_weights)
    else:
        temperature = spec.relative_error / spec.outputs
        known = relative_l2(_in_units(model, spec), temperature=temperature, log_weights=log_weights)

    def start(key: Key) -> PyTree:
        weights = model.init(key)
        return known.start(jax.tree.map(lambda w: w if w.dtype == spec.dtype else w.astype(spec.dtype), weights))

    def weights(position: PyTree) -> PyTree:
        return position["network"] if spec.likelihood == "gaussian" else position

    def weighted(position: PyTree, batch: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        *examples, each = batch
        return each * known.log_likelihood(position, (examples[0], examples[1]))

    return NetworkPosterior(
        start=start,
        log_prior=_whole_prior(spec, known.log_prior),
        log_likelihood=weighted,
        outputs=lambda position, x: model.apply(weights(position), x),
        noise=known.noise,
    )


def noise_of(spec: PosteriorSpec, draws: PyTree) -> np.ndarray:
    """The learnt σ of every draw, (draw, …); zero for a likelihood without observation noise."""
    if spec.likelihood == "gaussian":
        return np.exp(np.asarray(draws["log_noise"], float))
    return np.zeros(len(jax.tree.leaves(draws)[0]))


def _plain_prior(prior: Any, model: Model) -> Callable[[PyTree], Scalar]:
    """log p of the network's weights, without what an adaptive prior adds."""
    if isinstance(prior, int | float | np.number):
        return relative_gaussian(model, float(prior))
    return _flat_prior if isinstance(prior, AdaptivePrior) else prior


def _whole_prior(spec: PosteriorSpec, plain: Callable[[PyTree], Scalar]) -> Any:
    """The prior of the whole position: an adaptive one learns from the weights only, not from the noise."""
    if not isinstance(spec.prior, AdaptivePrior):
        return plain
    return prior_by_leaf({"log_noise": _noise_prior}, spec.prior) if spec.likelihood == "gaussian" else spec.prior


def _noise_prior(leaves: PyTree) -> Scalar:
    """log σ ~ N(log 0.1, 2²), without its constant."""
    return -0.5 * jnp.sum(((leaves["log_noise"] - float(np.log(FIRST_NOISE))) / NOISE_WIDTH) ** 2)


def _flat_prior(weights: PyTree) -> Scalar:
    return jnp.zeros((), jax.tree.leaves(weights)[0].dtype)


def _in_units(model: Model, spec: PosteriorSpec) -> Callable[[PyTree, jax.Array], jax.Array]:
    """The network's outputs with mean and scale put back."""
    assert spec.units is not None
    centre, scale = (np.asarray(part, spec.dtype) for part in spec.units)

    def apply(weights: PyTree, x: jax.Array) -> jax.Array:
        return jnp.asarray(centre)[None] + jnp.asarray(scale)[None] * model.apply(weights, x)

    return apply


ROUNDING = 16 * float(np.finfo(np.float64).eps)
"""Values that vary by less than this fraction of the largest are constant."""


class InputScaling(NamedTuple):
    """x ↦ (x − centre) / scale; both broadcast against one example."""

    centre: Array
    scale: Array

    def forward(self, x: Array) -> Array:
        """Scaled inputs."""
        return (x - self.centre[None]) / self.scale[None]


class OutputScales(NamedTuple):
    """y ↦ (y − centre) / scale for the outputs that vary; the others are constant."""

    centre: Array
    """(output,), of all outputs."""
    scale: Array
    """(output,), of all outputs: 0 where an output is constant."""

    @property
    def varying(self) -> NDArray[np.bool_]:
        """Which outputs the network predicts."""
        return self.scale > 0

    def forward(self, y: Array) -> Array:
        """Scaled targets, from (example, output) to (example, varying output)."""
        varying = self.varying
        return (y[:, varying] - self.centre[None, varying]) / self.scale[None, varying]

    def mean(self, z: Array) -> Array:
        """Outputs of the network in the targets' units, constant ones included."""
        full = np.repeat(self.centre[None], len(z), axis=0)
        varying = self.varying
        full[:, varying] += self.scale[None, varying] * z
        return full

    def std(self, z: Array) -> Array:
        """Standard deviations, or half-widths, of the network's outputs in the targets' units; 0 for constant ones."""
        full = np.zeros((len(z), self.centre.size))
        varying = self.varying
        full[:, varying] = self.scale[None, varying] * z
        return full


def _moments(values: Array) -> tuple[Array, Array]:
    """Mean and standard deviation over the first axis; the deviation is 0 where it is only rounding."""
    centre = values.mean(axis=0)
    largest = np.abs(values).max(axis=0)
    constant = np.ptp(values, axis=0) <= ROUNDING * largest
    return np.where(constant, values[0], centre), np.where(constant, 0.0, values.std(axis=0))


def fit_inputs(x: Array) -> InputScaling:
    """Vectors are scaled entry by entry; fields as a whole, or channel by channel, so that places stay comparable."""
    shape = x.shape[1:]
    kept = shape if len(shape) == 1 else (*[1] * (len(shape) - 1), shape[-1] if len(shape) == 3 else 1)
    if len(shape) == 1:
        centre, scale = _moments(x)
    else:
        channels = kept[-1]
        centre, scale = (part.reshape(kept) for part in _moments(x.reshape(-1, channels)))
    return InputScaling(centre, np.where(scale > 0, scale, 1.0))


def fit_outputs(y: Array, scaling: OutputScaling) -> OutputScales:
    """Each output by its own standard deviation, or all by their common one (fields of one quantity)."""
    centre, scale = _moments(y)
    if not np.any(scale > 0):
        raise ValueError(
            f"y: every output has the same value in all {len(y)} examples, so there is nothing to learn; "
            "check that the targets belong to the inputs"
        )
    if scaling == "together":
        varying = scale > 0
        scale = np.where(varying, np.sqrt(np.mean(scale[varying] ** 2)), 0.0)
    return OutputScales(centre, scale)
