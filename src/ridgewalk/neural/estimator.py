"""What the regressor and the classifier share: settings and their checks, the fit, and saving."""

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgewalk._types import PyTree
from ridgewalk._validation import check_between, check_choice, check_positive, check_whole, requires_extra
from ridgewalk.kernel import Sampler
from ridgewalk.neural import DEFAULT_NETWORK, DEFAULT_PRIOR, MethodName
from ridgewalk.neural.compression import PrunedNetworks
from ridgewalk.neural.conformal import Correction
from ridgewalk.neural.fit import FitSettings, PosteriorSample, sample_posterior
from ridgewalk.neural.networks import Network, count_weights, named_network
from ridgewalk.neural.posterior import InputScaling, OutputScales, PosteriorSpec, build, cold_weight, is_large
from ridgewalk.neural.report import FitReport
from ridgewalk.samplers import hamcmc, hasgld_sa, pruned, psgld, sghmc, sgld, sgnht
from ridgewalk.schedules import Every, parse_interval

with requires_extra("neural"):
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted, validate_data

Array = NDArray[np.float64]

DTYPES = ("float32", "float64")
MOST_LISTED = 10

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "hamcmc": hamcmc,
    "hasgld_sa": hasgld_sa,
    "psgld": psgld,
    "sghmc": sghmc,
    "sgld": sgld,
    "sgnht": sgnht,
}

WHOLE_WORK = 2**24
"""Weights × rows up to which a gradient of all rows is cheap."""

BATCH_WORK = 2**22
"""Weights × rows of a batch above that."""


class Defaults(NamedTuple):
    """Settings that are not given."""

    optimiser_steps: int
    learning_rate: float
    steps: int
    burn_in: int
    draws: int
    holdout: float


WARM = Defaults(optimiser_steps=1500, learning_rate=0.01, steps=96_000, burn_in=4_000, draws=400, holdout=0.0)
"""At temperature 1; `steps` is the most that are made."""

COLD = Defaults(optimiser_steps=3000, learning_rate=0.02, steps=600, burn_in=200, draws=40, holdout=0.2)
"""Of a cold posterior, that of a network too large to be sampled at temperature 1."""


@cache
def _known_network(name: str, hidden: tuple[int, ...] | None) -> Network:
    """One object per name, so that fits share compiled programs."""
    return named_network(name, hidden)


def network_of(network: Any, hidden: Any = None) -> Network:
    """A network from its name and the sizes of its hidden layers, or as it is."""
    if isinstance(network, str):
        sizes = None
        if hidden is not None:
            wanted = [hidden] if isinstance(hidden, int | np.integer) else hidden
            try:
                sizes = tuple(int(size) for size in wanted)
            except (TypeError, ValueError):
                raise ValueError(f"hidden: {hidden!r}; give the sizes of the hidden layers, such as (64, 64)") from None
        return _known_network(network, sizes)
    if hidden is not None:
        raise ValueError(f"hidden: {hidden!r} with a network that has its own sizes; use it with network='mlp'")
    if not hasattr(network, "build"):
        raise ValueError(
            f"network: {type(network).__name__} is not a Network; use a name such as 'mlp' or 'mlp:64x64', or wrap it "
            "in EquinoxNetwork, LinenNetwork, NnxNetwork or FunctionNetwork (ridgewalk.neural.networks)"
        )
    known: Network = network
    return known


def sampler_of(sampler: Any, cold: bool) -> Sampler:
    """A sampler from its name, or as it is.

    "auto" is SGHMC at temperature 1, in units of the prior: what `ridgewalk.auto` falls back to on networks, whose
    curvature turns with the position, so that a constant preconditioner gains little. Of a cold posterior it is
    `hasgld_sa`.
    """
    if isinstance(sampler, str):
        check_choice("sampler", sampler, ["auto", *sorted(SAMPLERS)], "a Sampler")
        if sampler == "auto":
            return hasgld_sa() if cold else sghmc()
        return SAMPLERS[sampler]()
    if not isinstance(sampler, Sampler):
        hint = "; call it: ridgewalk.sgld()" if callable(sampler) else ""
        listed = ", ".join(map(repr, sorted(SAMPLERS)))
        raise ValueError(f"sampler: {sampler!r} is not a ridgewalk.Sampler{hint}; or use one of 'auto', {listed}")
    return sampler


