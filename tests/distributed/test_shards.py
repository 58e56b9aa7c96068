"""Sharded data in one process: the same posterior, gradients and rows as without shards."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.harness import complaints, flat_draws
from tests.targets import linear_regression

import ridgewalk as rw
from ridgewalk.distributed import shards
from ridgewalk.distributed.shards import shard
from ridgewalk.gradients import Minibatch, on_batch, with_prior

KNOWN = linear_regression()
PLAIN = KNOWN.target
HOST = jax.tree.map(np.asarray, PLAIN.data)


def split(count, **options):
    return replace(PLAIN, data=shard(HOST, shards=count, **options))


@pytest.mark.parametrize("count", [4, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 5))])
def test_potential_gradient_and_hessian_are_those_of_all_rows(count):
    sharded, theta = split(count), jnp.array([0.3, -0.2, 0.1])
    both = [(one, one.data if one is PLAIN else one.data.arrays) for one in (PLAIN, sharded)]
    values = [jax.jit(jax.value_and_grad(one.potential))(theta, rows) for one, rows in both]
    np.testing.assert_allclose(values[0][0], values[1][0], rtol=1e-12)
    np.testing.assert_allclose(values[0][1], values[1][1], rtol=1e-11)
    np.testing.assert_allclose(sharded.full_gradient(theta), PLAIN.full_gradient(theta), rtol=1e-11)
    hessians = [jax.jit(jax.jacfwd(jax.grad(one.potential)))(theta, rows) for one, rows in both]
    np.testing.assert_allclose(hessians[0], hessians[1], rtol=1e-11)


def estimators(data):
    """Control variates, also where the prior has the noise, and SVRG; with the state of a chain at 0.2."""
    target, here = replace(PLAIN, data=data), jnp.full(3, 0.2)
    noisy = rw.Posterior(rw.spike_and_slab(), rw.shared_noise(lambda theta, rows: rows["y"] - rows["x"] @ theta), data)
    own = rw.control_variates(noisy, here)
    for estimator in (rw.control_variates(target, here), with_prior(own, noisy.first_prior(2 * here))):
        yield estimator, None
    svrg = rw.svrg(target, every=3)
    yield svrg, svrg.init(here)


@pytest.mark.parametrize("count", [1, 4])
def test_a_difference_of_gradients_is_formed_before_the_sum_over_shards(count):
    """The estimates of unsharded data; the potential has their slope, and at the origin of the step its own value."""
    batch, origin, theta = jax.tree.map(lambda x: x[:20], HOST), jnp.array([0.1, 0.5, 0.0]), jnp.array([0.3, -0.2, 0.1])
    for (plain, state), (sharded, own) in zip(estimators(PLAIN.data), estimators(split(count).data), strict=True):
        known = on_batch(plain, state, origin, batch)
        gradient = jax.grad(known.potential)(theta) + known.correction
        target, centre = plain.target, plain.anchor(state).position
        slope = target.scale(batch) * target.likelihood_gradient(centre, batch)

        @jax.jit
        def evaluate(theta, sharded=sharded, own=own):
            found = on_batch(sharded, own, origin, batch)
            value, gradient = jax.value_and_grad(found.potential)(theta)
            return value, gradient, found.correction

        value, difference, correction = evaluate(theta)
        np.testing.assert_allclose(difference + correction, gradient, rtol=1e-10)
        np.testing.assert_allclose(difference, jax.grad(known.potential)(theta) - slope, rtol=1e-10)
        np.testing.assert_allclose(value, known.potential(theta) - (theta - origin) @ slope, rtol=1e-10)
        np.testing.assert_allclose(evaluate(origin)[0], known.potential(origin), rtol=1e-12)


def test_sums_in_pairs_agree_for_any_power_of_two_of_devices():
    parts = jnp.asarray(np.random.default_rng(0).normal(size=(16, 3)), jnp.float32)
    whole = shards._sum_in_pairs(parts)
    for devices in (2, 4, 8):
        first = jnp.stack([shards._sum_in_pairs(own) for own in parts.reshape(devices, -1, 3)])
        np.testing.assert_array_equal(shards._sum_in_pairs(first), whole)
    np.testing.assert_allclose(whole, parts.sum(0), rtol=1e-5)
    np.testing.assert_allclose(shards._sum_in_pairs(parts[:7]), parts[:7].sum(0), rtol=1e-5)


def run(target, sampler=None, **options):
    given = {"steps": 40, "step_size": 1e-3, "batch_size": 20, "chains": 2, "progress": False, **options}
    return rw.sample(jax.random.key(1), sampler or rw.sgld(), target, jnp.zeros(3), **given)


def test_rows_of_a_batch_come_in_equal_numbers_from_every_shard():
    """The likelihood of this target is the number of the shard: its sum over any batch is known."""
    numbers = shard(np.repeat(np.arange(4.0), 25), shards=4)
    target = rw.Posterior(lambda theta: -0.5 * jnp.sum(theta**2), lambda theta, batch: batch + 0 * theta[0], numbers)
    result = run(target, batch_size=8)
    prior = 0.5 * np.sum(np.asarray(result.positions)[:, :-1] ** 2, axis=-1)
    np.testing.assert_allclose(result.info.potential[:, 1:] - prior, -100 * 1.5)


def test_an_epoch_shows_every_row_once():
    """Two batches an epoch: the likelihoods of both add up to those of all rows."""
    weights = np.random.default_rng(0).normal(size=40)
    target = rw.Posterior(
        lambda theta: 0.0 * jnp.sum(theta), lambda theta, batch: batch + 0 * theta[0], shard(weights, shards=4)
    )
    shown = run(target, batch_size=20, replacement=False).info.potential
    np.testing.assert_allclose(shown.reshape(2, -1, 2).sum(-1), -2 * weights.sum())
    assert np.unique(shown.round(9)).size > 20


def memory_mapped(folder, rows=HOST):
    for name, array in rows.items():
        np.save(folder / f"{name}.npy", array)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in rows}


@pytest.mark.parametrize("replacement", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_rows_on_disk_give_the_draws_of_rows_in_memory(tmp_path, replacement):
    on_disk = replace(PLAIN, data=shard(memory_mapped(tmp_path), shards=4))
    assert on_disk.data.fingerprint == split(4).data.fingerprint
    found, expected = (run(target, replacement=replacement).positions for target in (on_disk, split(4)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_rows_on_disk_that_are_not_finite_are_named(tmp_path, monkeypatch):
    bad = {**HOST, "x": np.where(np.arange(400)[:, None] == 7, np.nan, HOST["x"])}
    target = replace(PLAIN, data=shard(memory_mapped(tmp_path, bad), shards=4))
    with pytest.raises(ValueError, match="data: some of the first examples looked at hold NaN or infinity"):
        run(target)
    monkeypatch.setattr(shards, "EXAMPLES", 8)  # of each shard the first and the fiftieth row
    target = replace(PLAIN, data=shard(memory_mapped(tmp_path, bad), shards=4))
    with pytest.raises(rw.DivergenceError, match=r"NaN or infinity in the data, data\['x'\] in row 7 of process 0"):
        run(target, steps=400)


def test_batches_of_a_loader_are_its_part_of_every_batch():
    """The likelihood of this target is the number of the batch."""
    loader = [np.full(8, float(i)) for i in range(5)]
    data = shard(rw.Batches(loader, 100), shards=4)
    target = rw.Posterior(lambda theta: -0.5 * jnp.sum(theta**2), lambda theta, batch: batch + 0 * theta[0], data)
    result = run(target, batch_size=None, chains=1)
    prior = 0.5 * np.sum(np.asarray(result.positions)[0, :-1] ** 2, axis=-1)
    np.testing.assert_allclose(result.info.potential[0, 1:] - prior, -100.0 * (np.arange(1, 40) % 5), atol=1e-12)


@pytest.mark.parametrize("chain_method", ["vectorized", pytest.param("sequential", marks=pytest.mark.slow), "parallel"])
def test_chains_do_not_depend_on_how_they_are_run(chain_method):
    expected = run(split(4))
    np.testing.assert_allclose(run(split(4), chain_method=chain_method).positions, expected.positions, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("name", ["minibatch", "control_variates"])
def test_posterior_of_sharded_minibatches(name, replacement):
    """The shared harness against the exact moments, as for batches of unsharded data (`test_posteriors`)."""
    target = split(4)
    estimator = Minibatch(target) if name == "minibatch" else rw.control_variates(target, jnp.asarray(KNOWN.mean))
    result = run(
        estimator,
        rw.hasgld_sa(form="dense"),
        steps=24_000,
        burn_in=4_000,
        step_size=0.02,
        batch_size=100,
        chains=4,
        replacement=replacement,
        thin=5,
    )
    assert (
        complaints(flat_draws(result), KNOWN.mean, KNOWN.covariance, bias=0.12 if name == "minibatch" else 0.04) == []
    )


def test_other_data_of_the_same_shape_compile_nothing_again(tmp_path):
    run(split(4))
    other = replace(PLAIN, data=shard(jax.tree.map(lambda x: x + 1, HOST), shards=4))
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("ridgewalk.sampling.loop.ChainStepper", None)  # would be traced again
        run(other)


def test_a_resumed_run_is_refused_with_other_rows(tmp_path):
    run(split(4), checkpoint=tmp_path)
    other = replace(PLAIN, data=shard(jax.tree.map(lambda x: x[::-1], HOST), shards=4))
    with pytest.raises(ValueError, match="fingerprint"):
        run(other, checkpoint=tmp_path, resume=True, steps=50)
    assert run(split(4), checkpoint=tmp_path, resume=True, steps=50).steps == 50


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (HOST, {"shards": 7}, "shards: 400 rows cannot be split into 7 equal parts; leave 1 rows out"),
        (HOST, {"shards": 0}, "shards: 0 is not an integer"),
        (HOST, {"chain_groups": 3}, "chain_groups: 3 does not divide the 1 devices"),
        ({}, {}, "rows: there are no arrays"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, {}, "rows: leading axes disagree"),
    ],
)
def test_wrong_rows(rows, options, message):
    with pytest.raises(ValueError, match=message):
        shard(rows, **options)


def test_data_on_the_host_are_refused_where_they_cannot_be_used(tmp_path):
    data = shard(memory_mapped(tmp_path), shards=4)
    with pytest.raises(ValueError, match="batch_size: None would read all data from disk"):
        run(replace(PLAIN, data=data), batch_size=None)
    with pytest.raises(ValueError, match="svrg passes over all data"):
        rw.svrg(replace(PLAIN, data=data), 5)
    with pytest.raises(ValueError, match="control_variates needs every example once"):
        rw.control_variates(replace(PLAIN, data=shard(rw.Batches([HOST], 400), shards=4)), jnp.zeros(3))


def test_batches_that_shards_cannot_fill_are_refused():
    with pytest.raises(ValueError, match="batch_size: 10 of 400 examples cannot be taken in equal parts from 4 shards"):
        run(split(4), batch_size=10)


@pytest.mark.parametrize("name", ["find_mode", "find_step_size"])
def test_what_cannot_take_shards_says_so(name):
    call = {
        "find_mode": lambda target: rw.find_mode(jax.random.key(0), target, jnp.zeros(3)),
        "find_step_size": lambda target: rw.find_step_size(jax.random.key(0), rw.sgld(), target, jnp.zeros(3), steps=9),
    }
    with pytest.raises(ValueError, match=f"target: {name} does not take data of distributed.shard"):
        call[name](split(4))


def test_rows_that_are_not_finite_are_named():
    bad = {**HOST, "x": np.where(np.arange(400)[:, None] == 7, np.nan, HOST["x"])}
    with pytest.raises(ValueError, match=r"data\['x'\]: NaN or infinity in row 7"):
        run(replace(PLAIN, data=shard(bad, shards=4)))
