"""Data on disk and from iterables give the chain that data in memory give; epochs visit every example."""

from dataclasses import replace

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr
from tests.harness import complaints, flat_draws
from tests.sampling.problems import REGRESSION, assert_same_run, run

import ridgewalk as rw
from ridgewalk import data
from ridgewalk.sampling import batching
from ridgewalk.sampling.batching import (
    BatchIndexer,
    in_random_order,
    locate_nonfinite_batch,
    order_at,
    rows_of_steps,
)

ARRAYS = {name: np.asarray(array) for name, array in REGRESSION.target.data.items()}


def on_disk(kind, folder):
    if kind == "memmap":
        for name, array in ARRAYS.items():
            np.save(folder / f"{name}.npy", array)
        return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
    if kind == "zarr":
        group = zarr.create_group(folder / "data.zarr")
        for name, array in ARRAYS.items():
            group.create_array(name, data=array, chunks=(50, *array.shape[1:]))
        return {name: group[name] for name in ARRAYS}
    file = h5py.File(folder / "data.h5", "w")
    return {name: file.create_dataset(name, data=array) for name, array in ARRAYS.items()}


@pytest.mark.parametrize("kind", ["memmap", "zarr", "h5py"])
@pytest.mark.parametrize("replacement", [True, False])
def test_data_on_disk_give_the_same_chain(tmp_path, kind, replacement, monkeypatch):
    monkeypatch.setattr(batching, "MOST_STEPS", 7)  # many chunks, the last one partly filled
    target = replace(REGRESSION.target, data=on_disk(kind, tmp_path))
    options = {"chains": 2, "replacement": replacement}
    assert_same_run(run(**options), run(target=target, **options))


def test_control_variates_on_disk(tmp_path):
    target = replace(REGRESSION.target, data=on_disk("memmap", tmp_path))
    centre = jnp.asarray(REGRESSION.mean)
    stored, inside = rw.control_variates(target, centre), rw.control_variates(REGRESSION.target, centre)
    np.testing.assert_allclose(stored.likelihood_gradient, inside.likelihood_gradient, atol=1e-9)
    np.testing.assert_allclose(run(target=stored).positions, run(target=inside).positions, atol=1e-12)


def test_sequential_chains_read_their_own_rows(tmp_path):
    target = replace(REGRESSION.target, data=on_disk("memmap", tmp_path))
    options = {"chains": 2, "chain_method": "sequential"}
    assert_same_run(run(**options), run(target=target, **options))


