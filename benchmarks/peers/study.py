"""Ridgewalk beside other libraries, as a study: `make benchmark`, or

    python benchmarks/peers/study.py [--preset quick] [--out FOLDER] [--record]

The first tasks use all cores, one after the other: times of steps, memory, resumption. The others are one process and
one thread each. If it is interrupted, the same command continues. The preset "paper" is meant to take at most an hour
on two cores; its record is copied to docs/results/benchmarks, and docs/benchmarks.md is written from it. "quick" tries
every row.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers import machine, predictions
from peers.machine import Memory, Resumed, StepTimes
from peers.samplers import SAMPLERS, Drawn, MomentError, Scale, error_of
from ridgewalk._compilation import use_persistent_cache
from ridgewalk.studies import uci
from ridgewalk.studies.framework.runner import StudyRun, run_studies
from ridgewalk.studies.framework.study import (
    BENCHMARKS,
    Cell,
    Number,
    Outcome,
    Preset,
    Record,
    Report,
    Section,
    Study,
    Table,
    Task,
    read_records,
)
from ridgewalk.studies.framework.tasks import row_fields
from ridgewalk.studies.uci import UciRow

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "docs" / "results" / BENCHMARKS, ROOT / "docs" / "benchmarks.md"
LIBRARIES = ("blackjax", "numpyro", "posteriors", "torch", "laplace-torch")
OURS = "Ridgewalk"
SECTIONS = ("peers", "peers-network", "peers-large", "logistic", "network", "large")
"""Of benchmarks/steps.py."""
POSTERIORS = {
    "logistic": "logistic regression, 50 weights, 10,000 rows, condition 1.4e5",
    "tall": "tall logistic regression, 50 weights, 100,000 rows",
    "hierarchical": "hierarchical regression, 84 parameters, 80 groups, 5,000 rows, from random starts",
    "network": "network of 50 tanh units, 501 weights, 927 rows; effective draws are of predictions",
}
MOST_R_HAT = 1.1
"""Above it, the effective draws of a sampler do not count as winning."""
NOT_FOR = {("network", "auto-centred"), ("hierarchical", "auto-centred")}
"""Control variates need a centre near all draws, which these posteriors do not have."""


@dataclass(frozen=True)
class Settings:
    """How long each part runs."""

    rounds: int = 3
    """Timings of a step."""
    seconds: float = 25.0
    """CPU seconds of sampling of each sampler on each posterior, warm-up and compilation not counted."""
    warmup: int = 500
    steps: int = 10_000
    draws: int = 200
    """Kept in memory, or on disk."""
    sets: tuple[str, ...] = ("concrete", "energy", "yacht")
    splits: tuple[int, ...] = (10, 11)
    """None of them was used to choose defaults of `NeuralRegressor`."""
    epochs: int = 400
    regressor_steps: int | None = None


def _uci(settings: Settings) -> uci.Settings:
    short = settings.regressor_steps
    options: dict[str, Any] = {} if short is None else {"steps": short, "burn_in": short // 2, "optimiser_steps": 300}
    return uci.Settings(**options)


def measure_sampler(name: str, posterior: str, settings: Settings) -> Drawn:
    """One sampler on one posterior."""
    from peers.problems import problem
    from peers.samplers import measure

    tall = posterior == "tall"
    scale = Scale(settings.seconds, settings.warmup // 5 if tall else settings.warmup, settings.steps)
    return measure(name, problem(posterior), scale)


def plan(settings: Settings) -> list[Task]:
    """All rows; those that need all cores first."""
    tasks = []

    def add(name: str, known: dict[str, Any], run: Callable[[], Any], row: Callable[..., Any], cost: float) -> None:
        tasks.append(Task(name, known, lambda _: run(), row, cost, group=name))

    for section in SECTIONS:
        known: dict[str, Any] = {"section": section, "rounds": settings.rounds}
        add(f"alone-steps-{section}", known, partial(machine.step_times, section, settings.rounds), StepTimes, 60)
    for number, case in enumerate(machine.MEMORY_CASES):
        known = {"case": case, "draws": settings.draws}
        add(f"alone-memory-{number}", known, partial(machine.memory, case, settings.draws), Memory, 30)
    for library in machine.RESUME_CASES:
        add(f"alone-resume-{library}", {"library": library}, partial(machine.resumed, library), Resumed, 10)
    lengths = {"seconds": settings.seconds, "warmup": settings.warmup, "steps": settings.steps}
    for posterior in POSTERIORS:
        for sampler in SAMPLERS:
            if (posterior, sampler) not in NOT_FOR:
                known = {"posterior": posterior, "sampler": sampler, **lengths}
                draw = partial(measure_sampler, sampler, posterior, settings)
                add(f"draws-{posterior}-{sampler}", known, draw, Drawn, 2 * settings.seconds)
    for data in settings.sets:
        for split in settings.splits:
            for method in predictions.METHODS:
                known = {"data": data, "split": split, "method": method}
                known |= {"epochs": settings.epochs, "steps": settings.regressor_steps}
                fit = partial(predictions.measure, data, split, method, _uci(settings), settings.epochs)
                add(f"predict-{data}-{split}-{method}", known, fit, UciRow, 60 if method == "sample" else 20)
    return tasks


# Tables


def _ours(name: str) -> bool:
    return name.startswith(OURS)


def _winner(found: Mapping[str, float], *, least: bool = False) -> tuple[str, float, str, float]:
    """The best of all and the best of Ridgewalk's, with their values."""
    order = sorted(found, key=lambda name: found[name] if least else -found[name])
    ours = next((name for name in order if _ours(name)), "")
    return order[0], found[order[0]], ours, found.get(ours, float("nan"))


