"""Runs studies: the tasks that are missing, on all cores, then metrics.json, figures, tables and the page."""

import dataclasses
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ridgewalk._io import sole_writer, write_atomically
from ridgewalk.studies.framework.page import print_tables, write_page
from ridgewalk.studies.framework.study import Cell, Number, Preset, Report, Section, Study, Task, to_json
from ridgewalk.studies.framework.tasks import Assignment, Completed, TaskCache, WorkerPool


class StudyRun:
    """A study in a folder: which of its tasks are complete, started or waiting."""

    def __init__(self, study: Study, preset: Preset, out: Path) -> None:
        self.study, self.preset, self.folder = study, preset, out / study.name
        self.settings = study.presets[preset]
        self.plan = {task.name: task for task in study.plan(self.settings)}
        self.cache = TaskCache(self.folder / "tasks")
        found = {name: self.cache.read(task) for name, task in self.plan.items()}
        self.completed: dict[str, Completed] = {name: done for name, done in found.items() if done is not None}
        self.started = set(self.completed)

    def ready(self) -> list[Task]:
        """Tasks that can be started now."""
        waiting = (task for name, task in self.plan.items() if name not in self.started)
        return [task for task in waiting if all(name in self.completed for name in task.after)]

    def remaining_cost(self, group: str | None = None) -> float:
        """The cost of the tasks that were not started, of one group or of all."""
        return sum(
            task.cost
            for name, task in self.plan.items()
            if name not in self.started and (group is None or task.group == group)
        )

    @property
    def is_complete(self) -> bool:
        """Whether all results are there."""
        return len(self.completed) == len(self.plan)

    def finish(self) -> Report:
        """Build the report, and write figures and metrics.json."""
        in_order = {name: self.completed[name].row for name in self.plan}
        outcome = self.study.assemble(self.settings, in_order, self.folder)
        seconds = {name: self.completed[name].seconds for name in self.plan}
        name, preset = self.study.name, self.preset
        report = outcome.report if preset is Preset.paper else without_paper(outcome.report)
        record = {
            "study": name,
            "preset": preset.value,
            "command": self.study.command.format(name=name, preset=preset.value),
            "reduced": self.study.reduced if preset is Preset.quick else "",
            "settings": dataclasses.asdict(self.settings),
            "seconds": sum(seconds.values()),
            "tasks": {
                task.name: {"settings": dict(task.settings), "seconds": seconds[task.name]}
                for task in self.plan.values()
            },
            "numbers": outcome.numbers,
            "report": to_json(report),
        }
        write_record(self.folder, record)
        return report


def without_paper(report: Report) -> Report:
    """The report without the paper's values and the marks against them: a reduced run is not comparable with it."""

    def cell(found: Cell) -> Cell:
        if isinstance(found, Number) and found.paper is not None:
            return dataclasses.replace(found, paper=None, mark=None)
        return found

    def section(part: Section) -> Section:
        tables = (
            dataclasses.replace(table, rows=tuple(tuple(map(cell, row)) for row in table.rows)) for table in part.tables
        )
        return dataclasses.replace(part, tables=tuple(tables))

    return dataclasses.replace(report, sections=tuple(map(section, report.sections)))


