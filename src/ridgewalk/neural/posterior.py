"""The posterior of a network's weights that an estimator samples, and the scaling of its data.

`build` makes the posterior from its settings, a `PosteriorSpec`, for standardised data: `fit_inputs` and `fit_outputs`
scale in float64, before numbers are converted to the network's dtype, and leave out constant outputs.

A *position* is what is sampled: the weights in units of the prior (`function_prior`), the scales of the layers, and the
likelihood's own parameters. *Parameters* are what predictions need and a saved model holds: the weights themselves and
the likelihood's parameters.

A prior of the weights in units of the functions that it makes, whatever the network's initialisation.

Every weight is w = centre + unit · s · z with z ~ N(0, 1) a priori:

- arrays of two or more axes, the weights of layers: the unit is c · r, r the root mean square of the array at
  initialisation and c one number for the network; s = exp(t), t ~ N(0, 1) is the scale of the array, which is sampled
  with the weights (or 1, where scales are fixed);
- vectors and scalars (biases, gains): unit 1, s = 1, and the centre is 0, or what they are initialised to if that is
  a constant, as for the gain of a layer norm.

c is found by measurement: for standard normal inputs, the functions of the prior with all s = 1 vary over the inputs
with a standard deviation of `variation`, in the root mean square over functions and outputs. Networks of equinox, of
flax and of this library, whose initialisations differ by constant factors, have the same prior then.

The posterior is sampled in z and t: the prior's scale does not enter its curvature, and the chains start where the
network's initialisation is.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ridgewalk._compilation import jit, quick_compilation
from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk.neural import OutputScaling
from ridgewalk.neural.likelihoods import Likelihood, no_prior
from ridgewalk.neural.networks import Model, Network, Shape, count_weights
from ridgewalk.priors.base import AdaptivePrior, prior_by_leaf
from ridgewalk.target import Posterior

SCALE_WIDTH = 1.0
"""Standard deviation of the logarithm of an array's scale."""

FUNCTIONS, INPUTS = 64, 128
"""Functions of the prior, and inputs, that the variation is measured on."""

MOST_WORK = 2**27
"""Weights × functions × inputs of a measurement: larger networks are measured on fewer."""

ITERATIONS, TOLERANCE = 30, 0.01


class LeafPrior(NamedTuple):
    """Of one array of weights."""

    centre: float
    unit: float
    scaled: bool
    """Whether it has a scale of its own."""


class FunctionPrior(NamedTuple):
    """The map from coordinates (z, t) to weights, and the log density of the coordinates."""

    leaves: tuple[LeafPrior, ...]
    learnt: bool
    """Whether scales are sampled."""

    @property
    def scales(self) -> int:
        """The number of scales."""
        return sum(leaf.scaled for leaf in self.leaves) if self.learnt else 0

    def weights(self, z: PyTree, scales: jax.Array | None) -> PyTree:
        """The weights at coordinates."""
        flat, structure = jax.tree.flatten(z)
        found, number = [], 0
        for leaf, prior in zip(flat, self.leaves, strict=True):
            size: Any = prior.unit
            if prior.scaled and self.learnt and scales is not None:
                size = size * jnp.exp(SCALE_WIDTH * scales[number])
                number += 1
            found.append(prior.centre + (size * leaf).astype(leaf.dtype))
        return jax.tree.unflatten(structure, found)

    def coordinates(self, weights: PyTree) -> PyTree:
        """z of weights, where all scales are 1."""
        flat, structure = jax.tree.flatten(weights)
        parts = [((w - prior.centre) / prior.unit).astype(w.dtype) for w, prior in zip(flat, self.leaves, strict=True)]
        return jax.tree.unflatten(structure, parts)

    def log_density(self, z: PyTree, scales: jax.Array | None) -> Scalar:
        """Standard normals, without constants."""
        terms = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(z)]
        if self.learnt and scales is not None:
            terms.append(jnp.sum(scales**2))
        return -0.5 * sum(terms, start=jnp.zeros((), terms[0].dtype))


