"""`Result.check()` finds every fault in a run that has it, and nothing in healthy runs."""

import contextlib
import dataclasses
import signal

import jax.numpy as jnp
import numpy as np
import pytest
from tests.diagnostics.runs import GAUSSIAN, REGRESSION, STEEPEST, healthy, run

import ridgewalk as rw
from ridgewalk._pytree import pytree_dataclass
from ridgewalk.preconditioners.static import FixedOperator
from ridgewalk.sampling import runner

QUICK = ("sgld, minibatch", "sgld, control variates", "hasgld_sa", "sghmc")
SLOW = (
    "sgld",
    "hasgld_sa, control variates",
    "hasgld_sa, limited",
    "sghmc, minibatch",
    "sgnht, minibatch",
    "psgld",
    "hamcmc",
)


@pytest.mark.parametrize("name", QUICK)
def test_healthy_runs_have_no_findings(name):
    report = healthy(name).check()
    assert report.ok, str(report)
    assert (len(report), list(report), report.notes) == (0, [], ())
    assert str(report).startswith("no problems found")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", QUICK + SLOW)
def test_healthy_runs_have_no_findings_with_other_seeds(name, seed):
    report = healthy(name, seed).check()
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("sampler", "length", "share"),
    [(rw.sgld(), 1.0, 0.5), pytest.param(rw.sghmc(friction=0.5), 1.6, 1.6 / 3, marks=pytest.mark.slow)],
)
def test_step_size_too_large(sampler, length, share):
    report = run(sampler, GAUSSIAN.target, 2, step_size=length / GAUSSIAN.steepest).check()
    assert report.names == ("step_size",), str(report)
    assert report.numbers["step size / stability limit"] == pytest.approx(share, rel=0.05)


def test_step_size_too_large_for_the_gradient_noise():
    report = run(rw.sgld(), step_size=0.3 / STEEPEST, batch_size=40).check()
    assert report.names == ("gradient_noise",), str(report)
    assert "control_variates" in str(report)


def test_low_ess():
    report = run(rw.sgld(), step_size=1e-3 / STEEPEST, batch_size=40, start=jnp.asarray(REGRESSION.mean)).check()
    assert "low_ess" in report.names, str(report)
    assert "temperature" not in report.names, "a low ESS explains a low temperature"


@pytree_dataclass
class TwoModes:
    """Narrow bumps at −4 and 4."""

    def __call__(self, x):
        return jnp.sum(jnp.logaddexp(-2 * (x - 4) ** 2, -2 * (x + 4) ** 2))


@pytest.mark.parametrize("keep", ["draws", pytest.param("moments", marks=pytest.mark.slow)])
def test_high_r_hat(keep):
    starts = jnp.array([[4.0], [-4.0], [4.0], [-4.0]])
    options = {"start": starts, "start_per_chain": True, "step_size": 0.03, "steps": 4_000, "keep": keep}
    report = run(rw.sgld(), rw.Density(TwoModes()), **options).check()
    assert "high_r_hat" in report.names, str(report)
    assert [note for note in report.notes if "not kept" in note] == list(report.notes)
    assert bool(report.notes) == (keep == "moments")


@pytree_dataclass
class WrongNoise(rw.Langevin):
    """Langevin dynamics with a factor in the noise that does not belong there."""

    factor: float = 1.0

    def move(self, state, operator, context):
        return super().move(state, operator, context._replace(noise=self.factor * context.noise))


@pytree_dataclass
class WrongFactor(rw.Preconditioner):
    """S Sᵀ = 2 G."""

    def init(self, position, gradient_at):
        return Mismatched(jnp.full_like(position, 0.1))

    def prepare(self, operator, context):
        return operator

    def correction(self, operator):
        return None

    def update(self, operator, transition):
        return operator, rw.no_update(transition.before)


class Mismatched(FixedOperator):
    def drift_plus_noise(self, covector, noise):
        return self.multiply(covector) + jnp.sqrt(2.0) * self.factor(noise)


@pytest.mark.parametrize(("factor", "word"), [(2**0.5, "high"), (2**-0.5, "low")])
def test_temperature_off_by_root_two(factor, word):
    sampler = rw.Sampler(WrongNoise(factor=factor), rw.Identity())
    options = {"step_size": 0.03, "steps": 12_000}
    report = run(sampler, GAUSSIAN.target, 2, **options).check()
    assert report.names == ("temperature",), str(report)
    assert f"draws is too {word}" in str(report)
    assert report.numbers["configurational temperature"] == pytest.approx(factor**2, rel=0.2)


@pytest.mark.slow
def test_temperature_off_by_a_factor_that_does_not_match():
    sampler = rw.Sampler(rw.Langevin(), WrongFactor())
    report = run(sampler, GAUSSIAN.target, 2, step_size=3.0, steps=12_000).check()
    assert report.names == ("temperature",), str(report)


def test_temperature_that_was_asked_for_is_no_fault():
    report = run(rw.sgld(temperature=2.0), GAUSSIAN.target, 2, step_size=0.03).check()
    assert report.ok, str(report)
    assert report.numbers["configurational temperature"] == pytest.approx(2.0, rel=0.2)


