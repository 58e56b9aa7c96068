"""`NeuralClassifier`: a Bayesian neural network for classes, with the scikit-learn estimator API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgewalk._validation import requires_extra
from ridgewalk.neural.assessment import ClassAssessment, assess_classes
from ridgewalk.neural.compression import PrunedNetworks
from ridgewalk.neural.conformal import no_correction
from ridgewalk.neural.estimator import Fitted, NeuralEstimator, check_finite_rows, check_parameters, network_of
from ridgewalk.neural.likelihoods import Categorical
from ridgewalk.neural.posterior import OutputScales, PosteriorSpec, fit_inputs
from ridgewalk.neural.predictive import predict_probabilities, predictions_of_draws, smoothed_weights, some_examples
from ridgewalk.neural.report import FitReport, Gain

with requires_extra("neural"):
    from scipy.special import logsumexp
    from sklearn.base import ClassifierMixin
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

Array = NDArray[np.float64]


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
    """

    class_weight: Mapping[Any, float] | str | None = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to inputs (n, …) and labels (n,) of any type."""
        check_parameters(self.get_params(deep=False), {})
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
        found = self._sample(spec, data_weight, settings, scaled, wanted, self._weights(classes, labels)[codes])
        gain = None
        if found.jackknife is not None:
            some = some_examples(len(x))
            chances = predictions_of_draws(spec, found.draws, scaled[some])
            logs = np.log(np.maximum(chances[:, np.arange(len(some)), codes[some]], np.finfo(float).tiny))
            weights, _ = smoothed_weights(-logs)
            left = float(np.mean(logsumexp(weights + logs, axis=0)))
            gain = Gain(left, float(np.mean(found.jackknife[some])), "leave-one-out estimates")
        self._fitted = fitted._replace(draws=jax.tree.leaves(found.draws))
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
            gain=gain,
            recalibration="none",
            calibration_note="",
            scale=1.0,
            before=None,
            after=None,
        )
        return self

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
        """Probabilities (example, class) in the order of `classes_`: the mean over draws."""
        scaled = self._scaled(X)
        return predict_probabilities(self._spec(self._fitted), self.draws_, scaled)

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
