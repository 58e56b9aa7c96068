"""Schedules: weights ω_k of stochastic approximation, step sizes ε_k, and which steps of a run become draws."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._compilation import WORD
from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import Adaptation, Scalar
from ridgewalk._validation import check_between, check_positive, check_whole


@pytree_dataclass
class PowerDecay:
    """ω_k = c₁ (k + c₂)^{−α}, the paper's choice, with Σω = ∞ for α ≤ 1 (and Σω² < ∞ for α > 1/2)."""

    c1: float = 5.0
    c2: float = 10.0
    alpha: float = 0.9

    def __post_init__(self) -> None:
        """Check that ω_k is defined and Σω = ∞."""
        check_positive("c1", self.c1, "with ω = 0 nothing is averaged; the default is 5.0")
        check_between("c2", self.c2, 0, float("inf"), "[)", "ω_k must be defined for k ≥ 1; the default is 10.0")
        check_between(
            "alpha", self.alpha, 0, 1, "(]", "above 1, Σω is finite and averages need not converge; the default is 0.9"
        )

    def __call__(self, step: Scalar) -> Scalar:
        """ω_k."""
        return self.c1 * (step + self.c2) ** -self.alpha


HOT_WEIGHT = 0.5
"""ω during the first part of warm-up: an average over the last two updates, which follows a chain that still moves."""


def adaptation_weight(
    adaptation: Adaptation, step: Scalar, dtype: jnp.dtype, hot_until: Scalar | None = None
) -> Scalar:
    """ω_k clipped to [0, 0.999], so that averages of positive definite matrices stay positive definite.

    With warm-up, ω is 0.5 up to k = `hot_until`, and the schedule starts there.
    """
    k = step.astype(dtype)
    if hot_until is None:
        return jnp.clip(jnp.asarray(adaptation(k), dtype), 0.0, 0.999)
    since = k - hot_until.astype(dtype)
    weight = jnp.where(since > 0, adaptation(jnp.maximum(since, 1)), HOT_WEIGHT)
    return jnp.clip(weight.astype(dtype), 0.0, 0.999)


DEFAULT_ADAPTATION = PowerDecay()
"""ω_k = 5 (k + 10)^{−0.9}, which the paper uses for the hyper-parameters of its regression."""


def cycles(length: int, peak: float, explore: float = 0.8) -> "Cycles":
    """Cyclical step sizes (Zhang et al. 2020): a cosine from `peak` to almost 0 in every `length` steps.

    The first part of a cycle, the fraction `explore`, has large steps, with which a chain moves to other modes; only
    the positions of the rest are kept. The noise has the same temperature in all steps.

    Args:
        length: steps of a cycle.
        peak: ε of the first step of a cycle.
        explore: the fraction of each cycle that is not kept, from 0 to below 1.
    """
    return Cycles(length, peak, explore)


@dataclass(frozen=True)
class Cycles:
    """The schedule that `cycles` makes."""

    length: int
    peak: float
    explore: float

    def __post_init__(self) -> None:
        """Check that every cycle has steps that are kept."""
        check_whole("length", self.length, 2, "give the number of steps of a cycle")
        check_positive("peak", self.peak, "give the step size at the start of a cycle")
        check_between("explore", self.explore, 0, 1, "[)", "at 1 no step would be kept; the default is 0.8")

    @property
    def explored(self) -> int:
        """The number of first steps of a cycle that are not kept."""
        return min(round(self.explore * self.length), self.length - 1)

    def __call__(self, step: Any) -> Any:
        """ε of a step, counted from 0."""
        return self.peak / 2 * (1 + jnp.cos(jnp.pi * (step % self.length) / self.length))

    def keep(self, step: Any) -> Any:
        """Whether the position after a step, counted from 0, may be kept."""
        return step % self.length >= self.explored


BLOCK = 2**20
"""Steps for which a schedule is evaluated at once: 8 MB of step sizes."""

SAMPLED = 4096
"""Of the steps after the first block, how many a digest of the step sizes looks at."""


enable_x64: Any = jax.enable_x64 if hasattr(jax, "enable_x64") else import_module("jax.experimental").enable_x64
"""`jax.enable_x64`, which JAX 0.7 has in `jax.experimental`."""


