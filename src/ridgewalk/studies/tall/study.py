"""Tall data: control variates, NUTS, HMCECS and Laplace's approximation on regressions with up to a million rows."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, PyTree
from ridgewalk._validation import requires_extra
from ridgewalk.gradients import control_variates
from ridgewalk.samplers import auto
from ridgewalk.sampling.runner import RunProgress
from ridgewalk.sampling.sample import sample
from ridgewalk.studies.framework.study import Outcome, Preset, Study, Task
from ridgewalk.studies.framework.tasks import Arrays, cached_arrays, row_fields
from ridgewalk.studies.tall.problem import (
    Gaussian,
    TallProblem,
    errors_of,
    importance_reference,
    laplace,
    moments,
    tall_problem,
)
from ridgewalk.studies.tall.report import (
    DENSE_NUTS,
    HMCECS,
    NUTS,
    RIDGEWALK,
    Curve,
    PosteriorRow,
    SamplerRow,
    Settings,
    build_report,
    save_figures,
)
from ridgewalk.tuning.mode import find_mode

GRADIENT_REPEATS = 5
"""Gradients over all rows that are timed."""
CURVE_POINTS = 12
"""Numbers of draws at which errors are computed."""


def _seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    jax.block_until_ready(run())
    return time.process_time() - start


def _mode(problem: TallProblem, settings: Settings, seed: int) -> PyTree:
    return find_mode(jax.random.key(seed), problem.target, problem.like, batch_size=settings.batch_size)


def _curve(draws: np.ndarray, reference: Gaussian) -> Curve:
    """Errors of the first draws of each chain; draws are (chain, draw, d)."""
    count = draws.shape[1]
    first = max(2 * draws.shape[2] // draws.shape[0], 10)
    lengths = np.unique(np.geomspace(first, count, CURVE_POINTS).round().astype(int))
    errors = [errors_of(moments(draws[:, :length]), reference) for length in lengths]
    return Curve([int(length) for length in lengths], *(list(field) for field in zip(*errors, strict=True)))


# Posteriors


def reference_of(kind: str, size: int, settings: Settings, folder: Path) -> Gaussian:
    """Reference moments, cached by `measure_posterior`."""
    arrays = _reference_arrays(kind, size, settings, folder)
    return Gaussian(arrays["mean"], arrays["covariance"])


def _reference_arrays(kind: str, size: int, settings: Settings, folder: Path) -> Arrays:
    draws = int(np.clip(settings.reference_work // size, settings.least_reference, settings.most_reference))

    def make(_: Path) -> Arrays:
        problem = tall_problem(kind, size, settings.seed)
        approximation = laplace(problem, _mode(problem, settings, settings.seed)).gaussian
        found = importance_reference(problem, approximation, draws)
        return {
            "mean": found.gaussian.mean,
            "covariance": found.gaussian.covariance,
            "effective_draws": np.array(found.effective_draws),
            "split_error": np.array(found.split_error),
        }

    known = {"kind": kind, "size": size, "seed": settings.seed, "draws": draws, "batch_size": settings.batch_size}
    return cached_arrays(folder, f"reference-{kind}-{size}", known, make)


def measure_posterior(kind: str, size: int, settings: Settings, folder: Path) -> PosteriorRow:
    """The reference, the time of a gradient over all rows, and Laplace's approximation."""
    arrays = _reference_arrays(kind, size, settings, folder)
    reference, problem = Gaussian(arrays["mean"], arrays["covariance"]), tall_problem(kind, size, settings.seed)
    mode = _mode(problem, settings, settings.seed)
    gradient = jax.jit(jax.value_and_grad(problem.target.potential))
    jax.block_until_ready(gradient(mode, problem.target.data))
    times = [_seconds(partial(gradient, mode, problem.target.data)) for _ in range(GRADIENT_REPEATS)]
    found = laplace(problem, mode)
    return PosteriorRow(
        kind=kind,
        size=size,
        condition=float(np.linalg.cond(reference.covariance)),
        gradient_seconds=float(np.median(times)),
        effective_draws=float(arrays["effective_draws"]),
        reference_error=float(arrays["split_error"]),
        laplace_passes=found.passes,
        laplace_seconds=_seconds(partial(_mode, problem, settings, 1)) + _seconds(lambda: laplace(problem, mode)),
        **{f"laplace_{name}": value for name, value in errors_of(found.gaussian, reference)._asdict().items()},
    )


