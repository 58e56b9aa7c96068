"""The runner: device calls, what happens between them, and an orderly stop.

Chains of one loop form a group. Between device calls draws go to the run writer, signals are handled and progress is
shown.
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ridgewalk._compilation import jit
from ridgewalk._control_flow import WORD, words
from ridgewalk._random import keys_at
from ridgewalk._types import Key, PyTree
from ridgewalk._validation import check_choice
from ridgewalk.data import Batches
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Info, Sampler, State, build_kernel
from ridgewalk.result import ChainStatus
from ridgewalk.sampling.batching import (
    FIX,
    IterableReader,
    Prefetcher,
    Reader,
    RowReader,
    locate_nonfinite_batch,
    order_at,
)
from ridgewalk.sampling.loop import (
    CAUSES,
    EXPLODED,
    NONFINITE_AT_END,
    DivergenceMonitor,
    LoopCarry,
    LoopSpec,
    StepRange,
    init_chains,
    run_steps,
    take_chain,
)
from ridgewalk.sampling.stability import DivergenceError, hint, stability_limit
from ridgewalk.sampling.storage import RunWriter
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


# Chains

ChainMethod = Literal["vectorized", "sequential", "parallel"]


def split_chains(method: str, chains: int) -> list[tuple[slice, Any]]:
    """Which chains run together, and on which device (None: the default one)."""
    check_choice("chain_method", method, get_args(ChainMethod))
    if method == "vectorized":
        return [(slice(0, chains), None)]
    each = [slice(chain, chain + 1) for chain in range(chains)]
    if method == "sequential":
        return [(one, None) for one in each]
    devices = jax.local_devices()
    if len(devices) < chains:
        raise ValueError(
            f"chain_method: 'parallel' needs one device per chain: {chains} chains, {len(devices)} devices; use "
            f"'vectorized', or on CPU set XLA_FLAGS=--xla_force_host_platform_device_count={chains} before JAX starts"
        )
    return [(one, devices[i]) for i, one in enumerate(each)]


def _info(sampler: Sampler, estimator: GradientEstimator, states: State) -> Info:
    """What a step of all chains shows; for its shapes. (Not a method, so that it is traced once for many runs.)"""
    batch = estimator.target.subsample()
    state = take_chain(states, 0)
    info = build_kernel(sampler, estimator, state.position).step(jax.random.key(0), state, batch, 1.0)[1]
    chains = jax.tree.leaves(states.position)[0].shape[0]
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (chains, *x.shape)), info)


_take_chain = jit(take_chain)


class ChainGroup:
    """Chains that one compiled loop runs together on one device."""

    def __init__(
        self,
        sampler: Sampler,
        estimator: GradientEstimator,
        keys: Key,
        starts: PyTree,
        potentials: jax.Array,
        spec: LoopSpec,
        host_data: PyTree,
        buffer_draws: int,
        device: Any,
    ) -> None:
        self.device = device
        if device is not None:
            estimator, keys, starts, potentials = jax.device_put((estimator, keys, starts, potentials), device)
        self.sampler, self.estimator, self.keys, self.spec = sampler, estimator, keys, spec
        self._keys_of_word = 0, keys
        self.chains = keys.shape[0]
        self.dimension = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(starts))
        states = init_chains(sampler, estimator, starts)
        info = jax.eval_shape(_info, sampler, estimator, states)
        draws = spec.recorder.empty(states.position, info, buffer_draws)
        temperature = sampler.dynamics.temperature
        self.carry = LoopCarry(states, draws, DivergenceMonitor.init(potentials, self.dimension, temperature), None)
        self.host_data, self.prefetcher = host_data, None
        if spec.indexer.prefetched:
            examples = estimator.target.data.examples  # type: ignore[union-attr]
            self.prefetcher = Prefetcher(examples, spec.indexer.batch_size, self.chains)

    def saved(self) -> PyTree:
        """The arrays of a checkpoint."""
        return self.carry.states, self.carry.draws.moments, self.carry.monitor

    def restore(self, saved: PyTree) -> None:
        """Continue from the arrays of a checkpoint."""
        states, moments, monitor = jax.device_put(saved, self.device)  # None leaves the device open, as at the start
        draws = self.carry.draws._replace(moments=moments)
        self.carry = self.carry._replace(states=states, draws=draws, monitor=monitor)

    @property
    def alive(self) -> bool:
        """Whether any chain of the group has not diverged."""
        return bool(np.any(np.asarray(self.carry.monitor.step) < 0))

    @property
    def finite(self) -> np.ndarray:
        """Which chains are at a position that is finite."""
        leaves = jax.tree.leaves(self.carry.states.position)
        each = [np.isfinite(np.asarray(leaf)).reshape(self.chains, -1).all(axis=1) for leaf in leaves]
        return np.all(each, axis=0)

    def begin(self, step: int, stop: int) -> None:
        """Prepare the data of the steps from `step` on; batches of the first `stop − step` steps are prefetched."""
        if self.prefetcher is None:
            self.carry = self.carry._replace(order=order_at(self.spec.indexer, self.keys, step))
            return
        reader: Reader
        if isinstance(self.host_data, Batches):
            reader = IterableReader(self.host_data, self.chains, step)
        else:
            reader = RowReader(self.host_data, self.spec.indexer, self.keys)
        self.prefetcher.begin(reader, step, stop - step)

    def batches(self, ahead: int) -> PyTree:
        """The prefetched batches of the next steps; those of the `ahead` steps after them are begun."""
        return None if self.prefetcher is None else self.prefetcher.take(ahead)

    def advance(self, start: int, step_range: StepRange, step_sizes: np.ndarray, batches: PyTree) -> None:
        """Start a device call whose first step is number `start`; reading the carry waits for it."""
        leaf = jax.tree.leaves(self.carry.states.position)[0]
        sizes = jnp.asarray(step_sizes, jnp.result_type(*jax.tree.leaves(self.carry.states.position)))
        if len(jax.local_devices()) > 1:
            sizes, step_range, batches = jax.device_put((sizes, step_range, batches), leaf.sharding)
        keys = self._keys_at(start)
        self.carry = run_steps(
            self.sampler, self.estimator, keys, self.carry, sizes, step_range, batches, spec=self.spec
        )

    def _keys_at(self, step: int) -> Key:
        high = step // WORD
        if self._keys_of_word[0] != high:
            self._keys_of_word = high, keys_at(self.keys, step)
        return self._keys_of_word[1]

    def locate_nonfinite_batch(self, chain: int, step: int) -> str:
        """What is not finite in the batch that a chain of the group, counted in it, read from the host in a step."""
        if self.prefetcher is None:
            return ""
        return locate_nonfinite_batch(self.host_data, self.spec.indexer, self.keys, chain, step)

    def draw_shapes(self) -> dict[str, PyTree]:
        """Shapes and dtypes of one draw of one chain."""

        def one(x: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape[2:], x.dtype)

        return {name: jax.tree.map(one, tree) for name, tree in self._groups().items()}

    def _groups(self) -> dict[str, PyTree]:
        made = self.carry.draws
        groups = {"posterior": made.positions, "collected": made.collected, "sample_stats": made.info}
        return {name: tree for name, tree in groups.items() if tree is not None}

    def draws(self, count: int) -> dict[str, PyTree]:
        """The draws of the last device call on the host, leading axes (chain, draw)."""

        def to_host(x: jax.Array) -> np.ndarray:
            return np.array(np.swapaxes(np.asarray(x)[:count], 0, 1))  # slicing on the device would compile per count

        return {name: jax.tree.map(to_host, tree) for name, tree in self._groups().items()}

    def chain_states(self) -> list[State]:
        """The states, a chain at a time."""
        return [_take_chain(self.carry.states, chain) for chain in range(self.chains)]

    def close(self) -> None:
        """End the thread that reads batches."""
        if self.prefetcher is not None:
            self.prefetcher.close()


class Runner:
    """All chains of one call of `sample`, and the number of steps they have made."""

    def __init__(self, schedule: RunSchedule, groups: list[ChainGroup], writer: RunWriter, buffer_draws: int) -> None:
        self.schedule, self.groups, self.writer, self.buffer_draws = schedule, groups, writer, buffer_draws
        self.step = writer.start
        if writer.found is not None:
            self._restore(writer.found.arrays)

    def _saved(self) -> PyTree:
        return [group.saved() for group in self.groups]

    def _restore(self, arrays: list[np.ndarray]) -> None:
        like, structure = jax.tree.flatten(self._saved())
        shapes = [(leaf.shape, leaf.dtype) for leaf in like]
        if shapes != [(array.shape, array.dtype) for array in arrays]:
            raise ValueError("resume: the checkpoint's arrays do not fit this sampler; use another checkpoint folder")
        for group, saved in zip(self.groups, jax.tree.unflatten(structure, arrays), strict=True):
            group.restore(saved)

    def run(self, progress: bool, compiled_before: float) -> None:
        """Make the remaining steps, unless a signal ends the run early."""
        with contextlib.ExitStack() as stack:
            flag = stack.enter_context(stop_on_signal())
            report = stack.enter_context(progress_bar(self.schedule.steps, self.step, progress, compiled_before))
            sizer = ChunkSizer()
            stop = self._chunk_end(self.step, sizer)
            for group in self.groups:
                stack.callback(group.close)
                group.begin(self.step, stop)
            while self.step < self.schedule.steps and not flag.signal:
                start, after = self.step, self._chunk_end(stop, sizer)
                self._advance(start, stop, self._batches(after - stop))
                sizer.record(stop - start)
                self.step, stop = stop, after
                alive = self.bad_steps < 0
                report(self.step, np.concatenate([np.asarray(g.carry.monitor.potential) for g in self.groups]), alive)
                if not alive.any():
                    break
                if self.writer.due(self.step):
                    self.writer.save(self.step, self._saved())
            self._mask_last()
            if self.step and (self.bad_steps < 0).any():
                self.writer.save(self.step, self._saved())
            self.writer.finish()

    def _chunk_end(self, start: int, sizer: ChunkSizer) -> int:
        """Where the device call that begins at step `start` ends.

        It takes about half a second, and does not go past the end of the run, of the draw buffer or of the prefetched
        batches, past a checkpoint, or past a multiple of 2³¹, where random numbers get other keys.
        """
        schedule, block = self.schedule, self.groups[0].spec.block
        prefetched = [group.prefetcher.capacity for group in self.groups if group.prefetcher is not None]
        length = min(sizer.length, *prefetched) if prefetched else sizer.length
        length -= length % block if length > block else 0  # random numbers are drawn for whole blocks
        buffer_full = schedule.burn_in + schedule.thin * (schedule.draws_by(start) + self.buffer_draws)
        between = self.writer.steps_between
        checkpoint = schedule.steps if between is None else (start // between + 1) * between
        return min(start + length, schedule.steps, buffer_full, checkpoint, (start // WORD + 1) * WORD)

    def _batches(self, ahead: int) -> list[PyTree]:
        """The batches of the next steps for each group that goes on; those of the `ahead` steps after them are read
        meanwhile. What the user's data raise leaves a checkpoint behind: no group has moved yet.
        """
        try:
            return [group.batches(ahead) if group.alive else None for group in self.groups]
        except Exception as error:
            if self.writer.folder is not None and self.step:
                self.writer.save(self.step, self._saved())
                self.writer.finish()
                error.add_note(
                    f"ridgewalk: raised while the batches after step {self.step} were read. A checkpoint of that step "
                    "was written; the same call with resume=True continues from it."
                )
            raise

    def _advance(self, start: int, stop: int, batches: list[PyTree]) -> None:
        """Make the steps from `start` to `stop` and keep their draws."""
        sizes = np.zeros(LONGEST_CHUNK)
        sizes[: stop - start] = self.schedule.step_sizes.between(start, stop)
        counts = (*words(start), stop - start, *self.schedule.next_draw(start))
        low, high, steps, until, thin = (jnp.asarray(count, jnp.int32) for count in counts)
        step_range = StepRange(low, high, steps, until, thin, self.groups[0].spec.indexer.epoch_position(start))
        for group, read in zip(self.groups, batches, strict=True):
            if group.alive:
                group.advance(start, step_range, sizes, read)
        first, last = self.schedule.draws_by(start), self.schedule.draws_by(stop)
        if last > first:
            parts = [group.draws(last - first) for group in self.groups]
            draws = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
            self.writer.write(first, self._masked(draws, first, last))
        else:
            jax.block_until_ready([group.carry.monitor for group in self.groups])

    def _masked(self, draws: dict[str, PyTree], first: int, last: int) -> dict[str, PyTree]:
        """NaN for the draws of a chain from the step on in which it diverged."""
        bad = self.bad_steps
        if (bad < 0).all():
            return draws
        steps = self.schedule.burn_in + self.schedule.thin * np.arange(first + 1, last + 1) - 1
        lost = (bad[:, None] >= 0) & (steps[None, :] >= bad[:, None] - 1)

        def mask(leaf: np.ndarray) -> np.ndarray:
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                leaf[lost] = np.nan
            return leaf

        return jax.tree.map(mask, draws)

    def _mask_last(self) -> None:
        """NaN for draws that led to a divergence in the step after them: they may have been taken a chunk before."""
        for chain, bad in enumerate(np.where(self._nonfinite_at_end, self.step, self.bad_steps)):
            count = self.schedule.draws_by(int(bad)) if bad >= 0 else 0
            if count and self.schedule.burn_in + self.schedule.thin * count == bad:
                self.writer.mask_draw(chain, count - 1)

    def _diverged(self, chain: int, step: int, cause: int, start: PyTree) -> ChainStatus:
        """Why a chain diverged: bad data (those in memory were tried before the run), or steps too large."""
        group, place = [(group, i) for group in self.groups for i in range(group.chains)][chain]
        found = "" if cause in (EXPLODED, NONFINITE_AT_END) else group.locate_nonfinite_batch(place, step)
        if found:
            return ChainStatus("diverged", step, f"{CAUSES[cause]}: NaN or infinity in the data, {found}", FIX)
        limit = stability_limit(group.sampler, group.estimator, start)
        return ChainStatus("diverged", step, CAUSES[cause], hint(self.schedule.step_sizes.at(step), limit))

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
            start = jax.tree.map(lambda x, c=chain: x[c], starts)
            result.append(self._diverged(chain, int(bad), int(cause), start))
        if not any(status.alive for status in result):
            lines = "\n  ".join(f"chain {i}: {status}" for i, status in enumerate(result))
            raise DivergenceError(f"all {len(result)} chains diverged\n  {lines}")
        return tuple(result)