class StepSizes:
    """ε_k for k = 0 … steps − 1 from a number or a schedule, all positive."""

    def __init__(self, step_size: Any, steps: int) -> None:
        self.steps = steps
        self._schedule: Callable[[Any], Any] | None = None
        self._kept: dict[int, np.ndarray] = {}
        if callable(step_size):
            self._schedule = step_size
            self.between(0, min(steps, BLOCK))
            return
        if not (isinstance(step_size, int | float | np.number | np.ndarray | jax.Array) and np.ndim(step_size) == 0):
            raise ValueError(f"step_size: {step_size!r} is neither a number nor a schedule (a function of the step)")
        self._number = float(step_size)
        _check_positive(np.array([self._number]), None)

    def between(self, start: int, stop: int) -> np.ndarray:
        """ε of steps `start` … `stop − 1`."""
        if self._schedule is None:
            return np.full(stop - start, self._number)
        parts = []
        while start < stop:
            first = start - start % BLOCK
            upto = min(stop, first + BLOCK)
            parts.append(self._block(first)[start - first : upto - first])
            start = upto
        return np.concatenate(parts) if parts else np.zeros(0)

    def _block(self, first: int) -> np.ndarray:
        """ε of the block that begins at step `first`; the first block and the newest are kept."""
        if first not in self._kept:
            assert self._schedule is not None
            steps = np.arange(first, min(first + BLOCK, self.steps))
            head = {0: self._kept[0]} if 0 in self._kept else {}
            self._kept = {**head, first: _evaluate(self._schedule, steps)}
        return self._kept[first]

    def at(self, step: int) -> float:
        """ε of one step."""
        return float(self.between(step, step + 1)[0])

    def of(self, steps: np.ndarray) -> np.ndarray:
        """ε of some steps, in increasing order."""
        if self._schedule is None:
            return np.full(len(steps), self._number)
        if self.steps <= BLOCK:
            return self.between(0, self.steps)[steps]
        return np.concatenate(
            [np.zeros(0), *(_evaluate(self._schedule, steps[i : i + BLOCK]) for i in range(0, len(steps), BLOCK))]
        )

    @property
    def keep(self) -> Callable[[Any], Any] | None:
        """Which steps may be kept, where the schedule says so: its function `keep` of the step."""
        return getattr(self._schedule, "keep", None)

    def described(self, step: int) -> Any:
        """What must agree in a run that is resumed after `step` steps: a number, or the ε of its steps (all of the
        first 2²⁰, and 4,096 spread over the rest).
        """
        if self._schedule is None:
            return self._number
        first = self.between(0, min(step, BLOCK))
        spread = np.unique(np.linspace(BLOCK, step - 1, SAMPLED, dtype=np.int64)) if step > BLOCK else np.zeros(0, int)
        return np.concatenate([first, _evaluate(self._schedule, spread)]) if spread.size else first


def _check_positive(values: np.ndarray, steps: np.ndarray | None) -> None:
    good = np.isfinite(values) & (values > 0)
    if not np.all(good):
        worst = int(np.argmin(good))
        where = "" if steps is None else f" at step {steps[worst]}"
        raise ValueError(
            f"step_size: {values[worst]:g}{where} is not a positive finite number; use step_size='auto', or "
            "for SGLD about 0.1/λ_max, λ_max the largest curvature"
        )


def _evaluate(schedule: Callable[[Any], Any], steps: np.ndarray) -> np.ndarray:
    """ε at some steps, in increasing order; from 2³¹ on they are given as 64-bit integers."""
    if steps[0] < WORD <= steps[-1]:
        cut = int(np.searchsorted(steps, WORD))
        return np.concatenate([_evaluate(schedule, steps[:cut]), _evaluate(schedule, steps[cut:])])
    try:
        values = _vectorised(schedule, steps)
    except TypeError:  # a plain Python function, which asks for numbers: `0.1 if k < 100 else 0.01`
        values = np.array([schedule(k) for k in steps.tolist()], float)
    if values.shape != steps.shape:
        raise ValueError(f"step_size: the schedule returned shape {values.shape[1:]} for one step; return a number")
    _check_positive(values, steps)
    return values


def _vectorised(schedule: Callable[[Any], Any], steps: np.ndarray) -> np.ndarray:
    if steps[-1] < WORD:
        try:
            return np.asarray(jax.vmap(schedule)(jnp.asarray(steps, jnp.result_type(int))), float)
        except OverflowError:  # it compares with a number of steps that 32 bits cannot hold
            pass
    with enable_x64(True):
        return np.asarray(jax.vmap(schedule)(jnp.asarray(steps)), float)