@partial(jit, static_argnums=0)
def _coordinates(prior: FunctionPrior, weights: PyTree) -> PyTree:
    return prior.coordinates(weights)


def function_prior(
    model: Model, input_shape: Shape, outputs: int, variation: float, *, learnt: bool = True
) -> FunctionPrior:
    """The prior whose functions vary by `variation`; of the network's outputs only the first `outputs` count."""
    starts = [[np.asarray(leaf, float) for leaf in jax.tree.leaves(model.init(jax.random.key(k)))] for k in (0, 1)]
    leaves = tuple(map(_leaf_prior, *starts))
    unit = FunctionPrior(leaves, learnt=False)
    weights = count_weights(starts[0])
    share = max(1, -(-weights * FUNCTIONS * INPUTS // MOST_WORK))
    functions, inputs = max(2, FUNCTIONS // min(share, 16)), max(8, INPUTS // max(1, share // 16))
    like, structure = jax.tree.flatten(jax.eval_shape(model.init, jax.random.key(0)))
    ends = np.cumsum([leaf.size for leaf in like])[:-1]

    @jit
    def spread(factor: jax.Array) -> jax.Array:
        """Root mean square, over functions and outputs, of the standard deviation over inputs."""
        x = jax.random.normal(jax.random.key(3), (inputs, *input_shape))

        def variance(key: jax.Array) -> jax.Array:
            drawn = jax.random.normal(key, (weights,))  # for all arrays: each draw would compile a generator
            parts = zip(jnp.split(drawn, ends), like, leaves, strict=True)
            z = [
                (factor * part if prior.scaled else part).reshape(leaf.shape).astype(leaf.dtype)
                for part, leaf, prior in parts
            ]
            raw = model.apply(unit.weights(jax.tree.unflatten(structure, z), None), x)
            return jnp.mean(jnp.var(raw[:, :outputs], axis=0))

        return jnp.sqrt(jnp.mean(jax.lax.map(variance, jax.random.split(jax.random.key(2), functions))))

    def log_spread(log_factor: float) -> float:
        with np.errstate(divide="ignore"):
            return float(np.log(spread(jnp.asarray(np.exp(log_factor), jnp.float32))))

    with quick_compilation():
        factor = _solve(log_spread, float(np.log(variation)))
    stretched = tuple(leaf._replace(unit=leaf.unit * factor) if leaf.scaled else leaf for leaf in leaves)
    return FunctionPrior(stretched, learnt)


def _leaf_prior(first: np.ndarray, second: np.ndarray) -> LeafPrior:
    if first.ndim < 2:
        constant = np.ptp(first) == 0 and np.array_equal(first, second)
        return LeafPrior(float(first.flat[0]) if constant else 0.0, 1.0, scaled=False)
    size = float(np.sqrt(np.mean(np.square([first, second]))))
    return LeafPrior(0.0, size or 1.0, scaled=True)


def _solve(log_spread: Callable[[float], float], wanted: float) -> float:
    """exp(x) with log_spread(x) = wanted, for an increasing function: the secant method, kept within a bracket."""
    x, slope, low, high = 0.0, 1.0, -np.inf, np.inf
    before: tuple[float, float] | None = None
    for _ in range(ITERATIONS):
        gap = wanted - log_spread(x)
        if not np.isfinite(gap):
            raise ValueError("network: its outputs at random weights are constant or not finite, so they have no prior")
        if abs(gap) < TOLERANCE:
            break
        low, high = (x, high) if gap > 0 else (low, x)
        if before is not None and x != before[0]:
            slope = float(np.clip((before[1] - gap) / (x - before[0]), 0.3, 20.0))
        before = x, gap
        x = x + float(np.clip(gap / slope, -3.0, 3.0))
        if not low < x < high:
            x = 0.5 * (low + high)
    return float(np.exp(x))


Array = NDArray[np.float64]

MOST_WARM = 2**15
"""Weights up to which a network is sampled at temperature 1 by default."""

LEAST_ROWS = 1024
"""Rows that the data of a small network are padded to at least, for minibatches."""

LEAST_ROWS_LARGE = 256
"""Those of a network of more than `MOST_WARM` weights, whose first curvature estimate on all rows takes longer."""

LEAST_ROWS_WHOLE = 128
"""Rows that data are padded to at least where every gradient is of all rows."""

MOST_BYTES = 2**26
"""Data that would take more bytes than this when padded are not padded: their fit takes long against compiling."""


class PosteriorSpec(NamedTuple):
    """What fixes the posterior beside the data. Hashable: equal specifications share compiled programs.

    Nothing here depends on the number of examples, so that a fit to more or fewer compiles nothing.
    """

    network: Network
    input_shape: Shape
    likelihood: Likelihood
    prior: Any
    """How much functions of the prior vary (see `function_prior`), or a log prior of the network's weights."""
    learnt_scales: bool
    """Whether the scales of the layers are sampled with the weights."""
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
    """Functions of positions, which `start` makes, and of parameters, which `parameters` makes of positions."""

    start: Callable[[Key], PyTree]
    log_prior: Any
    log_likelihood: Callable[[PyTree, tuple[jax.Array, jax.Array, jax.Array]], jax.Array]
    parameters: Callable[[PyTree], PyTree]
    raw: Callable[[PyTree, jax.Array], jax.Array]
    """The network's outputs at parameters; with "tangent", those of the network linearised in the weights."""
    likelihood: Likelihood

    def posterior(self, data: Data) -> Posterior:
        """With data."""
        return Posterior(self.log_prior, self.log_likelihood, (data.x, data.y, data.weights))


def padded_rows(examples: int, weights: int, row_bytes: int, whole: bool) -> int:
    """The number of rows that data are padded to.

    For minibatches 1,024, 4,096, …, at least twice the number of examples. Where every gradient is of the `whole` data
    a multiple of a power of 2, at most an eighth more than the examples.
    """
    if whole:
        step = max(LEAST_ROWS_WHOLE, 1 << max(0, examples.bit_length() - 4))
        rows = -(-examples // step) * step
    else:
        rows = LEAST_ROWS if weights <= MOST_WARM else LEAST_ROWS_LARGE
        while rows < 2 * examples:
            rows *= 4
    return rows if rows * row_bytes <= MOST_BYTES else examples


def padded(x: np.ndarray, y: np.ndarray, each: np.ndarray, data_weight: float, weights: int, *, whole: bool) -> Data:
    """Data with rows added, so that fits to other numbers of rows share shapes; `each` weighs the examples.

    For the `whole` data the rows added have weight 0. For minibatches rows are repeated up to `padded_rows`, in random
    order: a row that stands m times has the weight `data_weight` / m, so that the sum over all rows is that over the
    examples, and minibatches of rows estimate it without bias. Rows stand ⌊c⌋ or ⌈c⌉ times, c ≥ 2 the padded number of
    rows per example, which makes the variance of minibatch gradients at most 4 % larger than that of sampling the
    examples.
    """
    examples = len(x)
    row_bytes = (x.nbytes + y.nbytes) // examples
    rows = padded_rows(examples, weights, row_bytes, whole)
    order, share = np.arange(rows) % examples, np.ones(rows)
    if whole:
        share[examples:] = 0
    elif rows > examples:
        order = np.random.default_rng(0).permutation(order)
        share = 1 / np.bincount(order, minlength=examples)[order]
    found = (data_weight * share * each[order]).astype(x.dtype)
    return Data(x[order], y[order], found, examples, data_weight)


def is_large(spec: PosteriorSpec) -> bool:
    """Whether the network has more weights than are sampled at temperature 1 by default."""
    return _weights(spec) > MOST_WARM


def cold_weight(spec: PosteriorSpec, examples: int) -> float:
    """Weights per target, at least 1: the power of the likelihood of a cold posterior.

    Posterior noise in very many weights takes longer to explore than to fit, and swamps the fit.
    """
    return max(1.0, _weights(spec) / (examples * spec.likelihood.network_outputs))


def _weights(spec: PosteriorSpec) -> int:
    return count_weights(jax.eval_shape(_built_model(spec).init, jax.random.key(0)))


def build(spec: PosteriorSpec) -> NetworkPosterior:
    """The posterior of a specification; the same object for equal ones, where they can be hashed."""
    try:
        return _cached_build(spec)
    except TypeError:
        return _build(spec, _built_model(spec))


@lru_cache(maxsize=32)
def _cached_build(spec: PosteriorSpec) -> NetworkPosterior:
    return _build(spec, _built_model(spec))


def _built_model(spec: PosteriorSpec) -> Model:
    network: Any = spec.network
    try:
        return _cached_model(network, spec.input_shape, spec.likelihood.network_outputs)
    except TypeError:
        return _model(network, spec.input_shape, spec.likelihood.network_outputs)


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
    likelihood = spec.likelihood
    units = _function_prior(spec, model) if is_number(spec.prior) else None
    own_names = tuple(likelihood.start(spec.dtype))

    def start(key: Key) -> PyTree:
        weights = jax.tree.map(lambda w: w.astype(spec.dtype), model.init(key))
        position = {"network": weights if units is None else _coordinates(units, weights)}
        if units is not None and units.scales:
            position["scales"] = np.zeros(units.scales, spec.dtype)
        return {**position, **likelihood.start(spec.dtype)}

    def own(tree: PyTree) -> dict[str, jax.Array]:
        return {name: tree[name] for name in own_names}

    def parameters(position: PyTree) -> PyTree:
        weights = position["network"]
        if units is not None:
            weights = units.weights(weights, position.get("scales"))
        return {"network": weights, **own(position)}

    def log_weights(position: PyTree) -> Scalar:
        if units is not None:
            return units.log_density(position["network"], position.get("scales"))
        value: Scalar = no_prior() if isinstance(spec.prior, AdaptivePrior) else spec.prior(position["network"])
        return value

    def log_prior(position: PyTree) -> Scalar:
        return log_weights(position) + likelihood.log_prior(own(position))

    def raw(parameters: PyTree, x: jax.Array) -> jax.Array:
        if "tangent" not in parameters:
            return model.apply(parameters["network"], x)
        at, along = parameters["network"], parameters["tangent"]
        value, change = jax.jvp(lambda weights: model.apply(weights, x), (at,), (along,))
        return value + change

    def weighted(position: PyTree, batch: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        x, y, each = batch
        found = parameters(position)
        return each * likelihood.log_likelihood(own(found), raw(found, x), y)

    return NetworkPosterior(start, _whole_prior(spec, log_prior), weighted, parameters, raw, likelihood)


def is_number(prior: Any) -> bool:
    """Whether a prior is a number, the variation of its functions."""
    return isinstance(prior, int | float | np.number)


def _function_prior(spec: PosteriorSpec, model: Model) -> FunctionPrior:
    observed = getattr(spec.likelihood, "outputs", spec.likelihood.network_outputs)
    return function_prior(model, spec.input_shape, observed, float(spec.prior), learnt=spec.learnt_scales)


def _whole_prior(spec: PosteriorSpec, plain: Callable[[PyTree], Scalar]) -> Any:
    """The prior of the whole position: an adaptive one learns from the weights only, not from the noise."""
    if not isinstance(spec.prior, AdaptivePrior):
        return plain
    likelihood, names = spec.likelihood, tuple(spec.likelihood.start(spec.dtype))
    return prior_by_leaf(dict.fromkeys(names, likelihood.log_prior), spec.prior) if names else spec.prior


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
