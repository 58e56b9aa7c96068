"""`sample`: runs chains of a sampler on a target, from a key to draws; and the checks before the first step.

Errors name the argument, its value and the fix.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._compilation import jit
from ridgewalk._pytree import current_placement, layout_of, leaf_names, on_one_device, place, placement_of, using
from ridgewalk._types import Key, PyTree
from ridgewalk._validation import check_choice, check_whole
from ridgewalk.data import Batches
from ridgewalk.distributed.processes import failing_together
from ridgewalk.distributed.shards import Sharded
from ridgewalk.dynamics import AsPrinted, Hamiltonian
from ridgewalk.gradients import GradientEstimator, as_estimator, estimator_on_device
from ridgewalk.kernel import Sampler, Tuned, build_kernel
from ridgewalk.result import Result
from ridgewalk.sampling.batching import (
    FIX,
    BatchIndexer,
    Source,
    batch_shapes,
    check_blocks,
    check_finite_rows,
    find_nonfinite_rows,
    has_nonfinite_examples,
    in_random_order,
)
from ridgewalk.sampling.chain_group import (
    ChainGroup,
    ChainMethod,
    check_placement,
    readable_start,
    split_chains,
    split_starts,
    start_chains,
)
from ridgewalk.sampling.loop import DrawRecorder, LoopSpec, block_length, join_moments
from ridgewalk.sampling.parts import gather_result, same_settings
from ridgewalk.sampling.runner import LONGEST_CHUNK, Callback, Runner, compile_seconds, tuned_step_size
from ridgewalk.sampling.storage import RunWriter, stored_setting
from ridgewalk.sampling.warmup import SHORTEST, plan_warmup
from ridgewalk.schedules import Every, RunSchedule, StepSizes, parse_interval
from ridgewalk.target import Density, Posterior, Target, constrained, model_starts, on_host

BUFFER_NUMBERS = 2**22
"""About how many parameters the draw buffer holds on the device."""

EAGER_NUMBERS = 2**12
"""Draws of so few numbers are written in every step: asking whether one is due would cost more."""

MAY_CHANGE = (
    *("target", "steps", "step_size", "store", "checkpoint", "checkpoint_every", "resume", "progress", "callback"),
)
"""Arguments of `sample` that a resumed run is not compared by; the estimator and step sizes are compared instead."""


Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def _in_context(run: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """With several processes, an error in one of them ends the others; a sharded start stays so during the run."""

    @functools.wraps(run)
    def call(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Returned:
        position = arguments[3] if len(arguments) > 3 else keywords.get("position")
        together = contextlib.nullcontext() if jax.process_count() == 1 else failing_together()
        with together, using(placement_of(position, bool(keywords.get("start_per_chain", False)))):
            return run(*arguments, **keywords)

    return call


@_in_context
def sample(
    key: Key,
    sampler: Sampler,
    target: Target | GradientEstimator,
    position: PyTree | None = None,
    *,
    steps: int,
    step_size: float | Callable[[Any], Any] | Literal["auto"] = "auto",
    batch_size: int | None = None,
    chains: int = 1,
    burn_in: int | None = None,
    warmup: int | None = None,
    thin: int = 1,
    start_per_chain: bool = False,
    chain_method: ChainMethod = "vectorized",
    replacement: bool = True,
    block_size: int | None = None,
    keep: Literal["draws", "moments"] | None = None,
    collect: Callable[[PyTree], Any] | None = None,
    store: str | Path | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: Every = "5 min",
    resume: bool = False,
    progress: bool = True,
    callback: Callback | None = None,
) -> Result:
    """Run `chains` chains of `steps` steps and keep every `thin`-th position after `burn_in`.

    Ctrl-C ends the run after the current device call: a checkpoint is written, and the draws so far are returned.
    SIGTERM does the same and then ends the process with exit code 143.

    Args:
        key: a JAX random key; the same key gives the same draws.
        sampler: a named sampler, such as `hasgld_sa()`, or a `Sampler(dynamics, preconditioner)`.
        target: a `Posterior`, a `Density`, or an estimator such as `control_variates(posterior, centre)`.
        position: where the chains start: any pytree of float arrays, whose structure and dtypes the draws keep, and
            whose sharding over devices the run keeps. None lets the model of a target from `from_numpyro` or
            `from_pymc` draw a start for each chain.
        steps: steps of each chain, burn-in included.
        step_size: "auto", found during warm-up for the length of this run; or ε, a positive number or a schedule (any
            optax schedule: a function of the step, from 0). The drift is −ε G ∇U and the noise has covariance 2 ε T G.
            A schedule with a function `keep(step)`, such as `cycles`, also says which steps may be kept.
        batch_size: examples of each step's batch; None uses the full data (or the batches as `Batches` gives them).
        chains: independent chains.
        burn_in: the number of first steps that are not kept; by default a fifth of `steps` with step_size="auto", and
            `warmup` with a given step size.
        warmup: the first steps of the burn-in, in which the chains move to the posterior and the preconditioner, ε and
            "auto" friction are found; with minibatches each costs two gradients. By default all of the burn-in with
            step_size="auto", and 0 with a given step size, which is then used from the first step on.
        thin: keep every `thin`-th position after burn-in, of those that the schedule keeps.
        start_per_chain: `position` has a leading axis with one start per chain.
        chain_method: "vectorized" runs all chains in one loop, "sequential" one after the other, "parallel" spreads
            them over the devices of all processes.
        replacement: draw batches with replacement; False goes through the data in a new random order every epoch.
        block_size: rows that are drawn together, 25 for example: a batch then consists of blocks of consecutive rows,
            each at a random place, which large data give several times faster than single rows. Rows in memory are put
            in a random order first, in a copy; those on disk have to be in one. None draws single rows.
        keep: "draws" keeps positions; "moments" only their running mean and variance, for models of millions of
            weights. None means moments if `collect` is given without `store`, else draws.
        collect: a function of the position whose value is kept for every draw, such as predictions on a grid.
        store: a folder to write the draws to (zarr) instead of memory; it can be read during the run.
        checkpoint: a folder for checkpoints, from which the same call with `resume=True` continues bit for bit.
        checkpoint_every: steps (500) or time ("10 min") between checkpoints.
        resume: continue from the newest checkpoint, or start a run if there is none.
        progress: show a progress bar if standard error is a terminal.
        callback: a function that is called with a `RunProgress` after every device call, about twice a second, for
            example to log it. If it raises, a checkpoint is written first where there is a folder for it. Of several
            processes, each calls it with its own chains, and writes no checkpoint then.
    """
    given = _given_arguments(locals())
    check_kinds(key, sampler, target)
    burn_in, warmup = resolve_warmup(sampler, steps, step_size, burn_in, warmup, checkpoint if resume else None)
    arguments = {name: value for name, value in locals().items() if name not in (*MAY_CHANGE, "given")}
    compiled_before = compile_seconds()
    check_counts(steps, burn_in, thin, chains)
    check_pruning(sampler, steps)
    check_keep(keep, collect, store)
    check_run_options(checkpoint, resume, callback)
    schedule = run_schedule(steps, burn_in, thin, chains, step_size)
    estimator = as_estimator(target)
    data = estimator.target.data if isinstance(estimator.target, Posterior) else None
    keep = keep or ("draws" if collect is None or store is not None else "moments")
    settings = same_settings(
        {
            **arguments,
            **readable_start(position),
            "estimator": estimator,
            "keep": keep,
            "x64": bool(jax.config.read("jax_enable_x64")),
        },
        {"steps": steps, "step_size": step_size, "files": [bool(store), bool(checkpoint)], "resume": resume},
    )
    parts = split_chains(chain_method, chains, data)
    indexer = check_blocks(check_data(estimator.target, batch_size, replacement), data, block_size)
    nonfinite = find_nonfinite_rows(data)
    if isinstance(getattr(data, "source", data), Batches) and len(parts) > 1:
        raise ValueError(
            f"chain_method: {chain_method!r} with Batches would read the iterable once per chain; use 'vectorized'"
        )

    if position is None:
        position, start_per_chain = model_starts(key, estimator.target, chains), True
    starts = start_chains(check_position(position), chains, start_per_chain)
    first = split_starts(starts, chains if start_per_chain else 1)
    layout = layout_of(first[0])
    resolved = check_placement(dataclasses.replace(sampler, preconditioner=sampler.resolve(layout)), data, chain_method)
    on_device = place(estimator_on_device(in_random_order(key, estimator) if block_size else estimator))
    potentials = [check_functions(on_device.target, start, indexer, nonfinite) for start in first]
    check_precision(resolved, on_device, first[0])
    plan = plan_warmup(on_device, first[0], warmup, isinstance(step_size, str), indexer)
    first_potentials = jnp.array(np.broadcast_to(np.asarray(potentials, layout.dtype), (chains,)))

    numbers = layout.size * chains
    eager = keep == "draws" and store is None and collect is None and numbers <= EAGER_NUMBERS
    recorder = DrawRecorder(keep == "draws", keep == "moments" or store is not None, collect, eager)
    spec = LoopSpec(block_length(layout.size, batch_size, chains, steps), indexer, recorder)
    buffer_draws = max(1, min(BUFFER_NUMBERS // numbers, LONGEST_CHUNK // thin, steps // thin))
    keys = jax.random.split(key, chains)
    groups = [
        ChainGroup(
            resolved,
            _of_group(on_device, part.group),
            keys[part.chains],
            jax.tree.map(lambda x, part=part: x[part.chains], starts),
            first_potentials[part.chains],
            spec,
            data,
            buffer_draws,
            part,
            plan,
        )
        for part in parts
        if jax.process_index() in part.processes
    ]
    writer = RunWriter(
        schedule,
        groups[0].draw_shapes(),
        settings,
        store,
        checkpoint,
        parse_interval(checkpoint_every),
        resume,
        parts,
        getattr(data, "shards", 0),
    )
    with contextlib.closing(writer):
        runner = Runner(schedule, groups, writer, buffer_draws)
        runner.run(progress, compiled_before, callback)
        status = runner.status(starts)
        writer.record_outcome(status)
        draws = schedule.draws_by(runner.step)
        made = writer.result_draws(draws)
        moments = join_moments([group.carry.draws.moments for group in groups])
        final_states = [state for group in groups for state in group.chain_states()]
        if jax.process_count() > 1 and current_placement() is None:
            made, final_states, moments = gather_result(parts, made, final_states, moments, store is not None)
        return Result(
            positions=made.get("posterior"),
            final_states=tuple(final_states),
            info=made["sample_stats"],
            step_sizes=schedule.draw_step_sizes(0, draws) * tuned_step_size([state.tuning for state in final_states]),
            sampler=tuned_sampler(sampler, groups[0]),
            estimator=estimator,
            batch_size=batch_size,
            status=status,
            steps=runner.step,
            collected=made.get("collected"),
            moments=moments,
            store=writer.store_path,
            burn_in=burn_in,
            thin=thin,
            kept_steps=schedule.draw_steps(0, draws) if schedule.step_sizes.keep else None,
            warmup=warmup,
            arguments=given,
        )


def _of_group(estimator: GradientEstimator, group: int | None) -> GradientEstimator:
    """The estimator on the devices of one group of chains; on all where there are no groups."""
    target = estimator.target
    if group is None or not isinstance(target, Posterior):
        return estimator
    return dataclasses.replace(estimator, target=dataclasses.replace(target, data=target.data.group(group)))  # type: ignore[type-var]


def resolve_warmup(
    sampler: Sampler,
    steps: Any,
    step_size: Any,
    burn_in: int | None,
    warmup: int | None,
    checkpoint: str | Path | None,
) -> tuple[int, int]:
    """Burn-in and warm-up where they are not given; a resumed run keeps those it was begun with."""
    check_whole("steps", steps, 1, "say how many steps each chain makes")
    automatic = isinstance(step_size, str)
    if automatic:
        check_choice("step_size", step_size, ("auto",), "a positive number, or a schedule (a function of the step)")
    if burn_in is None and checkpoint is not None:
        burn_in = stored_setting(Path(checkpoint), "burn_in")
    if warmup is not None:
        check_whole("warmup", warmup, 0, "use 0 for none")
    if burn_in is None:
        burn_in = steps // 5 if automatic and warmup is None else warmup or 0
    check_whole("burn_in", burn_in, 0, "use 0 to keep all steps")
    if warmup is None:
        warmup = burn_in if automatic else 0
    if warmup > burn_in:
        raise ValueError(
            f"warmup: {warmup} steps are more than burn_in = {burn_in}; positions of warm-up are not draws of the "
            "posterior, raise burn_in"
        )
    if warmup < SHORTEST and (automatic or warmup):
        raise ValueError(
            f"warmup: {warmup} steps are too few to find a step size; use at least {SHORTEST} (burn_in={SHORTEST}, "
            f"with more than {SHORTEST} steps), or pass step_size=0.05 or the like and leave warmup out"
        )
    dynamics = sampler.dynamics
    if warmup and (isinstance(dynamics, AsPrinted) or not dynamics.temperature > 0):
        what = "form='as_printed'" if isinstance(dynamics, AsPrinted) else f"temperature {dynamics.temperature}"
        raise ValueError(
            f"step_size: 'auto' and warm-up need a sampler of the posterior, which {what} is not; pass a number, and "
            "leave warmup out"
        )
    return burn_in, warmup


def tuned_sampler(sampler: Sampler, group: ChainGroup) -> Sampler:
    """The sampler with what warm-up chose: friction, dynamics, and the preconditioner if it fell back to another."""
    dynamics, tuning = group.sampler.dynamics, group.carry.states.tuning
    if group.fell_back:
        sampler = dataclasses.replace(sampler, preconditioner=group.sampler.preconditioner)
    if isinstance(dynamics, Hamiltonian) and dynamics.friction == "auto" and isinstance(tuning, Tuned):
        dynamics = dataclasses.replace(dynamics, friction=float(tuning.friction[0]))
    return dataclasses.replace(sampler, dynamics=dynamics)


def _given_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The sampler, and the keyword arguments that are not the defaults."""
    options = {n: p.default for n, p in inspect.signature(sample).parameters.items() if p.kind is p.KEYWORD_ONLY}
    plain = (bool, int, float, str, type(None))
    changed = {n: arguments[n] for n, d in options.items() if not isinstance(arguments[n], plain) or arguments[n] != d}
    return {"sampler": arguments["sampler"], **changed}


