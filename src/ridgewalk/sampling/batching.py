"""Which examples a step uses, batches that the host reads ahead of the device, and rows that are not finite.

The examples are a function of the chain's key and the step alone, so that a resumed run agrees.

NaN and infinity in the data make chains diverge as a large step size does. Data in memory are searched before a run,
data on the host after a divergence. A likelihood may be written for them (infinity for an open bound, NaN
for a missing value), so data in memory are refused only where it, or its gradient, is not finite.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from ridgewalk._compilation import WORD, when
from ridgewalk._random import keys_at, random_bits, uniform_integers
from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk._validation import check_whole
from ridgewalk.data import Batches, read_rows
from ridgewalk.distributed.processes import check_together, exchange_json
from ridgewalk.distributed.shards import ROWS, Sharded, over_shards
from ridgewalk.gradients import GradientEstimator
from ridgewalk.target import Posterior, on_host

Source = Literal["none", "full", "replacement", "epochs", "iterable"]
"""none: a density has no data. full: all data in every step. replacement, epochs: rows of the data, drawn with or
without replacement. iterable: batches of the user's iterable."""

EPOCH_STREAM = 0x65706F63
"""Folded into a chain's key for the order of an epoch, so that it differs from the keys of steps."""

SHUFFLE_STREAM = 0x73687566
"""Folded into the key of a run for the order of the rows where batches consist of blocks of them."""

ORDER = P(None, ROWS)
"""Where the order (chain, row) of an epoch is where the data are `Sharded`: each device has that of its own rows."""

BATCHES = P(None, None, ROWS)
"""Where prefetched batches (step, chain, row) of `Sharded` data are."""


class EpochPosition(NamedTuple):
    """Where in an epoch a step is: the number of its batch, and the low word of the number of the epoch."""

    batch: Scalar
    epoch: Scalar


