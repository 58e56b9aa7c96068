"""Standardisation of inputs and outputs; constant outputs are left out.

Scaling happens in float64, before numbers are converted to the network's dtype: values of any size survive float32.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
OutputScaling = Literal["each", "together"]

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