@pytest.mark.parametrize("chains", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_an_epoch_visits_every_example_once(chains):
    rows = BatchIndexer("epochs", size=50, batch_size=7)
    keys = jax.random.split(jax.random.key(0), chains)
    drawn = np.asarray(rows_of_steps(rows, keys, 0, 21))
    assert drawn.shape == (21, chains, 7)
    for chain in range(chains):
        epochs = drawn[:, chain].reshape(3, 49)
        assert all(len(set(epoch)) == 49 for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3  # each in its own order
    assert chains == 1 or not np.array_equal(drawn[:, 0], drawn[:, 1])
    from_the_middle = rows_of_steps(rows, keys, 10, 11)
    np.testing.assert_array_equal(from_the_middle, drawn[10:])
    assert order_at(rows, keys, 10).shape == (chains, 50)


def test_every_example_is_drawn_equally_often_with_replacement():
    rows = BatchIndexer("replacement", size=20, batch_size=10)
    drawn = np.asarray(rows_of_steps(rows, jax.random.split(jax.random.key(1), 1), 0, 4_000))
    counts = np.bincount(drawn.ravel(), minlength=20)
    assert np.all(np.abs(counts - 2_000) < 5 * np.sqrt(2_000))


@pytest.mark.slow
def test_epochs_sample_the_posterior():
    step = 0.01 / REGRESSION.steepest
    result = run(steps=60_000, burn_in=5_000, thin=10, chains=4, batch_size=100, step_size=step, replacement=False)
    assert complaints(flat_draws(result), REGRESSION.mean, REGRESSION.covariance, bias=0.05) == []


# Blocks of consecutive rows


def block_means(values, block):
    """Of the block that begins at each row, the first rows after the last ones."""
    around = np.concatenate([values, values[: block - 1]])
    return np.convolve(around, np.full(block, 1 / block), "valid")


def test_blocks_of_rows_begin_anywhere_and_end_at_the_first_rows():
    rows = BatchIndexer("replacement", size=23, batch_size=10, block_size=5)
    keys = jax.random.split(jax.random.key(1), 2)
    drawn = np.asarray(rows_of_steps(rows, keys, 0, 2_000))
    blocks = drawn.reshape(2_000, 2, 2, 5)
    np.testing.assert_array_equal(blocks, (blocks[..., :1] + np.arange(5)) % 23)
    for place in range(5):  # so that every row is drawn equally often
        counts = np.bincount(blocks[..., place].ravel(), minlength=23)
        assert np.all(np.abs(counts - 8_000 / 23) < 5 * np.sqrt(8_000 / 23))
    assert abs(np.corrcoef(blocks[..., 0].reshape(-1, 2).T)[0, 1]) < 5 / np.sqrt(4_000)
    np.testing.assert_array_equal(rows_of_steps(rows, keys, 700, 3), drawn[700:703])


def test_blocks_in_a_random_order_have_the_variance_of_single_rows():
    """In whatever order the rows are given; of sorted rows it would be m times as large."""
    values, block = np.arange(20_000) / 20_000, 25
    target = rw.Posterior(lambda p: -(p**2), lambda p, batch: -((batch["x"] - p) ** 2), {"x": values, "y": 2 * values})
    estimator = rw.control_variates(target, jnp.zeros(()))
    shuffled, other = (in_random_order(jax.random.key(seed), estimator).target.data for seed in (3, 4))
    found = np.asarray(shuffled["x"])
    np.testing.assert_array_equal(np.sort(found), values)
    np.testing.assert_array_equal(shuffled["y"], 2 * found)
    assert not np.array_equal(found, other["x"])
    alone = values.var() / block
    for order, factor in ((values, block), (found, 1)):
        assert block_means(order, block).mean() == pytest.approx(values.mean())
        assert block_means(order, block).var() == pytest.approx(
            factor * alone, rel=4 * np.sqrt(4 * block / (3 * 20_000))
        )


def test_two_halves_of_a_batch_consist_of_different_blocks():
    """The variance of a batch's mean is a quarter of the squared difference of its halves, even of sorted rows."""
    values = np.arange(1_000.0)
    rows = BatchIndexer("replacement", size=1_000, batch_size=40, block_size=20)
    drawn = np.asarray(rows_of_steps(rows, jax.random.split(jax.random.key(0), 1), 0, 20_000))[:, 0]
    halves = values[drawn].reshape(-1, 2, 20).mean(-1)
    true = block_means(values, 20).var() / 2
    assert np.mean((halves[:, 0] - halves[:, 1]) ** 2) / 4 == pytest.approx(true, rel=0.05)
    assert halves.mean(1).var() == pytest.approx(true, rel=0.05)


def test_runs_with_blocks_are_resumed_and_read_rows_in_their_order_from_disk(tmp_path):
    options = {"chains": 2, "block_size": 10}
    whole = run(**options)
    run(**options, checkpoint=tmp_path / "c", checkpoint_every=20)
    sorted((tmp_path / "c").glob("step-*"))[-1].unlink()
    assert_same_run(whole, run(**options, checkpoint=tmp_path / "c", checkpoint_every=20, resume=True))
    with pytest.raises(ValueError, match="block_size: 10 then, 20 now"):
        run(chains=2, block_size=20, checkpoint=tmp_path / "c", resume=True)
    shuffled = in_random_order(jax.random.key(0), rw.svrg(REGRESSION.target, every=5)).target.data
    for name, array in shuffled.items():
        np.save(tmp_path / f"{name}.npy", array)
    stored = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in shuffled}
    assert_same_run(whole, run(target=replace(REGRESSION.target, data=stored), **options))
    assert not np.array_equal(whole.positions, run(chains=2).positions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 15}, "a batch of 40 rows is not an even number of blocks of 15; make batch_size a multiple of"),
        ({"block_size": 40}, "is not an even number of blocks of 40; make batch_size a multiple of 80"),
        ({"block_size": 0}, "block_size: 0"),
        ({"block_size": 10, "replacement": False}, "block_size: 10 was given, but .* replacement=False; leave it out"),
        ({"block_size": 10, "batch_size": None}, "block_size: 10 .* a run without a batch_size of its own"),
    ],
)
def test_bad_blocks(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


@pytest.mark.slow
def test_blocks_sample_the_posterior():
    """From rows that are sorted, with the step size of warm-up."""
    order = np.argsort(ARRAYS["y"])
    target = replace(REGRESSION.target, data={name: array[order] for name, array in ARRAYS.items()})
    estimator = rw.control_variates(target, jnp.asarray(REGRESSION.mean))
    result = run(rw.auto(), target=estimator, steps=40_000, chains=4, batch_size=40, block_size=10, step_size="auto")
    assert complaints(flat_draws(result), REGRESSION.mean, REGRESSION.covariance, bias=0.05) == []


def batches(count=10, size=40):
    return [{name: array[i * size : (i + 1) * size] for name, array in ARRAYS.items()} for i in range(count)]


def test_an_iterable_of_batches_is_used_in_order_and_again():
    order = batches()
    target = replace(REGRESSION.target, data=rw.Batches(order, size=400))
    result = run(rw.sgld(), target=target, batch_size=None, steps=25)
    kernel = rw.build_kernel(rw.sgld(), REGRESSION.target, jnp.zeros(3))
    state = kernel.init(jnp.zeros(3))
    key = jax.random.split(jax.random.key(0), 1)[0]
    for k in range(25):
        noise_key = jax.random.split(jax.random.fold_in(key, k))[0]
        state, _ = jax.jit(kernel.step)(noise_key, state, order[k % 10], 1e-3)
        np.testing.assert_allclose(result.positions[0, k], state.position, rtol=1e-9)


def test_an_iterable_is_resumed_where_it_was(tmp_path):
    target = replace(REGRESSION.target, data=rw.Batches(batches(), size=400))
    options = {"target": target, "batch_size": None, "chains": 2}
    whole = run(**options)
    run(**options, checkpoint=tmp_path, checkpoint_every=20)
    sorted(tmp_path.glob("step-*"))[-1].unlink()
    assert_same_run(whole, run(**options, checkpoint=tmp_path, checkpoint_every=20, resume=True))


class LoaderOfTensors:
    """What a PyTorch DataLoader looks like from here: lists of objects that numpy can read."""

    class Tensor:
        def __init__(self, values):
            self.values = values

        def __array__(self, dtype=None, copy=None):
            return self.values

    def __iter__(self):
        return iter([[self.Tensor(batch["x"]), self.Tensor(batch["y"])] for batch in batches()])


def test_a_loader_of_tensors_works():
    def log_likelihood(theta, batch):
        x, y = batch
        return -0.5 * (y - x @ theta) ** 2

    loader = rw.Posterior(REGRESSION.target.log_prior, log_likelihood, rw.Batches(LoaderOfTensors(), size=400))
    lists = replace(REGRESSION.target, data=rw.Batches(batches(), size=400))
    options = {"batch_size": None, "steps": 12}
    np.testing.assert_array_equal(run(target=loader, **options).positions, run(target=lists, **options).positions)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rw.Batches(iter(batches()), size=400), "can be read only once"),
        (lambda: rw.Batches(batches(), size=0), "size: 0 is not"),
        (lambda: rw.Batches(7, size=400), "batches: int is not iterable"),
        (lambda: run(target=with_data(rw.Batches([], size=400)), batch_size=None), "the iterable is empty"),
        (lambda: run(target=with_data(rw.Batches(uneven(), size=400)), batch_size=None), r"number 9 has shapes"),
        (lambda: run(target=with_data(rw.Batches(batches(), size=400)), batch_size=7), "batches have 40; leave it out"),
        (
            lambda: run(
                target=with_data(rw.Batches(batches(), size=400)), batch_size=None, chains=2, chain_method="sequential"
            ),
            "would read the iterable once per chain",
        ),
        (lambda: rw.control_variates(with_data(rw.Batches(batches(), size=400)), jnp.zeros(3)), "use arrays"),
    ],
)
def test_bad_batches(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def with_data(data):
    return replace(REGRESSION.target, data=data)


def uneven():
    return [*batches()[:-1], {name: array[:3] for name, array in ARRAYS.items()}]


def test_host_data_need_a_batch_size_and_cannot_use_svrg(tmp_path):
    target = with_data(on_disk("memmap", tmp_path))
    with pytest.raises(ValueError, match="batch_size: None would read all data from disk"):
        run(target=target, batch_size=None)
    with pytest.raises(ValueError, match="svrg passes over all data"):
        rw.svrg(target, every=10)


def test_nan_on_disk_is_blamed_not_the_step_size(tmp_path, monkeypatch):
    """The first look, at every 40th example, misses it; the chain that draws the row says so, the other goes on."""
    monkeypatch.setattr(data, "SUBSAMPLE_SIZE", 10)
    arrays = {"x": ARRAYS["x"].copy(), "y": ARRAYS["y"].copy()}
    arrays["x"][33, 1] = np.nan
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    stored = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in arrays}
    options = {"target": replace(REGRESSION.target, data=stored), "batch_size": 2, "chain_method": "sequential"}
    result = run(rw.sgld(), chains=2, steps=100, seed=2, step_size=1e-4, **options)
    assert [status.outcome for status in result.status] == ["finished", "diverged"]
    assert result.status[1].cause == "the potential became NaN: NaN or infinity in the data, data['x'] in row 33"
    assert "remove these rows" in result.status[1].hint
    keys = jax.random.split(jax.random.key(2), 2)
    drawn = np.asarray(rows_of_steps(BatchIndexer("replacement", 400, 2), keys, 0, 100))
    assert np.argmax((drawn[:, 1] == 33).any(axis=1)) == result.status[1].steps
    assert not (drawn[:, 0] == 33).any()