def _in_words(found: Mapping[str, float], what: str, *, least: bool = False) -> str:
    """Who is best, and how Ridgewalk compares with the best of the others."""
    ours = {name: value for name, value in found.items() if _ours(name)}
    others = {name: value for name, value in found.items() if not _ours(name)}
    if not ours or not others:
        only = next(iter(found), "")
        return f"{what}: {only} only." if only else f"{what}: none."
    best, value, own, mine = _winner(found, least=least)
    if _ours(best):
        other, theirs, *_ = _winner(others, least=least)
        ratio = theirs / mine if least else mine / theirs
        return f"{what}: {own}, {ratio:.2g} times better than {other}."
    ratio = mine / value if least else value / mine
    return f"{what}: {best}, {ratio:.2g} times better than {own}."


def step_sections(rows: Mapping[str, Any]) -> Section:
    """Times of a step."""
    tables = []
    for section in SECTIONS:
        found: StepTimes = rows[f"alone-steps-{section}"]
        seconds = dict(zip(found.names, found.seconds, strict=True))
        base = found.names[0]
        lines = tuple(
            (name, Number(1e6 * value, style=",.1f"), Number(value / seconds[base], style=".2f"))
            for name, value in seconds.items()
        )
        note = _in_words(seconds, "Fastest", least=True) if section.startswith("peers") else ""
        tables.append(Table(found.title, ("", "µs a step", f"times {base}"), lines, note))
    text = (
        "All cores, single precision, start-up and compilation left out (the slope between a short and a long run). "
        "BlackJAX's steps are in a loop written by hand; posteriors has a loop in Python.",
    )
    return Section("Time of a step", text, tuple(tables))


def references(rows: Mapping[str, Any]) -> dict[str, tuple[list[float], list[float]] | None]:
    """Means and standard deviations that those of samplers are compared with."""
    from peers.problems import known_moments

    found: dict[str, tuple[list[float], list[float]] | None] = dict(known_moments())
    nuts: Drawn = rows["draws-network-nuts"]
    found["network"] = None if nuts.failed else (nuts.mean, nuts.sd)
    return found


