"""Runs of more than 2³¹ steps, begun a few steps before it: from a state or a checkpoint that says so."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.problems import REGRESSION, assert_same_run, run

import ridgewalk as rw
from ridgewalk._compilation import WORD, StepCount
from ridgewalk._random import keys_at
from ridgewalk.sampling import chain_group, checkpoint
from ridgewalk.sampling.batching import BatchIndexer, order_at, rows_of_steps
from ridgewalk.sampling.checkpoint import config_snapshot
from ridgewalk.sampling.loop import init_chains
from ridgewalk.sampling.storage import RunWriter
from ridgewalk.schedules import BLOCK, StepSizes, enable_x64

COUNTS = st.integers(0, 2**55) | st.integers(WORD - 5, WORD + 5) | st.integers(0, 50)


@settings(deadline=None)
@given(COUNTS, st.integers(0, 2**40), st.integers(1, WORD - 1) | st.integers(1, 50))
def test_a_count_is_an_integer(number, other, divisor):
    count = StepCount.of(number)
    assert int(count) == number
    assert int(count + other) == number + other
    assert int(count - other) == max(number - other, 0)
    assert int(count // divisor) == number // divisor
    assert int(count % divisor) == number % divisor
    for than in (other, number, number + 1, max(number - 1, 0)):
        comparisons = (count < than, count <= than, count == than, count >= than, count > than)
        assert [bool(x) for x in comparisons] == [
            number < than,
            number <= than,
            number == than,
            number >= than,
            number > than,
        ]
    assert float(count.astype(jnp.float32)) == pytest.approx(number, rel=2e-7)
    assert int(jnp.maximum(count, 0)) == min(number, WORD - 1)


def test_an_interval_is_at_least_one_step():
    with pytest.raises(ValueError, match="0 steps is not an interval"):
        StepCount.of(3) % 0


PERIODIC = {
    "sgld": rw.sgld(),
    "hamcmc": rw.hamcmc(memory=3),
    "dense": rw.hasgld_sa(form="dense", memory=3, curvature_every=2, adaptation=lambda k: 0.05),
    "limited": rw.hasgld_sa(form="snapshot_lbfgs", memory=3, curvature_every=2, adaptation=lambda k: 0.05),
    "low_rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=1, spare=1, adaptation=lambda k: 0.05)),
    "sghmc": rw.sghmc(),
}
PERIOD = 2 * 3 * 4 * 5 * 7
"""A multiple of every interval above, and of that of SVRG below."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n not in ("dense", "hamcmc") else []) for n in PERIODIC],
)
def test_a_chain_that_crosses_makes_the_steps_of_one_that_does_not(name):
    """Where nothing but intervals depends on the step, steps that are multiples of all of them apart are equal."""
    near = WORD - 6
    early = near % PERIOD + PERIOD
    kernel = rw.build_kernel(PERIODIC[name], rw.svrg(REGRESSION.target, 7), jnp.zeros(3))
    batch = jax.tree.map(lambda x: x[:40], REGRESSION.target.data)
    step = jax.jit(kernel.step)
    start = kernel.init(jnp.zeros(3))
    ends = []
    for first in (early, near):
        state = start._replace(step=StepCount.of(first))
        for key in jax.random.split(jax.random.key(1), 30):
            state, _ = step(key, state, batch, 1e-3)
        assert int(state.step) == first + 30
        ends.append(state)
    for one, other in zip(*(jax.tree.leaves(tuple(state)[1:]) for state in ends), strict=True):
        np.testing.assert_array_equal(one, other)


def test_weights_go_on_to_fall():
    weights = [float(rw.PowerDecay()(StepCount.of(k).astype(jnp.float32))) for k in (WORD - 1, WORD, 2 * WORD, 2**40)]
    expected = [5 * (k + 10) ** -0.9 for k in (WORD - 1, WORD, 2 * WORD, 2**40)]
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize("start", [WORD - 12, WORD + 3])
def test_pruning_happens_when_it_should(start):
    """Events at start, start + 5, …, of which the last is beyond 2³¹."""
    sampler = rw.pruned(rw.sgld(), 0.5, start=start, stop=start + 15, every=5, leaves=("w",))
    target = rw.Density(lambda p: -0.5 * jnp.sum(p["w"] ** 2))
    begin = {"w": jnp.arange(1.0, 41.0)}
    kernel = rw.build_kernel(sampler, target, begin)
    state = kernel.init(begin)._replace(step=StepCount.of(start - 3))
    step, kept = jax.jit(kernel.step), []
    for key in jax.random.split(jax.random.key(0), 25):
        state, _ = step(key, state, None, 1e-6)
        kept.append(int(state.mask.sum()))
    pruned = [40, *(40 - round(0.5 * 40 * (1 - (1 - j / 4) ** 3)) for j in range(1, 5))]
    assert kept == [pruned[0]] * 2 + [n for n in pruned[1:4] for _ in range(5)] + [pruned[4]] * 8