def sparse_sampler(sampler: Sampler, sparsity: float, burn_in: int) -> Sampler:
    """The sampler with pruning in the first three quarters of the burn-in; as it is for a sparsity of 0."""
    if sparsity == 0:
        return sampler
    if sampler.pruning is not None:
        raise ValueError(f"sparsity: {sparsity} with a sampler that is pruned already; leave one of them out")
    if burn_in < 2:
        raise ValueError(f"burn_in: {burn_in} steps are too few to prune in; use 100 or more with sparsity")
    return pruned(sampler, float(sparsity), stop=max(1, 3 * burn_in // 4))


def check_finite_rows(name: str, values: ArrayLike) -> None:
    """Raise where examples hold NaN or infinity, with their row numbers."""
    array = np.asarray(values, float)
    good = np.isfinite(array).reshape(len(array), -1).all(axis=1)
    bad = np.flatnonzero(~good)
    if bad.size:
        listed = ", ".join(map(str, bad[:MOST_LISTED])) + (", …" if bad.size > MOST_LISTED else "")
        raise ValueError(
            f"{name}: contains NaN or infinity in {bad.size} of {len(array)} rows ({listed}; the first is 0); "
            "leave these examples out, or impute the values"
        )


def check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise where examples have another shape than those of the fit."""
    if shape != wanted:
        raise ValueError(f"{name}: examples have shape {shape}; the model was fitted to examples of shape {wanted}")


def check_parameters(parameters: dict[str, Any], choices: dict[str, tuple[str, ...]]) -> None:
    """Raise for names and numbers that are not valid."""
    for name, known in {"method": get_args(MethodName), "dtype": DTYPES, **choices}.items():
        check_choice(name, parameters[name], known)
    if parameters["dtype"] == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "dtype: 'float64' needs JAX in 64-bit mode; call jax.config.update('jax_enable_x64', True) first, "
            "or use 'float32'"
        )
    for name, least in (("steps", 2), ("burn_in", 0), ("draws", 2), ("optimiser_steps", 0), ("chains", 1)):
        if parameters[name] is not None:
            check_whole(name, parameters[name], least)
    if parameters["batch_size"] != "auto":
        check_whole("batch_size", parameters["batch_size"], 1, "give one, or 'auto'")
    for name in ("learning_rate", "r_hat", "max_time"):
        if parameters[name] is not None:
            check_positive(name, parameters[name])
    for name in ("step_size", "data_weight"):
        if parameters[name] != "auto":
            check_positive(name, parameters[name], "give one, or 'auto'")
    check_between("sparsity", parameters["sparsity"], 0, 1, "[)", "give the fraction of weights to prune, such as 0.7")
    if parameters["sparsity"] and parameters["method"] != "sample":
        raise ValueError(f"sparsity: weights are pruned while they are sampled, not by {parameters['method']!r}")
    _check_prior(parameters["prior"])
    parse_interval(parameters["checkpoint_every"], "checkpoint_every")


def _check_prior(prior: Any) -> None:
    if isinstance(prior, int | float | np.number):
        check_positive("prior", prior)
    elif prior is None or isinstance(prior, str):
        raise ValueError(f"prior: {prior!r} is neither a scale such as 1.0 nor a log prior of the weights")


def seed_of(random_state: Any, resumable: bool) -> int:
    """A seed from an int, from NumPy's legacy generator, or a random one from None."""
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer | np.random.RandomState | None):
        raise ValueError(f"random_state: {random_state!r} is not a seed; give a whole number such as 0, or None")
    if isinstance(random_state, int | np.integer):
        if not 0 <= random_state < 2**63:
            raise ValueError(f"random_state: {random_state} is not between 0 and 2^63; give a small whole number")
        return int(random_state)
    if resumable:
        raise ValueError("random_state: a fit with a checkpoint needs a whole number, so that it can be resumed")
    source = np.random.mtrand._rand if random_state is None else random_state
    return int(source.randint(2**31 - 1))


def settings_from(parameters: dict[str, Any], cold: bool, weights: int, examples: int, seed: int) -> FitSettings:
    """The settings of the phases of a fit, with defaults where none are given."""
    defaults = COLD if cold else WARM
    given = {
        name: default if parameters.get(name) is None else parameters[name]
        for name, default in defaults._asdict().items()
    }
    if parameters["burn_in"] is None and parameters["steps"] is not None:
        given["burn_in"] = min(defaults.burn_in, given["steps"] // 3)
    batch, step = parameters["batch_size"], parameters["step_size"]
    if batch == "auto":
        batch = 32 if cold else None
        if not cold and weights * examples > WHOLE_WORK:
            batch = int(np.clip(2 ** round(np.log2(BATCH_WORK / weights)), 32, 4096))
    if batch is not None and not cold and batch >= examples:
        batch = None
    left = given["steps"] - given["burn_in"]
    if left < 1:
        raise ValueError(
            f"steps: {given['steps']} include burn_in = {given['burn_in']}, which leaves none to keep; "
            f"make more steps than {given['burn_in']}, or lower burn_in"
        )
    if parameters["draws"] is not None and left * (parameters["chains"] or 2) < given["draws"]:
        raise ValueError(
            f"draws: {given['draws']} do not fit into steps = {given['steps']} with burn_in = {given['burn_in']}; "
            "make more steps, or keep fewer draws"
        )
    folder = parameters["checkpoint"]
    return FitSettings(
        method=parameters["method"],
        cold=cold,
        optimiser_steps=given["optimiser_steps"],
        learning_rate=given["learning_rate"],
        steps=given["steps"],
        burn_in=given["burn_in"],
        draws=given["draws"],
        chains=parameters["chains"],
        batch_size=batch,
        step_size=step if step == "auto" else float(step),
        r_hat=parameters["r_hat"],
        max_time=parameters["max_time"],
        seed=seed,
        checkpoint=None if folder is None else Path(folder),
        checkpoint_every=parameters["checkpoint_every"],
        progress=parameters["progress"],
    )


class Fitted(NamedTuple):
    """What predictions need, and a saved model holds."""

    draws: list[np.ndarray]
    """Leaves (draw, …) of the parameters, in the order of their tree."""
    inputs: InputScaling
    outputs: OutputScales
    """Of a classifier, those of no output."""
    correction: Correction
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    examples: int
    classes: tuple[Any, ...] = ()
    """Of a classifier."""
    mixture: bool = True
    """Whether the predictive distribution is the mixture over draws; of a cold posterior only its moments are used."""


@dataclass(eq=False, repr=False)
class NeuralSettings:
    """The settings that both estimators have, as arguments of their constructors; see `NeuralRegressor`.

    scikit-learn reads an estimator's settings from the signature of its constructor, here that of a dataclass.
    """

    network: str | Network = DEFAULT_NETWORK
    _: KW_ONLY
    hidden: tuple[int, ...] | None = None
    method: MethodName = "sample"
    sampler: Any = "auto"
    prior: Any = DEFAULT_PRIOR
    sparsity: float = 0.0
    data_weight: float | str = "auto"
    optimiser_steps: int | None = None
    learning_rate: float | None = None
    steps: int | None = None
    burn_in: int | None = None
    draws: int | None = None
    chains: int | None = None
    batch_size: int | str = "auto"
    step_size: float | str = "auto"
    r_hat: float | None = 1.1
    max_time: float | None = None
    dtype: str = "float32"
    random_state: Any = 0
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: Every = "5 min"
    progress: bool = False


class NeuralEstimator(BaseEstimator, NeuralSettings):  # type: ignore[misc]
    """A network whose weights are sampled from their posterior; see `NeuralRegressor` and `NeuralClassifier`."""

    _fitted: Fitted
    _pruned: PrunedNetworks
    report_: FitReport

    def _spec(self, fitted: Fitted) -> PosteriorSpec:
        raise NotImplementedError

    def _checked_inputs(self, X: ArrayLike) -> Array:
        check_is_fitted(self, "report_")
        x: Array = validate_data(self, X, dtype=np.float64, allow_nd=True, ensure_all_finite=False, reset=False)
        check_finite_rows("X", x)
        check_shape("X", x.shape[1:], self._fitted.input_shape)
        return x

    def _scaled(self, X: ArrayLike) -> np.ndarray:
        """Checked inputs in scaled units."""
        x = self._checked_inputs(X)
        scaled: np.ndarray = self._fitted.inputs.forward(x).astype(self.dtype)
        return scaled

    def _is_cold(self, spec: PosteriorSpec, normalised: bool = True) -> bool:
        """Whether few steps are made of a cold posterior, instead of sampling at temperature 1."""
        if self.data_weight != "auto":
            return not normalised or float(self.data_weight) != 1
        return not normalised or is_large(spec)

    def _data_weight(self, spec: PosteriorSpec, examples: int, cold: bool) -> float:
        """The power of the likelihood."""
        if self.data_weight != "auto":
            return float(self.data_weight)
        return cold_weight(spec, examples) if cold else 1.0

    def _sample(
        self,
        spec: PosteriorSpec,
        data_weight: float,
        settings: FitSettings,
        x: np.ndarray,
        y: np.ndarray,
        each: np.ndarray,
    ) -> PosteriorSample:
        """Draws by the method and sampler of this estimator."""
        sampler = sparse_sampler(sampler_of(self.sampler, settings.cold), self.sparsity, settings.burn_in)
        return sample_posterior(spec, sampler, x, y, each, data_weight, settings)

    def _settings(self, spec: PosteriorSpec, cold: bool, examples: int) -> FitSettings:
        weights = count_weights(jax.eval_shape(build(spec).start, jax.random.key(0)))
        seed = seed_of(self.random_state, self.checkpoint is not None)
        return settings_from(self.get_params(deep=False), cold, weights, examples, seed)

    @property
    def draws_(self) -> PyTree:
        """Draws of the parameters (the network's weights, and those of the noise), leaves (draw, …)."""
        check_is_fitted(self, "report_")
        return jax.tree.unflatten(jax.tree.structure(self._like(self._fitted)), self._fitted.draws)

    def _like(self, fitted: Fitted) -> PyTree:
        """Shapes of the parameters of one draw."""
        posterior = build(self._spec(fitted))
        found = jax.eval_shape(lambda key: posterior.parameters(posterior.start(key)), jax.random.key(0))
        return {**found, "tangent": found["network"]} if self.method == "laplace" else found

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a folder, atomically: safetensors and JSON."""
        from ridgewalk.neural.io import save_model  # noqa: PLC0415  (which imports this class)

        check_is_fitted(self, "report_")
        save_model(self, Path(path), overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, network: Network | None = None) -> Self:
        """Read a saved model; a network without a name must be passed again. Nothing in the folder is executed."""
        from ridgewalk.neural.io import load_model  # noqa: PLC0415

        return load_model(cls, Path(path), network)

    def __sklearn_tags__(self) -> Any:
        """Inputs may have more than two axes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
