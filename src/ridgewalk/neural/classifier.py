"""`NeuralClassifier`: a Bayesian neural network for classes, with the scikit-learn estimator API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, get_args

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgewalk._validation import requires_extra
from ridgewalk.neural import ClassRecalibrationName
from ridgewalk.neural.assessment import ClassAssessment, assess_classes
from ridgewalk.neural.compression import PrunedNetworks
from ridgewalk.neural.conformal import Correction, fit_class_temperature, no_correction, powered
from ridgewalk.neural.estimator import Fitted, NeuralEstimator, check_finite_rows, check_parameters, network_of
from ridgewalk.neural.fit import PosteriorSample
from ridgewalk.neural.likelihoods import Categorical
from ridgewalk.neural.posterior import OutputScales, PosteriorSpec, fit_inputs
from ridgewalk.neural.predictive import (
    MOST_UNRELIABLE,
    UNRELIABLE,
    predict_probabilities,
    predictions_of_draws,
    smoothed_weights,
    some_examples,
)
from ridgewalk.neural.report import OF_CLASSES, FitReport

with requires_extra("neural"):
    from sklearn.base import ClassifierMixin
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

Array = NDArray[np.float64]

MOST_R_HAT = 1.1
"""The R-hat of predictions up to which leave-one-out estimates decide about recalibration="auto"."""


class Checks(NamedTuple):
    """The correction of probabilities, and how it was found."""

    correction: Correction
    note: str


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralClassifier(ClassifierMixin, NeuralEstimator):  # type: ignore[misc]
    """Classification with a neural network whose weights are sampled from their posterior.

    The likelihood is a softmax over the classes, of two classes a single logit (Bernoulli). Probabilities are means
    over draws of the weights. Modes, sampling, methods and resuming are those of `NeuralRegressor`, and so are the
    arguments that are not listed here.

    Args:
        class_weight: what the log likelihood of examples is multiplied by: None for 1, a dict from class to weight, or
            "balanced" for weights in inverse proportion to the numbers of examples.
        prior: how much the logits vary over the inputs under the prior, or a log prior of the weights.
        r_hat: sampling ends when the probabilities have this R-hat (median over 64 examples); None makes all `steps`.
        recalibration: "temperature" raises probabilities to a power, the one of largest mean log probability of the
            labels by leave-one-out estimates; "auto" does so if that is larger by more than two standard errors, and
            if the estimates are reliable and the chains have mixed; "none". Of `method="sample"` at temperature 1 only.
    """

    class_weight: Mapping[Any, float] | str | None = None
    recalibration: ClassRecalibrationName = "auto"

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to inputs (n, …) and labels (n,) of any type."""
        check_parameters(self.get_params(deep=False), {"recalibration": get_args(ClassRecalibrationName)})
        network_of(self.network, self.hidden)
        x, labels = self._checked_data(X, y)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y: all {len(labels)} labels are {classes[0]!r}; NeuralClassifier can't train with one class, give "
                "examples of at least 2"
            )
        nothing = OutputScales(np.zeros(0), np.zeros(0))
        known = tuple(classes.tolist())
        fitted = Fitted([], fit_inputs(x), nothing, no_correction(0).correction, x.shape[1:], (), len(x), known)
        spec = self._spec(fitted)
        cold = self._is_cold(spec)
        data_weight = self._data_weight(spec, len(x), cold)
        settings = self._settings(spec, cold, len(x))
        scaled, wanted = fitted.inputs.forward(x).astype(self.dtype), codes[:, None].astype(self.dtype)
        each = self._weights(classes, labels)[codes]
        found = self._sample(spec, data_weight, settings, scaled, wanted, each)
        checks = self._checks(spec, found, scaled, codes, each, cold)
        self._fitted = fitted._replace(draws=jax.tree.leaves(found.draws), correction=checks.correction)
        self._pruned = PrunedNetworks()
        self.classes_ = classes
        self.report_ = FitReport(
            network=self.network if isinstance(self.network, str) else type(self.network).__name__,
            method=self.method,
            sampler=self.sampler if isinstance(self.sampler, str) else type(self.sampler).__name__,
            weights=found.weights,
            examples=len(x),
            held_out=0,
            outputs=len(classes),
            constant_outputs=0,
            data_weight=data_weight,
            chains=found.chains,
            draws=len(self._fitted.draws[0]),
            phases=found.phases,
            step_size=found.step_size,
            noise=None,
            ess=found.mixing.ess,
            r_hat=found.mixing.r_hat,
            ending=found.ending,
            temperature=found.temperature,
            health=found.health,
            gain=None,
            recalibration="none" if checks.correction.kind == "none" else OF_CLASSES,
            calibration_note=checks.note,
            scale=checks.correction.scale,
            before=None,
            after=None,
        )
        return self

    def _checks(
        self,
        spec: PosteriorSpec,
        found: PosteriorSample,
        x: np.ndarray,
        codes: NDArray[np.intp],
        each: Array,
        cold: bool,
    ) -> Checks:
        """The temperature of the probabilities, by leave-one-out estimates."""
        nothing = no_correction(0).correction
        if self.method != "sample" or cold:
            return Checks(nothing, "")
        if self.recalibration == "none":
            return Checks(nothing, "not recalibrated")
        some = some_examples(len(x))
        label, weight = codes[some], each[some]
        chances = predictions_of_draws(spec, found.draws, x[some])
        logs = np.log(np.maximum(chances[:, np.arange(len(some)), label], np.finfo(float).tiny))
        smoothed, shape = smoothed_weights(-weight[None] * logs)
        left = np.einsum("de,dec->ec", np.exp(smoothed), chances)
        fitted = fit_class_temperature(left, label, weight)
        density = float(np.mean(np.log(np.maximum(left[np.arange(len(some)), label], np.finfo(float).tiny))))
        said = (
            f"leave-one-out estimates: mean log probability of a label {density:.4f}; temperature "
            f"{fitted.temperature:.3f} of the probabilities adds {fitted.gain:.4f} ± {fitted.error:.4f}"
        )
        unreliable = float(np.mean(shape > UNRELIABLE))
        if self.recalibration == "auto" and unreliable > MOST_UNRELIABLE:
            share = f"Pareto k is above {UNRELIABLE:g} for {100 * unreliable:.0f} % of the examples"
            return Checks(nothing, f"{said}, not reliable ({share}); not recalibrated")
        if self.recalibration == "auto" and not found.mixing.r_hat <= MOST_R_HAT:
            # Draws that have not left their modes fit their own examples too well, whatever the importance weights.
            mixed = f"R-hat of predictions {found.mixing.r_hat:.2f} is above {MOST_R_HAT:g}"
            return Checks(nothing, f"{said}, not reliable ({mixed}); not recalibrated")
        if self.recalibration == "auto" and fitted.gain <= 2 * fitted.error:
            return Checks(nothing, f"{said}; not recalibrated")
        return Checks(Correction("temperature", fitted.temperature, nothing.scores), f"{said}; recalibrated")

    def _checked_data(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, np.ndarray]:
        if y is None:
            raise ValueError("y: it is None; NeuralClassifier requires y to be passed, but the target y is None")
        x: Array = validate_data(
            self, X, dtype=np.float64, allow_nd=True, ensure_all_finite=False, ensure_min_samples=2
        )
        labels: np.ndarray = column_or_1d(y, warn=True)
        check_consistent_length(x, labels)
        check_finite_rows("X", x)
        if np.issubdtype(labels.dtype, np.floating):
            check_finite_rows("y", labels)
        check_classification_targets(labels)
        return x, labels

    def _weights(self, classes: np.ndarray, labels: np.ndarray) -> Array:
        """The weight of each class."""
        if isinstance(self.class_weight, str) and self.class_weight != "balanced":
            raise ValueError(
                f"class_weight: {self.class_weight!r}; use None, 'balanced', or a dict from class to weight"
            )
        weight = dict(self.class_weight) if isinstance(self.class_weight, Mapping) else self.class_weight
        return np.asarray(compute_class_weight(weight, classes=classes, y=labels), float)

    def _spec(self, fitted: Fitted) -> PosteriorSpec:
        return PosteriorSpec(
            network=network_of(self.network, self.hidden),
            input_shape=fitted.input_shape,
            likelihood=Categorical(len(fitted.classes)),
            prior=self.prior,
            learnt_scales=True,
            dtype=self.dtype,
        )

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities (example, class) in the order of `classes_`: the mean over draws, recalibrated if need be."""
        scaled = self._scaled(X)
        chances = predict_probabilities(self._spec(self._fitted), self.draws_, scaled)
        correction = self._fitted.correction
        return chances if correction.kind == "none" else powered(chances, correction.scale)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each example."""
        chosen: np.ndarray = self.predict_proba(X).argmax(axis=1)
        return self.classes_[chosen]

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """log probability of each label."""
        chances, codes = self.predict_proba(X), self.codes(y)
        return np.log(np.maximum(chances[np.arange(len(codes)), codes], np.finfo(float).tiny))

    def codes(self, y: ArrayLike) -> NDArray[np.intp]:
        """The numbers of labels in `classes_`."""
        labels = np.asarray(y)
        found = np.minimum(np.searchsorted(self.classes_, labels), len(self.classes_) - 1)
        bad = np.flatnonzero(self.classes_[found] != labels)
        if bad.size:
            raise ValueError(f"y: the label {labels[bad[0]].item()!r} of row {bad[0]} was not among those of the fit")
        return found

    def evaluate(self, X: ArrayLike, y: ArrayLike) -> ClassAssessment:
        """Accuracy, NLL, Brier score and calibration (ECE) on labels."""
        chances = self.predict_proba(X)
        return assess_classes(chances, self.codes(y))