def _kept(keep: Callable[[Any], Any], steps: np.ndarray) -> np.ndarray:
    """Those of some steps that a schedule keeps."""
    try:
        chosen = np.asarray(keep(steps))
    except (TypeError, ValueError):  # a plain Python function, which asks for one number
        chosen = np.array([keep(step) for step in steps.tolist()])
    if chosen.shape != steps.shape or chosen.dtype != bool:
        raise ValueError(
            f"step_size: its keep(step) gave {chosen.dtype} of shape {chosen.shape} for steps of shape {steps.shape}; "
            "return True for the steps that may be kept"
        )
    return steps[chosen]


Every = int | str | timedelta
"""Steps (500), or a time ("30 s", "10 min", "2 h", or a timedelta)."""

_UNITS = {"s": 1, "sec": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class RunSchedule:
    """`steps` steps, of which after `burn_in` the last of every `thin` is a draw; `thin` counts only the steps that the
    schedule of the step sizes keeps.
    """

    steps: int
    burn_in: int
    thin: int
    chains: int
    step_sizes: StepSizes

    @cached_property
    def _chosen(self) -> np.ndarray | None:
        """The numbers, from 1, of the steps that end a draw, where the schedule says which steps are kept."""
        keep = self.step_sizes.keep
        if keep is None:
            return None
        parts, count = [np.zeros(0, np.int64)], 0
        for first in range(self.burn_in, self.steps, BLOCK):
            kept = _kept(keep, np.arange(first, min(first + BLOCK, self.steps)))
            parts.append(kept[self.thin - 1 - count % self.thin :: self.thin] + 1)
            count += len(kept)
        return np.concatenate(parts)

    @property
    def draws(self) -> int:
        """Draws of a whole run."""
        return self.draws_by(self.steps)

    def draws_by(self, step: int) -> int:
        """Draws that are complete after `step` steps."""
        if self._chosen is None:
            return max(step - self.burn_in, 0) // self.thin
        return int(np.searchsorted(self._chosen, step, side="right"))

    def draw_steps(self, first: int, stop: int) -> np.ndarray:
        """The number of steps after which each draw from `first` to `stop`, exclusive, is complete."""
        if self._chosen is None:
            return self.burn_in + self.thin * np.arange(first + 1, stop + 1)
        return self._chosen[first:stop]

    def step_of_draw(self, draw: int) -> int:
        """The number of steps after which a draw is complete; all steps where the run does not make it."""
        return int(self.draw_steps(draw, draw + 1)[0]) if draw < self.draws else self.steps

    def draw_step_sizes(self, first: int, stop: int) -> np.ndarray:
        """ε of the draws from `first` to `stop`, exclusive."""
        return self.step_sizes.of(self.draw_steps(first, stop) - 1)

    def slots(self, start: int, stop: int) -> np.ndarray:
        """Draws made between `start` and every step from there to `stop`, inclusive."""
        first, last = self.draws_by(start), self.draws_by(stop)
        return np.searchsorted(self.draw_steps(first, last), np.arange(start, stop + 1), side="right")

    def described(self, step: int) -> Any:
        """What must agree in a run that is resumed after `step` steps: the step sizes, and the steps that were kept."""
        kept = {} if self._chosen is None else {"kept_steps": self._chosen[: self.draws_by(step)]}
        return {"step_sizes": self.step_sizes.described(step), **kept}


def parse_interval(every: Every, name: str = "checkpoint_every") -> tuple[int | None, float | None]:
    """Steps or seconds between checkpoints."""
    fix = "use a number of steps such as 500, or a time such as '30 s', '10 min' or '2 h'"
    if isinstance(every, timedelta):
        seconds = every.total_seconds()
    elif isinstance(every, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|min|h)\s*", every)
        if match is None:
            raise ValueError(f"{name}: {every!r} is not a time; {fix}")
        seconds = float(match[1]) * _UNITS[match[2]]
    elif isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 1:
        raise ValueError(f"{name}: {every!r} is not a positive whole number of steps; {fix}")
    else:
        return int(every), None
    if seconds <= 0:
        raise ValueError(f"{name}: {every!r} must be positive; {fix}")
    return None, seconds
