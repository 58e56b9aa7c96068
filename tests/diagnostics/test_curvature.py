"""Preconditioned curvature, gradient noise and the preconditioner's statistics against formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.diagnostics.runs import GAUSSIAN, REGRESSION, STEEPEST, centred, healthy, run

import ridgewalk as rw
from ridgewalk.diagnostics import curvature
from ridgewalk.diagnostics.curvature import preconditioned_curvature


def test_gradient_noise_fraction_equals_its_formula():
    """V = N²/n Var_i(∇ log p(d_i | θ)) for batches drawn with replacement; here G = I, at the final states."""
    result = healthy("sgld, minibatch")
    x, y = (np.asarray(REGRESSION.target.data[name]) for name in ("x", "y"))
    spreads = []
    for state in result.final_states:
        each = x * (x @ np.asarray(state.position) - y)[:, None]
        spreads.append(len(x) ** 2 / 40 * each.var(0).sum() / 3)
    exact = 0.05 / STEEPEST * np.mean(spreads) / 2
    assert rw.gradient_noise_fraction(result, batches=500) == pytest.approx(exact, rel=0.1)
    assert rw.gradient_noise_fraction(healthy("sgld, control variates")) < 0.1 * exact
    assert rw.gradient_noise_fraction(healthy("sghmc")) == 0.0


@pytest.mark.slow
def test_noise_is_relative_to_the_friction():
    short = {"steps": 20, "burn_in": 0, "thin": 1, "batch_size": 40, "chains": 1, "step_size": 1e-6}
    start = jnp.asarray(REGRESSION.mean)
    plain = rw.gradient_noise_fraction(run(rw.sgld(), start=start, **short))
    heavy = rw.gradient_noise_fraction(run(rw.sghmc(friction=0.1), start=start, **short))
    assert heavy == pytest.approx(10 * plain, rel=0.2)


def test_the_gradient_noise_given_to_sghmc_is_subtracted():
    """It injects αT − β̂ and the gradients εV/2: together αT, as wanted, where β̂ is right."""
    short = {"steps": 20, "burn_in": 0, "thin": 1, "batch_size": 40, "chains": 1, "start": jnp.asarray(REGRESSION.mean)}
    without = run(rw.sghmc(friction=0.1), step_size=1e-3, **short)
    share = rw.gradient_noise_fraction(without)
    half, given = run(rw.sghmc(friction=0.1), step_size=5e-4 / share, **short), 0.1 * 0.5
    assert rw.gradient_noise_fraction(half) == pytest.approx(0.5, abs=0.1)
    knowing = run(rw.sghmc(friction=0.1, gradient_noise=given), step_size=5e-4 / share, **short)
    assert rw.gradient_noise_fraction(knowing) == pytest.approx(0.0, abs=0.1)


def test_preconditioned_curvature_and_effective_rank(monkeypatch):
    result = run(
        rw.Sampler(rw.Langevin(), rw.fixed(np.array([4.0, 1.0]))), GAUSSIAN.target, 2,
        step_size=1e-3, steps=20, burn_in=0, thin=1,
    )  # fmt: skip
    eigenvalues = np.linalg.eigvals(np.diag([4.0, 1.0]) @ np.linalg.inv(GAUSSIAN.covariance))
    seen = preconditioned_curvature(result)
    assert seen.largest == pytest.approx(eigenvalues.max(), rel=1e-3)
    probes = np.asarray(jax.random.rademacher(jax.random.key(0), (curvature.PROBES // 4, 2), float))
    whitened = np.diag([2.0, 1.0]) @ np.linalg.inv(GAUSSIAN.covariance) @ np.diag([2.0, 1.0])
    assert seen.mean == pytest.approx(np.einsum("pi,ij,pj->p", probes, whitened, probes).mean() / 2, rel=1e-6)
    chance = 2 * abs(whitened[0, 1]) / 2 / np.sqrt(len(probes))
    assert abs(seen.mean - eigenvalues.mean()) < 3 * chance
    np.testing.assert_allclose(rw.effective_rank(result), 25 / 17, rtol=1e-10)
    monkeypatch.setattr(curvature, "MAX_DENSE", 1)
    np.testing.assert_allclose(rw.effective_rank(result), 25 / 17, rtol=1e-10)


def test_pairs_are_counted_where_one_was_due():
    options = {"steps": 60, "burn_in": 0, "thin": 2, "step_size": 0.1, "chains": 2}
    result = run(rw.Sampler(rw.Langevin(), rw.LBFGS(1, damping=0.9, curvature_every=3)), GAUSSIAN.target, 2, **options)
    np.testing.assert_array_equal(result.draw_steps, np.arange(2, 61, 2))
    stats = rw.curvature_pair_stats(result)
    assert stats.pairs == 2 * 10
    seen = np.asarray(result.info.damping)[:, 2::3]
    assert (stats.rejected, stats.damped) == (0.0, (seen < 1).mean())
    assert stats.damped > 0
    assert stats.mean_damping == pytest.approx(seen.mean())
    assert rw.curvature_pair_stats(healthy("sghmc")).pairs == 0


@pytest.mark.slow
def test_batches_and_arrays_on_the_host(tmp_path):
    """Data that the device does not hold: a memory map for whole gradients, an iterable for fresh ones."""
    x, y = (np.asarray(REGRESSION.target.data[name]) for name in ("x", "y"))
    stored = {}
    for name, array in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", array)
        stored[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    posterior = REGRESSION.target
    on_disk = rw.Posterior(posterior.log_prior, posterior.log_likelihood, stored)
    parts = [{"x": x[i : i + 40], "y": y[i : i + 40]} for i in range(0, 400, 40)]
    stream = rw.Posterior(posterior.log_prior, posterior.log_likelihood, rw.Batches(parts, 400))
    options = {"step_size": 0.05 / STEEPEST, "chains": 2, "steps": 400, "burn_in": 200, "thin": 10}
    disk = run(rw.sgld(), on_disk, batch_size=40, **options)
    streamed = run(rw.sgld(), stream, **options)
    for result in (disk, streamed):
        numbers = result.check().numbers
        assert numbers["gradient noise fraction"] == pytest.approx(0.17, rel=0.4)
        assert "configurational temperature" in numbers
    assert rw.pointwise_log_likelihood(disk).shape == (2, 20, 400)
    with pytest.raises(ValueError, match="every example once"):
        rw.configurational_temperature(streamed)
    with pytest.raises(ValueError, match="every example once"):
        rw.pointwise_log_likelihood(streamed)


@pytest.mark.slow
def test_control_variates_are_part_of_the_gradient_noise():
    options = {"steps": 20, "burn_in": 0, "thin": 1, "batch_size": 40, "chains": 1, "step_size": 1e-6}
    at_centre = run(rw.sgld(), centred(), start=jnp.asarray(REGRESSION.mean), **options)
    assert rw.gradient_noise_fraction(at_centre) < 1e-4
    assert jax.tree.leaves(at_centre.final_states[0].estimator) == []
