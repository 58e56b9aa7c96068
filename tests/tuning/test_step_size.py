"""`find_step_size` is within a factor 2 of the best of a grid, and rejects bad arguments."""

import copy
import math
import os
import signal
import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import zoo
from tests.targets import correlated_gaussian, linear_regression
from tests.tuning import step_cases

import ridgewalk as rw
from ridgewalk.sampling import runner

SAMPLERS = {"sgld": rw.sgld(), "hasgld_sa": rw.hasgld_sa()}
GAUSSIAN = correlated_gaussian()
REGRESSION = linear_regression()


def find(sampler, target=GAUSSIAN.target, start=None, *, seed=0, steps=4_000, **options):
    start = jnp.zeros(2) if start is None else start
    settings = {"progress": False} | options
    return rw.find_step_size(jax.random.key(seed), sampler, target, start, steps=steps, **settings)


def best_of(case, sampler, grid, seeds):
    """Every step size whose mean error is within its Monte Carlo error, or 5 %, of the least."""
    errors = np.array([step_cases.errors(case, sampler, e, seeds=seeds) for e in grid])
    alive = np.all(np.isfinite(errors), axis=1)
    mean = np.where(alive, np.where(np.isfinite(errors), errors, 0).mean(axis=1), np.inf)
    least = int(np.argmin(mean))
    allowed = max(0.05 * mean[least], errors[least].std(ddof=1) / math.sqrt(seeds))
    assert 0 < least < len(grid) - 1, f"the best of {grid} is at its end: {mean}"
    return [e for e, m in zip(grid, mean, strict=True) if m <= mean[least] + allowed], mean


def assert_within_a_factor_2(found, best, mean):
    nearest = min(max(found / e, e / found) for e in best)
    assert nearest <= 2, f"{found!r} against {best}; errors {mean}"


GRIDS = {
    ("gaussian", "sgld"): (0.0003, 0.0006, 0.00125, 0.0018, 0.0025, 0.0027),
    ("gaussian", "hasgld_sa"): (0.0125, 0.025, 0.05, 0.1, 0.2),
    ("logistic", "sgld"): (3e-6, 6e-6, 1.2e-5, 1.7e-5, 2.4e-5, 3.4e-5, 4.8e-5),
    ("logistic", "hasgld_sa"): (0.0025, 0.005, 0.007, 0.01, 0.014, 0.02, 0.04),
    ("network", "sgld"): (8e-6, 1.6e-5, 3.2e-5, 4.5e-5, 6.4e-5, 9e-5, 1.3e-4, 2.6e-4),
    ("network", "hasgld_sa"): (5e-6, 1e-5, 1.5e-5, 2.1e-5, 3e-5, 6e-5, 1.25e-4),
}
SEEDS = {"gaussian": 16, "logistic": 4, "network": 16}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sampler"), GRIDS)
def test_within_a_factor_2_of_the_best_of_a_grid(name, sampler):
    case = getattr(step_cases, name)()
    best, mean = best_of(case, SAMPLERS[sampler], GRIDS[name, sampler], SEEDS[name])
    for seed in range(2):
        found = find(
            SAMPLERS[sampler], case.target, case.start, seed=seed, steps=case.steps, batch_size=case.batch_size
        )
        assert_within_a_factor_2(found, best, mean)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "grid"), [("sgld", (6e-6, 1.2e-5, 2.4e-5, 4.8e-5)), ("hasgld_sa", (0.025, 0.05, 0.1, 0.14, 0.2))]
)
def test_control_variates_allow_larger_steps(sampler, grid):
    case = step_cases.logistic(control_variates=True)
    best, mean = best_of(case, SAMPLERS[sampler], grid, 4)
    found = find(SAMPLERS[sampler], case.target, case.start, steps=case.steps, batch_size=case.batch_size)
    assert_within_a_factor_2(found, best, mean)


