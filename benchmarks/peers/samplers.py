"""Samplers of Ridgewalk, BlackJAX and NumPyro on one posterior: effective draws, their cost, and their moments.

Seconds are CPU seconds of one thread, without compilation. All samplers have the same potential, compiled by XLA.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from blackjax.mcmc import mclmc as blackjax_mclmc
from numpyro import distributions as dist
from numpyro import infer

import ridgewalk as rw
from peers.problems import CHAINS, Problem
from ridgewalk.diagnostics.mixing import ess, r_hat

RIDGEWALK = "Ridgewalk auto()"
RIDGEWALK_MINIBATCH = "Ridgewalk auto(), minibatches"
RIDGEWALK_CENTRED = "Ridgewalk auto(), control variates"
KEPT = 2_000
"""Draws of a chain that are kept, by thinning; effective draws hardly depend on it."""


class Scale(NamedTuple):
    """How long samplers run."""

    seconds: float
    """CPU seconds of sampling, warm-up and compilation not counted; samplers whose length is given in steps use the
    speed of a first run."""
    warmup: int
    """Iterations of warm-up of NUTS and HMCECS."""
    steps: int
    """Of the first run of samplers that move in every gradient."""


class Drawn(NamedTuple):
    """What a sampler made, in the row that is recorded."""

    sampler: str
    settings: str
    """What was chosen for it."""
    effective: float
    """Median bulk ESS over the quantities, of all chains."""
    least: float
    """The smallest."""
    r_hat: float
    """The largest."""
    seconds: float
    warmup_seconds: float
    gradients: float
    """Gradients after warm-up, of all chains."""
    passes: float
    """The same in passes over all rows."""
    mean: list[float]
    sd: list[float]
    potential: float | None
    """Mean over some of the draws, over all rows."""
    failed: str = ""
    """Why there are no draws."""


def drawn(
    problem: Problem, sampler: str, draws: Any, settings: str, *, potential: float | None = None, **cost: float
) -> Drawn:
    """Measure draws with leading axes (chain, draw)."""
    values = problem.quantities(draws)
    if not np.isfinite(values).all():
        return failure(sampler, settings, "diverged")
    sizes = np.array([ess(values[:, :, k]) for k in range(values.shape[2])])
    worst = max(r_hat(values[:, :, k]) for k in range(values.shape[2])) if values.shape[0] > 1 else 1.0
    if not np.isfinite([*sizes, worst]).all():
        return failure(sampler, settings, "a chain did not move")
    flat = values.reshape(-1, values.shape[2]).astype(float)
    return Drawn(
        sampler=sampler,
        settings=settings,
        effective=float(np.median(sizes)),
        least=float(sizes.min()),
        r_hat=float(worst),
        mean=flat.mean(axis=0).tolist(),
        sd=flat.std(axis=0).tolist(),
        potential=potential,
        **cost,  # type: ignore[arg-type]
    )


def failure(sampler: str, settings: str, reason: str) -> Drawn:
    """A row without draws."""
    return Drawn(sampler, settings, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, [], [], None, reason)


def mean_potential(problem: Problem, draws: Any) -> float:
    """The mean potential of some of the draws (chain, draw, …), over all rows."""
    some = jax.tree.map(lambda leaf: leaf[:, :: max(1, leaf.shape[1] // 25)].reshape(-1, *leaf.shape[2:]), draws)
    values = jax.lax.map(lambda p: problem.target.potential(p, problem.target.data), jax.tree.map(jnp.asarray, some))
    return float(jnp.mean(values))


def clocked(run: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its CPU seconds."""
    begun = time.process_time()
    found = jax.block_until_ready(run())
    return found, time.process_time() - begun


def compiled(function: Callable[..., Any], *arguments: Any, static: tuple[int, ...] = ()) -> Callable[..., Any]:
    """A function compiled for these arguments, to be called with those that are not static."""
    found: Callable[..., Any] = jax.jit(function, static_argnums=static).lower(*arguments).compile()
    return found


