"""Scoring rules of predictive distributions, one number per target (lower is better), and relative errors of fields."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

NUMBERS_AT_ONCE = 2**24
"""How many draws are sorted at a time."""


def gaussian_nll(targets: Array, mean: Array, std: Array) -> Array:
    """−log N(y; μ, σ²) = ½ log 2πσ² + ½ ((y − μ)/σ)²."""
    return 0.5 * np.log(2 * np.pi * std**2) + 0.5 * ((targets - mean) / std) ** 2


def gaussian_crps(targets: Array, mean: Array, std: Array) -> Array:
    """CRPS of N(μ, σ²): σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π], z = (y − μ)/σ (Gneiting and Raftery 2007, eq. 21)."""
    z = (targets - mean) / std
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))


def crps(draws: Array, targets: Array) -> Array:
    """CRPS of the distribution that the draws (draw, …) come from: E|X − y| − ½ E|X − X'|.

    Both expectations are estimated without bias, the second over pairs of different draws (the "fair" score), so that
    the score does not depend on their number: ½ E|X − X'| = Σ_i (2i − m − 1) x_(i) / (m (m − 1)), with x sorted.
    """
    count = draws.shape[0]
    if count < 2:
        raise ValueError(f"draws: {count} draws give no variance; pass at least 2 along the first axis")
    flat, wanted = draws.reshape(count, -1), targets.reshape(-1)
    weights = (2.0 * np.arange(1, count + 1) - count - 1) / (count * (count - 1))
    scores = np.empty(wanted.size)
    step = max(1, NUMBERS_AT_ONCE // count)
    for start in range(0, wanted.size, step):
        part = slice(start, start + step)
        near = np.abs(flat[:, part] - wanted[None, part]).mean(0)
        scores[part] = near - weights @ np.sort(flat[:, part], axis=0)
    return scores.reshape(targets.shape)


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
    """The mean of the relative errors over examples, in per cent, as the paper's tables report it."""
    return 100 * float(relative_errors(predictions, targets).mean())
