"""Errors of predicted fields, as the paper reports them."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def relative_errors(predictions: ArrayLike, targets: ArrayLike) -> Array:
    """‖F(f_i) − u_i‖₂ / ‖u_i‖₂ for each example; axes after the first belong to one field."""
    guessed, true = np.asarray(predictions, float), np.asarray(targets, float)
    if guessed.shape != true.shape or true.ndim < 2:
        raise ValueError(
            f"predictions: shape {guessed.shape} does not fit targets {true.shape}; give both as (example, output)"
        )
    lengths = np.linalg.norm(true.reshape(len(true), -1), axis=1)
    if np.any(lengths == 0):
        raise ValueError(
            f"targets: example {int(np.argmin(lengths))} is zero everywhere and has no relative error; leave it out"
        )
    return np.linalg.norm((guessed - true).reshape(len(true), -1), axis=1) / lengths


def mean_relative_error(predictions: ArrayLike, targets: ArrayLike) -> float:
    """The mean of the relative errors over examples, in per cent: the numbers of the paper's tables."""
    return 100 * float(relative_errors(predictions, targets).mean())
