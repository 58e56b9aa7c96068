"""`SurrogateRegressor`: a Bayesian neural network with the scikit-learn estimator API."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgewalk._types import PyTree
from ridgewalk._validation import check_between, check_choice, check_positive, check_whole, requires_extra
from ridgewalk.kernel import Sampler
from ridgewalk.neural import DEFAULT_PRIOR, LikelihoodName, OutputScaling, RecalibrationName
from ridgewalk.neural.compression import PrunedNetworks
from ridgewalk.neural.conformal import Correction, IntervalCalibration, correct, no_correction
from ridgewalk.neural.fit import FitSettings, PosteriorSample, sample_posterior
from ridgewalk.neural.networks import Network, mlp, permeability_network, source_network
from ridgewalk.neural.posterior import (
    InputScaling,
    NoiseKind,
    OutputScales,
    PosteriorSpec,
    build,
    cold_weight,
    fit_inputs,
    fit_outputs,
    noise_of,
)
from ridgewalk.neural.predictive import HeldOut, Predictive, predict_held_out, predict_scaled
from ridgewalk.neural.report import FitReport
from ridgewalk.samplers import hamcmc, hasgld_sa, pruned, psgld, sghmc, sgld, sgnht
from ridgewalk.schedules import Every, parse_interval

with requires_extra("neural"):
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.metrics import r2_score
    from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data

Array = NDArray[np.float64]

FEWEST_TO_HOLD_OUT = 10
"""With fewer examples none are held out."""

DTYPES = ("float32", "float64")
MOST_LISTED = 10

NETWORKS: dict[str, Callable[[], Network]] = {
    "mlp": mlp,
    "permeability": permeability_network,
    "source": source_network,
}
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "hamcmc": hamcmc,
    "hasgld_sa": hasgld_sa,
    "psgld": psgld,
    "sghmc": sghmc,
    "sgld": sgld,
    "sgnht": sgnht,
}


@cache
def _named_network(name: str) -> Network:
    """One object per name, so that fits share compiled programs."""
    return NETWORKS[name]()


def network_of(network: Any) -> Network:
    """A network from its name, or as it is."""
    if isinstance(network, str):
        check_choice("network", network, sorted(NETWORKS), "a Network")
        return _named_network(network)
    if not hasattr(network, "build"):
        raise ValueError(
            f"network: {type(network).__name__} is not a Network; use one of {_listed(NETWORKS)}, or wrap it in "
            "EquinoxNetwork, LinenNetwork, NnxNetwork or FunctionNetwork (ridgewalk.neural.networks)"
        )
    return network


def sampler_of(sampler: Any) -> Sampler:
    """A sampler from its name, or as it is."""
    if isinstance(sampler, str):
        check_choice("sampler", sampler, sorted(SAMPLERS), "a Sampler")
        return SAMPLERS[sampler]()
    if not isinstance(sampler, Sampler):
        hint = "; call it: ridgewalk.sgld()" if callable(sampler) else ""
        raise ValueError(f"sampler: {sampler!r} is not a ridgewalk.Sampler{hint}; or use one of {_listed(SAMPLERS)}")
    return sampler


def sparse_sampler(sampler: Sampler, sparsity: float, burn_in: int) -> Sampler:
    """The sampler with pruning in the first three quarters of the burn-in; as it is for a sparsity of 0."""
    check_between("sparsity", sparsity, 0, 1, "[)", "give the fraction of weights to prune, such as 0.7")
    if sparsity == 0:
        return sampler
    if sampler.pruning is not None:
        raise ValueError(f"sparsity: {sparsity} with a sampler that is pruned already; leave one of them out")
    if burn_in < 2:
        raise ValueError(f"burn_in: {burn_in} steps are too few to prune in; use 100 or more with sparsity")
    return pruned(sampler, float(sparsity), stop=max(1, 3 * burn_in // 4))


def _listed(names: dict[str, Any]) -> str:
    return ", ".join(map(repr, sorted(names)))


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


def check_relative(y: Array) -> None:
    """Raise where a target is zero everywhere and so has no relative error."""
    bad = np.flatnonzero(np.linalg.norm(y, axis=1) == 0)
    if bad.size:
        raise ValueError(
            f"y: row {bad[0]} is zero everywhere and has no relative error; leave it out, or use likelihood='gaussian'"
        )


def check_parameters(parameters: dict[str, Any]) -> None:
    """Raise for names and numbers that are not valid."""
    choices: dict[str, tuple[str, ...]] = {
        "likelihood": get_args(LikelihoodName),
        "noise": get_args(NoiseKind),
        "output_scaling": get_args(OutputScaling),
        "recalibration": get_args(RecalibrationName),
        "dtype": DTYPES,
    }
    for name, known in choices.items():
        check_choice(name, parameters[name], known)
    if parameters["dtype"] == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "dtype: 'float64' needs JAX in 64-bit mode; call jax.config.update('jax_enable_x64', True) first, "
            "or use 'float32'"
        )
    for name, least in (("steps", 2), ("burn_in", 0), ("draws", 2), ("batch_size", 1), ("optimiser_steps", 0)):
        check_whole(name, parameters[name], least)
    if parameters["chains"] is not None:
        check_whole("chains", parameters["chains"])
    for name in ("learning_rate", "relative_error"):
        check_positive(name, parameters[name])
    _check_prior(parameters["prior"])
    for name in ("step_size", "data_weight"):
        if parameters[name] != "auto":
            check_positive(name, parameters[name], "give one, or 'auto'")
    check_between("holdout", parameters["holdout"], 0, 1, "[)", "use 0.2, or 0 to hold out none")
    left = parameters["steps"] - parameters["burn_in"]
    if left < 1:
        raise ValueError(
            f"steps: {parameters['steps']} include burn_in = {parameters['burn_in']}, which leaves none to keep; "
            f"make more steps than {parameters['burn_in']} (three times as many is the default), or lower burn_in"
        )
    if left * (parameters["chains"] or 2) < parameters["draws"]:
        raise ValueError(
            f"draws: {parameters['draws']} do not fit into steps = {parameters['steps']} with burn_in = "
            f"{parameters['burn_in']}; make more steps, or keep fewer draws"
        )
    parse_interval(parameters["checkpoint_every"], "checkpoint_every")


def settings_from(parameters: dict[str, Any], seed: int) -> FitSettings:
    """The settings of the phases of a fit."""
    names = [name for name in FitSettings._fields if name not in ("seed", "checkpoint", "step_size")]
    folder, step = parameters["checkpoint"], parameters["step_size"]
    return FitSettings(
        **{name: parameters[name] for name in names},
        seed=seed,
        checkpoint=None if folder is None else Path(folder),
        step_size=step if step == "auto" else float(step),
    )


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


def _check_prior(prior: Any) -> None:
    if isinstance(prior, int | float | np.number):
        check_positive("prior", prior)
    elif prior is None or isinstance(prior, str):
        raise ValueError(f"prior: {prior!r} is neither a scale such as 1.0 nor a log prior of the weights")


class Fitted(NamedTuple):
    """What predictions need, and a saved model holds."""

    draws: list[np.ndarray]
    """Leaves (draw, …) of the positions, in the order of the network's tree."""
    inputs: InputScaling
    outputs: OutputScales
    correction: Correction
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    examples: int


class SurrogateRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression with a neural network whose weights are sampled from their posterior.

    `fit` standardises the data, holds some out, brings one network per chain to a mode with Adam, samples the posterior
    of the weights from there (`ridgewalk.sample`), and calibrates the predictive standard deviation on the held-out
    data. `report_` says what was done. Inputs are (n, …), vectors or fields; targets (n,), (n, outputs) or fields
    (n, …).

    A second fit with another number of rows compiles nothing, as long as shapes, settings and likelihood "gaussian" are
    the same: data are padded to one of few sizes (`ridgewalk.neural.posterior.padded`).

    Args:
        network: "mlp", "source", "permeability", or a `Network` such as `EquinoxNetwork(make)`.
        sampler: the name of a sampler, such as "hasgld_sa" or "sgld", or a `Sampler`.
        likelihood: "gaussian", with learnt noise, or "relative_l2", the relative error of a whole field.
        prior: the prior standard deviation of each weight in units of its layer's initialisation; or a log prior of the
            network's weights, such as `gaussian_prior(0.5)`, `spike_and_slab()` or a function of them. The noise has a
            prior of its own.
        sparsity: fraction of the weights, biases excluded, that is pruned during burn-in; 0 for none. A pruned model is
            smaller on disk, and predicts few examples at a time by sparse products.
        data_weight: the power of the likelihood, 1 for the Bayesian posterior. "auto" is 1, or the number of weights
            over the number of targets where there are more weights: at temperature 1, posterior noise in so many
            weights swamps the fit. This is a cold posterior; recalibration corrects its predictive standard deviation.
            Gradient noise makes up for part of it: see `ridgewalk.neural.fit`.
        noise: observation noise learnt for "each" output, or "shared" by all.
        relative_error: expected relative error of one example under "relative_l2"; the likelihood's temperature is this
            over the number of outputs.
        optimiser_steps: steps of Adam for each chain; 0 starts sampling from random weights.
        learning_rate: the largest learning rate of the optimiser.
        steps: sampling steps of each chain, burn-in included.
        burn_in: first sampling steps that are not kept.
        draws: number of draws of the weights that are kept, over all chains.
        chains: number of chains, each from its own random weights; None for 4, or 2 from a million weights on.
        batch_size: examples per step, of optimiser and sampler.
        step_size: ε of the sampler, or "auto" (see `ridgewalk.neural.fit.stable_step_size`).
        holdout: fraction of the examples held out for recalibration.
        recalibration: "conformal" (intervals with a coverage guarantee; for levels that need more examples than were
            held out, and for standard deviations: "temperature"), "temperature" (one factor), or "none".
        output_scaling: scale outputs by the standard deviation of "each" one, or of all "together" (fields of one
            quantity).
        dtype: of weights and sampling, "float32" or "float64".
        random_state: a seed; the same one gives the same model.
        checkpoint: a folder from which the same call resumes bit for bit after a kill.
        checkpoint_every: steps (500) or time ("10 min") between checkpoints.
        progress: show progress bars on a terminal.
    """

    def __init__(
        self,
        network: str | Network = "mlp",
        sampler: Any = "hasgld_sa",
        *,
        likelihood: LikelihoodName = "gaussian",
        prior: Any = DEFAULT_PRIOR,
        sparsity: float = 0.0,
        data_weight: float | str = "auto",
        noise: NoiseKind = "each",
        relative_error: float = 0.02,
        optimiser_steps: int = 3000,
        learning_rate: float = 5e-3,
        steps: int = 600,
        burn_in: int = 200,
        draws: int = 40,
        chains: int | None = None,
        batch_size: int = 32,
        step_size: float | str = "auto",
        holdout: float = 0.2,
        recalibration: RecalibrationName = "conformal",
        output_scaling: OutputScaling = "each",
        dtype: str = "float32",
        random_state: Any = 0,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: Every = "5 min",
        progress: bool = False,
    ) -> None:
        self.network = network
        self.sampler = sampler
        self.likelihood = likelihood
        self.prior = prior
        self.sparsity = sparsity
        self.data_weight = data_weight
        self.noise = noise
        self.relative_error = relative_error
        self.optimiser_steps = optimiser_steps
        self.learning_rate = learning_rate
        self.steps = steps
        self.burn_in = burn_in
        self.draws = draws
        self.chains = chains
        self.batch_size = batch_size
        self.step_size = step_size
        self.holdout = holdout
        self.recalibration = recalibration
        self.output_scaling = output_scaling
        self.dtype = dtype
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.progress = progress

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to inputs (n, …) and targets (n, …)."""
        parameters = self.get_params(deep=False)
        check_parameters(parameters)
        network_of(self.network)
        sampler = sparse_sampler(sampler_of(self.sampler), self.sparsity, self.burn_in)
        x, targets = self._checked_data(X, y)
        seed = seed_of(self.random_state, self.checkpoint is not None)
        flat = targets.reshape(len(targets), -1)
        if self.likelihood == "relative_l2":
            check_relative(flat)
        learn, held = _split(len(x), self.holdout if self.recalibration != "none" else 0.0, seed)
        inputs, outputs = fit_inputs(x[learn]), fit_outputs(flat[learn], self.output_scaling)
        shapes = x.shape[1:], targets.shape[1:]
        fitted = Fitted([], inputs, outputs, no_correction(0).correction, *shapes, len(learn))
        spec, data_weight = self._spec(fitted), self._data_weight(fitted)
        scaled = inputs.forward(x).astype(self.dtype)
        wanted = flat[learn][:, outputs.varying] / _typical(outputs) if spec.units else outputs.forward(flat[learn])
        found = sample_posterior(
            spec, sampler, scaled[learn], wanted.astype(self.dtype), data_weight, settings_from(parameters, seed)
        )
        predicted = predict_held_out(spec, found.draws, scaled[held if held.size else learn], found.chains)
        checks = no_correction(spec.outputs)
        if held.size:
            checks = correct(predicted.predictive, outputs.forward(flat[held]), self.recalibration, seed)
        self._fitted = fitted._replace(draws=jax.tree.leaves(found.draws), correction=checks.correction)
        self._pruned = PrunedNetworks()
        self.report_ = self._report(spec, found, checks, predicted, len(held))
        return self

    def _checked_data(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        if y is None:
            raise ValueError("y: it is None; SurrogateRegressor requires y to be passed, but the target y is None")
        x: Array = validate_data(
            self, X, dtype=np.float64, allow_nd=True, ensure_all_finite=False, ensure_min_samples=2
        )
        targets: Array = check_array(
            y, dtype=np.float64, allow_nd=True, ensure_2d=False, ensure_all_finite=False, input_name="y"
        )
        check_consistent_length(x, targets)
        check_finite_rows("X", x)
        check_finite_rows("y", targets)
        return x, targets

    def _data_weight(self, fitted: Fitted) -> float:
        if self.data_weight != "auto":
            return float(self.data_weight)
        outputs = int(fitted.outputs.varying.sum())
        return cold_weight(network_of(self.network), fitted.input_shape, outputs, fitted.examples)

    def _spec(self, fitted: Fitted) -> PosteriorSpec:
        varying, units = fitted.outputs.varying, None
        if self.likelihood == "relative_l2":
            typical = _typical(fitted.outputs)
            parts = (fitted.outputs.centre, fitted.outputs.scale)
            units = tuple(tuple((part[varying] / typical).tolist()) for part in parts)
        return PosteriorSpec(
            network=network_of(self.network),
            input_shape=fitted.input_shape,
            outputs=int(varying.sum()),
            likelihood=self.likelihood,
            prior=self.prior,
            noise=self.noise,
            relative_error=float(self.relative_error),
            units=units,  # type: ignore[arg-type]
            dtype=self.dtype,
        )

    def _report(
        self, spec: PosteriorSpec, found: PosteriorSample, checks: IntervalCalibration, predicted: HeldOut, held: int
    ) -> FitReport:
        sigma = noise_of(spec, found.draws)
        outputs = self._fitted.outputs
        return FitReport(
            network=self.network if isinstance(self.network, str) else type(self.network).__name__,
            sampler=self.sampler if isinstance(self.sampler, str) else type(self.sampler).__name__,
            weights=found.weights,
            examples=self._fitted.examples,
            held_out=held,
            outputs=spec.outputs,
            constant_outputs=int(outputs.centre.size - spec.outputs),
            data_weight=self._data_weight(self._fitted),
            chains=found.chains,
            draws=len(self._fitted.draws[0]),
            phases=found.phases,
            step_size=found.step_size,
            noise=float(np.median(sigma)) if np.any(sigma > 0) else None,
            ess=predicted.ess,
            r_hat=predicted.r_hat,
            temperature=found.temperature,
            health=found.health,
            recalibration=checks.correction.kind,
            scale=checks.correction.scale,
            before=checks.before,
            after=checks.after,
        )

    def _predictive(self, X: ArrayLike) -> Predictive:
        """μ and uncorrected σ in scaled units."""
        check_is_fitted(self, "report_")
        x = validate_data(self, X, dtype=np.float64, allow_nd=True, ensure_all_finite=False, reset=False)
        check_finite_rows("X", x)
        check_shape("X", x.shape[1:], self._fitted.input_shape)
        spec, scaled = self._spec(self._fitted), self._fitted.inputs.forward(x).astype(self.dtype)
        sparse = self._pruned.predict(spec, self.draws_, scaled) if self.sparsity else None
        return predict_scaled(spec, self.draws_, scaled) if sparse is None else sparse

    @property
    def draws_(self) -> PyTree:
        """Draws of the position (network's weights, and log σ), leaves (draw, …)."""
        check_is_fitted(self, "report_")
        like = jax.eval_shape(build(self._spec(self._fitted)).start, jax.random.key(0))
        return jax.tree.unflatten(jax.tree.structure(like), self._fitted.draws)

    def _shaped(self, values: Array) -> Array:
        return values.reshape(len(values), *self._fitted.output_shape)

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """The posterior predictive mean; with `return_std` also the corrected standard deviation."""
        known = self._predictive(X)
        outputs = self._fitted.outputs
        mean = self._shaped(outputs.mean(known.mean))
        if not return_std:
            return mean
        return mean, self._shaped(outputs.std(self._fitted.correction.std(known)))

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> tuple[Array, Array]:
        """Lower and upper ends of the central interval of a level, after recalibration."""
        known = self._predictive(X)
        outputs = self._fitted.outputs
        middle, half = outputs.mean(known.mean), outputs.std(self._fitted.correction.half_width(known, level))
        return self._shaped(middle - half), self._shaped(middle + half)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R² of the mean, averaged over outputs."""
        targets = np.asarray(y, float)
        check_consistent_length(X, targets, sample_weight)
        predicted = self.predict(X).reshape(len(targets), -1)
        return float(r2_score(targets.reshape(len(targets), -1), predicted, sample_weight=sample_weight))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a folder, atomically: safetensors and JSON."""
        from ridgewalk.neural.io import save_model  # noqa: PLC0415  (which imports this class)

        check_is_fitted(self, "report_")
        save_model(self, Path(path), overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, network: Network | None = None) -> "SurrogateRegressor":
        """Read a saved model; a network without a name must be passed again. Nothing in the folder is executed."""
        from ridgewalk.neural.io import load_model  # noqa: PLC0415

        return load_model(cls, Path(path), network)

    def __sklearn_tags__(self) -> Any:
        """Inputs may have more than two axes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _typical(outputs: OutputScales) -> float:
    """The root mean square of the outputs that vary."""
    varying = outputs.varying
    return float(np.sqrt(np.mean(outputs.centre[varying] ** 2 + outputs.scale[varying] ** 2)))


def _split(examples: int, share: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to learn from and rows held out, in their order."""
    held = 0 if examples < FEWEST_TO_HOLD_OUT else round(share * examples)
    if held >= examples - 1:
        raise ValueError(f"holdout: {share} leaves fewer than 2 of {examples} examples to fit; use 0.2")
    order = np.random.default_rng(seed).permutation(examples)
    return np.sort(order[held:]), np.sort(order[:held])
