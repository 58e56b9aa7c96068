"""Chains whose draws are those of several chains in turn: HAMCMC's M positions."""

import math

import numpy as np

from ridgewalk.diagnostics.draws import Draws
from ridgewalk.dynamics.delayed import Delayed


def turns(result: Draws, every: int = 1) -> int:
    """How many chains take turns in every `every`-th draw of one chain; 1 for all dynamics but delayed ones.

    θ_k follows θ_{k−M}, so steps that differ by a multiple of M belong together: with t steps between draws,
    M / gcd(M, t) chains take turns.
    """
    dynamics, steps = result.sampler.dynamics, result.draw_steps[::every]
    if not isinstance(dynamics, Delayed) or len(steps) < 2:
        return 1
    return dynamics.delay // math.gcd(dynamics.delay, int(steps[1] - steps[0]))


def separated(result: Draws, values: np.ndarray, every: int = 1) -> np.ndarray:
    """(chain, draw, …) as chains of their own, (chain × turn, draw, …), without the last draws that fill no turn.

    Looked at as one chain, correlations at lag 1 vanish; an estimate of the effective size stops summing there, and
    finds far too many draws effective.
    """
    count = turns(result, every)
    if count == 1:
        return values
    chains, rounds = values.shape[0], values.shape[1] // count
    cut = values[:, : rounds * count].reshape(chains, rounds, count, *values.shape[2:])
    return cut.swapaxes(1, 2).reshape(chains * count, rounds, *values.shape[2:])