def sampler_section(rows: Mapping[str, Any], moments: Mapping[str, Any]) -> tuple[Section, dict[str, Any]]:
    """Effective draws."""
    tables, summary = [], {}
    for posterior, title in POSTERIORS.items():
        lines: list[tuple[Cell, ...]] = []
        rate: dict[str, float] = {}
        per_pass: dict[str, float] = {}
        for sampler in SAMPLERS:
            row: Drawn | None = rows.get(f"draws-{posterior}-{sampler}")
            if row is None:
                continue
            if row.failed:
                lines.append((row.sampler, *[Number(None, note="–")] * 6, row.failed, row.settings))
                continue
            reference = moments[posterior]
            error = MomentError(0.0, 1.0, 1.0) if reference is None else error_of(row, *reference)
            per_second = row.effective / row.seconds
            passes = 1_000 * row.effective / row.passes
            agree = row.r_hat <= MOST_R_HAT
            if error.right and agree:
                rate[row.sampler], per_pass[row.sampler] = per_second, passes
            right = f"{error.mean:.2f}; {error.low:.2f} to {error.high:.2f}"
            right += ("" if error.right else ", wrong") + ("" if agree else ", chains differ")
            lines.append(
                (
                    row.sampler,
                    Number(per_second, style=".3g"),
                    Number(1_000 * row.effective / row.gradients, style=".3g"),
                    Number(passes, style=".3g"),
                    Number(row.warmup_seconds, style=".1f"),
                    Number(row.effective, style=",.0f"),
                    Number(row.r_hat, style=".2f"),
                    right,
                    row.settings,
                )
            )
        columns = (
            "sampler",
            "effective draws a second",
            "per 1,000 gradients",
            "per 1,000 passes over the data",
            "warm-up (s)",
            "effective draws",
            "R-hat",
            "moments",
            "settings",
        )
        note = " ".join(
            [
                _in_words(rate, "Most effective draws a second"),
                _in_words(per_pass, "Most per pass over the data"),
            ]
        )
        tables.append(Table(title.capitalize(), columns, tuple(lines), note))
        summary[posterior] = {"per_second": rate, "per_1000_passes": per_pass}
    text = (
        "One thread, CPU seconds without compilation. Effective draws are the median bulk ESS over parameters "
        "(predictions for the network), of all chains, after warm-up. A gradient of a minibatch is a gradient, and a "
        "part of a pass over the data. “Moments” are the largest difference of a posterior mean from the reference, in "
        "standard deviations, and the range of the ratios of standard deviations; “wrong” is beyond 0.25, or outside "
        f"0.85 to 1.15, and does not count as winning; nor does an R-hat above {MOST_R_HAT}. BlackJAX’s SGLD and SGHMC "
        "have no warm-up: the best of four step "
        "sizes is shown, the search is not counted. References: importance-weighted draws of Laplace’s approximation, "
        "a long run of NUTS for the hierarchical model, NumPyro’s NUTS of this table for the network.",
    )
    return Section("Effective draws", text, tuple(tables)), summary


def prediction_section(settings: Settings, rows: Mapping[str, Any]) -> tuple[Section, dict[str, Any]]:
    """Quality of predictions."""
    tables, summary = [], {}
    for data in settings.sets:
        lines: list[tuple[Cell, ...]] = []
        density: dict[str, float] = {}
        for method in predictions.METHODS:
            found: list[UciRow] = [rows[f"predict-{data}-{split}-{method}"] for split in settings.splits]
            mean = [float(np.mean([getattr(row, field) for row in found])) for field in UciRow._fields[3:7]]
            density[predictions.TITLES[method]] = mean[0]
            styles = (".3f", ".3g", ".2f", ".1f")
            numbers = (Number(value, style=style) for value, style in zip(mean, styles, strict=True))
            lines.append((predictions.TITLES[method], *numbers))
        best = max(density, key=lambda name: density[name])
        columns = ("method", "test log likelihood", "RMSE", "coverage of 90 % intervals", "CPU seconds")
        note = f"Highest log likelihood: {best}."
        tables.append(Table(f"{data}, mean of {len(settings.splits)} splits", columns, tuple(lines), note))
        summary[data] = density
    text = (
        "Networks with one hidden layer of 50 units on UCI regressions, official splits that no default was chosen on. "
        "CPU seconds of fit and predictions, for NeuralRegressor those of a second fit, without compilation.",
    )
    return Section("Predictions of networks", text, tuple(tables)), summary