def thinned(draws: Any, count: int) -> Any:
    """At most `KEPT` draws of each chain, of draws with leading axes (chain, draw)."""
    return jax.tree.map(lambda leaf: leaf[:, :: max(1, count // KEPT)], draws)


# Ridgewalk


def run_ridgewalk(problem: Problem, scale: Scale, *, name: str = RIDGEWALK) -> Drawn:
    """`rw.auto()` with its defaults; the first run compiles, the speed of the second gives the length of a third."""
    minibatch, centred = name != RIDGEWALK, name == RIDGEWALK_CENTRED
    target = rw.control_variates(problem.target, problem.mode) if centred else problem.target
    batch = problem.batch_size if minibatch else None

    def run(key: int, steps: int) -> tuple[rw.Result, float, float]:
        passed: list[tuple[int, float]] = []
        begun = time.process_time()
        result = rw.sample(
            jax.random.key(key),
            rw.auto(),
            target,
            problem.starts,
            steps=steps,
            batch_size=batch,
            chains=CHAINS,
            start_per_chain=True,
            thin=max(1, int(0.8 * steps) // KEPT),
            progress=False,
            callback=lambda progress: passed.append((progress.step, time.process_time())),
        )
        total = time.process_time() - begun
        late = [point for point in passed if point[0] >= result.burn_in]
        each = (late[-1][1] - late[0][1]) / max(late[-1][0] - late[0][0], 1) if len(late) > 1 else total / steps
        return result, each, total

    try:
        run(1, scale.steps)
        steps = scale.steps
        result, each, total = run(2, steps)
        if total < scale.seconds / 2:
            steps = int(scale.seconds / total * steps) // 1_000 * 1_000
            result, each, total = run(3, steps)
    except rw.DivergenceError as error:
        return failure(name, "", f"diverged: {error}"[:120])
    kept = result.kept_positions()
    sampled = steps - result.burn_in
    # Exact gradients serve the step, its energy error and the curvature pair; on minibatches the pair takes a second
    # one, and control variates another.
    cost = 1 if not minibatch else 1 + centred + ("Identity" not in str(result.sampler))
    share = batch / problem.target.size if batch else 1.0
    return drawn(
        problem,
        name,
        kept,
        f"{steps:,} steps" + (f", batches of {batch}" if batch else ""),
        potential=mean_potential(problem, kept),
        seconds=each * sampled,
        warmup_seconds=max(total - each * sampled, 0.0),
        gradients=float(cost * sampled * CHAINS),
        passes=float(cost * sampled * CHAINS * share),
    )


# NumPyro


def numpyro_model(problem: Problem, subsample: int | None) -> Callable[[], None]:
    """The posterior as a model with a plate of rows, which HMCECS needs."""
    target = problem.target
    leaves, structure = jax.tree.flatten(problem.mode)

    def model() -> None:
        real = dist.constraints.real
        values = [
            numpyro.sample(f"p{i}", dist.ImproperUniform(real, (), jnp.shape(leaf))) for i, leaf in enumerate(leaves)
        ]
        position = jax.tree.unflatten(structure, values)
        numpyro.factor("prior", target.prior_value(position))
        with numpyro.plate("row", target.size, subsample_size=subsample) as rows:
            batch = jax.tree.map(lambda leaf: leaf[rows], target.data) if subsample else target.data
            numpyro.factor("likelihood", target.likelihood_values(position, batch))

    return model


def run_nuts(problem: Problem, scale: Scale, *, dense: bool) -> Drawn:
    """NumPyro's NUTS with a learnt diagonal or dense mass matrix."""
    target = problem.target
    kernel = infer.NUTS(potential_fn=lambda p: target.potential(p, target.data), dense_mass=dense)
    name = "NumPyro NUTS, dense mass" if dense else "NumPyro NUTS"

    def read(state: Any) -> tuple[Any, Any]:
        return state.z, state.num_steps

    return _run_kernel(problem, scale, kernel, name, read, [problem.start(0), problem.start(1)], target.size)


def run_hmcecs(problem: Problem, scale: Scale) -> Drawn:
    """NumPyro's HMCECS around NUTS, with a Taylor proxy at the mode."""
    subsample, blocks = 2 * problem.batch_size, 10
    leaves, structure = jax.tree.flatten(problem.mode)
    reference = {f"p{i}": leaf for i, leaf in enumerate(leaves)}
    inner = infer.NUTS(numpyro_model(problem, subsample), dense_mass=True)
    kernel = infer.HMCECS(inner, num_blocks=blocks, proxy=infer.HMCECS.taylor_proxy(reference))

    def read(state: Any) -> tuple[Any, Any]:
        return jax.tree.unflatten(structure, [state.z[name] for name in reference]), state.hmc_state.num_steps

    return _run_kernel(problem, scale, kernel, "NumPyro HMCECS", read, [None, None], subsample)


def _run_kernel(
    problem: Problem, scale: Scale, kernel: Any, name: str, read: Callable[[Any], Any], starts: list[Any], rows: int
) -> Drawn:
    """Two chains one after the other, in parts until the time is over; `read(state)` is the position and leapfrogs."""

    def advance(state: Any, count: int) -> Any:
        def one(state: Any, _: None) -> Any:
            state = kernel.sample(state, (), {})
            return state, read(state)

        return jax.lax.scan(one, state, None, length=count)

    part, warm, sample = 20, None, None
    made, leapfrogs, seconds, warmup_seconds = [], 0, 0.0, 0.0
    for chain, start in enumerate(starts):
        state = kernel.init(jax.random.key(chain), scale.warmup, start, (), {})
        if warm is None or sample is None:
            warm = compiled(advance, state, scale.warmup, static=(1,))
            sample = compiled(advance, state, part, static=(1,))
        (state, _), took = clocked(partial(warm, state))
        warmup_seconds += took
        parts, spent = [], 0.0
        while spent < scale.seconds / len(starts):
            (state, (positions, steps)), took = clocked(partial(sample, state))
            spent += took
            leapfrogs += int(np.sum(steps))
            parts.append(jax.tree.map(np.asarray, positions))
        made.append(jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts))
        seconds += spent
    return _cut(problem, name, made, scale, leapfrogs, seconds, warmup_seconds, rows)


def _cut(
    problem: Problem,
    name: str,
    made: list[Any],
    scale: Scale,
    leapfrogs: int,
    seconds: float,
    warmup_seconds: float,
    rows: int,
) -> Drawn:
    """Chains of different lengths cut to the shortest, and their cost with them."""
    lengths = [len(jax.tree.leaves(one)[0]) for one in made]
    count = min(lengths)
    share = count * len(made) / sum(lengths)
    draws = jax.tree.map(lambda *leaves: np.stack([leaf[:count] for leaf in leaves]), *made)
    return drawn(
        problem,
        name,
        thinned(draws, count),
        f"{scale.warmup:,} warm-up iterations, {leapfrogs / sum(lengths):.0f} gradients a draw",
        potential=mean_potential(problem, draws),
        seconds=seconds * share,
        warmup_seconds=warmup_seconds,
        gradients=float(leapfrogs * share),
        passes=float(leapfrogs * share * rows / problem.target.size),
    )


# BlackJAX


def run_mclmc(problem: Problem, scale: Scale) -> Drawn:
    """BlackJAX's microcanonical sampler, unadjusted, with its tuning of L, step size and diagonal."""
    target = problem.target

    def log_density(position: Any) -> jax.Array:
        return -target.potential(position, target.data)

    kernel = blackjax_mclmc.build_kernel()
    integrator_gradients = 2  # McLachlan's scheme

    def tune(key: Any, start: Any, steps: int) -> Any:
        first, second = jax.random.split(key)
        state = blackjax_mclmc.init(start, log_density, first)
        return blackjax.mclmc_find_L_and_step_size(
            mclmc_kernel=kernel, num_steps=steps, state=state, rng_key=second, logdensity_fn=log_density
        )

    def run(key: Any, state: Any, parameters: Any, steps: int, thin: int) -> Any:
        step = blackjax.mclmc(
            log_density, parameters.L, parameters.step_size, inverse_mass_matrix=parameters.inverse_mass_matrix
        ).step

        def one(state: Any, key: Any) -> Any:
            return jax.lax.scan(lambda s, k: (step(k, s)[0], None), state, jax.random.split(key, thin))[0]

        def keep(state: Any, key: Any) -> Any:
            state = one(state, key)
            return state, state.position

        return jax.lax.scan(keep, state, jax.random.split(key, steps // thin))

    made, seconds, warmup_seconds, text = [], 0.0, 0.0, ""
    count, thin, key = 0, 1, jax.random.key(0)
    tuned = compiled(tune, key, problem.start(0), scale.steps, static=(2,))
    sample = tuned
    for chain in range(2):
        key = jax.random.key(chain)
        (state, parameters, tuning_steps), warm = clocked(partial(tuned, key, problem.start(chain)))
        if not np.isfinite(float(parameters.L)):
            return failure("BlackJAX MCLMC", "", "its tuning returned NaN")
        if not chain:
            short = compiled(run, key, state, parameters, 200, 1, static=(3, 4))
            each = clocked(partial(short, key, state, parameters))[1] / 200
            count = int(np.clip(scale.seconds / 2 / each, 1_000, 500_000))
            thin = max(1, count // KEPT)
            count = count // thin * thin
            sample = compiled(run, key, state, parameters, count, thin, static=(3, 4))
        (_, positions), took = clocked(partial(sample, key, state, parameters))
        made.append(positions)
        seconds, warmup_seconds = seconds + took, warmup_seconds + warm
        text = f"{count:,} steps, {int(tuning_steps):,} of tuning"
    draws = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *made)
    total = float(2 * count * integrator_gradients)
    return drawn(
        problem, "BlackJAX MCLMC", draws, text, potential=mean_potential(problem, draws),
        seconds=seconds, warmup_seconds=warmup_seconds, gradients=total, passes=total,
    )  # fmt: skip


def run_low_rank(problem: Problem, scale: Scale) -> Drawn:
    """BlackJAX's NUTS with the low-rank mass matrix of its window adaptation."""
    target = problem.target

    def log_density(position: Any) -> jax.Array:
        return -target.potential(position, target.data)

    def adapt(key: Any, start: Any) -> Any:
        warm = blackjax.window_adaptation_low_rank(blackjax.nuts, log_density)
        found, info = warm.run(key, start, num_steps=scale.warmup)
        return found.state, found.parameters, jnp.sum(info.info.num_integration_steps)

    def run(key: Any, state: Any, parameters: Any, count: int) -> Any:
        step = blackjax.nuts(log_density, **parameters).step

        def one(state: Any, key: Any) -> Any:
            state, info = step(key, state)
            return state, (state.position, info.num_integration_steps)

        return jax.lax.scan(one, state, jax.random.split(key, count))

    part, made, seconds, warmup_seconds, leapfrogs = 50, [], 0.0, 0.0, 0
    tuned = compiled(adapt, jax.random.key(0), problem.start(0))
    sample = tuned
    for chain in range(2):
        (state, parameters, _), warm = clocked(partial(tuned, jax.random.key(chain), problem.start(chain)))
        if not chain:
            sample = compiled(run, jax.random.key(0), state, parameters, part, static=(3,))
        parts: list[Any] = []
        spent = 0.0
        while spent < scale.seconds / 2:
            call = partial(sample, jax.random.key(1 + len(parts)), state, parameters)
            (state, (positions, steps)), took = clocked(call)
            spent += took
            leapfrogs += int(np.sum(steps))
            parts.append(jax.tree.map(np.asarray, positions))
            made.append(jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts))
        seconds, warmup_seconds = seconds + spent, warmup_seconds + warm
    name = "BlackJAX NUTS, low-rank mass"
    return _cut(problem, name, made, scale, leapfrogs, seconds, warmup_seconds, target.size)


def run_stochastic(problem: Problem, scale: Scale, *, momentum: bool) -> Drawn:
    """BlackJAX's SGLD, or SGHMC of ten gradients a step, at the best of four step sizes."""
    target, batch = problem.target, problem.batch_size
    name, inner = ("BlackJAX SGHMC", 10) if momentum else ("BlackJAX SGLD", 1)

    def gradient(position: Any, rows: Any) -> Any:
        return jax.grad(lambda p: -target.potential(p, rows))(position)

    step = (blackjax.sghmc(gradient, num_integration_steps=inner) if momentum else blackjax.sgld(gradient)).step

    def run(key: Any, starts: Any, step_size: Any, draws: int, thin: int) -> Any:
        def advance(position: Any, key: Any) -> tuple[Any, None]:
            key, batch_key = jax.random.split(key)
            rows = jax.random.randint(batch_key, (batch,), 0, target.size)
            return step(key, position, jax.tree.map(lambda leaf: leaf[rows], target.data), step_size), None

        def keep(position: Any, key: Any) -> tuple[Any, Any]:
            position = jax.lax.scan(advance, position, jax.random.split(key, thin))[0]
            return position, position

        def chain(key: Any, start: Any) -> Any:
            return jax.lax.scan(keep, start, jax.random.split(key, draws))

        return jax.vmap(chain)(jax.random.split(key, CHAINS), starts)

    root = problem.step_limit**0.5
    grid = (
        [root * factor for factor in (0.03, 0.1, 0.3, 0.7)]
        if momentum
        else [problem.step_limit * factor for factor in (0.003, 0.03, 0.1, 0.3)]
    )
    first = jax.random.key(0), problem.starts, jnp.float32(grid[0])
    short = compiled(run, *first, 100, 1, static=(3, 4))
    each = clocked(partial(short, *first))[1] / 100
    count = max(int(scale.seconds / len(grid) / each), KEPT)
    thin = max(1, count // KEPT)
    before = compiled(run, *first, KEPT // 4, thin, static=(3, 4))
    sample = compiled(run, *first, KEPT, thin, static=(3, 4))
    found = []
    for number, step_size in enumerate(grid):
        size = jnp.float32(step_size)
        warm = partial(before, jax.random.key(10 + number), problem.starts, size)
        (positions, _), warm_took = clocked(warm)
        (_, draws), took = clocked(partial(sample, jax.random.key(20 + number), positions, size))
        gradients = float(KEPT * thin * CHAINS * inner)
        row = drawn(
            problem,
            name,
            draws,
            f"{KEPT * thin:,} steps, batches of {batch}, step size {step_size:.2g}, best of 4",
            potential=mean_potential(problem, draws),
            seconds=took,
            warmup_seconds=warm_took,
            gradients=gradients,
            passes=gradients * batch / target.size,
        )
        found.append(row)
    return best(problem, found)


def best(problem: Problem, found: list[Drawn]) -> Drawn:
    """The most effective one of those whose moments are right, else the one with the best moments."""
    usable = [one for one in found if not one.failed]
    if not usable:
        return found[0]
    right = [one for one in usable if error_of(one, problem.mean, problem.sd).right]
    if right:
        return max(right, key=lambda one: one.effective)
    return min(usable, key=lambda one: error_of(one, problem.mean, problem.sd).total)


class MomentError(NamedTuple):
    """Of means and standard deviations, against a reference; zeros where there is none."""

    mean: float
    """The largest difference of a mean, in reference standard deviations."""
    low: float
    high: float
    """The smallest and largest ratio of a standard deviation."""

    @property
    def right(self) -> bool:
        """Means within 0.25 standard deviations, and these within 15 %: the tolerance of tests/zoo.py."""
        return self.mean <= 0.25 and self.low >= 0.85 and self.high <= 1.15

    @property
    def total(self) -> float:
        """A single number."""
        return self.mean + abs(float(np.log(max(self.low, 1e-9)))) + abs(float(np.log(max(self.high, 1e-9))))


def error_of(row: Drawn, mean: Any, sd: Any) -> MomentError:
    """The errors of a row."""
    if mean is None:
        return MomentError(1 / max(row.effective, 1e-9), 1.0, 1.0)
    mean, sd, found = np.asarray(mean), np.asarray(sd), np.asarray(row.sd)
    return MomentError(
        float(np.max(np.abs(np.asarray(row.mean) - mean) / sd)), float(np.min(found / sd)), float(np.max(found / sd))
    )


SAMPLERS: dict[str, Callable[[Problem, Scale], Drawn]] = {
    "auto": run_ridgewalk,
    "auto-minibatch": partial(run_ridgewalk, name=RIDGEWALK_MINIBATCH),
    "auto-centred": partial(run_ridgewalk, name=RIDGEWALK_CENTRED),
    "nuts": partial(run_nuts, dense=False),
    "nuts-dense": partial(run_nuts, dense=True),
    "hmcecs": run_hmcecs,
    "mclmc": run_mclmc,
    "nuts-low-rank": run_low_rank,
    "sgld": partial(run_stochastic, momentum=False),
    "sghmc": partial(run_stochastic, momentum=True),
}


def measure(name: str, problem: Problem, scale: Scale) -> Drawn:
    """One sampler on one posterior; errors of a library become a row that says so."""
    try:
        return SAMPLERS[name](problem, scale)
    except (RuntimeError, ValueError, FloatingPointError, AssertionError) as error:
        return failure(name, "", f"{type(error).__name__}: {error}"[:160])
