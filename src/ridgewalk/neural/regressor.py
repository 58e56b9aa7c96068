"""`NeuralRegressor`: a Bayesian neural network with the scikit-learn estimator API."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self, get_args

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgewalk._validation import check_between, check_positive, requires_extra
from ridgewalk.neural import (
    DEFAULT_LIKELIHOOD,
    LikelihoodName,
    NoiseKind,
    OutputScaling,
    RecalibrationName,
)
from ridgewalk.neural.assessment import Assessment, assess_cumulative
from ridgewalk.neural.compression import PrunedNetworks
from ridgewalk.neural.conformal import IntervalCalibration, correct, no_correction
from ridgewalk.neural.estimator import (
    COLD,
    WARM,
    Fitted,
    NeuralEstimator,
    check_finite_rows,
    check_parameters,
    network_of,
)
from ridgewalk.neural.fit import FitSettings, PosteriorSample, merge_folds
from ridgewalk.neural.likelihoods import Likelihood, Noisy, RelativeL2
from ridgewalk.neural.posterior import OutputScales, PosteriorSpec, fit_inputs, fit_outputs
from ridgewalk.neural.predictive import (
    MOST_UNRELIABLE,
    UNRELIABLE,
    Mixture,
    Predictive,
    leave_one_out,
    predict_mixture,
    predict_scaled,
    some_examples,
)
from ridgewalk.neural.report import FitReport, Gain

with requires_extra("neural"):
    from sklearn.base import MultiOutputMixin, RegressorMixin
    from sklearn.metrics import r2_score
    from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data

Array = NDArray[np.float64]

FEWEST_TO_HOLD_OUT = 10
"""With fewer examples none are held out."""

CHECKED_LEVEL = 0.9
"""The level whose coverage decides about recalibration="auto"."""

TOLERANCE = 0.03
"""By how much coverage may be off, beside twice its standard error."""

CHOICES: dict[str, tuple[str, ...]] = {
    "likelihood": get_args(LikelihoodName),
    "noise": get_args(NoiseKind),
    "output_scaling": get_args(OutputScaling),
    "recalibration": get_args(RecalibrationName),
}


class Checks(NamedTuple):
    """The correction of intervals, how it was found, and what sampling added where rows were not learnt from."""

    calibration: IntervalCalibration
    note: str
    gain: Gain | None
    raw: Assessment | None
    """Of the uncorrected predictive distribution."""


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralRegressor(MultiOutputMixin, RegressorMixin, NeuralEstimator):  # type: ignore[misc]
    """Regression with a neural network whose weights are sampled from their posterior.

    `fit` standardises the data, brings one network per chain to a mode with Adam, and samples the posterior of the
    weights, of the scales of the layers and of the noise from there (`ridgewalk.sample`, with warm-up), until the
    predictions have an R-hat of at most `r_hat`. All rows are learnt from. `report_` says what was done. Inputs are
    (n, …), vectors or fields; targets (n,), (n, outputs) or fields (n, …).

    Networks of more than 32,768 weights, and the likelihood "relative_l2", have a cold posterior instead: few steps of
    minibatches from the modes, a likelihood to a power (`data_weight`), and recalibration on rows that are held out.

    A second fit with another number of rows compiles nothing where the number is padded to the same one, as long as
    shapes and settings are the same (`ridgewalk.neural.posterior.padded`).

    Args:
        network: "mlp" (one hidden layer of 50 tanh units), "mlp:64x64" or "mlp:64x64:relu", "conv" or "conv:8x16" for
            images, the paper's "source" and "permeability", or a `Network` such as `EquinoxNetwork(make)`.
        hidden: the sizes of the hidden layers of network="mlp", such as (64, 64).
        method: "sample"; or, from the same modes, "ensemble" (the modes themselves), "laplace" (the network linearised
            at each mode, with the full Gauss–Newton covariance) or "swag".
        sampler: "auto", the name of a sampler such as "hasgld_sa" or "sgld", or a `Sampler`.
        likelihood: "student_t" (Student's t with learnt degrees of freedom, close to a Gaussian where they are many) or
            "gaussian", both with learnt noise; or "relative_l2", the relative error of a whole field.
        prior: how much functions of the prior vary over the inputs, in standard deviations of the targets
            (`ridgewalk.neural.posterior`); or a log prior of the network's weights, such as `gaussian_prior(0.5)`,
            `spike_and_slab()` or a function of them. The noise has a prior of its own.
        sparsity: fraction of the weights, biases excluded, that is pruned during burn-in; 0 for none. A pruned model is
            smaller on disk, and predicts few examples at a time by sparse products.
        data_weight: the power of the likelihood, 1 for the Bayesian posterior. "auto" is 1 for networks of up to 32,768
            weights, and the number of weights over the number of targets, at least 1, for larger ones and for
            "relative_l2".
        noise: observation noise learnt for "each" output, "shared" by all, or as a function of the "input".
        relative_error: expected relative error of one example under "relative_l2"; the likelihood's temperature is this
            over the number of outputs.
        optimiser_steps: steps of Adam for each chain; 0 starts sampling from random weights. Default 1,500 (cold
            posteriors: 3,000).
        learning_rate: the largest learning rate of the optimiser, in units of the prior. Default 0.01 (cold: 0.02).
        steps: the most sampling steps of each chain, burn-in included. Default 96,000 (cold: exactly 600).
        burn_in: first sampling steps that are not kept, those of warm-up. Default 4,000 (cold: 200).
        draws: number of draws of the weights that are kept, over all chains. Default 400 (cold: 40).
        chains: number of chains, each from its own random weights; None for 4, or 2 from a million weights on.
        batch_size: examples per step, of optimiser and sampler; "auto" is all rows while weights × rows are at most
            2^24 (cold: 32).
        step_size: ε of the sampler, or "auto": found by warm-up (cold: `ridgewalk.neural.fit.stable_step_size`).
        r_hat: sampling ends when the predictions have this R-hat (median over 64 examples); None makes all `steps`.
        max_time: seconds after which sampling ends.
        holdout: fraction of the examples held out for recalibration. Default 0 (cold: 0.2).
        recalibration: "conformal" (intervals with a coverage guarantee; for levels that need more scores than there
            are, and for standard deviations: "temperature"), "temperature" (one factor), or "none". Where nothing is
            held out, chain c learns without the c-th part of the rows, and its predictions of them give the scores.
            "auto" corrects only if the coverage of the intervals of level 0.9 is off: on the rows held out, or else by
            leave-one-out estimates.
        output_scaling: scale outputs by the standard deviation of "each" one, or of all "together" (fields of one
            quantity).
        dtype: of weights and sampling, "float32" or "float64".
        random_state: a seed; the same one gives the same model.
        checkpoint: a folder from which the same call resumes bit for bit after a kill.
        checkpoint_every: steps (500) or time ("10 min") between checkpoints.
        progress: show progress bars on a terminal.
    """

    likelihood: LikelihoodName = DEFAULT_LIKELIHOOD
    noise: NoiseKind = "each"
    relative_error: float = 0.02
    holdout: float | None = None
    recalibration: RecalibrationName = "auto"
    output_scaling: OutputScaling = "each"

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to inputs (n, …) and targets (n, …)."""
        self._check_settings()
        x, targets = self._checked_data(X, y)
        flat = targets.reshape(len(targets), -1)
        if self.likelihood == "relative_l2":
            _check_relative(flat)
        shapes = x.shape[1:], targets.shape[1:]
        nothing = no_correction(0).correction
        every = Fitted([], fit_inputs(x), fit_outputs(flat, self.output_scaling), nothing, *shapes, len(x))
        normalised = self.likelihood != "relative_l2"
        spec = self._spec(every)
        cold = self._is_cold(spec, normalised)
        settings = self._settings(spec, cold, len(x))
        learn, held = _split(len(x), self._holdout(cold), settings.seed)
        fitted = every
        if held.size:
            scalings = fit_inputs(x[learn]), fit_outputs(flat[learn], self.output_scaling)
            fitted = Fitted([], *scalings, nothing, *shapes, len(learn))
            spec = self._spec(fitted)
        data_weight = self._data_weight(spec, len(learn), cold)
        fitted = fitted._replace(mixture=not cold)
        scaled = fitted.inputs.forward(x).astype(self.dtype)
        wanted = fitted.outputs.forward(flat)
        learnt = flat[:, fitted.outputs.varying] / _typical(fitted.outputs) if not normalised else wanted
        rows = scaled[learn], learnt[learn].astype(self.dtype)
        corrected = self.recalibration in ("conformal", "temperature")
        if corrected and not held.size and not cold and len(x) >= FEWEST_TO_HOLD_OUT:
            if settings.chains == 1:
                raise ValueError(
                    f"recalibration: {self.recalibration!r} with chains=1 leaves no row to learn from: a chain learns "
                    "without its part of the rows; use 2 chains or more, or holdout=0.2"
                )
            found, checks = self._fit_folds(spec, settings, fitted, *rows, wanted)
        else:
            found = self._sample(spec, data_weight, settings, *rows, np.ones(len(learn)))
            checks = self._checks(spec, settings, fitted, found, scaled, wanted, learn, held)
        self._fitted = fitted._replace(draws=jax.tree.leaves(found.draws), correction=checks.calibration.correction)
        self._pruned = PrunedNetworks()
        self.report_ = self._report(spec, data_weight, found, checks, len(held))
        return self

    def _check_settings(self) -> None:
        check_parameters(self.get_params(deep=False), CHOICES)
        check_positive("relative_error", self.relative_error)
        if self.holdout is not None:
            check_between("holdout", self.holdout, 0, 1, "[)", "use 0.2, or 0 to hold out none")
        network_of(self.network, self.hidden)
        if self.likelihood == "relative_l2" and self.method in ("laplace", "swag"):
            raise ValueError(f"method: {self.method!r} needs a normalised likelihood, which 'relative_l2' is not")

    def _holdout(self, cold: bool) -> float:
        if self.recalibration == "none":
            return 0.0
        default = (COLD if cold else WARM).holdout
        return default if self.holdout is None else float(self.holdout)

    def _checked_data(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        if y is None:
            raise ValueError("y: it is None; NeuralRegressor requires y to be passed, but the target y is None")
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

    def _spec(self, fitted: Fitted) -> PosteriorSpec:
        outputs = int(fitted.outputs.varying.sum())
        likelihood: Likelihood = Noisy(outputs, self.noise, self.likelihood == "student_t")
        if self.likelihood == "relative_l2":
            likelihood = RelativeL2(outputs, float(self.relative_error) / outputs, _units(fitted.outputs))
        return PosteriorSpec(
            network=network_of(self.network, self.hidden),
            input_shape=fitted.input_shape,
            likelihood=likelihood,
            prior=self.prior,
            learnt_scales=self.likelihood != "relative_l2",
            dtype=self.dtype,
        )

    def _checks(
        self,
        spec: PosteriorSpec,
        settings: FitSettings,
        fitted: Fitted,
        found: PosteriorSample,
        scaled: np.ndarray,
        wanted: Array,
        learn: NDArray[np.intp],
        held: NDArray[np.intp],
    ) -> Checks:
        """On rows that were held out; without them, by leave-one-out estimates."""
        raw = no_correction(spec.likelihood.network_outputs)
        if held.size:
            return self._held_out(spec, settings, fitted, found, scaled[held], wanted[held])
        if self.recalibration == "none" or not fitted.mixture or self.method != "sample":
            return Checks(raw, "not recalibrated", None, None)
        some = learn[some_examples(len(learn))]
        left = leave_one_out(predict_mixture(spec, found.draws, scaled[some]), wanted[some])
        assessed = assess_cumulative(left.cumulative, left.log_density)
        at, density = _coverage(assessed), float(np.mean(left.log_density)) - _log_units(fitted)
        said = (
            f"leave-one-out estimates: log density of an example {density:.3f}, coverage of the raw intervals of level "
            f"{CHECKED_LEVEL:g} {at:.3f}"
        )
        if left.unreliable > MOST_UNRELIABLE:
            share = f"Pareto k is above {UNRELIABLE:g} for {100 * left.unreliable:.0f} % of the examples"
            return Checks(raw, f"{said}, not reliable ({share}); not recalibrated", None, assessed)
        if not _off(at, len(some)):
            return Checks(raw, f"{said}; not recalibrated", None, assessed)
        calibration = correct(left.predictive, wanted[some], "conformal", settings.seed)
        return Checks(calibration, f"{said}; recalibrated by leave-one-out scores", None, assessed)

    def _held_out(
        self,
        spec: PosteriorSpec,
        settings: FitSettings,
        fitted: Fitted,
        found: PosteriorSample,
        x: np.ndarray,
        y: Array,
    ) -> Checks:
        if not fitted.mixture:
            kind: RecalibrationName = "conformal" if self.recalibration == "auto" else self.recalibration
            calibration = correct(predict_scaled(spec, found.draws, x), y, kind, settings.seed)
            return Checks(calibration, "on rows held out", None, calibration.before)
        mixture = predict_mixture(spec, found.draws, x)
        modes = predict_mixture(spec, found.modes, x)
        gain = self._gain(fitted, mixture.log_density(y), modes.log_density(y), "on rows held out")
        raw = assess_cumulative(mixture.cumulative(y), mixture.log_density(y))
        return self._corrected(mixture.predictive(), raw, y, settings.seed, "held out", gain)

    def _corrected(
        self, known: Predictive, raw: Assessment, y: Array, seed: int, which: str, gain: Gain | None
    ) -> Checks:
        """The correction that is asked for, or needed, from predictions of rows that were not learnt from."""
        at = _coverage(raw)
        said = f"coverage of the raw intervals of level {CHECKED_LEVEL:g} on rows {which}: {at:.3f}"
        kind = self.recalibration
        if kind == "auto":
            if not _off(at, len(y)):
                return Checks(no_correction(y.shape[1]), f"{said}; not recalibrated", gain, raw)
            kind = "conformal"
        return Checks(correct(known, y, kind, seed), f"{said}; recalibrated by them", gain, raw)

    def _fit_folds(
        self, spec: PosteriorSpec, settings: FitSettings, fitted: Fitted, x: np.ndarray, y: np.ndarray, wanted: Array
    ) -> tuple[PosteriorSample, Checks]:
        """Chain c learns without fold c, whose predictions by that chain give the scores of the correction (CV+)."""
        chains = min(settings.chains or 4, len(x) // 2)
        fold = np.random.default_rng(settings.seed).permutation(np.arange(len(x)) % chains)
        parts, mean, std, raw = [], np.empty_like(wanted), np.empty_like(wanted), np.empty(wanted.shape)
        drawn, modes = np.empty(len(x)), np.empty(len(x))
        for chain in range(chains):
            out = fold == chain
            own = settings._replace(
                chains=1,
                seed=settings.seed + chain,
                draws=max(2, -(-settings.draws // chains)),
                checkpoint=None if settings.checkpoint is None else settings.checkpoint / f"fold-{chain}",
            )
            found = self._sample(spec, 1.0, own, x, y, (~out).astype(float))
            mixture = predict_mixture(spec, found.draws, x[out])
            known = mixture.predictive()
            mean[out], std[out], raw[out] = known.mean, known.std, mixture.cumulative(wanted[out])
            drawn[out] = mixture.log_density(wanted[out])
            modes[out] = predict_mixture(spec, found.modes, x[out]).log_density(wanted[out])
            parts.append(found)
        assessed = assess_cumulative(raw, drawn)
        gain = self._gain(fitted, drawn, modes, "on rows left out of each chain")
        checks = self._corrected(Predictive(mean, std), assessed, wanted, settings.seed, "left out", gain)
        return merge_folds(spec, parts, x), checks

    def _gain(self, fitted: Fitted, drawn: Array, modes: Array, how: str) -> Gain:
        """In the units of the targets."""
        units = _log_units(fitted)
        return Gain(float(np.mean(drawn)) - units, float(np.mean(modes)) - units, how)

    def _report(
        self, spec: PosteriorSpec, data_weight: float, found: PosteriorSample, checks: Checks, held: int
    ) -> FitReport:
        sigma = np.exp(np.asarray(found.draws["log_noise"], float)) if "log_noise" in found.draws else None
        outputs = int(self._fitted.outputs.varying.sum())
        correction = checks.calibration.correction
        return FitReport(
            network=self.network if isinstance(self.network, str) else type(self.network).__name__,
            method=self.method,
            sampler=self.sampler if isinstance(self.sampler, str) else type(self.sampler).__name__,
            weights=found.weights,
            examples=self._fitted.examples,
            held_out=held,
            outputs=outputs,
            constant_outputs=int(self._fitted.outputs.centre.size - outputs),
            data_weight=data_weight,
            chains=found.chains,
            draws=len(self._fitted.draws[0]),
            phases=found.phases,
            step_size=found.step_size,
            noise=None if sigma is None else float(np.median(sigma)),
            ess=found.mixing.ess,
            r_hat=found.mixing.r_hat,
            ending=found.ending,
            temperature=found.temperature,
            health=found.health,
            gain=checks.gain,
            recalibration=correction.kind,
            calibration_note=checks.note,
            scale=correction.scale,
            before=checks.raw or checks.calibration.before,
            after=checks.calibration.after,
        )

    def _predictive(self, X: ArrayLike) -> Predictive:
        """μ and uncorrected σ in scaled units."""
        scaled = self._scaled(X)
        spec = self._spec(self._fitted)
        sparse = self._pruned.predict(spec, self.draws_, scaled) if self.sparsity else None
        return predict_scaled(spec, self.draws_, scaled) if sparse is None else sparse

    def _mixture(self, X: ArrayLike) -> Mixture:
        """The components of the uncorrected predictive distribution, in scaled units."""
        scaled = self._scaled(X)
        return predict_mixture(self._spec(self._fitted), self.draws_, scaled)

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
        check_is_fitted(self, "report_")
        check_between("level", level, 0, 1, "()", "give a probability such as 0.9")
        outputs = self._fitted.outputs
        if self._raw_mixture():
            mixture = self._mixture(X)
            ends = (outputs.mean(mixture.quantile(0.5 * (1 + sign * level))) for sign in (-1, 1))
            lower, upper = (self._shaped(end) for end in ends)
            return lower, upper
        known = self._predictive(X)
        middle, half = outputs.mean(known.mean), outputs.std(self._fitted.correction.half_width(known, level))
        return self._shaped(middle - half), self._shaped(middle + half)

    def _raw_mixture(self) -> bool:
        """Whether intervals are those of the mixture: it is neither of a cold posterior nor recalibrated."""
        return self._fitted.mixture and self._fitted.correction.kind == "none" and not self.sparsity

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """log posterior predictive density of each example, its outputs together, in the units of the targets.

        A correction stretches the distribution around its mean. Constant outputs are left out.
        """
        targets, mixture = np.asarray(y, float), self._mixture(X)
        outputs = self._fitted.outputs
        if targets.shape != (mixture.location.shape[1], *self._fitted.output_shape):
            raise ValueError(
                f"y: shape {targets.shape} does not fit predictions of shape "
                f"{(mixture.location.shape[1], *self._fitted.output_shape)}"
            )
        scaled, stretch = outputs.forward(targets.reshape(len(targets), -1)), self._fitted.correction.scale
        centre = mixture.predictive().mean
        units = np.log(outputs.scale[outputs.varying]).sum() + outputs.varying.sum() * np.log(stretch)
        return mixture.log_density(centre + (scaled - centre) / stretch) - float(units)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R² of the mean, averaged over outputs."""
        targets = np.asarray(y, float)
        check_consistent_length(X, targets, sample_weight)
        predicted = self.predict(X).reshape(len(targets), -1)
        return float(r2_score(targets.reshape(len(targets), -1), predicted, sample_weight=sample_weight))


def _check_relative(y: Array) -> None:
    """Raise where a target is zero everywhere and so has no relative error."""
    bad = np.flatnonzero(np.linalg.norm(y, axis=1) == 0)
    if bad.size:
        raise ValueError(
            f"y: row {bad[0]} is zero everywhere and has no relative error; leave it out, or use likelihood='gaussian'"
        )


def _coverage(assessed: Assessment) -> float:
    """Coverage of the intervals that decide about recalibration="auto"."""
    return float(assessed.coverage[int(np.argmin(np.abs(assessed.levels - CHECKED_LEVEL)))])


def _off(coverage: float, examples: int) -> bool:
    """Whether coverage is off by more than the tolerance and twice its standard error."""
    error = np.sqrt(CHECKED_LEVEL * (1 - CHECKED_LEVEL) / examples)
    return bool(abs(coverage - CHECKED_LEVEL) > TOLERANCE + 2 * error)


def _typical(outputs: OutputScales) -> float:
    """The root mean square of the outputs that vary."""
    varying = outputs.varying
    return float(np.sqrt(np.mean(outputs.centre[varying] ** 2 + outputs.scale[varying] ** 2)))


def _units(outputs: OutputScales) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and scale of the outputs in units of their typical size."""
    typical, varying = _typical(outputs), outputs.varying
    return tuple((outputs.centre[varying] / typical).tolist()), tuple((outputs.scale[varying] / typical).tolist())


def _split(examples: int, share: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows to learn from and rows held out, in their order."""
    held = 0 if examples < FEWEST_TO_HOLD_OUT else round(share * examples)
    if held >= examples - 1:
        raise ValueError(f"holdout: {share} leaves fewer than 2 of {examples} examples to fit; use 0.2")
    order = np.random.default_rng(seed).permutation(examples)
    return np.sort(order[held:]), np.sort(order[:held])


def _log_units(fitted: Fitted) -> float:
    """What the log density of an example in scaled units is larger by than in the units of the targets."""
    return float(np.log(fitted.outputs.scale[fitted.outputs.varying]).sum())
