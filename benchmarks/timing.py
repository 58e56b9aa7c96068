"""Seconds per step of a run, free of compilation and start-up: the slope between a short and a long run."""

import time
from collections.abc import Callable
from typing import Any

import jax


def seconds(call: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def per_step(run: Callable[[int], Any], steps: int, repeats: int = 3) -> float:
    """Seconds per step of `run(steps)`, from the least of a few timings after everything has been compiled."""
    run(steps), run(2 * steps)
    long = min(seconds(lambda: run(2 * steps)) for _ in range(repeats))
    return (long - min(seconds(lambda: run(steps)) for _ in range(repeats))) / steps
