"""A run in progress: chunks on the device, what they made to the archive, and a stop in good order."""

import contextlib
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._step_count import words
from ridgewalk._types import PyTree
from ridgewalk.result import ChainStatus
from ridgewalk.run.archive import RunWriter
from ridgewalk.run.finite import FIX
from ridgewalk.run.groups import Group
from ridgewalk.run.health import CAUSES, ENDED_OUTSIDE, EXPLODED, DivergenceError, hint, stability_limit
from ridgewalk.run.loop import Span
from ridgewalk.run.pace import LONGEST_CHUNK, Pace
from ridgewalk.run.plan import Plan
from ridgewalk.run.progress import progress_bar
from ridgewalk.run.stopping import stop_request


class Session:
    """All chains of one call of `sample`, and the step they have come to."""

    def __init__(self, plan: Plan, groups: list[Group], archive: RunWriter, slots: int) -> None:
        self.plan, self.groups, self.archive, self.slots = plan, groups, archive, slots
        self.step = archive.start
        if archive.found is not None:
            self._restore(archive.found.arrays)

    def _saved(self) -> PyTree:
        return [group.saved() for group in self.groups]

    def _restore(self, arrays: list[np.ndarray]) -> None:
        like, structure = jax.tree.flatten(self._saved())
        shapes = [(leaf.shape, leaf.dtype) for leaf in like]
        if shapes != [(array.shape, array.dtype) for array in arrays]:
            raise ValueError("resume: the checkpoint's arrays do not fit this sampler; use another checkpoint folder")
        for group, saved in zip(self.groups, jax.tree.unflatten(structure, arrays), strict=True):
            group.restore(saved)

    def run(self, progress: bool) -> None:
        """Make the steps that are left, as far as no signal ends the run early."""
        with contextlib.ExitStack() as stack:
            request = stack.enter_context(stop_request())
            report = stack.enter_context(progress_bar(self.plan.steps, self.step, progress))
            pace = Pace()
            stop = self._stop(self.step, pace)
            for group in self.groups:
                stack.callback(group.close)
                group.begin(self.step, stop)
            while self.step < self.plan.steps and not request.signal:
                start, after = self.step, self._stop(stop, pace)
                self._advance(start, stop, self._batches(after - stop))
                pace.made(stop - start)
                self.step, stop = stop, after
                alive = self.bad_steps < 0
                report(self.step, np.concatenate([np.asarray(g.carry.health.potential) for g in self.groups]), alive)
                if not alive.any():
                    break
                if self.archive.due(self.step):
                    self.archive.save(self.step, self._saved())
            self._blank_last()
            if self.step and (self.bad_steps < 0).any():
                self.archive.save(self.step, self._saved())
            self.archive.finish()

    def _stop(self, start: int, pace: Pace) -> int:
        most = min((group.feed.capacity for group in self.groups if group.feed is not None), default=LONGEST_CHUNK)
        length, block = min(pace.length, most), self.groups[0].chunk.block
        length -= length % block if length > block else 0  # the random numbers of a block are drawn to its end
        return self.plan.stop(start, length, self.slots, self.archive.steps_between)

    def _batches(self, ahead: int) -> list[PyTree]:
        """The batches of the next steps for each group that goes on; those of the `ahead` steps after them are read
        meanwhile. What the user's data raise leaves a checkpoint behind: no group has moved yet.
        """
        try:
            return [group.batches(ahead) if group.alive else None for group in self.groups]
        except Exception as error:
            if self.archive.folder is not None and self.step:
                self.archive.save(self.step, self._saved())
                self.archive.finish()
                error.add_note(
                    f"ridgewalk: raised while the batches after step {self.step} were read. A checkpoint of that step "
                    "was written; the same call with resume=True continues from it."
                )
            raise

    def _advance(self, start: int, stop: int, batches: list[PyTree]) -> None:
        """Make the steps from `start` to `stop` and keep their draws."""
        sizes = np.zeros(LONGEST_CHUNK)
        sizes[: stop - start] = self.plan.step_sizes.between(start, stop)
        counts = (*words(start), stop - start, *self.plan.next_draw(start))
        low, high, steps, until, thin = (jnp.asarray(count, jnp.int32) for count in counts)
        span = Span(low, high, steps, until, thin, self.groups[0].chunk.rows.place(start))
        for group, read in zip(self.groups, batches, strict=True):
            if group.alive:
                group.advance(start, span, sizes, read)
        first, last = self.plan.draws_by(start), self.plan.draws_by(stop)
        if last > first:
            parts = [group.draws(last - first) for group in self.groups]
            draws = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
            self.archive.write(first, self._blank(draws, first, last))
        else:
            jax.block_until_ready([group.carry.health for group in self.groups])

    def _blank(self, draws: dict[str, PyTree], first: int, last: int) -> dict[str, PyTree]:
        """NaN for the draws of a chain from the step on in which it diverged."""
        bad = self.bad_steps
        if (bad < 0).all():
            return draws
        steps = self.plan.burn_in + self.plan.thin * np.arange(first + 1, last + 1) - 1
        lost = (bad[:, None] >= 0) & (steps[None, :] >= bad[:, None] - 1)

        def blank(leaf: np.ndarray) -> np.ndarray:
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                leaf[lost] = np.nan
            return leaf

        return jax.tree.map(blank, draws)

    def _blank_last(self) -> None:
        """NaN for draws that led to a divergence in the step after them: they may have been taken a chunk before."""
        for chain, bad in enumerate(np.where(self._outside, self.step, self.bad_steps)):
            count = self.plan.draws_by(int(bad)) if bad >= 0 else 0
            if count and self.plan.burn_in + self.plan.thin * count == bad:
                self.archive.mask_draw(chain, count - 1)

    def _diverged(self, chain: int, step: int, cause: int, start: PyTree) -> ChainStatus:
        """Why a chain diverged: bad data (those in memory were tried before the run), or steps too large."""
        group, place = [(group, i) for group in self.groups for i in range(group.chains)][chain]
        found = "" if cause in (EXPLODED, ENDED_OUTSIDE) else group.culprit(place, step)
        if found:
            return ChainStatus("diverged", step, f"{CAUSES[cause]}: NaN or infinity in the data, {found}", FIX)
        limit = stability_limit(group.sampler, group.estimator, start)
        return ChainStatus("diverged", step, CAUSES[cause], hint(self.plan.step_sizes.at(step), limit))

    @property
    def bad_steps(self) -> np.ndarray:
        """The step in which each chain diverged, −1 for those that did not."""
        return np.concatenate([group.carry.health.steps() for group in self.groups])

    @property
    def _outside(self) -> np.ndarray:
        """Which chains are, after the last step made, where a position is not finite; no step has shown it yet."""
        return np.concatenate([~group.finite for group in self.groups]) & (self.bad_steps < 0)

    def status(self, starts: PyTree) -> tuple[ChainStatus, ...]:
        """How every chain ended; an error where none is left."""
        causes = np.concatenate([np.asarray(group.carry.health.cause) for group in self.groups])
        ended: Literal["finished", "interrupted"] = "finished" if self.step == self.plan.steps else "interrupted"
        result = []
        outside = self._outside
        bad_steps, causes = np.where(outside, self.step - 1, self.bad_steps), np.where(outside, ENDED_OUTSIDE, causes)
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
