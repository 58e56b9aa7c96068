"""The paper's convergence theory, tested numerically: the rate at which G converges, and the bias of averages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ridgewalk.samplers import Base, hasgld_sa
from ridgewalk.schedules import PowerDecay
from ridgewalk.studies.convergence.measure import (
    BiasRow,
    ChainSettings,
    OperatorRow,
    conjugate_gaussian,
    conjugate_regression,
    ill_conditioned_gaussian,
    predicted_slope,
    predicted_variance_bias,
    slope_with_se,
    square_distances,
    start_bias,
    trace_operator,
    variance_bias,
    whitened_gradient_noise,
)
from ridgewalk.studies.convergence.report import Curve, Settings, build_report, plot_biases, plot_operator
from ridgewalk.studies.framework.study import Outcome, Preset, Study, Task, save_figure
from ridgewalk.studies.framework.tasks import row_fields

QUICK = Settings(
    chains=32,
    averages=3_000,
    step_sizes=(0.05, 0.1, 0.2, 0.4),
    step_size_steps=10_000,
    batch_sizes=(25, 100, 400),
    batch_steps=8_000,
    memories=(1, 2, 8),
)


def averages_shown(averages: int) -> list[int]:
    """The numbers of averages after which G is recorded: log-spaced from 10."""
    return sorted({round(k) for k in np.geomspace(10, averages, 28)})


def _operator_task(settings: Settings, alpha: float) -> Task:
    known = {
        "alpha": alpha,
        "averages": settings.averages,
        "memory": settings.memory,
        "step_size": settings.operator_step_size,
        "batch_size": settings.operator_batch,
        "chains": settings.chains,
        "seed": settings.seed,
    }

    def run(_: Path) -> OperatorRow:
        k = averages_shown(settings.averages)
        traces = trace_operator(
            conjugate_regression(),
            hasgld_sa(form="dense", memory=settings.memory, adaptation=PowerDecay(alpha=alpha)),
            seed=settings.seed,
            step_size=settings.operator_step_size,
            batch_size=settings.operator_batch,
            chains=settings.chains,
            at_steps=[count * settings.memory for count in k],  # an average is taken every M steps
        )
        return OperatorRow(k, np.round(traces, 6).tolist())

    return Task(f"operator-alpha{alpha:g}", known, run, OperatorRow, cost=4, group="operator")


def _step_task(settings: Settings, step_size: float) -> Task:
    chains = ChainSettings(settings.seed, step_size, settings.step_size_steps, settings.chains)

    def run(_: Path) -> BiasRow:
        sampler = hasgld_sa(form="dense", memory=settings.memory)
        row = variance_bias(conjugate_gaussian(), sampler, chains, x=step_size)
        return row._replace(predicted=predicted_variance_bias(step_size))

    known = {**chains._asdict(), "memory": settings.memory}
    return Task(f"step{step_size:g}", known, run, BiasRow, cost=2, group="step")


def _batch_task(settings: Settings, batch_size: int) -> Task:
    chains = ChainSettings(settings.seed, settings.batch_step_size, settings.batch_steps, settings.chains)

    def run(_: Path) -> BiasRow:
        sampler = hasgld_sa(form="dense", memory=settings.memory)
        row = variance_bias(conjugate_regression(), sampler, chains, x=batch_size, batch_size=batch_size)
        noise = whitened_gradient_noise(conjugate_regression(), batch_size)
        return row._replace(predicted=predicted_variance_bias(settings.batch_step_size, noise))

    known = {**chains._asdict(), "batch_size": batch_size, "memory": settings.memory}
    return Task(f"batch{batch_size}", known, run, BiasRow, cost=3, group=f"batch{batch_size}")


def _memory_task(settings: Settings, base: Base, memory: int) -> Task:
    chains = ChainSettings(settings.seed, settings.memory_step_size, settings.memory_steps, settings.chains)

    def run(_: Path) -> BiasRow:
        problem = ill_conditioned_gaussian(settings.memory_dimension, settings.memory_condition)
        sampler = hasgld_sa(form="dense", base=base, memory=memory)
        return start_bias(problem, sampler, chains, x=memory, away=settings.away)._replace(base=base)

    known = {
        **chains._asdict(),
        "away": settings.away,
        "dimension": settings.memory_dimension,
        "condition": settings.memory_condition,
        "memory": memory,
        "base": base,
    }
    name = f"memory-{base}-{memory}"
    return Task(name, known, run, BiasRow, cost=2, group=name)


def plan(settings: Settings) -> list[Task]:
    """One task per α, step size, batch size and memory."""
    bases: tuple[Base, ...] = ("scaled_identity", "running")
    return [
        *(_operator_task(settings, alpha) for alpha in settings.alphas),
        *(_step_task(settings, step_size) for step_size in settings.step_sizes),
        *(_batch_task(settings, batch_size) for batch_size in settings.batch_sizes),
        *(_memory_task(settings, base, memory) for base in bases for memory in settings.memories),
    ]


def operator_curves(rows: Mapping[float, OperatorRow]) -> tuple[list[Curve], float]:
    """Mean square distance from G_* against k for every α, and the distance of G_* from the exact covariance.

    G_* is the mean over all chains, and over the last fifth of log k, of the run with the smallest ω: its error is
    that of a single chain divided by the square root of their number.
    """
    converged = np.asarray(rows[max(rows)].traces)
    centre = converged[-max(1, len(converged) // 5) :].mean(axis=(0, 1))
    curves = []
    for alpha, row in rows.items():
        k = np.asarray(row.k, float)
        squares = square_distances(np.asarray(row.traces), centre)
        last_decade = k >= k[-1] / 10
        slope, slope_se = slope_with_se(k[last_decade], squares[last_decade])
        adaptation = PowerDecay(alpha=alpha)
        curves.append(
            Curve(
                alpha=alpha,
                k=k.tolist(),
                mean_square=squares.mean(axis=1).tolist(),
                mean_square_se=(squares.std(axis=1, ddof=1) / np.sqrt(squares.shape[1])).tolist(),
                omega=[adaptation.c1 * (value + adaptation.c2) ** -alpha for value in k],
                slope=slope,
                slope_se=slope_se,
                predicted_slope=predicted_slope(k[last_decade], adaptation),
            )
        )
    return curves, float(np.linalg.norm(centre - np.eye(len(centre))) / np.sqrt(len(centre)))


def assemble(settings: Settings, rows: Mapping[str, Any], folder: Path) -> Outcome:
    """Build both figures and the tables behind them."""
    curves, distance = operator_curves({alpha: rows[f"operator-alpha{alpha:g}"] for alpha in settings.alphas})
    biases: dict[str, list[BiasRow]] = {
        "step_size": [rows[f"step{x:g}"] for x in settings.step_sizes],
        "batch_size": [rows[f"batch{x}"] for x in settings.batch_sizes],
        "memory": [row for name, row in rows.items() if name.startswith("memory-")],
    }
    save_figure(folder, "operator.png", plot_operator(curves))
    save_figure(folder, "biases.png", plot_biases(biases))
    operator = {"curves": [curve._asdict() for curve in curves], "fixed_point_distance": distance}
    numbers = {"operator": operator} | {name: [row_fields(row) for row in part] for name, part in biases.items()}
    return Outcome(build_report(settings, curves, distance, biases), numbers)


STUDY = Study(
    "convergence",
    f"{__name__}:STUDY",
    {Preset.quick: QUICK, Preset.paper: Settings()},
    "32 chains instead of 256, 3,000 averages of G instead of 20,000, chains of 10,000 and 8,000 steps instead of "
    "40,000 and 20,000, and fewer step sizes, batch sizes and memories.",
    plan,
    assemble,
)