@pytest.fixture
def begin_at(monkeypatch):
    """Makes runs begin at a step number given, in place of 0."""

    def begin(first):
        def init(*arguments):
            return init_chains(*arguments)._replace(step=StepCount.of(first))

        monkeypatch.setattr(chain_group, "init_chains", init)
        monkeypatch.setattr(RunWriter, "start", property(lambda self: self.found.step if self.found else first))

    return begin


def by_hand(sampler, target, first, steps, chain, step_size):
    """The positions of a chain of `run`, by the kernel and the rule for the keys of a step."""
    kernel = rw.build_kernel(sampler, target, jnp.zeros(3))
    key = jax.random.split(jax.random.key(0), 2)[chain]
    state = kernel.init(jnp.zeros(3))._replace(step=StepCount.of(first))
    step, positions = jax.jit(kernel.step), []
    for k in range(first, first + steps):
        of_word = key if k < WORD else jax.random.fold_in(jax.random.fold_in(key, 0x73746570), k // WORD)
        noise_key, batch_key = jax.random.split(jax.random.fold_in(of_word, k % WORD))
        rows = jax.random.randint(batch_key, (20,), 0, target.size)
        state, _ = step(noise_key, state, jax.tree.map(lambda x, rows=rows: x[rows], target.data), step_size(k))
        positions.append(np.asarray(state.position))
    return np.stack(positions)


def cyclic(k):
    """Needs every bit of the step number."""
    return jnp.where(k % 5 < 2, 1e-3, 2e-3)


@pytest.mark.parametrize(
    ("first", "x64"), [(WORD - 9, False), pytest.param(3 * WORD - 9, True, marks=pytest.mark.slow)]
)
def test_a_run_crosses(begin_at, first, x64):
    begin_at(first)
    with enable_x64(x64):
        check_crossing(rw.Posterior(log_prior, log_likelihood, {"x": jnp.asarray(FEATURES), "y": jnp.ones(50)}), first)


FEATURES = np.random.default_rng(0).normal(size=(50, 3))


def log_prior(weights):
    return -0.5 * jnp.sum(weights**2)


def log_likelihood(weights, batch):
    return -0.5 * (batch["y"] - batch["x"] @ weights) ** 2


def check_crossing(target, first):
    sampler = rw.hasgld_sa(form="dense", memory=2, curvature_every=3)
    options = {"chains": 2, "batch_size": 20, "burn_in": first, "step_size": cyclic}
    result = run(sampler, target=target, steps=first + 25, **options)
    for chain in range(2):
        expected = by_hand(sampler, target, first, 25, chain, lambda k: 1e-3 if k % 5 < 2 else 2e-3)
        np.testing.assert_allclose(result.positions[chain], expected, rtol=1e-4, atol=1e-6)
    assert result.steps == first + 25
    assert int(result.final_states[0].step) == first + 25
    assert [status.steps for status in result.status] == [first + 25] * 2
    thinned = run(sampler, target=target, steps=first + 25, **options | {"thin": 4})
    np.testing.assert_array_equal(thinned.positions, result.positions[:, 3::4][:, :6])


def test_a_run_resumes_where_it_crossed(begin_at, tmp_path):
    first = WORD - 10
    begin_at(first)
    sampler = rw.hasgld_sa(form="dense", memory=2)
    options = {"chains": 2, "burn_in": first, "thin": 2, "replacement": False, "batch_size": 70}
    whole = run(sampler, steps=first + 24, **options)
    for stop in (6, 14, 24):
        part = run(sampler, steps=first + stop, **options, checkpoint=tmp_path, checkpoint_every=4, resume=True)
    assert_same_run(part, whole)
    newest = checkpoint.files(tmp_path)[-1]
    assert newest.name == f"step-{first + 24:012d}.safetensors"


def test_random_numbers_do_not_come_again():
    """Of 64 steps each: the first ones, those before 2³¹, after it, after 2³², and after 2 · 2³²."""
    keys = jax.random.split(jax.random.key(0), 2)

    def noise(step):
        of_word = keys_at(keys, step)
        return jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, step % WORD)))(of_word)

    starts = (0, WORD - 64, WORD, 2 * WORD, 4 * WORD)
    drawn = np.array([noise(start + i) for start in starts for i in range(64)])
    assert np.unique(drawn).size == drawn.size
    between = np.corrcoef(np.concatenate(drawn.reshape(5, 64, 2).transpose(0, 2, 1), 0))
    assert np.abs(between - np.eye(10)).max() < 5 / math.sqrt(64)


