"""`SurrogateRegressor`: a Bayesian network with scikit-learn's habits."""

import os
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgewalk._optional import requires_extra
from ridgewalk._types import PyTree
from ridgewalk.run.plan import Every
from ridgewalk.surrogates import checked
from ridgewalk.surrogates.choices import network_of, sampler_of, sparse_sampler
from ridgewalk.surrogates.correction import Correction, Held, Kind, correct, no_correction
from ridgewalk.surrogates.defaults import DEFAULT_PRIOR
from ridgewalk.surrogates.fitting import Explored, explore, mixing
from ridgewalk.surrogates.model import Network
from ridgewalk.surrogates.prediction import predict_scaled
from ridgewalk.surrogates.predictive import Predictive
from ridgewalk.surrogates.problem import LikelihoodName, NoiseKind, Spec, cold_weight, define
from ridgewalk.surrogates.pruned_draws import PrunedNetworks
from ridgewalk.surrogates.report import FitReport
from ridgewalk.surrogates.scaling import InputScaling, OutputScales, OutputScaling, fit_inputs, fit_outputs

with requires_extra("neural"):
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.metrics import r2_score
    from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data

Array = NDArray[np.float64]

FEWEST_TO_HOLD_OUT = 10
"""With fewer examples all are needed to learn from."""


class Fitted(NamedTuple):
    """All that predictions need: what a saved model holds."""

    draws: list[np.ndarray]
    """Leaves (draw, …) of the positions, in the order of the network's tree."""
    inputs: InputScaling
    outputs: OutputScales
    correction: Correction
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    examples: int


class SurrogateRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predictions with error bars from a network whose weights are sampled.

    `fit` scales the data, holds some out, brings a network per chain to a mode (optax), samples the posterior of the
    weights from there (`ridgewalk.sample`), and corrects the spread of the predictions on what was held out.
    `report_` says what was done. Inputs are (n, …), vectors or fields; targets (n,), (n, outputs) or fields (n, …).

    Args:
        network: "mlp", "source", "permeability", or a `Network` such as `EquinoxNetwork(make)`.
        sampler: a recipe's name, such as "hasgld_sa" or "sgld", or a `Sampler`.
        likelihood: "gaussian", with learnt noise, or "relative_l2", the relative error of a whole field.
        prior: the spread of each weight in units of its layer's at the start; or a log prior of the network's weights,
            such as `gaussian_prior(0.5)`, `spike_and_slab()` or a function of them. The noise has a prior of its own.
        sparsity: share of the weights, biases aside, that is pruned in the course of the burn-in; 0 for none. A pruned
            model is smaller on disk, and predicts few examples at a time by sparse products.
        data_weight: the power of the likelihood, 1 for the posterior as it is. "auto" is 1, or the number of weights
            over the number of targets where there are more weights: their warmth would else drown what was learnt
            (a cold posterior; what it lacks in spread the recalibration puts back). Gradient noise makes up for
            part of it: see `step_rule`.
        noise: learnt for "each" output, or "shared" by all.
        relative_error: what "relative_l2" expects of one example; its temperature is this over the outputs' number.
        optimiser_steps: steps of Adam for each chain; 0 starts sampling from random weights.
        learning_rate: the largest rate of the optimiser.
        steps: sampling steps of each chain, burn-in included.
        burn_in: first sampling steps that are not kept.
        draws: draws of the weights that are kept, over all chains.
        chains: chains, each from its own random weights; None for 4, or 2 from a million weights on.
        batch_size: examples of each step, of optimiser and sampler.
        step_size: ε of the sampler, or "auto" (see `step_rule`).
        holdout: share of the examples for recalibration.
        recalibration: "conformal" (intervals of the right coverage whatever the model; for levels that need more
            examples than were held out, and for spreads: "temperature"), "temperature" (one scale), or "none".
        output_scaling: outputs in units of "each" one's spread, or of all "together" (fields of one quantity).
        dtype: of weights and sampling, "float32" or "float64".
        random_state: a seed; the same one gives the same model.
        checkpoint: a folder from which the same call, after a kill, goes on bit for bit.
        every: steps (500) or time ("10 min") between checkpoints.
        progress: show bars, where there is a terminal.
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
        recalibration: Kind = "conformal",
        output_scaling: OutputScaling = "each",
        dtype: str = "float32",
        random_state: Any = 0,
        checkpoint: str | os.PathLike[str] | None = None,
        every: Every = "5 min",
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
        self.every = every
        self.progress = progress

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from inputs (n, …) and targets (n, …)."""
        parameters = self.get_params(deep=False)
        checked.check_choices(parameters)
        network_of(self.network)
        sampler = sparse_sampler(sampler_of(self.sampler), self.sparsity, self.burn_in)
        x, targets = self._checked_data(X, y)
        seed = checked.seed_of(self.random_state, self.checkpoint is not None)
        flat = targets.reshape(len(targets), -1)
        if self.likelihood == "relative_l2":
            checked.check_relative(flat)
        learn, held = _split(len(x), self.holdout if self.recalibration != "none" else 0.0, seed)
        inputs, outputs = fit_inputs(x[learn]), fit_outputs(flat[learn], self.output_scaling)
        shapes = x.shape[1:], targets.shape[1:]
        fitted = Fitted([], inputs, outputs, no_correction(0).correction, *shapes, len(learn))
        spec = self._spec(fitted)
        scaled = inputs.forward(x).astype(self.dtype)
        wanted = flat[learn][:, outputs.varying] / _typical(outputs) if spec.units else outputs.forward(flat[learn])
        found = explore(
            spec, sampler, scaled[learn], wanted.astype(self.dtype), checked.settings_from(parameters, seed)
        )
        checks = no_correction(spec.outputs)
        if held.size:
            predicted = predict_scaled(spec, found.draws, scaled[held])
            checks = correct(predicted, outputs.forward(flat[held]), self.recalibration, seed)
        self._fitted = fitted._replace(draws=jax.tree.leaves(found.draws), correction=checks.correction)
        self._pruned = PrunedNetworks()
        self.report_ = self._report(spec, found, checks, scaled[held if held.size else learn], len(held))
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
        checked.finite_rows("X", x)
        checked.finite_rows("y", targets)
        return x, targets

    def _spec(self, fitted: Fitted) -> Spec:
        varying, units = fitted.outputs.varying, None
        if self.likelihood == "relative_l2":
            typical = _typical(fitted.outputs)
            parts = (fitted.outputs.centre, fitted.outputs.scale)
            units = tuple(tuple((part[varying] / typical).tolist()) for part in parts)
        network, outputs = network_of(self.network), int(varying.sum())
        sizes = fitted.input_shape, outputs, fitted.examples
        return Spec(
            network=network,
            input_shape=fitted.input_shape,
            outputs=outputs,
            examples=fitted.examples,
            data_weight=cold_weight(network, *sizes) if self.data_weight == "auto" else float(self.data_weight),
            likelihood=self.likelihood,
            prior=self.prior,
            noise=self.noise,
            relative_error=float(self.relative_error),
            units=units,  # type: ignore[arg-type]
            dtype=self.dtype,
        )

    def _report(self, spec: Spec, found: Explored, checks: Held, x: np.ndarray, held: int) -> FitReport:
        sigma = np.asarray(jax.vmap(define(spec).noise)(found.draws), float)
        size, ratio = mixing(spec, found.draws, found.chains, x)
        outputs = self._fitted.outputs
        return FitReport(
            network=self.network if isinstance(self.network, str) else type(self.network).__name__,
            sampler=self.sampler if isinstance(self.sampler, str) else type(self.sampler).__name__,
            weights=found.weights,
            examples=self._fitted.examples,
            held_out=held,
            outputs=spec.outputs,
            constant_outputs=int(outputs.centre.size - spec.outputs),
            data_weight=spec.data_weight,
            chains=found.chains,
            draws=len(self._fitted.draws[0]),
            phases=found.phases,
            step_size=found.step_size,
            noise=float(np.median(sigma)) if np.any(sigma > 0) else None,
            ess=size,
            r_hat=ratio,
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
        checked.finite_rows("X", x)
        checked.check_likeness("X", x.shape[1:], self._fitted.input_shape)
        spec, scaled = self._spec(self._fitted), self._fitted.inputs.forward(x).astype(self.dtype)
        sparse = self._pruned.predict(spec, self.draws_, scaled) if self.sparsity else None
        return predict_scaled(spec, self.draws_, scaled) if sparse is None else sparse

    @property
    def draws_(self) -> PyTree:
        """Draws of the position (network's weights, and log σ), leaves (draw, …)."""
        check_is_fitted(self, "report_")
        like = jax.eval_shape(define(self._spec(self._fitted)).start, jax.random.key(0))
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
        return mean, self._shaped(outputs.spread(self._fitted.correction.spread(known)))

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> tuple[Array, Array]:
        """Lower and upper ends of the central interval of a level, after recalibration."""
        known = self._predictive(X)
        outputs = self._fitted.outputs
        middle, half = outputs.mean(known.mean), outputs.spread(self._fitted.correction.half_width(known, level))
        return self._shaped(middle - half), self._shaped(middle + half)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R² of the mean, averaged over outputs."""
        targets = np.asarray(y, float)
        check_consistent_length(X, targets, sample_weight)
        predicted = self.predict(X).reshape(len(targets), -1)
        return float(r2_score(targets.reshape(len(targets), -1), predicted, sample_weight=sample_weight))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write a folder with the model: safetensors and JSON, whole or not at all."""
        from ridgewalk.surrogates.saving import save_model  # noqa: PLC0415  (saving knows this class)

        check_is_fitted(self, "report_")
        save_model(self, Path(path), overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, network: Network | None = None) -> "SurrogateRegressor":
        """Read a saved model; a network that has no name must be passed again. No file can run code."""
        from ridgewalk.surrogates.saving import load_model  # noqa: PLC0415

        return load_model(cls, Path(path), network)

    def __sklearn_tags__(self) -> Any:
        """Fields are welcome."""
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
        raise ValueError(
            f"holdout: a share of {share} leaves less than 2 of {examples} examples to learn from; use 0.2"
        )
    order = np.random.default_rng(seed).permutation(examples)
    return np.sort(order[held:]), np.sort(order[:held])
