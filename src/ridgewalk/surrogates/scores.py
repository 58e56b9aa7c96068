"""Proper scores of a predictive distribution, each one number per target: lower is better."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

NUMBERS_AT_ONCE = 2**24
"""How many draws are sorted at a time."""


def gaussian_nll(targets: Array, mean: Array, spread: Array) -> Array:
    """−log N(y; μ, σ²) = ½ log 2πσ² + ½ ((y − μ)/σ)²."""
    return 0.5 * np.log(2 * np.pi * spread**2) + 0.5 * ((targets - mean) / spread) ** 2


def gaussian_crps(targets: Array, mean: Array, spread: Array) -> Array:
    """CRPS of N(μ, σ²): σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π], z = (y − μ)/σ (Gneiting and Raftery 2007, eq. 21)."""
    z = (targets - mean) / spread
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return spread * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))


def crps(draws: Array, targets: Array) -> Array:
    """CRPS of the distribution that the draws (draw, …) come from: E|X − y| − ½ E|X − X'|.

    Both expectations are estimated without bias, the second over pairs of different draws (the "fair" score), so that
    few draws are not punished for being few: ½ E|X − X'| = Σ_i (2i − m − 1) x_(i) / (m (m − 1)), with x sorted.
    """
    count = draws.shape[0]
    if count < 2:
        raise ValueError(f"draws: {count} draws show no spread; give at least 2 along the first axis")
    flat, wanted = draws.reshape(count, -1), targets.reshape(-1)
    weights = (2.0 * np.arange(1, count + 1) - count - 1) / (count * (count - 1))
    scores = np.empty(wanted.size)
    step = max(1, NUMBERS_AT_ONCE // count)
    for start in range(0, wanted.size, step):
        part = slice(start, start + step)
        near = np.abs(flat[:, part] - wanted[None, part]).mean(0)
        scores[part] = near - weights @ np.sort(flat[:, part], axis=0)
    return scores.reshape(targets.shape)
