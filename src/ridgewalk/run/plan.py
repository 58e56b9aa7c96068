"""The steps of a run, which of them become draws, and where it may be cut."""

import re
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from ridgewalk._step_count import WORD
from ridgewalk.run.step_sizes import StepSizes

FAR = 2**30

Every = int | str | timedelta
"""Steps (500), or a time ("30 s", "10 min", "2 h", or a timedelta)."""

_UNITS = {"s": 1, "sec": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Plan:
    """`steps` steps, of which after `burn_in` the last of every `thin` is a draw."""

    steps: int
    burn_in: int
    thin: int
    chains: int
    step_sizes: StepSizes

    @property
    def draws(self) -> int:
        """Draws of a whole run."""
        return self.draws_by(self.steps)

    def draws_by(self, step: int) -> int:
        """Draws that are complete after `step` steps."""
        return max(step - self.burn_in, 0) // self.thin

    def draw_step_sizes(self, draws: int) -> np.ndarray:
        """ε of the first draws."""
        return self.step_sizes.every(self.burn_in + self.thin - 1, self.thin, draws)

    def next_draw(self, step: int) -> tuple[int, int]:
        """Steps made from `step` on before the one that ends the next draw, and `thin`: at most 2³⁰, so that a device
        call can count to them.
        """
        last = self.burn_in + self.thin * (self.draws_by(step) + 1) - 1
        return min(last - step, FAR), min(self.thin, FAR)

    def stop(self, start: int, length: int, slots: int, checkpoint_steps: int | None) -> int:
        """Where the chunk that begins at `start` ends: at most `length` steps and `slots` draws on, and not past a
        checkpoint or a multiple of 2³¹, where the random numbers get other keys.
        """
        stop = min(start + length, self.steps, (start // WORD + 1) * WORD)
        stop = min(stop, self.burn_in + self.thin * (self.draws_by(start) + slots))
        if checkpoint_steps is not None:
            stop = min(stop, (start // checkpoint_steps + 1) * checkpoint_steps)
        return stop


def parse_every(every: Every) -> tuple[int | None, float | None]:
    """Steps or seconds between checkpoints."""
    fix = "use a number of steps such as 500, or a time such as '30 s', '10 min' or '2 h'"
    if isinstance(every, timedelta):
        seconds = every.total_seconds()
    elif isinstance(every, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|min|h)\s*", every)
        if match is None:
            raise ValueError(f"every: {every!r} is not a time; {fix}")
        seconds = float(match[1]) * _UNITS[match[2]]
    elif isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 1:
        raise ValueError(f"every: {every!r} is not a positive whole number of steps; {fix}")
    else:
        return int(every), None
    if seconds <= 0:
        raise ValueError(f"every: {every!r} is no time at all; {fix}")
    return None, seconds
