"""The runner: device calls, what happens between them, and an orderly stop.

Chains of one loop form a group. Between device calls draws go to the run writer, signals are handled and progress is
shown.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from types import FrameType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ridgewalk._compilation import WORD, words
from ridgewalk._types import PyTree
from ridgewalk.distributed import processes
from ridgewalk.kernel import Tuned
from ridgewalk.preconditioners.base import AdaptivePreconditioner
from ridgewalk.result import ChainStatus
from ridgewalk.sampling.batching import FIX
from ridgewalk.sampling.chain_group import ChainGroup
from ridgewalk.sampling.loop import (
    CAUSES,
    EXPLODED,
    NONFINITE_AT_END,
    DivergenceError,
    StepRange,
    hint,
    stability_limit,
)
from ridgewalk.sampling.parts import agree, gather_numbers, gather_statuses, own_data_state, regroup
from ridgewalk.sampling.storage import RunWriter
from ridgewalk.sampling.warmup import (
    WORST_SCALE,
    Measured,
    WarmupPlan,
    at_fixed_point,
    choose,
)
from ridgewalk.schedules import RunSchedule

# Signals

EXIT_CODE = 128 + signal.SIGTERM
"""The exit code of a process that SIGTERM ended, as shells and schedulers have it: 143."""


class StopFlag:
    """The name of the signal that asked the run to stop, or ""."""

    def __init__(self) -> None:
        self.signal: str = ""


@contextmanager
def stop_on_signal() -> Iterator[StopFlag]:
    """Note SIGINT (Ctrl-C) and SIGTERM. Outside the main thread signals are left alone.

    A second SIGINT raises KeyboardInterrupt at once. After SIGTERM the block may finish its work, such as a checkpoint;
    then the process ends with exit code 143, or the program's own handler is called where it has one. A signal that the
    program ignores stays ignored.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    former = {number: handler for number, handler in former.items() if handler is not signal.SIG_IGN}

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and flag.signal:
            raise KeyboardInterrupt
        flag.signal = signal.Signals(number).name

    for number in former:
        signal.signal(number, note)
    try:
        yield flag
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if flag.signal == "SIGTERM":
        if callable(former[signal.SIGTERM]):
            signal.raise_signal(signal.SIGTERM)
        else:
            raise SystemExit(EXIT_CODE)


# Progress

Report = Callable[[int, np.ndarray, np.ndarray], None]
"""Takes the steps made so far, the newest potentials of the chains, and which chains have not diverged."""


class RunProgress(NamedTuple):
    """How far a run is: what `sample(callback=…)` is called with after every device call, about twice a second.

    Of several processes, each has its own chains here.
    """

    step: int
    """Steps made by each chain."""
    steps: int
    """Steps of the whole run."""
    potentials: np.ndarray
    """The newest potential of every chain, (chain,): −log of the unnormalised posterior, on the step's batch."""
    alive: np.ndarray
    """Boolean (chain,): which chains have not diverged."""
    seconds: float
    """Time since this call of `sample` began to make steps, compilation included."""


Callback = Callable[[RunProgress], Any]


_compile_seconds = 0.0


def _add_compile_time(event: str, duration_secs: float, **_: str | int) -> None:
    global _compile_seconds  # noqa: PLW0603
    if event.startswith("/jax/core/compile/") and not event.endswith("jaxpr_trace_duration"):
        _compile_seconds += duration_secs


jax.monitoring.register_event_duration_secs_listener(_add_compile_time)


def compile_seconds() -> float:
    """The time this process has spent in XLA's compiler, with lowering."""
    return _compile_seconds


