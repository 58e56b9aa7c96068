"""The paper's theory, checked: how fast G settles, and how the bias of posterior averages falls."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgewalk.samplers import Base, hasgld_sa
from ridgewalk.schedules import PowerDecay
from ridgewalk.studies.convergence_bias import (
    predicted_spread_bias,
    spread_bias,
    start_bias,
    whitened_gradient_noise,
)
from ridgewalk.studies.convergence_operator import (
    predicted_slope,
    slope_with_error,
    square_distances,
    trace_operator,
)
from ridgewalk.studies.convergence_plots import draw_biases, draw_operator
from ridgewalk.studies.convergence_report import tell
from ridgewalk.studies.problems import conjugate_gaussian, conjugate_regression, spread_gaussian
from ridgewalk.studies.record import save_figure
from ridgewalk.studies.study import Outcome, Piece, Preset, Study, Values


@dataclass(frozen=True)
class Settings:
    """Four experiments; the chains of a vectorised run are the seeds."""

    chains: int = 256
    seed: int = 0
    memory: int = 2
    # E‖G_k − G_*‖²
    alphas: tuple[float, ...] = (0.6, 0.75, 0.9)
    averages: int = 20_000
    operator_step_size: float = 0.05
    operator_batch: int = 50
    # bias of a variance
    step_sizes: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4)
    step_size_steps: int = 40_000
    batch_sizes: tuple[int, ...] = (25, 50, 100, 200, 400, 800)
    batch_step_size: float = 0.05
    batch_steps: int = 20_000
    # bias of a mean that starts far off
    memories: tuple[int, ...] = (1, 2, 4, 8)
    memory_dimension: int = 10
    memory_condition: float = 1_000.0
    memory_step_size: float = 0.1
    memory_steps: int = 2_000
    away: float = 10.0


QUICK = Settings(
    chains=32,
    averages=3_000,
    step_sizes=(0.05, 0.1, 0.2, 0.4),
    step_size_steps=10_000,
    batch_sizes=(25, 100, 400),
    batch_steps=8_000,
    memories=(1, 2, 8),
)


def _marks(averages: int) -> list[int]:
    """Averages to look at G after: evenly in log from 10."""
    return sorted({round(k) for k in np.geomspace(10, averages, 28)})


def _operator_piece(settings: Settings, alpha: float) -> Piece:
    known = {
        "alpha": alpha,
        "averages": settings.averages,
        "memory": settings.memory,
        "step_size": settings.operator_step_size,
        "batch_size": settings.operator_batch,
        "chains": settings.chains,
        "seed": settings.seed,
    }

    def make(_: Path) -> Values:
        marks = _marks(settings.averages)
        traces = trace_operator(
            conjugate_regression(),
            hasgld_sa(form="dense", memory=settings.memory, adaptation=PowerDecay(alpha=alpha)),
            seed=settings.seed,
            step_size=settings.operator_step_size,
            batch_size=settings.operator_batch,
            chains=settings.chains,
            marks=[mark * settings.memory for mark in marks],  # an average is taken every M steps
        )
        return {"k": marks, "traces": np.round(traces, 6).tolist()}

    return Piece(f"operator-alpha{alpha:g}", known, make, cost=4)


def _step_piece(settings: Settings, step_size: float) -> Piece:
    steps = settings.step_size_steps
    run: dict[str, Any] = {"seed": settings.seed, "step_size": step_size, "steps": steps, "chains": settings.chains}

    def make(_: Path) -> Values:
        problem = conjugate_gaussian()
        measured = spread_bias(problem, hasgld_sa(form="dense", memory=settings.memory), **run)
        return {"x": step_size, **measured, "predicted": predicted_spread_bias(step_size)}

    return Piece(f"step{step_size:g}", {**run, "memory": settings.memory}, make, cost=2)


def _batch_piece(settings: Settings, batch_size: int) -> Piece:
    run: dict[str, Any] = {
        "seed": settings.seed,
        "step_size": settings.batch_step_size,
        "steps": settings.batch_steps,
        "chains": settings.chains,
        "batch_size": batch_size,
    }

    def make(_: Path) -> Values:
        measured = spread_bias(conjugate_regression(), hasgld_sa(form="dense", memory=settings.memory), **run)
        noise = whitened_gradient_noise(conjugate_regression(), batch_size)
        return {"x": batch_size, **measured, "predicted": predicted_spread_bias(settings.batch_step_size, noise)}

    return Piece(f"batch{batch_size}", {**run, "memory": settings.memory}, make, cost=3)


def _memory_piece(settings: Settings, base: Base, memory: int) -> Piece:
    run: dict[str, Any] = {
        "seed": settings.seed,
        "step_size": settings.memory_step_size,
        "steps": settings.memory_steps,
        "chains": settings.chains,
        "away": settings.away,
    }
    target = {"dimension": settings.memory_dimension, "condition": settings.memory_condition}

    def make(_: Path) -> Values:
        problem = spread_gaussian(settings.memory_dimension, settings.memory_condition)
        return {
            "x": memory,
            "base": base,
            **start_bias(problem, hasgld_sa(form="dense", base=base, memory=memory), **run),
        }

    return Piece(f"memory-{base}-{memory}", {**run, **target, "memory": memory, "base": base}, make, cost=2)


def plan(settings: Settings) -> list[Piece]:
    """A piece for every α, step size, batch size, and memory."""
    bases: tuple[Base, ...] = ("scaled_identity", "running")
    return [
        *(_operator_piece(settings, alpha) for alpha in settings.alphas),
        *(_step_piece(settings, step_size) for step_size in settings.step_sizes),
        *(_batch_piece(settings, batch_size) for batch_size in settings.batch_sizes),
        *(_memory_piece(settings, base, memory) for base in bases for memory in settings.memories),
    ]


def operator_curves(settings: Settings, results: Mapping[str, Values]) -> dict[str, Any]:
    """Mean square distance from G_* against k for every α, with its slope over the last decade beside that of ω_k.

    G_* is the mean over all chains, and the last fifth of k in logarithm, of the run with the smallest ω: its error is
    that of a single chain over the root of their number.
    """
    pieces = {alpha: results[f"operator-alpha{alpha:g}"] for alpha in settings.alphas}
    settled = np.asarray(pieces[max(settings.alphas)]["traces"])
    centre = settled[-max(1, len(settled) // 5) :].mean(axis=(0, 1))
    curves = []
    for alpha, piece in pieces.items():
        k = np.asarray(piece["k"], float)
        squares = square_distances(np.asarray(piece["traces"]), centre)
        late = k >= k[-1] / 10
        fitted, error = slope_with_error(k[late], squares[late])
        adaptation = PowerDecay(alpha=alpha)
        curves.append(
            {
                "alpha": alpha,
                "k": k.tolist(),
                "mean_square": squares.mean(axis=1).tolist(),
                "mean_square_se": (squares.std(axis=1, ddof=1) / np.sqrt(squares.shape[1])).tolist(),
                "omega": [adaptation.c1 * (value + adaptation.c2) ** -alpha for value in k],
                "slope": fitted,
                "slope_se": error,
                "predicted_slope": predicted_slope(k[late], adaptation),
            }
        )
    distance = float(np.linalg.norm(centre - np.eye(len(centre))) / np.sqrt(len(centre)))
    return {"curves": curves, "fixed_point_distance": distance}


def assemble(settings: Settings, results: Mapping[str, Values], folder: Path) -> Outcome:
    """Two figures, and the tables behind them."""
    operator = operator_curves(settings, results)
    biases = {
        "step_size": [results[f"step{x:g}"] for x in settings.step_sizes],
        "batch_size": [results[f"batch{x}"] for x in settings.batch_sizes],
        "memory": [row for name, row in results.items() if name.startswith("memory-")],
    }
    save_figure(folder, "operator.png", draw_operator(operator["curves"]))
    save_figure(folder, "biases.png", draw_biases(biases))
    return Outcome(tell(asdict(settings), operator, biases), {"operator": operator, **biases})


STUDY = Study(
    "convergence",
    {Preset.quick: QUICK, Preset.paper: Settings()},
    "32 chains in place of 256, 3,000 averages of G in place of 20,000, chains of 10,000 and 8,000 steps in place of "
    "40,000 and 20,000, and fewer step and batch sizes and memories.",
    plan,
    assemble,
)