@pytest.mark.parametrize(
    ("sampler", "grid"),
    [
        pytest.param("sgld", (0.0006, 0.00125, 0.0018, 0.0025, 0.0027), marks=pytest.mark.slow),
        ("hasgld_sa", (0.025, 0.1, 0.4)),
    ],
)
def test_paper_gaussian_quickly(sampler, grid):
    """As the slow test, with fewer steps of the grid's runs for the sampler that mixes fast."""
    case = step_cases.gaussian()
    if sampler == "hasgld_sa":
        case = case._replace(steps=6_000)
    best, mean = best_of(case, SAMPLERS[sampler], grid, 16 if sampler == "sgld" else 4)
    found = find(SAMPLERS[sampler], case.target, case.start, steps=case.steps)
    assert_within_a_factor_2(found, best, mean)


OTHERS = {
    "psgld": rw.psgld(),
    "sghmc": rw.sghmc(),
    "sgnht": rw.sgnht(),
    "hamcmc": rw.hamcmc(),
    "limited": rw.hasgld_sa(form="snapshot_lbfgs", memory=2),
    "low_rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=1, spare=1)),
    "sghmc, dense": rw.sghmc(preconditioner=rw.Dense()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_samplers_get_a_step_size_they_can_use(name):
    start = jnp.asarray(REGRESSION.mean)
    found = find(OTHERS[name], REGRESSION.target, start, steps=2_000, batch_size=40)
    result = rw.sample(
        jax.random.key(1), OTHERS[name], REGRESSION.target, start, steps=4_000, step_size=found, batch_size=40,
        burn_in=500, progress=False,
    )  # fmt: skip
    ratio = np.asarray(rw.posterior_variance(result)) / np.diag(REGRESSION.covariance)
    assert np.all((ratio > 0.4) & (ratio < 3)), (found, ratio)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [lambda t: rw.svrg(t, every=20), lambda t: rw.control_variates(t, jnp.zeros(3))])
def test_gradient_estimators(estimator):
    plain = find(rw.sgld(), REGRESSION.target, jnp.asarray(REGRESSION.mean), batch_size=5)
    better = find(rw.sgld(), estimator(REGRESSION.target), jnp.asarray(REGRESSION.mean), batch_size=5)
    assert better > plain


@pytest.mark.slow
def test_many_parameters_go_by_lanczos():
    scales = jnp.logspace(0, 1, 500)
    found = find(rw.sgld(), rw.Density(lambda x: -0.5 * jnp.sum((x * scales) ** 2)), jnp.zeros(500))
    assert found.limit == pytest.approx(2 / 100, rel=0.1)
    assert 0 < found < found.limit


def test_a_step_size_is_a_float_with_attributes(capsys):
    found = find(rw.sgld(), progress=True)
    shown = capsys.readouterr().out
    assert isinstance(found, float)
    assert f"{float(found):.3g}" in shown
    assert "chosen" in shown
    assert found.arrived
    assert "bias" in found.explanation
    assert copy.copy(found).explanation == found.explanation
    assert found.table[3].step_size == found
    assert found.halving_checks[-1].passed
    find(rw.sgld(), progress=False)
    assert capsys.readouterr().out == ""


def test_same_key_same_step_size():
    assert find(rw.sgld()) == find(rw.sgld())


def test_step_halving_check_lowers_a_step_size_that_is_stable_at_the_start():
    """Flat at the start and steep further out: U = |x|⁴ / 4 + x² / 2000."""
    target = rw.Density(lambda x: -jnp.sum(x**4) / 4 - jnp.sum(x**2) / 2000)
    found = find(rw.sgld(), target, jnp.zeros(2))
    result = rw.sample(
        jax.random.key(1), rw.sgld(), target, jnp.zeros(2), steps=20_000, step_size=found, chains=4, progress=False
    )
    # E x² of exp(−x⁴/4) is 2 Γ(3/4) / Γ(1/4) = 0.676.
    assert np.mean(np.asarray(result.positions) ** 2) == pytest.approx(0.676, rel=0.1)


def narrow(x):
    """Standard deviations 1 and 10⁻³: SGLD takes 10⁶ of its longest steps to cross it."""
    return -0.5 * x[0] ** 2 - 0.5 * (1_000 * x[1]) ** 2


@pytest.mark.parametrize(
    "name", ["narrow", *(pytest.param(n, marks=pytest.mark.slow) for n in ("robust", "varying_slopes"))]
)
def test_pilots_that_have_not_arrived_are_reported(name):
    """SGLD creeps, of models from U(−2, 2): the pilots end at potentials hundreds above those of NUTS."""
    if name == "narrow":
        target, start = rw.Density(narrow), jnp.array([100.0, 0.0])
    else:
        case = zoo.BY_NAME[name]
        target, start = case.target, jax.tree.map(lambda leaf: leaf[0], case.starts(jax.random.key(7), 4))
    with pytest.warns(UserWarning, match="position: the pilot runs have not arrived at the posterior: .* potential"):
        found = find(rw.sgld(), target, start, steps=10_000)
    assert not found.arrived
    assert found.table == ()
    assert "bias" not in found.explanation
    assert "hasgld_sa()" in found.explanation
    assert found < found.limit
    assert copy.copy(found).arrived is False


@pytest.mark.slow
def test_pilots_that_arrive_say_so():
    case = zoo.BY_NAME["robust"]
    start = jax.tree.map(lambda leaf: leaf[0], case.starts(jax.random.key(7), 4))
    found = find(rw.hasgld_sa(), case.target, start, steps=10_000)
    assert found.arrived
    assert "bias" in found.explanation


@pytest.mark.parametrize("friction", [pytest.param(0.05, marks=pytest.mark.slow), 0.5])
def test_the_step_size_is_below_its_own_limit(friction):
    """In short runs the Monte Carlo error asks for the longest steps; with momentum 2 / λ_max(G H) is not the limit."""
    found = find(rw.sghmc(friction=friction), steps=100)
    assert found < found.limit
    assert found.limit == pytest.approx(2 * (2 - friction) / GAUSSIAN.steepest, rel=0.01)


CASES = {
    "steps": (lambda: find(rw.sgld(), steps=0), ["steps", "0"]),
    "steps negative": (lambda: find(rw.sgld(), steps=-5), ["steps", "-5"]),
    "chains": (lambda: find(rw.sgld(), chains=0), ["chains", "0"]),
    "NaN": (lambda: find(rw.sgld(), start=jnp.array([0.0, jnp.nan])), ["position", "NaN"]),
    "not finite": (
        lambda: find(rw.sgld(), rw.Density(lambda x: jnp.sum(jnp.log(x)))),
        ["position", "-inf", "start where"],
    ),
    "criterion": (lambda: find(rw.sgld(), criterion="all"), ["criterion", "'all'", "'marginal'"]),
    "flat": (lambda: find(rw.sgld(), rw.Density(jnp.sum)), ["target", "curvature"]),
    "as printed": (lambda: find(rw.hasgld_sa(form="as_printed")), ["sampler", "as_printed", "dense"]),
    "cold": (lambda: find(rw.sgld(temperature=0.0)), ["sampler", "temperature 0.0"]),
    "batch size": (lambda: find(rw.sgld(), batch_size=5), ["batch_size", "5", "Density"]),
    "sampler not called": (lambda: find(rw.sgld), ["sampler", "call it"]),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named(name):
    call, words = CASES[name]
    with pytest.raises(ValueError, match=r"^[a-z_]+: ") as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="epochs"):
        rw.find_step_size(jax.random.key(0), rw.sgld(), GAUSSIAN.target, jnp.zeros(2), epochs=3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_search(number, tmp_path, monkeypatch):
    """It comes in the middle of the first pilot run, whose data a thread reads from disk."""
    for name, array in REGRESSION.target.data.items():
        np.save(tmp_path / f"{name}.npy", np.asarray(array))
    stored = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in REGRESSION.target.data}
    chunks = []

    def made(self, steps):
        chunks.append(steps)
        if len(chunks) == 2:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(runner.ChunkSizer, "record", made)
    threads = set(threading.enumerate())
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        find(rw.sgld(), replace(REGRESSION.target, data=stored), jnp.zeros(3), batch_size=40)
    assert chunks == [1, 1]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    begun = set(threading.enumerate()) - threads
    assert not [thread.name for thread in begun if thread.name.startswith("ridgewalk")]
