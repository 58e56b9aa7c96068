"""The kernelised Stein discrepancy between draws and the target, which needs gradients only."""

from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np

from ridgewalk._validation import check_between, check_choice
from ridgewalk.diagnostics.draw_access import map_gradients, thinned_positions
from ridgewalk.result import Result

Scaling = Literal["none", "diagonal", "covariance"]

ROW_BLOCK = 256


def _stein_sum(x: np.ndarray, score: np.ndarray, others: np.ndarray, other_scores: np.ndarray, beta: float) -> float:
    """Σ k_p(x_i, y_j), with k = (1 + |x − y|²)^β.

    k_p(x, y) = s_x·s_y k + s_x·∇_y k + s_y·∇_x k + tr ∇_x ∇_y k.
    """
    d = x.shape[1]
    # |x−y|² and s·(x−y) as matrix products: no array of (rows, draws, d).
    squares = (x**2).sum(1)[:, None] + (others**2).sum(1)[None, :] - 2 * x @ others.T
    base = 1 + np.maximum(squares, 0)
    along = (score * x).sum(1)[:, None] - score @ others.T  # s_x·(x − y)
    back = x @ other_scores.T - (others * other_scores).sum(1)[None, :]  # s_y·(x − y)
    slope = 2 * beta * base ** (beta - 1)
    trace = -d * slope - 4 * beta * (beta - 1) * base ** (beta - 2) * (base - 1)
    return float((score @ other_scores.T * base**beta + slope * (back - along) + trace).sum())


def _check(positions: np.ndarray, gradients: np.ndarray, scaling: str, beta: float) -> None:
    if positions.ndim != 2 or gradients.shape != positions.shape:
        raise ValueError(
            f"gradients: shapes {positions.shape} of positions and {gradients.shape} of gradients are not both "
            "(draws, d); pass one gradient of the potential for each draw"
        )
    if not (np.all(np.isfinite(positions)) and np.all(np.isfinite(gradients))):
        raise ValueError("gradients: positions or gradients are not finite; leave out draws of diverged chains")
    check_choice("scaling", scaling, get_args(Scaling))
    check_between("beta", beta, -1, 0, hint="where the discrepancy detects non-convergence; use -0.5")
    if scaling == "covariance" and positions.shape[0] <= positions.shape[1]:
        raise ValueError(
            f"scaling: 'covariance' of {positions.shape[1]} parameters needs more draws than {positions.shape[0]}; "
            "raise max_draws, or use scaling='diagonal'"
        )


def stein_discrepancy_of(
    positions: np.ndarray,
    gradients: np.ndarray,
    *,
    temperature: float = 1.0,
    scaling: Scaling = "none",
    beta: float = -0.5,
) -> float:
    """√(mean over pairs of k_p) of draws (n, d) with gradients (n, d) of the potential at them.

    The kernel is the inverse multiquadric (1 + |x − y|²)^β, whose discrepancy vanishes in the limit only for draws
    of the target (Gorham and Mackey 2017); the score is −∇U / T. `scaling` measures distances in units of the draws'
    standard deviations ("diagonal") or in whitened coordinates ("covariance").
    It is of order n^{−1/2} for exact draws: compare sets of equal size.
    """
    positions, gradients = np.asarray(positions, float), np.asarray(gradients, float)
    _check(positions, gradients, scaling, beta)
    x, score = positions - positions.mean(0), -gradients / temperature
    if scaling == "diagonal":
        std = x.std(0)
        std = np.where(std > 0, std, 1)
        x, score = x / std, score * std
    elif scaling == "covariance":
        lower = np.linalg.cholesky(x.T @ x / len(x))
        x, score = np.linalg.solve(lower, x.T).T, score @ lower
    total = sum(
        _stein_sum(x[i : i + ROW_BLOCK], score[i : i + ROW_BLOCK], x, score, beta) for i in range(0, len(x), ROW_BLOCK)
    )
    return float(np.sqrt(max(total, 0.0)) / len(x))


def stein_discrepancy(
    result: Result,
    *,
    max_draws: int = 1000,
    examples: int | None = None,
    scaling: Scaling = "none",
    beta: float = -0.5,
) -> float:
    """The kernelised Stein discrepancy of a run's draws, `max_draws` of them evenly spaced.

    Gradients use all data, or with `examples` an independent batch of that size for each draw, which adds noise but no
    bias beyond the diagonal of the sum. See `stein_discrepancy_of` for the formula.
    """
    temperature = result.sampler.dynamics.temperature
    if not temperature > 0:
        raise ValueError(f"temperature: {temperature} must be positive; at 0 the draws have no target")
    if result.sampler.pruning is not None:
        raise ValueError(
            "result: its chains are pruned, so each has its own target, the posterior given its zeros; call "
            "stein_discrepancy_of with the kept coordinates of one chain and their gradients"
        )
    positions = thinned_positions(result, max_draws, "the Stein discrepancy")
    both = map_gradients(result, positions, lambda position, gradient: jnp.stack([position, gradient]), examples)
    both = both.reshape(-1, 2, both.shape[-1])
    return stein_discrepancy_of(both[:, 0], both[:, 1], temperature=temperature, scaling=scaling, beta=beta)
