"""The runner: reproducible, and equal to the bare kernel however the run is cut up."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from tests.compilations import compilations
from tests.targets import correlated_gaussian, linear_regression

import ridgewalk as rw
from ridgewalk.sampling import loop, runner

REGRESSION = linear_regression()
GAUSSIAN = correlated_gaussian()


def run(sampler=None, *, seed=0, start=None, **options):
    settings = {"steps": 60, "step_size": 1e-3, "batch_size": 40, "progress": False} | options
    position = jnp.zeros(3) if start is None else start
    return rw.sample(jax.random.key(seed), sampler or rw.hasgld_sa(memory=2), REGRESSION.target, position, **settings)


def test_same_key_same_draws_other_key_other_draws():
    first, again, other = run(), run(), run(seed=1)
    np.testing.assert_array_equal(first.positions, again.positions)
    assert not np.array_equal(first.positions, other.positions)


def test_chains_differ_and_have_their_axis():
    result = run(chains=3, burn_in=20, thin=4)
    assert result.positions.shape == (3, 10, 3)
    assert result.info.potential.shape == (3, 10)
    assert len(result.final_states) == 3
    assert not np.array_equal(result.positions[0], result.positions[1])
    assert repr(result) == "Result(3 chains x 10 draws of 3 parameters)"
    np.testing.assert_array_equal(result.final_states[2].position, result.positions[2, -1])


# One draw, in a buffer of one, may be rounded otherwise where little is optimised: `make test-slow` optimises all.
SELECTIONS = [
    (0, 1),
    (7, 1),
    (0, 5),
    (11, 7),
    (0, 15),
    *(pytest.param(*s, marks=pytest.mark.slow) for s in [(59, 1), (0, 60)]),
]


@pytest.mark.parametrize(("burn_in", "thin"), SELECTIONS)
def test_burn_in_and_thinning_select_from_the_same_chain(burn_in, thin):
    every = run().positions[0]
    kept = run(burn_in=burn_in, thin=thin)
    np.testing.assert_array_equal(kept.positions[0], every[burn_in + thin - 1 :: thin])
    np.testing.assert_array_equal(kept.final_states[0].position, every[-1])
    assert int(kept.final_states[0].step) == 60


@pytest.mark.parametrize("chains", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_chunks_and_blocks_do_not_change_the_draws(monkeypatch, chains):
    whole = run(chains=chains, burn_in=13, thin=3)
    monkeypatch.setattr(loop, "LONGEST_BLOCK", 4)
    monkeypatch.setattr(runner, "LONGEST_CHUNK", 10)
    cut = run(chains=chains, burn_in=13, thin=3)
    np.testing.assert_array_equal(whole.positions, cut.positions)
    np.testing.assert_array_equal(whole.info.potential, cut.info.potential)


@pytest.mark.parametrize(
    "sampler",
    [rw.hasgld_sa(memory=4), *(pytest.param(s, marks=pytest.mark.slow) for s in (rw.hamcmc(), rw.sgld(), rw.sghmc()))],
)
@pytest.mark.parametrize("chains", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_runner_equals_the_kernel_stepped_by_hand(sampler, chains):
    starts = jnp.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.5]])[:chains]
    result = run(sampler, start=starts, chains=chains, start_per_chain=True, steps=15)
    kernel = rw.build_kernel(sampler, REGRESSION.target, starts[-1])
    state = jax.jit(kernel.init)(starts[-1])
    chain_key = jax.random.split(jax.random.key(0), chains)[-1]
    for k in range(15):
        noise_key, batch_key = jax.random.split(jax.random.fold_in(chain_key, k))
        rows = jax.random.randint(batch_key, (40,), 0, REGRESSION.target.size)
        batch = jax.tree.map(lambda x, rows=rows: x[rows], REGRESSION.target.data)
        state, _ = jax.jit(kernel.step)(noise_key, state, batch, 1e-3)
        np.testing.assert_allclose(result.positions[-1, k], state.position, rtol=1e-9)


def test_full_data_is_the_exact_gradient():
    result = run(rw.sgld(temperature=0.0), batch_size=None, steps=1)
    exact = jax.grad(lambda p: REGRESSION.target.potential(p, REGRESSION.target.data))(jnp.zeros(3))
    np.testing.assert_allclose(result.positions[0, 0], -1e-3 * exact, rtol=1e-12)


def test_step_sizes_of_a_schedule_are_used():
    result = rw.sample(
        jax.random.key(0), rw.sgld(temperature=0.0), GAUSSIAN.target, jnp.zeros(2),
        steps=2, step_size=lambda k: 0.1 / (1 + k), progress=False,
    )  # fmt: skip
    x, precision = np.zeros(2), np.linalg.inv(GAUSSIAN.covariance)
    for k in range(2):
        x = x - 0.1 / (1 + k) * precision @ (x - GAUSSIAN.mean)
        np.testing.assert_allclose(result.positions[0, k], x, rtol=1e-12)


def test_info_tells_what_happened():
    result = run(rw.sgld(), steps=400, batch_size=None, step_size=1e-5)
    assert np.all(np.isfinite(result.info.potential))
    assert np.mean(result.info.temperature) == pytest.approx(1.0, abs=0.15)
    exact = REGRESSION.target.potential(jnp.zeros(3), REGRESSION.target.data)
    np.testing.assert_allclose(result.info.potential[0, 0], exact, rtol=1e-10)
    gradient = jax.grad(REGRESSION.target.potential)(result.positions[0, 3], REGRESSION.target.data)
    np.testing.assert_allclose(result.info.gradient_norm[0, 4], np.linalg.norm(gradient), rtol=1e-8)


def test_progress_is_silent_without_a_terminal(capfd):
    run(progress=True)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_a_second_call_with_the_same_shapes_compiles_nothing():
    jax.clear_caches()
    with compilations() as compiled:
        run(chains=2, seed=0)
        assert compiled
        compiled.clear()
        run(chains=2, seed=5, step_size=2e-3)
        rw.sample(
            jax.random.key(7), rw.hasgld_sa(memory=2), REGRESSION.target, jnp.ones(3),
            steps=60, step_size=3e-3, batch_size=40, chains=2, progress=False,
        )  # fmt: skip
    assert compiled == []


def test_old_style_keys_work_too():
    result = rw.sample(
        jax.random.PRNGKey(0), rw.sgld(), REGRESSION.target, jnp.zeros(3), steps=5, step_size=1e-3, batch_size=4,
        progress=False,
    )  # fmt: skip
    assert result.positions.shape == (1, 5, 3)


MANY_CHAINS = """
import jax, jax.numpy as jnp, ridgewalk as rw
target = rw.Density(lambda x: -0.5 * jnp.sum(x**2))
for form in ("snapshot_lbfgs", "dense"):
    result = rw.sample(jax.random.key(0), rw.hasgld_sa(form=form), target, jnp.zeros(2), steps=200, step_size=0.1,
                       chains=4, progress=False)
print(result)
"""


@pytest.mark.slow
def test_vectorised_chains_with_the_default_memory_come_back():
    """Batches of 32-row eigenproblems once waited for their own threads for ever; hence a process of its own."""
    done = subprocess.run([sys.executable, "-c", MANY_CHAINS], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "Result(4 chains x 200 draws of 2 parameters)"


def test_the_progress_bar_reports_compile_time(monkeypatch, capsys):
    monkeypatch.setattr(runner, "Console", lambda **options: Console(force_terminal=True, width=200, **options))
    target = rw.Density(lambda w: -0.5 * jnp.sum(w**2) - 0.1 * jnp.sum(w**4))
    rw.sample(jax.random.key(0), rw.sgld(), target, jnp.zeros(2), steps=300, step_size=0.01, progress=True)
    shown = re.findall(r"compiled in (\d+\.\d) s", capsys.readouterr().err)
    assert shown
    assert float(shown[-1]) > 0