def machine_sections(rows: Mapping[str, Any]) -> tuple[list[Section], dict[str, float]]:
    """Memory and resumption."""
    memory: list[Memory] = [row for row in rows.values() if isinstance(row, Memory)]
    resumed: list[Resumed] = [row for row in rows.values() if isinstance(row, Resumed)]
    growth = {row.case: row.peak - row.before for row in memory}
    kept = Table(
        f"{memory[0].draws:,} draws of {memory[0].weights:,} weights",
        ("", "growth of peak memory (MB)", "peak (MB)", "on disk (MB)"),
        tuple(
            (
                row.case,
                Number(growth[row.case], style=",.0f"),
                Number(row.peak, style=",.0f"),
                Number(row.disk, style=",.0f"),
            )
            for row in memory
        ),
        f"Least: {min(growth, key=lambda name: growth[name])}.",
    )
    again = Table(
        "A run in two parts",
        ("library", "to be written by hand", "continues after SIGKILL by itself", "draws as of one run, bit by bit"),
        tuple(
            (row.library, row.how, "yes" if row.after_kill else "no", "yes" if row.identical else "no")
            for row in resumed
        ),
        "laplace-torch fits in one go; its approximation is saved with state_dict.",
    )
    return [Section("Memory", (), (kept,)), Section("Resuming a run", (), (again,))], growth


def summary_table(rows: Mapping[str, Any], draws: Mapping[str, Any], densities: Mapping[str, Any]) -> Table:
    """Who is best at what."""
    lines: list[tuple[Cell, ...]] = []

    def add(question: str, found: Mapping[str, float], style: str, *, least: bool = False) -> None:
        if not found:
            lines.append((question, "none", Number(None, note="–"), "none", Number(None, note="–")))
            return
        best, value, ours, mine = _winner(found, least=least)
        own = Number(mine, style=style) if ours else Number(None, note="–")
        lines.append((question, best, Number(value, style=style), ours or "none", own))

    for section in SECTIONS[:3]:
        row: StepTimes = rows[f"alone-steps-{section}"]
        micro = {name: 1e6 * value for name, value in zip(row.names, row.seconds, strict=True)}
        add(f"µs a step: {row.title}", micro, ",.1f", least=True)
    for posterior in POSTERIORS:
        add(f"effective draws a second: {posterior}", draws[posterior]["per_second"], ".3g")
        add(f"per 1,000 passes over the data: {posterior}", draws[posterior]["per_1000_passes"], ".3g")
    for data, density in densities.items():
        add(f"test log likelihood: {data}", density, ".3f")
    return Table("In short", ("question", "best", "", "best of Ridgewalk", " "), tuple(lines))


def assemble(settings: Settings, rows: Mapping[str, Any], folder: Path) -> Outcome:
    """The tables, and every number behind them."""
    moments = references(rows)
    return Outcome(*report_and_numbers(settings, rows, moments))


