"""How far a study is and how long it will take in all, where a person is watching."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Tell = Callable[[str], None]
"""Takes the name of the piece that is about to be made."""


class Estimate:
    """Total time from what the pieces so far took, each piece weighed by its cost."""

    def __init__(self) -> None:
        self.seconds, self.cost = 0.0, 0.0

    def add(self, seconds: float, cost: float) -> None:
        """A piece was made, now or in an earlier run."""
        self.seconds += seconds
        self.cost += cost

    def of(self, cost: float) -> float | None:
        """Seconds that work of this cost takes; None before anything is known."""
        return self.seconds / self.cost * cost if self.cost else None


def in_words(seconds: float | None) -> str:
    """A duration for a person."""
    if seconds is None:
        return "not known yet"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"


@contextmanager
def study_bar(name: str, pieces: int, done: int, cost_left: float, estimate: Estimate) -> Iterator[Tell]:
    """A function to call before every piece; silent unless standard error is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda piece: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("in all {task.fields[total_time]}"),
        TextColumn("{task.fields[piece]}", style="dim"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=pieces, completed=done, total_time=in_words(None), piece="")
        start, told = time.monotonic(), itertools.count(done)

        def tell(piece: str) -> None:
            expected = estimate.of(cost_left)
            elapsed = time.monotonic() - start
            total = None if expected is None else max(expected, elapsed)
            bar.update(task, completed=next(told), total_time=in_words(total), piece=piece)

        yield tell
        bar.update(task, completed=pieces, piece="")
