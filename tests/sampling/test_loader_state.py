"""Loaders that know how far they are: a resumed run sets their state, and reads nothing twice."""

import json

import grain
import numpy as np
import pytest
from tests.sampling.problems import REGRESSION, assert_same_run, run

import ridgewalk as rw
from ridgewalk.data import BatchStream
from ridgewalk.sampling import checkpoint

DATA = {name: np.asarray(array) for name, array in REGRESSION.target.data.items()}
SIZE = len(next(iter(DATA.values())))
BATCH = 20


class Rows:
    """A data source that notes which rows were read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return SIZE

    def __getitem__(self, row):
        self.read.append(int(row))
        return {name: array[row] for name, array in DATA.items()}

    def __repr__(self):
        return "Rows()"  # a DataLoader refuses the state of another source, and compares by this


def dataset(rows):
    return grain.MapDataset.source(rows).shuffle(seed=0).batch(BATCH, drop_remainder=True)


def loader(rows):
    sampler = grain.samplers.IndexSampler(SIZE, grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=0)
    batch = grain.transforms.Batch(BATCH, drop_remainder=True)
    return grain.DataLoader(data_source=rows, sampler=sampler, operations=[batch], worker_count=0)


def unprefetched(rows):
    return dataset(rows).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))


def sampled(batches, **options):
    target = rw.Posterior(REGRESSION.target.log_prior, REGRESSION.target.log_likelihood, rw.Batches(batches, SIZE))
    return run(target=target, batch_size=None, chains=2, **options)


class Counter:
    """Batches by number, whose iterators have a state of the test's choice."""

    def __init__(self, count, state=lambda number: {"number": number}):
        self.count, self.state, self.made = count, state, []

    def __iter__(self):
        return CounterIterator(self)


class CounterIterator:
    def __init__(self, counter):
        self.counter, self.number = counter, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.number == self.counter.count:
            raise StopIteration
        self.number += 1
        self.counter.made.append(self.number - 1)
        rows = np.arange(BATCH) + self.number
        return {name: array[rows] for name, array in DATA.items()}

    def get_state(self):
        return self.counter.state(self.number)

    def set_state(self, state):
        self.number = state["number"] if isinstance(state, dict) else int(state)


@pytest.mark.parametrize(
    "make", [pytest.param(dataset, marks=pytest.mark.slow), loader, pytest.param(unprefetched, marks=pytest.mark.slow)]
)
def test_a_resumed_run_is_bit_identical(tmp_path, make):
    where = {"checkpoint": tmp_path, "checkpoint_every": 7}
    sampled(make(Rows()), steps=33, **where)
    assert_same_run(sampled(make(Rows()), steps=60, **where, resume=True), sampled(make(Rows()), steps=60))


def test_nothing_is_read_again(tmp_path):
    where = {"checkpoint": tmp_path, "checkpoint_every": 7}
    sampled(unprefetched(Rows()), steps=33, **where)
    rows = Rows()
    sampled(unprefetched(rows), steps=34, **where, resume=True)
    first_looks = 2 * BATCH  # at the first batch: its shapes, and the examples of preconditioners
    assert len(rows.read) == first_looks + 2 * BATCH  # one step of two chains


@pytest.mark.parametrize("state", [lambda number: {"number": number}, lambda number: str(number).encode()])
@pytest.mark.parametrize("stop", [10, pytest.param(11, marks=pytest.mark.slow), 15])
def test_states_within_and_at_the_end_of_an_epoch(tmp_path, state, stop):
    """22 batches in an epoch: 11 steps of two chains."""
    where = {"checkpoint": tmp_path, "checkpoint_every": 5}
    sampled(Counter(22, state), steps=stop, **where)
    again = Counter(22, state)
    resumed = sampled(again, steps=30, **where, resume=True)
    assert_same_run(resumed, sampled(Counter(22, state), steps=30))
    assert again.made[2:4] == [2 * stop % 22, (2 * stop + 1) % 22]  # after two looks at the first batch


def test_loaders_without_state_are_replayed(tmp_path):
    where = {"checkpoint": tmp_path, "checkpoint_every": 5}
    batches = [{name: array[i : i + BATCH] for name, array in DATA.items()} for i in range(9)]
    sampled(batches, steps=12, **where)
    assert checkpoint.latest(tmp_path).data is None
    assert_same_run(sampled(batches, steps=30, **where, resume=True), sampled(batches, steps=30))


def test_a_checkpoint_without_state_is_replayed(tmp_path, monkeypatch):
    """The loader got its methods after the run was begun."""
    where = {"checkpoint": tmp_path, "checkpoint_every": 5}
    with monkeypatch.context() as patch:
        patch.setattr(BatchStream, "has_state", False)
        sampled(Counter(22), steps=12, **where)
    assert_same_run(sampled(Counter(22), steps=30, **where, resume=True), sampled(Counter(22), steps=30))


def test_the_checkpoint_of_an_error_has_the_state_of_its_step(tmp_path):
    """The batches after it were being read."""

    class Breaking(Counter):
        broken = True

        def state(self, number):
            if self.broken and number > 30:
                raise OSError("the disk is gone")
            return {"number": number}

        def __init__(self, count):
            self.count, self.made = count, []

    where = {"checkpoint": tmp_path, "checkpoint_every": 5}
    batches = Breaking(100)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        sampled(batches, steps=30, **where)
    assert "A checkpoint of that step was written" in caught.value.__notes__[0]
    found = checkpoint.latest(tmp_path)
    assert found.data == {"json": {"number": 2 * found.step}}
    batches.broken = False
    assert_same_run(sampled(batches, steps=30, **where, resume=True), sampled(Counter(100), steps=30))


@pytest.mark.parametrize("state", [{1: 2}, (1, 2), object(), {"a": np.int64(3)}])
def test_states_that_json_changes_are_refused(tmp_path, state):
    with pytest.raises(ValueError, match=r"batches: get_state\(\) of its iterator returned .* cannot hold"):
        sampled(Counter(22, lambda number: state), steps=10, checkpoint=tmp_path)


def test_states_are_plain_json():
    stream = rw.Batches(Counter(3, lambda number: b"\x00\xff"), SIZE).forever()
    next(stream)
    assert json.loads(json.dumps(stream.state())) == {"bytes": "AP8="}
