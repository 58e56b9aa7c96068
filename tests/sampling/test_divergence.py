"""A chain that diverges is reported and left out; the others go on."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.harness import complaints
from tests.sampling.problems import REGRESSION, run

import ridgewalk as rw
from ridgewalk.sampling import zarr_store


def walled(theta):
    """A standard Gaussian with a quartic wall far out: from θ = 30 a step of 0.05 overshoots ever more."""
    return -0.5 * jnp.sum(theta**2) - 0.01 * jnp.sum(theta**4)


@pytest.mark.parametrize("method", ["vectorized", pytest.param("sequential", marks=pytest.mark.slow)])
def test_three_chains_finish_and_the_fourth_is_reported(method):
    starts = jnp.concatenate([jnp.zeros((3, 2)), jnp.full((1, 2), 200.0)])
    result = rw.sample(
        jax.random.key(0), rw.sgld(), rw.Density(walled), starts, steps=40_000, step_size=0.02, chains=4, burn_in=1_000,
        thin=4, start_per_chain=True, chain_method=method, progress=False,
    )  # fmt: skip
    assert [status.outcome for status in result.status] == ["finished"] * 3 + ["diverged"]
    assert list(result.alive) == [True, True, True, False]
    assert result.status[3].steps < 20
    assert "potential" in result.status[3].cause
    assert "step_size 0.02 is too large" in result.status[3].hint
    assert repr(result) == "Result(4 chains x 9750 draws of 2 parameters, 1 diverged)"
    draws = np.asarray(result.positions)
    assert np.isfinite(draws[:3]).all()
    assert np.isnan(draws[3]).all()
    grid = np.linspace(-6, 6, 4_001)
    density = np.exp(-0.5 * grid**2 - 0.01 * grid**4)
    variance = np.sum(grid**2 * density) / np.sum(density)
    assert complaints(draws[:3], np.zeros(2), variance * np.eye(2), bias=0.05) == []
    np.testing.assert_allclose(rw.posterior_variance(result), variance, rtol=0.1)


def test_draws_before_the_divergence_stay(tmp_path, monkeypatch):
    def log_density(theta):
        """One mode at 0; another at 130, on the way to which the density breaks off at 110."""
        centre = jnp.where(theta > 50, 130.0, 0.0)
        return jnp.sum(jnp.where(theta > 110, jnp.nan, -0.5 * (theta - centre) ** 2))

    starts = jnp.array([[0.0], [100.0]])
    options = {"target": rw.Density(log_density), "start": starts, "start_per_chain": True, "chains": 2, "steps": 40}
    options |= {"batch_size": None, "step_size": 0.05, "seed": 4}
    result = run(**options)
    dead = [i for i, status in enumerate(result.status) if not status.alive]
    assert dead == [1]
    last = result.status[1].steps
    assert last > 3
    assert result.status[1].cause == "the potential became NaN"
    assert np.isfinite(result.positions[1, : last - 1]).all()
    assert np.isnan(result.positions[1, last - 1 :]).all()
    assert np.isfinite(result.positions[0]).all()

    # Where a chunk ends between the last position and the step that shows it to be bad, the draws are the same.
    monkeypatch.setattr(zarr_store, "CHUNK_BYTES", 32)  # on disk, chunks of two draws: in memory or written
    for more in ({}, {"store": tmp_path / "one"}, {"store": tmp_path / "other", "burn_in": 1}):
        cut = run(**options, checkpoint_every=last, **more)
        np.testing.assert_array_equal(cut.positions[:], result.positions[:, more.get("burn_in", 0) :])
        assert np.isnan(cut.info.potential[1, last - 1 - more.get("burn_in", 0) :]).all()


@jax.custom_jvp
def trap(theta):
    """Zero, with a gradient that is NaN between 6 and 10."""
    return jnp.zeros_like(theta)


@trap.defjvp
def _(primals, tangents):
    (theta,), (tangent,) = primals, tangents
    return trap(theta), jnp.where((theta > 6) & (theta < 10), jnp.nan, 0.0) * tangent


def test_steps_that_are_not_kept_are_watched_as_well():
    """On the way from 20 to 0 a chain meets a NaN gradient, its potential still finite; thinning changes nothing."""
    target = rw.Density(lambda theta: jnp.sum(trap(theta) - 0.5 * theta**2))
    options = {"start": jnp.array([[0.0], [20.0]]), "start_per_chain": True, "chains": 2, "batch_size": None}
    every, fifth = (run(target=target, steps=60, step_size=0.1, thin=thin, **options) for thin in (1, 5))
    for result in (every, fifth):
        assert [status.outcome for status in result.status] == ["finished", "diverged"]
        assert result.status[1].cause == "the gradient became NaN or infinite"
        assert np.isnan(result.positions[1, result.status[1].steps // (60 // result.draws) :]).all()
    assert fifth.status[1].steps == every.status[1].steps > 4
    np.testing.assert_array_equal(fifth.positions[0], every.positions[0, 4::5])
    for name, values in fifth.info._asdict().items():
        np.testing.assert_allclose(values[0], getattr(every.info, name)[0, 4::5], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("kept", ["draws", pytest.param("moments", marks=pytest.mark.slow)])
def test_all_chains_dead_is_an_error_with_a_hint(kept):
    with pytest.raises(
        rw.DivergenceError, match=r"all 2 chains diverged\n  chain 0: diverged after \d+ steps"
    ) as error:
        run(step_size=1.0, chains=2, steps=400, keep=kept)
    limit = 2 * float(1 / np.linalg.eigvalsh(np.linalg.inv(REGRESSION.covariance))[-1])
    said = float(str(error.value).split("up to about ")[1].split(";")[0])
    assert abs(said / limit - 1) < 0.2
    assert "step_size 1 is too large" in str(error.value)


def test_a_dead_run_ends_early():
    with pytest.raises(rw.DivergenceError):
        run(step_size=1.0, steps=1_000_000_000, thin=1_000_000)  # would take hours


def test_a_preconditioned_sampler_gets_a_limit_of_its_own():
    with pytest.raises(rw.DivergenceError) as error:
        run(rw.hasgld_sa(memory=2), step_size=50.0, steps=400)
    said = float(str(error.value).split("up to about ")[1].split(";")[0])
    assert 1.5 < said < 3  # G starts as I / λ_max, so that the limit is 2


PARALLEL = """
import sys; sys.path.insert(0, sys.argv[1])
import jax; jax.config.update("jax_enable_x64", True)
import numpy as np
from tests.sampling.problems import run
options = dict(chains=2, steps=40)
assert len(jax.local_devices()) == 2
one, other = run(**options), run(**options, chain_method="parallel")
np.testing.assert_allclose(one.positions, other.positions, rtol=1e-9)
places = [next(iter(state.position.devices())).id for state in other.final_states]
print(sorted(places))
"""


def test_parallel_chains_run_on_their_own_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags}
    code = [sys.executable, "-c", PARALLEL, str(Path(__file__).parents[2])]
    done = subprocess.run(code, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0, 1]"


def test_a_last_step_that_leaves_the_finite_numbers_is_a_divergence():
    """In float32 10³⁰ − 10¹⁰ · 10³⁰ is −∞, potential and gradient at 10³⁰ being finite."""
    target = rw.Density(lambda theta: -jnp.sum(jnp.abs(theta)) * jnp.where(jnp.abs(theta[0]) > 1, 1e30, 1.0))
    options = {"start": jnp.array([[0.5], [2.0]], jnp.float32), "start_per_chain": True, "chains": 2}
    result = run(target=target, batch_size=None, steps=1, step_size=1e10, **options)
    assert [status.outcome for status in result.status] == ["finished", "diverged"]
    assert result.status[1].steps == 0
    assert result.status[1].cause == "the position became NaN or infinite"
    assert np.isnan(result.positions[1]).all()