def test_nan_in_a_batch_of_an_iterable_is_blamed():
    parts = [{name: array[i : i + 40].copy() for name, array in ARRAYS.items()} for i in range(0, 400, 40)]
    parts[6]["y"][5] = np.inf
    target = replace(REGRESSION.target, data=rw.Batches(parts, 400))
    with pytest.raises(rw.DivergenceError, match=r"diverged after 6 steps: .*data\['y'\] in row 5 of batch 6"):
        run(rw.sgld(), target=target, batch_size=None)
    parts[0]["y"][5] = np.nan
    with pytest.raises(ValueError, match="data: some of the first examples"):
        run(rw.sgld(), target=target, batch_size=None)


def test_a_batch_that_was_not_read_yet_is_not_blamed():
    parts = [{name: array[i : i + 40].copy() for name, array in ARRAYS.items()} for i in range(0, 400, 40)]
    parts[6]["y"][5] = np.inf
    batches, keys = rw.Batches(parts, 400), jax.random.split(jax.random.key(0), 1)
    assert locate_nonfinite_batch(batches, BatchIndexer("stream", 400, 40), keys, 0, 5) == ""
    assert (
        locate_nonfinite_batch(batches, BatchIndexer("stream", 400, 40), keys, 0, 6) == "data['y'] in row 5 of batch 6"
    )