# Checks


def check_counts(steps: int, burn_in: int, thin: int, chains: int) -> None:
    """Steps, burn-in, thinning and chains that leave at least one draw."""
    check_whole("steps", steps, 1, "say how many steps each chain makes")
    check_whole("burn_in", burn_in, 0, "use 0 to keep all steps")
    check_whole("thin", thin, 1, "use 1 to keep every step")
    check_whole("chains", chains, 1, "use at least one chain, four to compute R-hat")
    if burn_in >= steps:
        raise ValueError(f"burn_in: {burn_in} is not below steps = {steps}, so no draw would be left; lower it")
    if thin > steps - burn_in:
        raise ValueError(
            f"thin: {thin} is more than the {steps - burn_in} steps after burn-in, so no draw would be left; "
            "lower it, or make more steps"
        )


def run_schedule(steps: int, burn_in: int, thin: int, chains: int, step_size: Any) -> RunSchedule:
    """The steps and draws of a run; its step sizes keep at least one draw of those that burn-in and thinning leave."""
    sizes = StepSizes(1.0 if isinstance(step_size, str) else step_size, steps)
    schedule = RunSchedule(steps, burn_in, thin, chains, sizes)
    if not schedule.draws:
        raise ValueError(
            f"step_size: of {steps} steps with burn_in = {burn_in} and thin = {thin}, its keep(step) leaves no draw; "
            "make more steps, or lower burn_in or thin"
        )
    return schedule


