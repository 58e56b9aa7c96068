"""A study without sampling, to test what surrounds one."""

import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.figure import Figure

from ridgewalk.studies.framework.study import (
    Number,
    Outcome,
    Picture,
    Preset,
    Report,
    Section,
    Study,
    Table,
    Task,
    save_figure,
    versus_paper,
)


@dataclass(frozen=True)
class Settings:
    factor: float = 2.0
    sizes: tuple[int, ...] = (1, 2, 3)


class ToyRow(NamedTuple):
    size: int
    value: float
    process: int = 0


def assemble(settings, rows, folder):
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([row.value for row in rows.values()])
    save_figure(folder, "line.png", figure)
    lines = tuple((f"size <{row.size}>", versus_paper(row.value, 4.0), "text") for row in rows.values())
    lines += (("lost", Number(None, note="all diverged"), "–"),)
    cost = Section("Cost", ("A second.",), (Table("Costs", ("what", "s"), (("all", Number(1.25, 0.5)),)),))
    results = Section(
        "Results",
        (),
        (Table("Products", ("row", "value", "note"), lines, "A note."),),
        (Picture("line.png", "A line.", "It rises."),),
    )
    report = Report("A toy & its numbers", ("Made of <tasks>.",), (results, cost))
    processes = [row.process for row in rows.values()]
    return Outcome(report, {"values": [row.value for row in rows.values()], "processes": processes})


PRESETS = {Preset.quick: Settings(), Preset.paper: Settings(factor=3.0, sizes=(1, 2, 3, 4))}


def toy_study(made, fail_at=None, name="toy"):
    """Tasks multiply; `made` collects the sizes of those that were run; one of them may be interrupted."""

    def plan(settings):
        def task(size):
            def run(_):
                if size == fail_at:
                    raise KeyboardInterrupt
                made.append(size)
                return ToyRow(size, size * settings.factor)

            return Task(f"size{size}", {"size": size, "factor": settings.factor}, run, ToyRow)

        return [task(size) for size in settings.sizes]

    return Study(name, f"{__name__}:TOY", PRESETS, "fewer sizes.", plan, assemble)


TOY = toy_study([])


def _plan_for_workers(settings):
    def task(size, seconds, after=()):
        def run(_):
            time.sleep(seconds)
            return ToyRow(size, size * settings.factor, os.getpid())

        about = {"size": size, "factor": settings.factor}
        return Task(f"size{size}", about, run, ToyRow, seconds, group=f"{size}", after=after)

    return [task(3, 0.1, after=("size1",)), task(1, 0.3), task(2, 0.3)]


PARALLEL = Study("parallel", f"{__name__}:PARALLEL", PRESETS, "fewer sizes.", _plan_for_workers, assemble)
"""Two tasks that take a while, so that both workers get one, and a third that waits for the first."""


def _failing_plan(settings):
    def run(_):
        raise ValueError("size = 0: must be positive")

    return [Task(name, {}, run, ToyRow, group=name) for name in ("one", "two")]


FAILING = Study("failing", f"{__name__}:FAILING", PRESETS, "nothing.", _failing_plan, assemble)


def _slow_plan(settings):
    def run(folder):
        (folder / f"started-{os.getpid()}").touch()
        time.sleep(60)
        return ToyRow(1, 1.0)

    return [Task(name, {}, run, ToyRow, group=name) for name in ("one", "two")]


SLOW = Study("slow", f"{__name__}:SLOW", PRESETS, "nothing.", _slow_plan, assemble)
