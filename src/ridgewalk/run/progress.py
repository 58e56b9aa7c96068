"""A progress bar where a person is watching."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(steps: int, wanted: bool) -> Iterator[Callable[[int], None]]:
    """A function to call with the steps just made; silent unless `wanted` and on a terminal."""
    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield lambda made: None
        return
    speed = TextColumn("{task.speed:,.0f} steps/s")
    columns = (BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("sampling", total=steps)
        yield lambda made: bar.update(task, advance=made)
