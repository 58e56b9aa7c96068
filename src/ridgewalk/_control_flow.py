"""Conditional updates inside a compiled loop that do not copy the state."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from ridgewalk._types import Scalar

T = TypeVar("T")
Operands = TypeVar("Operands")


def when(due: Scalar, update: Callable[[T, Operands], T], state: T, operands: Operands) -> T:
    """`update(state, operands)` if `due`, else `state`; like `lax.cond`, but updates `state` in place.

    Implemented as a loop of zero or one iterations: XLA copies what a conditional returns, but updates what a loop
    carries in place. XLA also hoists computations that do not depend on the loop out of it, and they would run in
    every step. The optimization barrier ties `operands` to the iteration: pass all arrays that `update` reads there.
    """

    def once(iteration: Scalar, carry: T) -> T:
        return update(carry, jax.lax.optimization_barrier((iteration, operands))[1])

    return jax.lax.fori_loop(0, due.astype(jnp.int32), once, state)


def every(interval: int, step: Scalar, update: Callable[[T, Operands], T], state: T, operands: Operands) -> T:
    """`update(state, operands)` in every `interval`-th step, else `state`.

    `step` must be common to all chains of a vectorised run: under `vmap` over the step the update would run always.
    """
    return update(state, operands) if interval == 1 else when(step % interval == 0, update, state, operands)