def check_key(key: Any) -> None:
    """One random key, of the new kind or two words of the old."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    old = dtype == np.uint32 and shape is not None and len(shape) == 1
    if not (new or old):
        said = f"{type(key).__name__} of shape {shape}" if shape else repr(key)
        raise ValueError(f"key: {said} is not one random key of JAX; use jax.random.key(0)")


def check_position(position: PyTree, name: str = "position") -> PyTree:
    """The position as arrays, all of them floating and finite."""
    try:
        leaves, _ = jax.tree_util.tree_flatten_with_path(position)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: it is not a valid pytree ({error}); dictionary keys must be sortable, for example all strings"
        ) from error
    if not leaves:
        raise ValueError(f"{name}: it holds no arrays; pass a pytree with at least one float array")
    for path, leaf in leaves:
        where = f"{name}{jax.tree_util.keystr(path)}"
        dtype = getattr(leaf, "dtype", None) or (np.asarray(leaf).dtype if isinstance(leaf, int | float) else None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"{where}: {type(leaf).__name__} of dtype {dtype} is not a float array; convert it with "
                ".astype(float), or keep it out of the position (equinox.partition, flax's params)"
            )
        if not (jnp.isfinite(leaf) if current_placement() is not None else np.isfinite(np.asarray(leaf))).all():
            raise ValueError(f"{where}: it contains NaN or infinity; start from finite numbers")
    if not sum(np.size(leaf) for _, leaf in leaves):
        shapes = ", ".join(str(np.shape(leaf)) for _, leaf in leaves)
        raise ValueError(f"{name}: its arrays have no elements (shapes {shapes}); pass at least one parameter")
    return jax.tree.map(lambda leaf: on_one_device(leaf) if isinstance(leaf, jax.Array) else jnp.array(leaf), position)


def check_precision(sampler: Sampler, estimator: GradientEstimator, position: PyTree) -> None:
    """Raise where a sampler needs linear algebra that JAX does not have in half precision."""
    dtype = jnp.result_type(*jax.tree.leaves(position))
    if dtype.itemsize >= 4:
        return
    kernel = build_kernel(sampler, estimator, position)

    def first_step(position: PyTree) -> Any:
        return kernel.step(jax.random.key(0), kernel.init(position), estimator.target.subsample(), 1.0)

    try:
        jax.jit(first_step).lower(position)
    except (NotImplementedError, TypeError) as error:  # TypeError: JAX 0.7 returns float32 from bfloat16
        raise ValueError(
            f"position: its dtype is {dtype}, in which JAX has no linear algebra for this sampler's preconditioner; "
            "convert it to float32 (jax.tree.map(lambda x: x.astype('float32'), position)), or use a sampler without "
            "matrices, such as sgld, psgld or sghmc"
        ) from error


def check_data(target: Target, batch_size: int | None, replacement: bool) -> BatchIndexer:
    """Data whose leading axes agree and can fill a batch; which rows of them a step uses."""
    if isinstance(target, Density):
        if batch_size is not None:
            raise ValueError(f"batch_size: {batch_size} was given, but a Density has no data; leave it out")
        return BatchIndexer("none")
    if isinstance(target.data, Batches | Sharded):
        return _check_parts(target.data, batch_size, replacement)
    leaves, _ = jax.tree_util.tree_flatten_with_path(target.data)
    if not leaves:
        raise ValueError("data: it holds no arrays; pass a pytree of arrays, or use ridgewalk.Density")
    for path, leaf in leaves:
        if hasattr(leaf, "iloc"):
            raise ValueError(
                f"data{jax.tree_util.keystr(path)}: pandas objects such as this {type(leaf).__name__} are indexed by "
                "label; pass .to_numpy()"
            )
    sizes = {f"data{jax.tree_util.keystr(path)}": np.shape(leaf)[:1] for path, leaf in leaves}
    if () in sizes.values():
        scalar = next(name for name, size in sizes.items() if size == ())
        raise ValueError(f"{scalar}: it is a scalar; the leading axis of every array must count the examples")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} has {size[0]}" for name, size in sizes.items())
        raise ValueError(f"data: leading axes disagree ({listed}); every array needs one row per example")
    if target.size < 1:
        raise ValueError("data: there are 0 examples; use ridgewalk.Density for a target without data")
    if batch_size is None:
        if on_host(target.data):
            raise ValueError(
                "batch_size: None would read all data from disk in every step; give a number of examples, or load the "
                "data into memory with np.asarray"
            )
        return BatchIndexer("full", target.size, target.size)
    check_whole("batch_size", batch_size, 1, "use None for the full data")
    if batch_size > target.size:
        raise ValueError(
            f"batch_size: {batch_size} is larger than the {target.size} examples; "
            f"use at most {target.size}, or None for the full data"
        )
    source: Source = "replacement" if replacement else "epochs"
    return BatchIndexer(source, target.size, int(batch_size), prefetched=on_host(target.data))


def _check_parts(data: Batches | Sharded, batch_size: int | None, replacement: bool) -> BatchIndexer:
    if isinstance(data, Batches):
        return _check_batches(data, batch_size)
    here = data.shards // data.devices
    if isinstance(data.source, Batches):
        whole = int(jax.tree.leaves(data.arrays)[0].shape[0])
        if batch_size not in (None, whole):
            raise ValueError(
                f"batch_size: {batch_size} was given, but the batches of all processes have {whole}; leave it out"
            )
        return BatchIndexer("iterable", data.size, whole, prefetched=True, shards=data.shards, shards_here=here)
    if batch_size is None:
        if data.source is not None:
            raise ValueError("batch_size: None would read all data from disk in every step; give a number of examples")
        return BatchIndexer("full", data.size, data.size, shards=data.shards, shards_here=here)
    check_whole("batch_size", batch_size, 1, "use None for the full data")
    if batch_size % data.shards or batch_size > data.size:
        raise ValueError(
            f"batch_size: {batch_size} of {data.size} examples cannot be taken in equal parts from {data.shards} "
            f"shards; use a multiple of {data.shards}, at most {data.size}"
        )
    source: Source = "replacement" if replacement else "epochs"
    return BatchIndexer(
        source, data.size, int(batch_size), data.source is not None, shards=data.shards, shards_here=here
    )


def _check_batches(batches: Batches, batch_size: int | None) -> BatchIndexer:
    counts = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batches.first())}
    if len(counts) != 1 or () in counts:
        raise ValueError(
            f"data: the first batch has leading axes {sorted(counts)}; every array needs one row per example"
        )
    (count,) = counts.pop()
    if batch_size not in (None, count):
        raise ValueError(f"batch_size: {batch_size} was given, but the iterable's batches have {count}; leave it out")
    return BatchIndexer("iterable", batches.size, count, prefetched=True)


_potential = jit(Posterior.potential)


def check_functions(target: Target, position: PyTree, indexer: BatchIndexer, suspected: dict[str, np.ndarray]) -> float:
    """Functions of the right shape, finite in rows `suspected`, and the potential to start from, which is finite."""
    jax.eval_shape(lambda start: constrained(target, start), position)  # errors of `names` and `constrain`
    if isinstance(target, Density):
        _scalar("log_density", target.log_density, position)
        value = float(jax.jit(Density.potential)(target, position))
    else:
        target = target.at_first_prior(position)
        _scalar("log_prior", target.prior_value, position)
        count = indexer.batch_size
        shape = _shape("log_likelihood", target.likelihood_values, position, batch_shapes(target.data, count))
        if shape != (count,):
            raise ValueError(
                f"log_likelihood: for a batch of {count} examples it returned shape {shape}; return one value per "
                f"example, shape ({count},), without summing or averaging over the batch"
            )
        check_finite_rows(target, position, suspected)
        value = float(_potential(target, position, target.subsample()))
    if not math.isfinite(value):
        if not isinstance(target, Density) and has_nonfinite_examples(target):
            raise ValueError(f"data: some of the first examples looked at hold NaN or infinity; {FIX}")
        raise ValueError(
            f"position: the log density there is {-value}; start where prior and likelihood are finite and positive"
        )
    return value


def check_keep(keep: str | None, collect: Any, store: Any) -> None:
    """What is kept of a draw."""
    if keep not in (None, "draws", "moments"):
        raise ValueError(f"keep: {keep!r} is unknown; use 'draws' or 'moments'")
    if collect is not None and not callable(collect):
        raise ValueError(f"collect: {collect!r} is not a function of the position")
    if store is not None and keep == "moments" and collect is None:
        raise ValueError("store: with keep='moments' there are no draws to stream; leave out one of the two")


def check_pruning(sampler: Sampler, steps: int) -> None:
    """Pruning that ends within the run."""
    pruning = sampler.pruning
    if pruning is not None and pruning.stop > steps:
        raise ValueError(
            f"sampler: pruning ends at step {pruning.stop}, after the last of {steps} steps, and would not reach "
            f"its sparsity of {pruning.sparsity:g}; lower stop of pruned(…), best to burn_in, or make more steps"
        )


def check_run_options(checkpoint: Any, resume: bool, callback: Any) -> None:
    """Where a run is resumed from, and what is called during it."""
    if callback is not None and not callable(callback):
        raise ValueError(f"callback: {callback!r} is not a function of a RunProgress")
    if resume and checkpoint is None:
        raise ValueError("resume: True needs a folder to resume from; pass checkpoint=path")


def _scalar(name: str, function: Callable[..., Any], position: PyTree) -> None:
    shape = _shape(name, function, position)
    if shape != ():
        raise ValueError(f"{name}: it returned shape {shape}; return a scalar (sum over the parameters)")


def _shape(name: str, function: Callable[..., Any], *arguments: PyTree) -> tuple[int, ...]:
    try:
        result = jax.eval_shape(function, *arguments)
    except KeyError as error:
        listed = ", ".join(leaf_names(arguments[0]))
        raise ValueError(
            f"{name}: it asks for the key {error}, which is neither in the position nor in the data; the position's "
            f"arrays are {listed}. Name them alike"
        ) from error
    if not hasattr(result, "shape"):
        raise ValueError(f"{name}: it returned {type(result).__name__}; return an array")
    return tuple(result.shape)


def check_kinds(key: Any, sampler: Any, target: Any) -> None:
    """The first three arguments are what they should be."""
    check_key(key)
    if not isinstance(sampler, Sampler):
        hint = "; call it: ridgewalk.sgld()" if callable(sampler) else ""
        raise ValueError(f"sampler: {sampler!r} is not a ridgewalk.Sampler{hint}")
    if isinstance(target, Posterior | Density):
        return
    wanted = [name for name in dir(GradientEstimator) if not name.startswith("_")]
    if not all(hasattr(target, name) for name in wanted):
        raise ValueError(
            f"target: {type(target).__name__} is neither a ridgewalk.Posterior, a ridgewalk.Density nor an "
            "estimator such as ridgewalk.control_variates(target, centre)"
        )
    if not dataclasses.is_dataclass(target):
        raise ValueError(
            f"target: the estimator {type(target).__name__} is a plain class, which JAX cannot trace; decorate it with "
            "@ridgewalk.pytree_dataclass"
        )