def test_momenta_off_by_root_two():
    @pytree_dataclass
    class WrongKick(rw.Hamiltonian):
        def move(self, state, operator, context):
            return super().move(state, operator, context._replace(noise=2**0.5 * context.noise))

    report = run(rw.Sampler(WrongKick(), rw.Identity()), GAUSSIAN.target, 2, step_size=0.01).check()
    assert report.names == ("temperature",), str(report)
    assert report.numbers["kinetic temperature"] == pytest.approx(2.0, rel=0.1)


def test_a_start_far_away_is_reported_as_burn_in():
    start = jnp.full(2, 300.0)
    report = run(rw.sgld(), GAUSSIAN.target, start=start, step_size=0.03, burn_in=0, steps=8_000).check()
    assert "burn_in" in report.names, str(report)
    assert "temperature" not in report.names


def frozen_then_poisoned(k):
    """ω = 0 for 3,599 averages of two pairs each, then NaN."""
    return jnp.where(k >= 3_600, jnp.nan, 0.0)


FROZEN = rw.hasgld_sa(memory=2, adaptation=frozen_then_poisoned)


def test_preconditioner_that_never_changed():
    report = run(FROZEN, GAUSSIAN.target, 2, step_size=0.3, steps=7_100).check()
    assert report.names == ("preconditioner",), str(report)
    assert "never changed" in str(report)


def test_preconditioner_that_is_not_finite():
    """The last step of the run spoils G; the next one would have been lost."""
    report = run(FROZEN, GAUSSIAN.target, 2, step_size=0.3, steps=7_200).check()
    assert report.names == ("preconditioner",), str(report)
    assert "G is not finite" in str(report)


def round_bowl(x):
    return -0.5 * jnp.sum(x**2)


@pytest.mark.slow
def test_preconditioner_with_nothing_to_learn_is_no_fault():
    report = run(FROZEN, rw.Density(round_bowl), 2, step_size=0.1, steps=7_100).check()
    assert report.ok, str(report)


def test_preconditioner_that_rejected_all_pairs():
    """Steps lost in the rounding of float32: the chain stands still, so no pair can be used."""
    target = rw.Density(distant_bowl)
    start = jnp.full(2, 1e6, jnp.float32)
    result = run(
        rw.Sampler(rw.Langevin(), rw.LBFGS(memory=1, first_curvature=1e8)),
        target,
        start=start,
        step_size=1e-3,
        steps=400,
        burn_in=0,
    )
    report = result.check()
    assert {"preconditioner", "constant"} <= set(report.names), str(report)
    assert rw.curvature_pair_stats(result).rejected == 1.0


def distant_bowl(x):
    return -0.5 * jnp.sum((x - 1e6) ** 2)


def test_diverged_chains_are_reported_and_left_out():
    starts = jnp.array([[0.1, 0.0], [0.0, 0.1], [1e3, 0.0]])
    result = run(
        rw.sgld(), rw.Density(quartic), start=starts, start_per_chain=True, chains=3, step_size=0.02, steps=12_000
    )
    report = result.check()
    assert report.names == ("diverged",), str(report)
    assert "1 of 3 chains" in str(report)
    assert "chain 2" in str(report)
    assert result.summary().shape == (2, 7)
    assert np.isfinite(result.summary().to_numpy()).all()
    assert result.to_arviz()["posterior"].chain.to_numpy().tolist() == [0, 1]
    assert np.isfinite(rw.stein_discrepancy(result, max_draws=100))


def test_nan_draws_of_chains_that_did_not_diverge():
    result = run(rw.sgld(), GAUSSIAN.target, 2, step_size=0.03, burn_in=100, steps=2_000)
    positions = np.array(result.positions)
    positions[1, 40:50] = np.nan
    report = dataclasses.replace(result, positions=positions).check()
    assert "nan_draws" in report.names, str(report)
    assert "10 draws" in str(report)
    assert "nan_draws" not in result.check().names


def quartic(x):
    return -0.25 * jnp.sum(x**4) - 0.5 * jnp.sum(x**2)


def test_interrupted_run(monkeypatch):
    @contextlib.contextmanager
    def interrupting(*_):
        yield lambda *_: signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(runner, "progress_bar", interrupting)
    monkeypatch.setattr(runner, "LONGEST_CHUNK", 2_000)
    result = run(rw.sgld(), GAUSSIAN.target, 2, step_size=0.03, burn_in=100, steps=10**6)
    assert result.steps < 10**6
    report = result.check()
    assert "interrupted" in report.names, str(report)
    assert set(report.names) <= {"interrupted", "low_ess", "high_r_hat"}


@pytest.mark.parametrize(
    "sampler",
    [rw.sgld(temperature=0.0), pytest.param(rw.hasgld_sa(form="as_printed", memory=1), marks=pytest.mark.slow)],
)
def test_samplers_that_do_not_sample_the_posterior(sampler):
    report = run(sampler, GAUSSIAN.target, 2, step_size=0.01, steps=2_000).check()
    assert "sampler" in report.names, str(report)


def test_runs_too_short_to_measure():
    report = run(rw.sgld(), GAUSSIAN.target, 2, step_size=0.03, steps=3, burn_in=0, thin=1).check()
    assert "3 draws" in report.notes[0]