def report_and_numbers(
    settings: Settings, rows: Mapping[str, Any], moments: Mapping[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """What is recorded."""
    samplers, draws = sampler_section(rows, moments)
    predicted, densities = prediction_section(settings, rows)
    others, growth = machine_sections(rows)
    short = Section("Who is best at what", (), (summary_table(rows, draws, densities),))
    text = (
        "One run on one machine; versions and processor are named below. Ratios are the result: times depend on the "
        "machine. No row is left out because Ridgewalk loses it.",
    )
    report = Report("Beside other libraries", text, (short, step_sections(rows), samplers, predicted, *others))
    numbers = {
        "rows": {name: row_fields(row) for name, row in rows.items()},
        "references": moments,
        "summary": {"draws": draws, "log_likelihood": densities, "memory": growth},
        "libraries": {name: _version(name) for name in LIBRARIES},
        "date": time.strftime("%Y-%m-%d"),
    }
    return report, numbers


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


STUDY = Study(
    BENCHMARKS,
    "peers.study:STUDY",
    {
        Preset.quick: Settings(
            rounds=1, seconds=2.0, warmup=100, steps=2_000, draws=20, sets=("yacht",), splits=(10,), epochs=20,
            regressor_steps=1_000,
        ),
        Preset.paper: Settings(),
    },
    "every row once, in a short form.",
    plan,
    assemble,
    "make benchmark",
)  # fmt: skip


# Pages


def _markdown(cell: Cell) -> str:
    return str(cell).replace("|", "\\|") or " "


INTRODUCTION = (
    "# Beside other libraries",
    "After this page you know where Ridgewalk is faster or better than other libraries, where it is not, and how to "
    "measure it on your machine.",
)
NOTHING = (
    *INTRODUCTION,
    "`make benchmark` measures BlackJAX, NumPyro, posteriors, laplace-torch and deep ensembles beside Ridgewalk and "
    "writes this page: times of a step, effective draws, predictions, memory, and resuming a run. No run is recorded "
    "in this copy.",
)
"""The page without a record."""


def markdown(record: Record, numbers: Mapping[str, Any]) -> str:
    """docs/benchmarks.md."""
    about, report = record.environment, record.report
    libraries = {"ridgewalk": record.versions["ridgewalk"], "jax": record.versions["jax"], **numbers["libraries"]}
    parts = [
        *INTRODUCTION,
        f"`make benchmark` writes this page from one run: here of {numbers['date']}, {record.seconds / 60:.0f} minutes "
        f"of compute on {about['cores']} cores ({about['processor']}). "
        f"{', '.join(f'{name} {number}' for name, number in libraries.items())}, "
        f"Python {record.versions['python']}.",
        f"**This is a short run to try every row; its ratios are rough.** Reduced: {record.reduced}"
        if record.reduced
        else "",
        *report.text,
    ]
    for section in report.sections:
        parts += [f"## {section.heading}", *section.text]
        for table in section.tables:
            head = [f"| {' | '.join(_markdown(name) for name in table.columns)} |", "|---" * len(table.columns) + "|"]
            body = [f"| {' | '.join(map(_markdown, row))} |" for row in table.rows]
            parts += [f"**{table.caption}**", "\n".join(head + body), table.note]
    return _joined(parts)


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def expected_page() -> str:
    """docs/benchmarks.md, of the record if there is one."""
    return markdown(*read_record(RECORD.parent)) if RECORD.exists() else _joined(NOTHING)


def read_record(folder: Path) -> tuple[Record, dict[str, Any]]:
    """The record of this study in a folder of records."""
    record = next(one for one in read_records(folder) if one.name == BENCHMARKS)
    return record, json.loads((record.folder / "metrics.json").read_text())["numbers"]


def main() -> None:
    """Run all rows, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", type=Preset, choices=list(Preset), default=Preset.paper)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmark")
    parser.add_argument(
        "--record",
        action=argparse.BooleanOptionalAction,
        help="write docs/results/benchmarks and docs/benchmarks.md (default: for the preset paper)",
    )
    given = parser.parse_args()
    use_persistent_cache()
    given.out.mkdir(parents=True, exist_ok=True)
    run = StudyRun(STUDY, given.preset, given.out)
    alone = [task for name, task in run.plan.items() if name.startswith("alone-") and name not in run.completed]
    for number, task in enumerate(alone, 1):
        took = run.cache.run(task).seconds
        print(f"{task.name}, {took:.0f} s; {number} of {len(alone)} that need all cores", file=sys.stderr, flush=True)
    run_studies([STUDY], given.preset, given.out)
    if given.record or (given.record is None and given.preset is Preset.paper):
        RECORD.mkdir(parents=True, exist_ok=True)
        shutil.copy(given.out / BENCHMARKS / "metrics.json", RECORD / "metrics.json")
        PAGE.write_text(expected_page())
        print(f"written to {RECORD} and {PAGE}")


if __name__ == "__main__":
    main()