@contextmanager
def progress_bar(steps: int, done: int, wanted: bool, compiled_before: float | None = None) -> Iterator[Report]:
    """A function to call after every device call; silent unless `wanted` and on a terminal.

    The bar shows the time spent on compilation since `compile_seconds()` was `compiled_before`, or since it began.
    """
    since = compile_seconds() if compiled_before is None else compiled_before
    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield lambda step, potentials, alive: None
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]} steps/s"),
        TimeRemainingColumn(),
        TextColumn("U = {task.fields[potential]}"),
        TextColumn("{task.fields[chains]}"),
        TextColumn("{task.fields[compiled]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(
            "sampling", total=steps, completed=done, potential="…", chains="", speed="…", compiled="compiling"
        )

        def report(step: int, potentials: np.ndarray, alive: np.ndarray) -> None:
            speed = bar.tasks[task].speed
            bar.update(
                task,
                completed=step,
                speed="…" if speed is None else f"{speed:,.0f}",
                potential=f"{np.mean(potentials[alive]):.5g}" if alive.any() else "none",
                chains=f"{alive.sum()}/{alive.size} chains alive",
                compiled=f"compiled in {compile_seconds() - since:.1f} s",
            )

        yield report


# Length of device calls

SECONDS_PER_CALL = 0.5
"""Target duration of a device call: signals are handled, and progress is shown, between two calls."""

LONGEST_CHUNK = 10_000
"""The maximum number of steps of a device call."""


class ChunkSizer:
    """The number of steps that take about half a second. Draws do not depend on it."""

    def __init__(self) -> None:
        self._length, self._chunks, self._since = 1, 0, time.perf_counter()

    @property
    def length(self) -> int:
        """Steps of the next device call."""
        return self._length

    def record(self, steps: int) -> None:
        """Note that a device call of so many steps has ended."""
        now = time.perf_counter()
        took, self._since = now - self._since, now
        self._chunks += 1
        if self._chunks == 1:
            self._length = 2  # the first call includes compilation
            return
        wanted = int(steps * SECONDS_PER_CALL / max(took, 1e-9))
        self._length = max(1, min(wanted, 8 * steps, LONGEST_CHUNK))


def tuned_step_size(tuned: list[Any]) -> float:
    """The median step size that warm-up chose, of which those of the schedule are factors; 1 if they were given."""
    if not isinstance(tuned[0], Tuned):
        return 1.0
    return float(np.median(np.concatenate([np.ravel(each.step_size) for each in tuned])))