# Samplers


def measure_ridgewalk(kind: str, size: int, settings: Settings, folder: Path) -> SamplerRow:
    """`find_mode`, `control_variates` and `sample` with their defaults; the first run compiles and is not timed."""
    problem, reference = tall_problem(kind, size, settings.seed), reference_of(kind, size, settings, folder)
    chains, batch = settings.chains, settings.batch_size
    times: dict[str, list[float]] = {"mode": [], "centre": [], "sample": []}
    after_warmup: list[float] = []
    curves = []

    def timed(name: str, run: Callable[[], Any]) -> Any:
        start = time.process_time()
        found = jax.block_until_ready(run())
        times[name].append(time.process_time() - start)
        return found

    for seed in range(settings.seeds + 1):
        mode = timed("mode", partial(_mode, problem, settings, seed))
        estimator = timed("centre", partial(control_variates, problem.target, mode))
        passed: list[tuple[int, float]] = []

        def note(progress: RunProgress, passed: list[tuple[int, float]] = passed) -> None:
            passed.append((progress.step, time.process_time()))

        start = time.process_time()
        result = sample(
            jax.random.key(seed),
            auto(),
            estimator,
            mode,
            steps=settings.steps,
            batch_size=batch,
            block_size=settings.block_size,
            chains=chains,
            progress=False,
            callback=note,
        )
        times["sample"].append(time.process_time() - start)
        late = [point for point in passed if point[0] >= result.burn_in]
        after_warmup.append((late[-1][1] - late[0][1]) / max(late[-1][0] - late[0][0], 1))
        if seed:
            draws = [
                problem.vectors({name: x[chain] for name, x in result.positions.items()}) for chain in range(chains)
            ]
            curves.append(_curve(np.stack(draws), reference))
    first = sum(values[0] for values in times.values())
    mode_seconds, centre_seconds, sample_seconds = (float(np.median(values[1:])) for values in times.values())
    step_seconds = float(np.median(after_warmup[1:]))
    warmup = sample_seconds - step_seconds * (settings.steps - result.burn_in)
    # Control variates take two minibatch gradients, and a curvature pair a third; the centre is moved three times.
    rows = settings.steps * chains * batch * 3 + size * (1 + 3 * chains)
    return SamplerRow(
        sampler=RIDGEWALK,
        kind=kind,
        size=size,
        setup_seconds=mode_seconds + centre_seconds,
        warmup_seconds=warmup,
        seconds_per_draw=step_seconds,
        compile_seconds=first - mode_seconds - centre_seconds - sample_seconds,
        row_gradients=float(rows),
        curves=curves,
        step_seconds=step_seconds,
    )