@pytest.mark.parametrize("size", [pytest.param(50, marks=pytest.mark.slow), 23])
def test_epochs_go_on(size):
    """Every epoch has every example once, also one that 2³¹ cuts in two, and no two have the same order."""
    rows, keys = BatchIndexer("epochs", size, 10), jax.random.split(jax.random.key(1), 2)
    per_epoch = size // 10
    for around in (WORD, 2 * WORD, per_epoch * WORD):
        first = (around // per_epoch - 2) * per_epoch
        parts = [rows_of_steps(rows, keys, first, around - first), rows_of_steps(rows, keys, around, 20)]
        drawn = np.concatenate(parts)[: 4 * per_epoch].reshape(4, per_epoch, 2, 10)
        epochs = drawn.transpose(0, 2, 1, 3).reshape(8, -1)
        assert all(np.unique(epoch).size == per_epoch * 10 for epoch in epochs)
        assert np.unique(epochs, axis=0).shape == epochs.shape
        np.testing.assert_array_equal(order_at(rows, keys, first + 1)[:, : per_epoch * 10], epochs[:2])


@pytest.mark.slow
@pytest.mark.parametrize("replacement", [True, False])
def test_data_on_the_host_give_the_same_draws(begin_at, tmp_path, replacement):
    first = WORD - 7
    begin_at(first)
    names = iter("abcdef")

    def on_disk(leaf):
        path = tmp_path / f"{next(names)}.npy"
        np.save(path, np.asarray(leaf))
        return np.load(path, mmap_mode="r")

    target = dataclasses.replace(REGRESSION.target, data=jax.tree.map(on_disk, REGRESSION.target.data))
    options = {"steps": first + 20, "burn_in": first, "chains": 2, "replacement": replacement, "batch_size": 70}
    np.testing.assert_array_equal(run(target=target, **options).positions, run(**options).positions)


def test_a_divergence_is_told_at_its_step(begin_at):
    first = WORD - 4
    begin_at(first)
    start = jnp.array([[0.0], [30.0]])
    target = rw.Density(lambda w: -jnp.sum(w**4))
    options = {"steps": first + 20, "burn_in": first, "batch_size": None, "start_per_chain": True, "chains": 2}
    result = run(target=target, start=start, **options, step_size=lambda k: jnp.where(k >= WORD + 5, 1e-3, 1e-6))
    assert (result.status[0].outcome, result.status[1].outcome) == ("finished", "diverged")
    assert WORD + 6 <= result.status[1].steps <= WORD + 9
    assert np.isfinite(result.positions[1, :9]).all()
    assert np.isnan(result.positions[1, 13:]).all()


@pytest.mark.parametrize("x64", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_step_sizes_are_evaluated_as_the_run_goes_on(x64):
    with enable_x64(x64):
        check_step_sizes()


def check_step_sizes():
    sizes = StepSizes(cyclic, 2**33)
    for first in (0, BLOCK - 3, WORD - 3, WORD + 1, 2**32 - 2):
        steps = range(first, first + 8)
        expected = [1e-3 if k % 5 < 2 else 2e-3 for k in steps]
        np.testing.assert_allclose(sizes.between(first, first + 8), expected, rtol=1e-6)
    python = StepSizes(lambda k: 0.1 if k < WORD + 2 else 0.01, 2**33)
    assert python.at(WORD + 1) == 0.1
    assert python.at(WORD + 2) == 0.01
    decay = StepSizes(optax.polynomial_schedule(1e-2, 1e-3, 1, 2**32), 2**33)
    assert decay.at(WORD) == pytest.approx(0.0055, rel=1e-5)
    np.testing.assert_allclose(
        decay.of(2**30 + 2**31 * np.arange(3)), [decay.at(2**30 + i * 2**31) for i in range(3)], rtol=1e-6
    )
    assert StepSizes(0.1, 2**60).between(2**59, 2**59 + 2).tolist() == [0.1, 0.1]


def test_a_schedule_that_ends_late_is_refused_where_it_ends():
    sizes = StepSizes(lambda k: jnp.where(k < WORD, 0.1, 0.0), 2**33)
    with pytest.raises(ValueError, match=f"step_size: 0 at step {WORD} is not a positive finite number"):
        sizes.between(WORD, WORD + 1)


def test_other_step_sizes_late_in_a_run_are_noticed():
    described = [
        config_snapshot(StepSizes(lambda k, late=late: jnp.where(k > 2**27, late, 0.1), 2**30).described(2**28))
        for late in (0.1, 0.2)
    ]
    assert described[0] != described[1]