class Runner:
    """All chains of one call of `sample`, and the number of steps they have made."""

    def __init__(self, schedule: RunSchedule, groups: list[ChainGroup], writer: RunWriter, buffer_draws: int) -> None:
        self.schedule, self.groups, self.writer, self.buffer_draws = schedule, groups, writer, buffer_draws
        self.step = writer.start
        self.chains = [chain for group in groups for chain in range(group.part.chains.start, group.part.chains.stop)]
        if writer.found is not None:
            self._restore(writer.found.arrays)

    def _saved(self) -> PyTree:
        return [group.saved() for group in self.groups]

    def _restore(self, arrays: list[np.ndarray]) -> None:
        for attempt in range(2):
            if attempt and not all(group.fall_back() for group in self.groups):  # as the run may have done
                break
            saved = [group.saved_shapes(self.step) for group in self.groups]
            like, structure = jax.tree.flatten(saved)
            shapes, found = [(leaf.shape, leaf.dtype) for leaf in like], arrays
            if shapes != [(array.shape, array.dtype) for array in found]:
                found = regroup(arrays, saved, [group.part.chains for group in self.groups])
            if shapes == [(array.shape, array.dtype) for array in found]:
                for group, states in zip(self.groups, jax.tree.unflatten(structure, found), strict=True):
                    group.restore(states)
                return
        raise ValueError("resume: the checkpoint's arrays do not fit this sampler; use another checkpoint folder")

    def run(self, progress: bool, compiled_before: float, callback: Callback | None = None) -> None:
        """Make the remaining steps, unless a signal ends the run early."""
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            flag = stack.enter_context(stop_on_signal())
            if jax.process_count() > 1:
                stack.enter_context(processes.failing_together(running=True))
            wanted = progress and jax.process_index() == 0
            report = stack.enter_context(progress_bar(self.schedule.steps, self.step, wanted, compiled_before))
            sizer = ChunkSizer()
            stop = self._agree(self._chunk_end(self.step, sizer), flag)[0]
            found = self.writer.found
            for group in self.groups:
                stack.callback(group.close)
                group.begin(self.step, stop, None if found is None else own_data_state(found.data))
            while self.step < self.schedule.steps:
                after, go_on, due = self._agree(self._chunk_end(stop, sizer), flag)
                if not go_on:
                    break
                if due:
                    self._save()
                start, batches = self.step, self._batches(after - stop)
                self._enter_phase(start)
                self._advance(start, stop, batches)
                sizer.record(stop - start)
                self.step, stop = stop, after
                alive = self.bad_steps < 0
                potentials = np.concatenate([np.asarray(g.carry.monitor.potential) for g in self.groups])
                report(self.step, potentials, alive)
                if callback is not None:
                    with self._checkpoint_on_error("in callback"):
                        seconds = time.monotonic() - began
                        callback(RunProgress(self.step, self.schedule.steps, potentials, alive, seconds))
            self._mask_last()
            if self.step and self._agree(self.step, flag, at_end=True)[1]:
                self._save()
            self.writer.finish()

    def _agree(self, after: int, flag: StopFlag, at_end: bool = False) -> tuple[int, bool, bool]:
        """Where the device call after the next one ends, whether the run goes on, and whether a checkpoint is due.

        All processes decide alike: the length is that of process 0, and a signal to one of them stops all.
        """
        alive, due, signalled = bool((self.bad_steps < 0).any()), self.writer.due(self.step), flag.signal
        if jax.process_count() > 1:
            processes.note_progress(self.step, self.writer.advice())
            after, due, alive, signalled = agree(self.groups, self.step, after, due, alive, signalled)
            flag.signal = flag.signal or signalled  # one that came meanwhile waits for the next agreement
        return after, alive and (at_end or not signalled), due

    def _save(self) -> None:
        """Write a checkpoint of the steps made so far."""
        if self.writer.folder is None:
            return
        state = self.groups[0].prefetcher.state if self.groups[0].prefetcher is not None else None
        self.writer.save(self.step, self._saved(), state)

    @contextmanager
    def _checkpoint_on_error(self, where: str) -> Iterator[None]:
        """What the user's code raises between two device calls leaves a checkpoint behind, unless other processes,
        which may not have raised it, would have to take part.
        """
        try:
            yield
        except Exception as error:
            alone = jax.process_count() == 1
            if alone and self.writer.folder is not None and self.step and (self.bad_steps < 0).any():
                self._save()
                self.writer.finish()
                error.add_note(
                    f"ridgewalk: raised {where} after step {self.step}. A checkpoint of that step was written; the "
                    "same call with resume=True continues from it."
                )
            raise

    def _chunk_end(self, start: int, sizer: ChunkSizer) -> int:
        """Where the device call that begins at step `start` ends.

        It takes about half a second, and does not go past the end of the run, of the draw buffer or of the prefetched
        batches, past a checkpoint, or past a multiple of 2³¹, where random numbers get other keys.
        """
        schedule, block = self.schedule, self.groups[0].spec.block
        prefetched = [group.prefetcher.capacity for group in self.groups if group.prefetcher is not None]
        length = min(sizer.length, *prefetched) if prefetched else sizer.length
        length -= length % block if length > block else 0  # random numbers are drawn for whole blocks
        buffer_full = schedule.step_of_draw(schedule.draws_by(start) + self.buffer_draws - 1)
        between = self.writer.steps_between
        checkpoint = schedule.steps if between is None else (start // between + 1) * between
        phases = () if self.plan is None else (*self.plan.ends, *self.plan.centred)
        phase = min((end for end in phases if end > start), default=schedule.steps)
        return min(start + length, schedule.steps, buffer_full, checkpoint, phase, (start // WORD + 1) * WORD)

    @property
    def plan(self) -> WarmupPlan | None:
        """The plan of warm-up; None without."""
        return self.groups[0].plan

    def _enter_phase(self, start: int) -> None:
        """Between two phases of warm-up: prepare the next; after the last, choose ε and friction for all chains."""
        if self.plan is not None and start in self.plan.centred:
            for group in self.groups:
                group.centre(mean=start > self.plan.ends[0])
        if self.plan is None or start not in self.plan.ends:
            return
        if start < self.plan.steps:
            phase = self.plan.phase(start + 1)
            unfit = phase == 2 and self._scale() > WORST_SCALE
            for group in self.groups:
                group.enter(phase, unfit)
            return
        each = [found for group in self.groups for found in group.measure_warmup()]
        usable = [found for found, bad in zip(each, self.bad_steps, strict=True) if bad < 0]
        if jax.process_count() > 1:
            usable = [Measured(*numbers) for numbers in gather_numbers(self.chains, each, self.bad_steps)]
        usable = usable or each
        noise = float(np.median([found.noise for found in usable]))
        steps, dynamics = max(1, self.schedule.steps - start), self.groups[0].sampler.dynamics
        if isinstance(self.groups[0].sampler.preconditioner, AdaptivePreconditioner):
            each, usable = ([at_fixed_point(self.groups[0].phase, x) for x in found] for found in (each, usable))
        median = Measured(*np.median(np.array(usable), axis=0).tolist())
        common, *choices = (
            choose(dynamics, self.groups[0].phase, found, steps, self.schedule.chains) for found in (median, *each)
        )
        for group in self.groups:
            mine, choices = choices[: group.chains], choices[group.chains :]
            found, each = each[: group.chains], each[group.chains :]
            sizes = [min(choice.step_size, common.step_size) for choice in mine] if self.plan.step_size else [1.0]
            group.finish_warmup(np.array(sizes), common.friction, noise, found)

    def _scale(self) -> float:
        """The median over chains of the standard deviation in whitened coordinates."""
        own = np.concatenate([np.asarray(group.carry.states.tuning.scale) for group in self.groups])
        if jax.process_count() == 1:
            return float(np.median(own))
        return float(np.median(gather_numbers(self.chains, [(x,) for x in own.tolist()], self.bad_steps)))

    def _batches(self, ahead: int) -> list[PyTree]:
        """The batches of the next steps for each group that goes on; those of the `ahead` steps after them are read
        meanwhile. No group has moved yet when the user's data raise an error.
        """
        with self._checkpoint_on_error("while batches were read"):
            return [group.batches(ahead) if group.alive else None for group in self.groups]

    def _advance(self, start: int, stop: int, batches: list[PyTree]) -> None:
        """Make the steps from `start` to `stop` and keep their draws."""
        sizes, slots = np.zeros(LONGEST_CHUNK), np.zeros(LONGEST_CHUNK + 1, np.int32)
        sizes[: stop - start] = self.schedule.step_sizes.between(start, stop)
        slots[: stop - start + 1] = self.schedule.slots(start, stop)
        low, high, steps = np.array((*words(start), stop - start), np.int32)  # `jnp.asarray` of each: 0.1 ms a call
        windows: Any = None
        if self.plan is not None and start < self.plan.steps:
            windows = np.array(self.plan.window_ends, np.int32)
        epoch = self.groups[0].spec.indexer.epoch_position(start)
        step_range = StepRange(low, high, steps, slots, epoch, windows)
        for group, read in zip(self.groups, batches, strict=True):
            if group.alive:
                group.advance(start, step_range, sizes, read)
        first, last = self.schedule.draws_by(start), self.schedule.draws_by(stop)
        if last > first:
            parts = [group.draws(last - first) for group in self.groups]
            draws = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
            self.writer.write(first, self._masked(draws, first, last), self._tuned_step_size)
        else:
            jax.block_until_ready([group.carry.monitor for group in self.groups])

    def _masked(self, draws: dict[str, PyTree], first: int, last: int) -> dict[str, PyTree]:
        """NaN for the draws of a chain from the step on in which it diverged."""
        bad = self.bad_steps
        if (bad < 0).all():
            return draws
        steps = self.schedule.draw_steps(first, last)
        lost = (bad[:, None] >= 0) & (steps[None, :] >= bad[:, None])

        def mask(leaf: np.ndarray) -> np.ndarray:
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                leaf[lost] = np.nan
            return leaf

        return jax.tree.map(mask, draws)

    def _mask_last(self) -> None:
        """NaN for draws that led to a divergence in the step after them: they may have been taken a chunk before."""
        found = []
        for chain, bad in zip(self.chains, np.where(self._nonfinite_at_end, self.step, self.bad_steps), strict=True):
            count = self.schedule.draws_by(int(bad)) if bad >= 0 else 0
            if count and self.schedule.step_of_draw(count - 1) == bad:
                found.append((chain, count - 1))
        if jax.process_count() > 1:
            found = sorted({tuple(place) for places in processes.exchange_json("masked", found) for place in places})
        for chain, draw in found:
            self.writer.mask_draw(chain, draw)

    def _diverged(self, chain: int, step: int, cause: int, start: PyTree) -> ChainStatus:
        """Why a chain diverged: bad data (those in memory were tried before the run), or steps too large."""
        group, place = [(group, i) for group in self.groups for i in range(group.chains)][chain]
        found = "" if cause in (EXPLODED, NONFINITE_AT_END) else group.locate_nonfinite_batch(place, step)
        if found:
            return ChainStatus("diverged", step, f"{CAUSES[cause]}: NaN or infinity in the data, {found}", FIX)
        limit = stability_limit(group.sampler, group.estimator, start)
        tuned = tuned_step_size([group.carry.states.tuning for group in self.groups])
        step_size = self.schedule.step_sizes.at(step) * tuned
        return ChainStatus("diverged", step, CAUSES[cause], hint(step_size, limit))

    @cached_property
    def _tuned_step_size(self) -> float:
        """The step size of all chains that warm-up chose, the same in every process; known from the first draw on."""
        tuned = [group.carry.states.tuning for group in self.groups]
        if jax.process_count() == 1 or not isinstance(tuned[0], Tuned):
            return tuned_step_size(tuned)
        own = np.concatenate([np.ravel(each.step_size) for each in tuned]).tolist()
        listed = processes.exchange_json("step sizes", list(zip(self.chains, own, strict=True)))
        return float(np.median([*{chain: size for process in listed for chain, size in process}.values()]))

    @property
    def bad_steps(self) -> np.ndarray:
        """The step in which each chain diverged, −1 for those that did not."""
        return np.concatenate([group.carry.monitor.steps() for group in self.groups])

    @property
    def _nonfinite_at_end(self) -> np.ndarray:
        """Which chains have a position that is not finite after the last step; no gradient has been taken there yet."""
        return np.concatenate([~group.finite for group in self.groups]) & (self.bad_steps < 0)

    def status(self, starts: PyTree) -> tuple[ChainStatus, ...]:
        """How every chain ended; an error where none is left."""
        causes = np.concatenate([np.asarray(group.carry.monitor.cause) for group in self.groups])
        ended: Literal["finished", "interrupted"] = "finished" if self.step == self.schedule.steps else "interrupted"
        result = []
        at_end = self._nonfinite_at_end
        bad_steps, causes = np.where(at_end, self.step - 1, self.bad_steps), np.where(at_end, NONFINITE_AT_END, causes)
        for chain, (bad, cause) in enumerate(zip(bad_steps, causes, strict=True)):
            if bad < 0:
                result.append(ChainStatus(ended, self.step))
                continue
            start = jax.tree.map(lambda x, c=self.chains[chain]: x[c], starts)
            result.append(self._diverged(chain, int(bad), int(cause), start))
        if jax.process_count() > 1:
            result = gather_statuses(self.chains, result)
        if not any(status.alive for status in result):
            lines = "\n  ".join(f"chain {i}: {status}" for i, status in enumerate(result))
            raise DivergenceError(f"all {len(result)} chains diverged\n  {lines}")
        return tuple(result)