def measure_nuts(
    sampler: str, kind: str, size: int, settings: Settings, folder: Path, *, dense: bool, subsample: int | None = None
) -> SamplerRow:
    """NumPyro's NUTS, or HMCECS around it; the draws are made in two runs, of which the second is timed.

    A call of `MCMC.run` compiles each time; as one compiled function it does so in the first run only.
    """
    with requires_extra("numpyro"):
        from numpyro import infer  # noqa: PLC0415

    problem, reference = tall_problem(kind, size, settings.seed), reference_of(kind, size, settings, folder)
    mode = _mode(problem, settings, settings.seed)
    kernel: Any = infer.NUTS(problem.model, dense_mass=dense)
    arguments: tuple[Any, ...] = (problem.x, problem.y)
    field, init = "num_steps", mode
    if subsample is not None:
        constrained = {name: jnp.exp(value) if name == "scale" else value for name, value in mode.items()}
        kernel = infer.HMCECS(kernel, num_blocks=settings.blocks, proxy=infer.HMCECS.taylor_proxy(constrained))
        arguments, field, init = (*arguments, subsample), "hmc_state.num_steps", None
    mcmc = infer.MCMC(kernel, num_warmup=settings.warmup, num_samples=settings.draws // 2, progress_bar=False)
    begin = time.process_time()
    mcmc.warmup(jax.random.key(settings.seed), *arguments, init_params=init, collect_warmup=True, extra_fields=(field,))
    warmup_leapfrogs = int(np.sum(mcmc.get_extra_fields()[field]))

    @jax.jit
    def run(key: Key, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any, Any]:
        mcmc.post_warmup_state = state
        mcmc.run(key, x, y, *arguments[2:], extra_fields=(field,))
        return mcmc.get_samples(), mcmc.get_extra_fields()[field], mcmc.last_state

    draws, state, leapfrogs, seconds = [], mcmc.last_state, 0, 0.0
    for part in (1, 2):
        start = time.process_time()
        found, steps, state = jax.block_until_ready(run(jax.random.key(part), state, problem.x, problem.y))
        seconds, leapfrogs = time.process_time() - start, int(np.sum(steps))
        draws.append(problem.vectors(problem.unconstrained(found)))
    total = time.process_time() - begin
    per_leapfrog = seconds / leapfrogs
    made = settings.draws // 2
    return SamplerRow(
        sampler=sampler,
        kind=kind,
        size=size,
        setup_seconds=0.0,
        warmup_seconds=per_leapfrog * warmup_leapfrogs,
        seconds_per_draw=seconds / made,
        compile_seconds=max(total - per_leapfrog * warmup_leapfrogs - 2 * seconds, 0.0),
        row_gradients=float((warmup_leapfrogs + 2 * leapfrogs) * (subsample or size)),
        curves=[_curve(np.concatenate(draws)[None], reference)],
        leapfrogs=leapfrogs / made,
        warmup_leapfrogs=warmup_leapfrogs,
        step_seconds=per_leapfrog,
    )


# The study


COMMON = ("seed", "batch_size", "reference_work", "least_reference", "most_reference")
"""What every task depends on: the data, the mode and the reference."""
RELEVANT: dict[str, tuple[str, ...]] = {
    "posterior": (),
    "ridgewalk": ("steps", "chains", "block_size", "seeds"),
    "nuts": ("warmup", "draws"),
    "nuts-dense": ("warmup", "draws"),
    "hmcecs": ("warmup", "draws", "subsample", "blocks"),
}
"""The further settings that the tasks of a label depend on."""


def plan(settings: Settings) -> list[Task]:
    """A task for each posterior, and for each sampler on it; NUTS for the sizes at which it is measured."""

    def task(label: str, kind: str, size: int, measure: Callable[..., Any], cost: float) -> Task:
        def run(folder: Path) -> Any:
            return measure(kind, size, settings, folder)

        posterior = label == "posterior"
        return Task(
            f"{label}-{kind}-{size}",
            {"kind": kind, "size": size} | {name: getattr(settings, name) for name in (*COMMON, *RELEVANT[label])},
            run,
            PosteriorRow if posterior else SamplerRow,
            cost,
            group=f"{label}-{kind}-{size}",
            after=() if posterior else (f"posterior-{kind}-{size}",),
        )

    tasks = []
    for kind in settings.kinds:
        for size in settings.sizes:
            measured: dict[str, Callable[..., Any]] = {"posterior": measure_posterior, "ridgewalk": measure_ridgewalk}
            if size in settings.nuts_sizes:
                measured["nuts"] = partial(measure_nuts, NUTS, dense=False)
                measured["nuts-dense"] = partial(measure_nuts, DENSE_NUTS, dense=True)
            if size in settings.hmcecs_sizes:
                measured["hmcecs"] = partial(measure_nuts, HMCECS, dense=True, subsample=settings.subsample)
            tasks += [task(label, kind, size, measure, 20.0) for label, measure in measured.items()]
    return tasks


def assemble(settings: Settings, rows: Mapping[str, PosteriorRow | SamplerRow], folder: Path) -> Outcome:
    """Compare the samplers at each size, and draw the figures."""
    posteriors = {(row.kind, row.size): row for row in rows.values() if isinstance(row, PosteriorRow)}
    samplers = [row for row in rows.values() if isinstance(row, SamplerRow)]
    save_figures(folder, settings, posteriors, samplers)
    report, numbers = build_report(settings, posteriors, samplers)
    numbers["rows"] = {name: row_fields(row) for name, row in rows.items()}
    return Outcome(report, numbers)


STUDY = Study(
    "tall",
    f"{__name__}:STUDY",
    {
        Preset.quick: Settings(
            kinds=("logistic",),
            sizes=(2_000, 20_000),
            nuts_sizes=(2_000,),
            hmcecs_sizes=(20_000,),
            steps=5_000,
            seeds=1,
            warmup=150,
            draws=200,
            reference_work=2 * 10**8,
        ),
        Preset.paper: Settings(),
    },
    "logistic regression only, up to 20,000 rows, one seed, shorter runs, and NUTS at 2,000 rows.",
    plan,
    assemble,
)
