"""What held-out data say about the spreads, kept with a fitted model."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ridgewalk.surrogates.calibration import LEVELS, Assessment
from ridgewalk.surrogates.predictive import Predictive, checked_levels
from ridgewalk.surrogates.recalibration import fit_conformal, fit_temperature, recalibrate

Array = NDArray[np.float64]
Kind = Literal["conformal", "temperature", "none"]
KINDS: tuple[Kind, ...] = ("conformal", "temperature", "none")


class Correction(NamedTuple):
    """A scale on all spreads, and the scores |y − μ|/σ that conformal quantiles of any level come from."""

    kind: Kind
    scale: float
    scores: Array
    """(held-out example, output); of no rows where nothing was held out or only a scale is wanted."""

    def spread(self, predictive: Predictive) -> Array:
        """s σ."""
        return self.scale * predictive.spread

    def half_width(self, predictive: Predictive, level: float) -> Array:
        """Half of the central interval: q σ, q the conformal quantile; s σ Φ⁻¹ where too few examples were held out."""
        wanted = float(checked_levels(level)[0])
        if self.conformal_at(wanted):
            centred = Predictive(np.zeros(self.scores.shape), np.ones(self.scores.shape))
            return fit_conformal(centred, self.scores, wanted).quantiles[0][None] * predictive.spread
        return ndtri(0.5 * (1 + wanted)) * self.spread(predictive)

    def conformal_at(self, level: float) -> bool:
        """Whether enough examples were held out for a level: ⌈level (n + 1)⌉ ≤ n."""
        count = len(self.scores)
        return count > 0 and float(np.ceil(np.round(level * (count + 1), 9))) <= count


class Held(NamedTuple):
    """The correction, and scores on held-out data without it and with it (None where they are too few to tell)."""

    correction: Correction
    before: Assessment | None
    after: Assessment | None


def no_correction(outputs: int) -> Held:
    """Spreads as they are."""
    return Held(Correction("none", 1.0, np.empty((0, outputs))), None, None)


def correct(predictive: Predictive, targets: Array, kind: Kind, seed: int) -> Held:
    """Fit the correction on all held-out data; before and after are measured on a half that the other half corrects."""
    count, outputs = targets.shape
    if kind == "none" or count == 0:
        return no_correction(outputs)
    scale = fit_temperature(predictive, targets).scale
    conformal = kind == "conformal"
    scores = np.abs(targets - predictive.mean) / predictive.spread if conformal else np.empty((0, outputs))
    correction = Correction(kind, scale, scores)
    half = count // 2
    levels = [level for level in LEVELS if half > 1 and np.ceil(np.round(level * (half + 1), 9)) <= half]
    if not levels:
        return Held(correction, None, None)
    checked = recalibrate(predictive, targets, levels, share=half / count, seed=seed)
    after = checked.after_temperature
    if conformal:
        after = checked.after_conformal._replace(nll=after.nll, crps=after.crps)
    return Held(correction, checked.before, after)
