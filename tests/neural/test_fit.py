"""The phases of a fit: compilations, the optimiser, the automatic step size."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compilations import compilations
from tests.neural.fits import tiny, waves

import ridgewalk as rw
from ridgewalk.neural import fit
from ridgewalk.neural.fit import stable_step_size
from ridgewalk.neural.optimiser import Checkpointing, Schedule, optimise
from ridgewalk.sampling.runner import StopFlag

SAMPLERS = {
    "sgld": rw.sgld(),
    "psgld": rw.psgld(),
    "psgld, told": rw.psgld(second_moment=jnp.array([1e6, 1e4, 1.0])),
    "dense": rw.hasgld_sa(form="dense"),
    "dense, told": rw.hasgld_sa(form="dense", first_curvature=10.0),
    "low rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=1, spare=1)),
    "limited": rw.hasgld_sa(form="snapshot_lbfgs"),
    "rescaled": rw.Sampler(rw.Langevin(), rw.rescaled(rw.SnapshotLBFGS(), jnp.array([0.01, 0.1, 1.0]))),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in ("dense", "psgld", "sgld") else []) for n in SAMPLERS]
)
def test_fraction_of_the_stable_step_size(name):
    x = jax.random.normal(jax.random.key(0), (64, 3)) * jnp.array([[30.0, 3.0, 0.3]])
    target = rw.Posterior(
        lambda w: -0.5 * jnp.sum(w**2), lambda w, batch: -0.5 * (batch[1] - batch[0] @ w) ** 2, (x, x[:, 0])
    )
    mode = jnp.array([1.0, 0.0, 0.0])
    hessian = np.asarray(x.T @ x + jnp.eye(3))
    begun = np.asarray(rw.preconditioner_matrix(rw.build_kernel(SAMPLERS[name], target, mode).init(mode)))
    largest = np.abs(np.linalg.eigvals(begun @ hessian)).max()
    step_size = stable_step_size(SAMPLERS[name], target, mode, 16)
    assert step_size * largest == pytest.approx(0.1 * 2 * 16 / 64, rel=0.02)


@pytest.mark.parametrize("sampler", [pytest.param("hasgld_sa", marks=pytest.mark.slow), "sgld"])
def test_a_fit_with_another_number_of_rows_compiles_nothing(sampler):
    def fitted(rows):
        x, y = waves(rows)
        model = tiny(sampler=sampler).fit(x, y)
        model.predict(x[: rows // 3], return_std=True)
        return model

    fitted(60)
    with compilations() as compiled:
        assert [fitted(rows).report_.examples for rows in (61, 90, 160)] == [49, 72, 128]
    assert compiled == []


def test_the_optimiser_does_not_depend_on_the_data_weight():
    """Gradients are clipped at a norm of 1, in units in which the data weight has no part."""
    x = jax.random.normal(jax.random.key(1), (20, 2))

    def end(weight):
        target = rw.Posterior(
            lambda w: -0.5 * weight * jnp.sum(w**2), lambda w, batch: -5 * weight * (batch @ w - 3) ** 2, x
        )
        schedule = Schedule(30, 0.01, 5, 1, weight)
        nowhere = Checkpointing(None, "5 min", {})
        silent = lambda *_: None  # noqa: E731
        return optimise(jax.random.key(0), target, jnp.array([2.0, -2.0]), schedule, nowhere, silent, StopFlag())

    one, ten = end(1.0), end(10.0)
    assert one.finished
    np.testing.assert_allclose(one.position, ten.position, rtol=1e-6)
    np.testing.assert_allclose(one.losses, ten.losses, rtol=1e-6)


def test_the_automatic_step_size_is_stored_for_one_fit_only(tmp_path, monkeypatch):
    x, y = waves()
    cold = {"checkpoint": tmp_path, "data_weight": 5.0, "step_size": "auto"}
    stored = tiny(**cold).fit(x, y).report_.step_size
    monkeypatch.setattr(fit, "stable_step_size", lambda *_: 1e-7)
    shutil.rmtree(tmp_path / "sampling")
    assert tiny(**cold).fit(x, y).report_.step_size == stored
    for folder in tmp_path.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    assert tiny(**cold).fit(x[:-1], y[:-1]).report_.step_size == 1e-7


@pytest.mark.slow
def test_rounds_go_on_until_the_predictions_mix(tmp_path, monkeypatch):
    """Each round is twice as long as the one before; one that was stopped is resumed at its own length."""
    x, y = waves()
    lengths, run = [], fit.sample

    def noted(*arguments, **options):
        lengths.append(options["steps"])
        return run(*arguments, **options)

    class Killed(Exception):
        pass

    def killed(*arguments, **options):
        if options["steps"] > 300:
            raise Killed
        return noted(*arguments, **options)

    monkeypatch.setattr(fit, "FIRST_ROUND", 300)
    settings = {"steps": 1_000, "burn_in": 120, "step_size": "auto", "sampler": "sghmc", "hidden": (2,)}
    settings |= {"network": "mlp", "recalibration": "none", "optimiser_steps": 20, "draws": 20}
    monkeypatch.setattr(fit, "sample", noted)
    whole = tiny(**settings, r_hat=0.5).fit(x, y)
    assert lengths == [300, 600, 1_000]
    assert "is above 0.5; no more steps were asked for" in whole.report_.ending
    assert whole.report_.draws == 20
    lengths.clear()
    monkeypatch.setattr(fit, "sample", killed)
    with pytest.raises(Killed):
        tiny(**settings, r_hat=0.5, checkpoint=tmp_path).fit(x, y)
    monkeypatch.setattr(fit, "sample", noted)
    again = tiny(**settings, r_hat=0.5, checkpoint=tmp_path).fit(x, y)
    assert lengths == [300, 600, 1_000]
    np.testing.assert_array_equal(again.predict(x), whole.predict(x))
    lengths.clear()
    easy = tiny(**settings, r_hat=100.0).fit(x, y)
    assert lengths == [300]
    assert "is at most 100" in easy.report_.ending