def run_studies(studies: Sequence[Study], preset: Preset, out: Path, workers: int | None = None) -> Path:
    """Run or resume studies in `out/<name>`, print their tables, and return the page `out/index.html`.

    `workers` processes run tasks in parallel (default: `default_workers`); with 1 tasks run in this process. After an
    interruption the same call resumes: only the tasks that were running are repeated.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers = {workers}: must be at least 1")
    with ExitStack() as stack:
        runs = []
        for study in studies:
            folder = out / study.name
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(sole_writer(folder))
            _check_plan(study, preset)
            runs.append(StudyRun(study, preset, out))
        groups = {(run.study.name, task.group) for run in runs for task in run.plan.values() if not _done(run, task)}
        count = min(workers or default_workers(), len(groups))
        progress = stack.enter_context(_progress(runs, max(count, 1)))
        reports = {run.study.name: run.finish() for run in runs if run.is_complete}
        if count > 1:
            pool = WorkerPool(count, preset, out)
            stack.callback(pool.close)
            reports |= _run_parallel(runs, pool, progress)
        else:
            reports |= _run_here(runs, progress)
    for run in runs:
        print_tables(reports[run.study.name])
    return write_page(out)


def _done(run: StudyRun, task: Task) -> bool:
    return task.name in run.completed


def _check_plan(study: Study, preset: Preset) -> None:
    plan = study.plan(study.presets[preset])
    if len({task.name for task in plan}) < len(plan):
        raise ValueError(f"plan: two tasks of {study.name} have the same name; results are stored by name")


def _run_here(runs: Sequence[StudyRun], progress: "TaskProgress") -> dict[str, Report]:
    """Run all missing tasks in this process, in the order of the plans."""
    reports = {}
    for run in (run for run in runs if not run.is_complete):
        for task in run.plan.values():
            if task.name not in run.completed:
                run.started.add(task.name)
                progress.started(run, task)
                run.completed[task.name] = run.cache.run(task)
                progress.finished(run, task)
        reports[run.study.name] = run.finish()
    return reports


def _run_parallel(runs: Sequence[StudyRun], pool: WorkerPool, progress: "TaskProgress") -> dict[str, Report]:
    """Run all missing tasks on worker processes."""
    by_location = {run.study.location: run for run in runs}
    owners: dict[tuple[str, str], int] = {}
    active: dict[int, str] = {}

    def assign() -> None:
        for worker in pool.idle():
            chosen = next_task(runs, worker, owners, active)
            if chosen is None:
                active.pop(worker, None)
                continue
            run, task = chosen
            run.started.add(task.name)
            owners.setdefault((run.study.name, task.group), worker)
            active[worker] = run.study.name
            progress.started(run, task)
            pool.start(worker, Assignment(run.study.location, task.name))

    reports: dict[str, Report] = {}
    assign()
    while not all(run.is_complete for run in runs):
        done = pool.finished()
        for _, (location, name), error in done:
            run = by_location[location]
            completed = None if error else run.cache.read(run.plan[name])
            if completed is None:
                raise RuntimeError(f"{run.study.name}: task {name} failed: {error or 'its result cannot be read'}")
            run.completed[name] = completed
            progress.finished(run, run.plan[name])
        assign()  # before reports are built: no worker should wait for that
        for location in dict.fromkeys(finished.assignment.location for finished in done):
            run = by_location[location]
            if run.is_complete:
                reports[run.study.name] = run.finish()
    return reports


def next_task(
    runs: Sequence[StudyRun], worker: int, owners: Mapping[tuple[str, str], int], active: Mapping[int, str]
) -> tuple[StudyRun, Task] | None:
    """Choose the next task for a worker; None if none can be started now.

    A group's tasks share compiled code and a study's tasks share data, both per process. So a worker continues its
    group, then its study, then takes the study with the most work left, preferably one that no other worker is at. It
    takes from another worker's group only if nothing else is left.
    """
    elsewhere = {name for number, name in active.items() if number != worker}
    best: tuple[StudyRun, Task] | None = None
    best_score: tuple[float, ...] = ()
    for run in runs:
        name = run.study.name
        for task in run.ready():
            owner = owners.get((name, task.group))
            score = (
                owner in (None, worker),
                owner == worker,
                active.get(worker) == name,
                name not in elsewhere,
                run.remaining_cost(),
                run.remaining_cost(task.group),
            )
            if best is None or score > best_score:
                best, best_score = (run, task), score
    return best


class TaskProgress:
    """Reports the start and end of tasks: live bars on a terminal, otherwise a line per completed task."""

    def __init__(self, runs: Sequence[StudyRun], workers: int, console: Console) -> None:
        self.runs, self.workers, self.console = runs, workers, console
        self.running: dict[str, list[str]] = {run.study.name: [] for run in runs}
        self.bars: dict[str, TaskID] = {}
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
        )
        self.display = Progress(*columns, console=console) if console.is_terminal else None
        if self.display is not None:
            for run in runs:
                self._add_bar(self.display, run.study.name, len(run.plan), len(run.completed))
            if len(runs) > 1:
                total, done = (sum(len(part) for part in parts) for parts in _plans_and_results(runs))
                self._add_bar(self.display, "all", total, done)

    def _add_bar(self, display: Progress, name: str, total: int, done: int) -> None:
        self.bars[name] = display.add_task(name, total=total, completed=done, note="")

    def started(self, run: StudyRun, task: Task) -> None:
        """A task starts."""
        self.running[run.study.name].append(task.name)
        self._show(run)

    def finished(self, run: StudyRun, task: Task) -> None:
        """A task is complete."""
        self.running[run.study.name].remove(task.name)
        if self.display is None:
            count = f"{len(run.completed)}/{len(run.plan)}"
            seconds, left = run.completed[task.name].seconds, remaining_seconds(self.runs, self.workers)
            self.console.print(
                f"{run.study.name} {count}: {task.name}, {seconds:.1f} s; {duration(left)} left in all",
                highlight=False,
                soft_wrap=True,
            )
        self._show(run)

    def _show(self, run: StudyRun) -> None:
        if self.display is None:
            return
        name = run.study.name
        self.display.update(self.bars[name], completed=len(run.completed), note=", ".join(self.running[name]))
        left = f"{duration(remaining_seconds(self.runs, self.workers))} left"
        shown = self.bars.get("all")
        if shown is None:
            self.display.update(self.bars[name], note=f"{left}; {', '.join(self.running[name])}")
        else:
            self.display.update(shown, completed=sum(len(r.completed) for r in self.runs), note=left)


def _plans_and_results(runs: Sequence[StudyRun]) -> Iterator[list[Mapping[str, object]]]:
    yield [run.plan for run in runs]
    yield [run.completed for run in runs]


@contextmanager
def _progress(runs: Sequence[StudyRun], workers: int) -> Iterator[TaskProgress]:
    progress = TaskProgress(runs, workers, Console(stderr=True))
    if progress.display is None:
        yield progress
        return
    with progress.display:
        yield progress


def remaining_seconds(runs: Sequence[StudyRun], workers: int) -> float | None:
    """Expected time until all tasks are complete, from those completed so far; None before the first."""
    done = [(run.completed[name].seconds, run.plan[name].cost) for run in runs for name in run.completed]
    if not done:
        return None
    seconds, cost = (sum(part) for part in zip(*done, strict=True))
    left = sum(task.cost for run in runs for task in run.plan.values() if not _done(run, task))
    return left * seconds / cost / workers


def duration(seconds: float | None) -> str:
    """A duration in words."""
    if seconds is None:
        return "unknown time"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"


LIBRARIES = ("ridgewalk", "jax", "jaxlib", "numpy", "scipy", "arviz-base", "arviz-stats", "matplotlib")


def write_record(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write `metrics.json` with library versions and machine."""
    everything = {**content, "versions": versions(), "environment": environment()}
    text = json.dumps(everything, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(folder / "metrics.json", (text + "\n").encode())
    return folder / "metrics.json"


def versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries on which results depend."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"python": platform.python_version()}


def environment() -> dict[str, str]:
    """The machine, as far as durations depend on it."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": str(available_cores()),
        "device": str(jax.devices()[0].device_kind),
        "precision": "float64" if jax.config.read("jax_enable_x64") else "float32",
    }


MEMORY_PER_WORKER = 2 * 2**30
"""Bytes; a worker of the Darcy studies uses 1.5 GiB."""


def default_workers() -> int:
    """One worker per core as far as memory allows; a single one on GPU or TPU, whose memory a process reserves."""
    if jax.default_backend() != "cpu":
        return 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(available_cores(), memory // MEMORY_PER_WORKER))


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
