"""A progress bar where a person is watching."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Report = Callable[[int, np.ndarray, np.ndarray], None]
"""Takes the steps made so far, the chains' newest potentials, and which of them are alive."""


@contextmanager
def progress_bar(steps: int, done: int, wanted: bool) -> Iterator[Report]:
    """A function to call at every chunk's end; silent unless `wanted` and on a terminal."""
    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield lambda step, potentials, alive: None
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]} steps/s"),
        TimeRemainingColumn(),
        TextColumn("U = {task.fields[potential]}"),
        TextColumn("{task.fields[chains]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("sampling", total=steps, completed=done, potential="…", chains="", speed="…")

        def report(step: int, potentials: np.ndarray, alive: np.ndarray) -> None:
            speed = bar.tasks[task].speed
            bar.update(
                task,
                completed=step,
                speed="…" if speed is None else f"{speed:,.0f}",
                potential=f"{np.mean(potentials[alive]):.5g}" if alive.any() else "none",
                chains=f"{alive.sum()}/{alive.size} chains alive",
            )

        yield report