@dataclass(frozen=True)
class BatchIndexer:
    """Batches of `batch_size` of `size` examples."""

    source: Source
    size: int = 0
    batch_size: int = 0
    prefetched: bool = False
    """Whether the host reads the batches; else the compiled loop takes them from data on the device."""
    shards: int = 1
    """Shards of the data, each of which gives as many rows to a batch as every other."""
    shards_here: int = 0
    """Shards of one device, whose rows are counted from its first; 0 where the data are not `Sharded`."""
    shard_numbers: tuple[int, ...] = ()
    """On the host: the shards of this process, whose rows are counted from its first."""
    block_size: int = 1
    """Consecutive rows that are drawn together, where the source is "replacement"."""

    @property
    def full(self) -> bool:
        """Whether every step uses all data."""
        return self.source in ("none", "full")

    @property
    def batches_per_epoch(self) -> int:
        """Batches of one pass over the data; the remaining examples, fewer than a batch, are left out of that epoch."""
        return (self.size // self.shards) // (self.batch_size // self.shards)

    def epoch_position(self, step: int) -> EpochPosition:
        """Where in its epoch a step is; zeros where there are no epochs."""
        epoch, batch = divmod(step, self.batches_per_epoch) if self.source == "epochs" else (0, 0)
        return EpochPosition(*np.array([batch, epoch % WORD], np.int32))

    def draw(self, key: Key) -> jax.Array | None:
        """Rows of one batch drawn with replacement; None for other sources."""
        if self.source != "replacement":
            return None
        if self.block_size > 1:
            return self._of_blocks(uniform_integers(key, self.batch_size // self.block_size, self.size))
        if not self.shards_here:
            return uniform_integers(key, self.batch_size, self.size)
        size, count = self.size // self.shards, self.batch_size // self.shards
        return self._of_shards(lambda number: uniform_integers(jax.random.fold_in(key, number), count, size))

    def _of_blocks(self, first: jax.Array) -> jax.Array:
        """Rows of blocks that begin at `first`; after the last row comes row 0, so that all rows are equally likely."""
        rows = first[:, None] + jnp.arange(self.block_size, dtype=first.dtype)[None, :]
        return jnp.where(rows < self.size, rows, rows - self.size).reshape(-1)

    def _of_shards(self, rows: Callable[[Scalar], jax.Array]) -> jax.Array:
        """Rows of this device, from those that a function gives for the number of a shard, counted in it."""
        own = jnp.arange(self.shards_here, dtype=jnp.int32)
        known = jnp.asarray(self.shard_numbers, jnp.int32) if self.shard_numbers else None
        numbers = jax.lax.axis_index(ROWS) * self.shards_here + own if known is None else known
        found = jax.vmap(rows)(numbers)
        return (found + (own * (self.size // self.shards))[:, None].astype(found.dtype)).reshape(-1)

    def of_process(self, data: PyTree) -> "BatchIndexer":
        """The rows of the shards of this process, for the host to read; itself where the data are not `Sharded`."""
        if not isinstance(data, Sharded):
            return self
        numbers = data.shards_of_process()
        return dataclasses.replace(self, shards_here=len(numbers), shard_numbers=numbers)

    def permutations(self, keys: Key, epoch: Scalar) -> jax.Array:
        """A random order of the examples in an epoch for every chain, (chain, N)."""

        def shuffled(key: Key) -> jax.Array:
            key = jax.random.fold_in(jax.random.fold_in(key, EPOCH_STREAM), epoch)
            if not self.shards_here:
                return jax.random.permutation(key, self.size).astype(jnp.int32)
            size = self.size // self.shards
            return self._of_shards(
                lambda number: jax.random.permutation(jax.random.fold_in(key, number), size).astype(jnp.int32)
            )

        return jax.vmap(shuffled)(keys)

    def from_order(self, keys: Key, begin: EpochPosition, i: Scalar, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The order that holds `i` steps after `begin`, and the rows of that step."""
        number = begin.batch + i
        batch = number % self.batches_per_epoch
        epoch = (begin.epoch + number // self.batches_per_epoch) & jnp.int32(WORD - 1)
        order = when(batch == 0, lambda _, now: self.permutations(keys, now), order, epoch)
        count, chains = self.batch_size // self.shards, order.shape[0]
        split = order.reshape(chains, max(1, self.shards_here), -1)
        return order, jax.lax.dynamic_slice_in_dim(split, batch * count, count, 2).reshape(chains, -1)


def check_blocks(indexer: BatchIndexer, data: PyTree, block_size: int | None) -> BatchIndexer:
    """Batches of blocks of consecutive rows, an even number of them: warm-up compares a half with the whole."""
    if block_size is None:
        return indexer
    check_whole("block_size", block_size, 1, "use None to draw single rows")
    if indexer.source != "replacement" or isinstance(data, Sharded):
        reasons = {"epochs": "replacement=False", "replacement": "data of distributed.shard"}
        reason = reasons.get(indexer.source, "a run without a batch_size of its own")
        raise ValueError(f"block_size: {block_size} was given, but it cannot be used with {reason}; leave it out")
    if indexer.batch_size % (2 * block_size):
        raise ValueError(
            f"block_size: a batch of {indexer.batch_size} rows is not an even number of blocks of {block_size}; make "
            f"batch_size a multiple of {2 * block_size}"
        )
    return dataclasses.replace(indexer, block_size=block_size)


def in_random_order(key: Key, estimator: GradientEstimator) -> GradientEstimator:
    """The estimator with the rows of its data in memory in a random order, a copy, for batches of consecutive rows.

    Blocks of rows in a random order have the variance of single rows: with a block that begins at a random row, the
    mean of g over its m rows has the variance S² / m (1 − m / N), S² that of a row, in expectation over the order, and
    that of an order differs from it by a fraction of about √(4 m / 3 N). Of rows that are sorted, for example by group,
    it is up to m times as large.
    """
    target = estimator.target
    if not isinstance(target, Posterior) or on_host(target.data):
        return estimator
    words = np.asarray(random_bits(jax.random.fold_in(key, SHUFFLE_STREAM), 2 * target.size, 32))
    order = np.argsort(words.view(np.uint64), kind="stable")
    data = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[order]), target.data)
    return dataclasses.replace(estimator, target=dataclasses.replace(target, data=data))  # type: ignore[type-var]


def order_at(indexer: BatchIndexer, keys: Key, step: int, data: PyTree = None) -> jax.Array | None:
    """The order of the epoch that `step` belongs to, where batches are drawn without replacement.

    Its random numbers are those of the epoch's first step.
    """
    if indexer.source != "epochs":
        return None
    return _permutations(
        indexer, keys_at(keys, step - step % indexer.batches_per_epoch), indexer.epoch_position(step).epoch, data
    )


@partial(jax.jit, static_argnames=("indexer",))
def _permutations(indexer: BatchIndexer, keys: Key, epoch: Scalar, data: PyTree) -> jax.Array:
    if not indexer.shards_here:
        return indexer.permutations(keys, epoch)
    return over_shards(lambda keys, epoch, _: indexer.permutations(keys, epoch), keys, epoch, data, out_specs=ORDER)


def rows_of_steps(indexer: BatchIndexer, keys: Key, start: int, count: int) -> jax.Array:
    """Rows (step, chain, example) of `count` steps, the same that the compiled loop draws, for the host to read.

    The steps have the same high word (see `StepCount`).
    """
    low = jnp.asarray(start % WORD, jnp.int32)
    return _rows(
        indexer, keys_at(keys, start), order_at(indexer, keys, start), low, indexer.epoch_position(start), count
    )


@partial(jax.jit, static_argnames=("indexer", "count"))
def _rows(
    indexer: BatchIndexer, keys: Key, order: jax.Array | None, start: Scalar, begin: EpochPosition, count: int
) -> jax.Array:
    after = jnp.arange(count, dtype=jnp.int32)
    if order is None:

        def one(key: Key, k: Scalar) -> Any:
            return indexer.draw(jax.random.split(jax.random.fold_in(key, k))[1])

        return jax.vmap(lambda k: jax.vmap(lambda key: one(key, k))(keys))(start + after)

    def forward(order: jax.Array, i: Scalar) -> tuple[jax.Array, jax.Array]:
        return indexer.from_order(keys, begin, i, order)

    return jax.lax.scan(forward, order, after)[1]


CHUNK_BYTES = 2**26
"""About what the batches of one chunk may take; two chunks are in memory at a time."""

MOST_STEPS = 1024


def shards_of_device(data: Any) -> int:
    """The shards of one device; 1 where data are not `Sharded`."""
    return data.shards // data.devices if isinstance(data, Sharded) else 1


def first_half(data: Any, batch: PyTree) -> PyTree:
    """The first half of a batch, of every shard's rows; of an odd number of rows, the smaller one."""
    shards = shards_of_device(data)

    def part(x: jax.Array) -> jax.Array:
        split = x.reshape(shards, -1, *x.shape[1:])
        return split[:, : split.shape[1] // 2].reshape(-1, *x.shape[1:])

    return jax.tree.map(part, batch)


class Reader(Protocol):
    """Gives the batches of the next steps, and how far it has read, where that cannot be told from the step."""

    def read(self, start: int, count: int, most: int) -> PyTree:
        """Batches of steps `start` … `start + count − 1`, arrays with leading axes (step, chain, example); never more
        than `most` steps are asked for.
        """

    def state(self) -> Any:
        """What a checkpoint after the steps read so far has to hold, as JSON, or None."""


class RowReader:
    """Rows of arrays on disk, the same rows that a run with the arrays in memory would use."""

    def __init__(self, data: PyTree, indexer: BatchIndexer, keys: Key) -> None:
        self.data, self.indexer, self.keys = data, indexer, keys

    def read(self, start: int, count: int, most: int) -> PyTree:
        """Look the rows of the steps up and read them."""
        rows = np.asarray(rows_of_steps(self.indexer, self.keys, start, most))[:count]
        return jax.tree.map(lambda leaf: read_rows(leaf, rows), self.data)

    def state(self) -> None:
        """The rows depend on the key and the step alone."""
        return None


class IterableReader:
    """Batch after batch of an iterable: step k of chain c uses number k · chains + c.

    `state` is where an earlier process was after `start` steps; without it the batches before are read and skipped.
    """

    def __init__(self, batches: Batches, chains: int, start: int, state: Any = None) -> None:
        self.chains, self.stream = chains, batches.forever()
        known = state is not None and self.stream.has_state
        if known:
            self.stream.restore(state)
        self.items = islice(self.stream, 0 if known else start * chains, None)

    def read(self, start: int, count: int, most: int) -> PyTree:
        """The next batches; steps are asked for in order."""
        steps = [[next(self.items) for _ in range(self.chains)] for _ in range(count)]
        return jax.tree.map(
            lambda *leaves: np.stack(leaves).reshape(count, self.chains, *leaves[0].shape),
            *[batch for step in steps for batch in step],
        )

    def state(self) -> Any:
        """The state of the iterable's iterator."""
        return self.stream.state()


class Prefetcher:
    """Reads the batches of the chunk after this one while the device is busy with this one."""

    def __init__(
        self, examples: PyTree, batch_size: int, chains: int, put: Callable[[np.ndarray], jax.Array] = jnp.asarray
    ) -> None:
        """Batches as large as `examples` in a row; `put` brings those of some steps to the devices."""
        one = sum(leaf.nbytes // leaf.shape[0] for leaf in jax.tree.leaves(examples)) * batch_size * chains
        self._put = put
        self.capacity = int(np.clip(CHUNK_BYTES // max(one, 1), 1, MOST_STEPS))
        self._thread = ThreadPoolExecutor(1, "ridgewalk-prefetch")
        self._coming: Future[tuple[PyTree, Any]]
        self._reader: Reader
        self._next = 0
        self.state: Any = None
        """Where the reader was after the batches taken last."""

    def begin(self, reader: Reader, start: int, count: int) -> None:
        """Start to read the batches of the first steps."""
        self._reader, self._next = reader, start
        self._read_ahead(count)

    def _read_ahead(self, count: int) -> None:
        if count:
            self._coming = self._thread.submit(self._padded, self._next, count)
            self._next += count

    def _padded(self, start: int, count: int) -> tuple[PyTree, Any]:
        """Batches in arrays of always the same length, so that nothing is compiled again; the reader's state then."""
        missing = self.capacity - count

        def pad(x: np.ndarray) -> jax.Array:
            return self._put(np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)]) if missing else x)

        return jax.tree.map(pad, self._reader.read(start, count, self.capacity)), self._reader.state()

    def take(self, ahead: int) -> PyTree:
        """The batches that were read; those of the `ahead` steps after them are begun."""
        batches, self.state = self._coming.result()
        self._read_ahead(ahead)
        return batches

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)


# NaN and infinity in the data

NUMBERS_AT_ONCE = 2**22
"""How many numbers are looked at together, so that the look takes little memory."""

SHOWN = 5
"""How many rows a message names."""

TRIED = 8
"""In how many rows of an array with NaN, and in how many with infinity, the likelihood is tried."""

MOST_BATCHES = 1_000
"""How many batches of an iterable are gone through to find the one that is not finite."""

FIX = "remove these rows, or impute them and pass a mask as another data array"


def _nonfinite_rows(leaf: np.ndarray) -> np.ndarray:
    """The rows of an array that hold NaN or infinity; none where it is not of floats."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return np.zeros(0, int)
    size = len(leaf)
    at_once = max(1, NUMBERS_AT_ONCE * size // max(leaf.size, 1))
    parts = []
    for start in range(0, size, at_once):
        part = leaf[start : start + at_once]
        finite = np.isfinite(part)
        if not finite.all():
            parts.append(start + np.flatnonzero(~finite.reshape(len(part), -1).all(axis=1)))
    return np.concatenate(parts) if parts else np.zeros(0, int)


def _listed(rows: np.ndarray) -> str:
    more = f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:SHOWN]))}{more}"


def _leaves(data: PyTree) -> list[tuple[str, Any]]:
    return [(f"data{jax.tree_util.keystr(path)}", leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(data)[0]]


def find_nonfinite_rows(data: PyTree) -> dict[str, np.ndarray]:
    """The rows with NaN or infinity of each array in memory that has any; what stays on the host is not read for this.

    Keys are the arrays' names, such as `data['x']`.
    """
    if on_host(data):
        return {}
    if isinstance(data, Sharded):
        data = data.local_rows()[1]
    found = {name: _nonfinite_rows(np.asarray(leaf)) for name, leaf in _leaves(data)}
    return {name: rows for name, rows in found.items() if rows.size}


@jax.jit
def _likelihood_is_finite(target: Posterior, position: PyTree) -> Scalar:
    """Whether log p(d_i | θ) and its gradient are, over all data of the target."""

    def total(position: PyTree) -> tuple[Scalar, Scalar]:
        values = target.likelihood_values(position, target.data)
        return jnp.sum(values), jnp.all(jnp.isfinite(values))

    gradient, finite = jax.grad(total, has_aux=True)(position)
    return jnp.all(jnp.stack([finite, *(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))]))


def check_finite(target: Posterior, position: PyTree, suspected: dict[str, np.ndarray]) -> None:
    """Raise where the likelihood or its gradient is not finite at a position in some of the rows suspected."""
    leaves = dict(_leaves(target.data))
    for name, rows in suspected.items():
        part = np.asarray(leaves[name])[rows]
        missing = np.isnan(part.reshape(len(part), -1)).any(axis=1)
        for row in (*rows[missing][:TRIED], *rows[~missing][:TRIED]):
            # The row twice, as likelihoods may squeeze axes of length one.
            alone = dataclasses.replace(
                target, data=jax.tree.map(lambda x, row=row: jnp.asarray(x[np.array([row, row])]), target.data)
            )
            if not _likelihood_is_finite(alone, position):
                shared = {other: bad for other, bad in suspected.items() if row in bad}
                common = _listed(reduce(np.intersect1d, shared.values()))
                raise ValueError(
                    f"{' and '.join(shared)}: NaN or infinity in {common}, and "
                    f"log_likelihood or its gradient at the start is not finite for row {row}; {FIX}"
                )


def check_finite_rows(target: Posterior, position: PyTree, suspected: dict[str, np.ndarray]) -> None:
    """`check_finite`; rows of `Sharded` data are counted in the part of the process that has them."""
    if not isinstance(target.data, Sharded):
        check_finite(target, position, suspected)
        return
    found: Exception | None = None
    try:
        check_finite(dataclasses.replace(target, data=target.data.local_rows()[1]), position, suspected)
    except ValueError as error:
        found = error
    check_together("finite", found)


def has_nonfinite_examples(target: Posterior) -> bool:
    """Whether any of the examples that the target is first evaluated on holds NaN or infinity, in any process."""
    sharded = isinstance(target.data, Sharded)
    examples = target.data.local_rows()[1] if sharded else target.subsample()
    found = any(bool(_nonfinite_rows(np.asarray(leaf)).size) for leaf in jax.tree.leaves(examples))
    return any(exchange_json("examples", found)) if sharded else found


def locate_nonfinite_batch(data: PyTree, indexer: BatchIndexer, keys: Key, chain: int, step: int) -> str:
    """What is not finite in the batch from the host that chain `chain` of `keys` saw in a step; "" where all is.

    Of `Sharded` data each process looks at its own rows, and all of them say what one has found.
    """
    if isinstance(data, Sharded):
        found = locate_nonfinite_batch(data.source, indexer.of_process(data), keys, chain, step)
        told = exchange_json("batch", found)
        return next((f"{text} of process {process}" for process, text in enumerate(told) if text), "")
    if isinstance(data, Batches):
        return _locate_in_iterable(data, step)
    chosen = np.unique(np.asarray(rows_of_steps(indexer, keys, step, 1))[0, chain])
    for name, leaf in _leaves(data):
        bad = _nonfinite_rows(read_rows(leaf, chosen))
        if bad.size:
            return f"{name} in {_listed(chosen[bad])}"
    return ""


def _locate_in_iterable(batches: Batches, step: int) -> str:
    """The first batch that is not finite of those read up to a step; later ones cannot have done it."""
    for number, item in enumerate(islice(batches.batches, min(step + 1, MOST_BATCHES))):
        for name, leaf in _leaves(jax.tree.map(np.asarray, item)):
            bad = _nonfinite_rows(leaf)
            if bad.size:
                return f"{name} in {_listed(bad)} of batch {number}"
    return ""
