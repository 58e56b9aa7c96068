"""`Result.check()` finds every fault in a run that has it, and nothing in healthy runs."""

import contextlib
import dataclasses
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import zoo
from tests.diagnostics.runs import GAUSSIAN, REGRESSION, STEEPEST, centred, healthy, run

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


@pytest.mark.parametrize("name", QUICK[:3])
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
    assert report.names == (("modes",) if keep == "draws" else ("high_r_hat",)), str(report)
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


@pytest.mark.parametrize(("factor", "word"), [(2**0.5, "high"), pytest.param(2**-0.5, "low", marks=pytest.mark.slow)])
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


@pytest.mark.slow
def test_a_short_burn_in_does_not_hide_chains_that_do_not_mix():
    start = jnp.full(2, 300.0)
    report = run(rw.sgld(), GAUSSIAN.target, start=start, step_size=0.03, burn_in=0, steps=600).check()
    assert {"burn_in", "low_ess"} <= set(report.names), str(report)


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


def follow(finding, result, target, position):
    """The result of the call that a finding prints, run as a user would."""
    names = {"rw": rw, "key": jax.random.key(1), "target": target, "position": position, "result": result}
    made = eval(finding.call, names)
    assert isinstance(made, rw.Result)
    return made


@pytree_dataclass
class Ellipse:
    """Standard deviations 1 and 0.01: SGLD takes 10⁴ of its longest steps to cross it."""

    def __call__(self, x):
        return -0.5 * x[0] ** 2 - 0.5 * (100 * x[1]) ** 2


def drifting():
    target, start = rw.Density(Ellipse()), jnp.array([30.0, 0.0])
    options = {"step_size": 5e-5, "steps": 4_000, "chains": 2, "burn_in": 500}
    return run(rw.sgld(), target, start=start, **options), target, start


def test_a_potential_that_still_drifts():
    report = drifting()[0].check()
    assert report.names == ("not_arrived",), str(report)
    assert "drifts in all chains" in str(report)
    assert report.numbers["drift of the potential"] < -10
    assert "rw.hasgld_sa()" in report.findings[0].call
    assert "start_per_chain=True" in report.findings[0].call


@pytest.mark.slow
def test_the_way_out_of_a_drift():
    result, target, start = drifting()
    after = follow(result.check().findings[0], result, target, start)
    assert after.steps == 16_000
    assert after.check().ok, str(after.check())
    np.testing.assert_allclose(rw.posterior_std(after), [1.0, 0.01], rtol=0.15)


def test_advice_that_was_taken_is_not_given_again():
    """The same drift with a preconditioner that has not adapted: no advice to use one."""
    target, start = rw.Density(Ellipse()), jnp.array([30.0, 0.0])
    sampler = rw.hasgld_sa(adaptation=rw.PowerDecay(c1=1e-9))
    result = run(sampler, target, start=start, step_size=0.5, steps=4_000, chains=2, burn_in=500)
    report = result.check()
    assert "not_arrived" in report.names, str(report)
    for finding in report:
        assert "preconditioner" not in finding.advice, str(finding)
        assert "rw.hasgld_sa()" not in finding.call or finding.name == "preconditioner", str(finding)
    noisy = run(rw.sgld(), centred(), step_size=0.8 / STEEPEST, batch_size=2).check()
    (found,) = (finding for finding in noisy if finding.name == "gradient_noise")
    assert "control_variates" not in found.advice


@pytest.mark.slow
def test_more_steps_are_all_that_a_short_run_needs():
    small = run(rw.hasgld_sa(), GAUSSIAN.target, 2, step_size=0.3, steps=200, burn_in=100, thin=1).check()
    assert "low_ess" in small.names, str(small)
    assert {f.advice.split(";")[0] for f in small if f.name in ("low_ess", "high_r_hat")} == {"more steps"}


def test_steps_far_below_the_limit_are_made_longer():
    start = jnp.asarray(GAUSSIAN.mean)
    result = run(rw.hasgld_sa(), GAUSSIAN.target, start=start, step_size=2e-3, steps=4_000)
    report = result.check()
    assert set(report.names) <= {"low_ess", "high_r_hat"}, str(report)
    finding = report.findings[-1]
    assert "larger step_size" in finding.advice, str(finding)
    after = follow(finding, result, GAUSSIAN.target, start)
    assert after.check().ok, str(after.check())


@pytree_dataclass
class UnevenModes:
    """A deep bump at 4 and a shallow one at −4."""

    def __call__(self, x):
        return jnp.sum(jnp.logaddexp(-2 * (x - 4) ** 2, -2 * (x + 4) ** 2 - 8))


@pytest.mark.slow
def test_modes_of_different_potential_and_the_way_out():
    target, starts = rw.Density(UnevenModes()), jnp.array([[-4.0], [4.0], [4.0], [4.0]])
    result = run(rw.sgld(), target, start=starts, start_per_chain=True, step_size=0.03, steps=8_000)
    report = result.check()
    assert report.names == ("modes",), str(report)
    assert "chain 0 stay" in str(report)
    after = follow(report.findings[0], result, target, starts)
    assert after.check().ok, str(after.check())
    assert rw.posterior_mean(after) == pytest.approx(4, abs=0.1)


def test_collected_values_are_judged_in_place_of_weights():
    """Two mirrored modes: the sign of x never mixes, |x| does."""
    starts = jnp.array([[4.0], [-4.0], [4.0], [-4.0]])
    options = {"start": starts, "start_per_chain": True, "step_size": 0.03, "steps": 8_000, "keep": "draws"}
    target = rw.Density(TwoModes())
    report = run(rw.sgld(), target, collect=jnp.abs, **options).check()
    assert report.ok, str(report)
    assert report.notes == ("ESS and R-hat are of the collected values",)
    assert run(rw.sgld(), target, **options).check().names == ("modes",)
    signs = run(rw.sgld(), target, collect=lambda x: {"twice": 2 * x}, **(options | {"keep": "moments"})).check()
    assert signs.names == ("modes",), str(signs)
    assert "collected twice[0]" in str(signs)


def test_nan_in_collected_values():
    collect = lambda x: jnp.log(x[0])  # noqa: E731  (negative for some draws)
    report = run(rw.sgld(), GAUSSIAN.target, 2, step_size=0.03, collect=collect, keep="draws").check()
    assert "nan_draws" in report.names, str(report)


def test_pairs_damped_in_one_chain_of_four():
    result = healthy("hasgld_sa")
    damping = np.array(result.info.damping)
    damping[2] = np.where(np.arange(damping.shape[1]) % 100 == 0, 1.0, 0.6)
    report = dataclasses.replace(result, info=result.info._replace(damping=damping)).check()
    assert report.names == ("preconditioner",), str(report)
    assert "99% of the curvature pairs of Dense were damped, in the worst chain" in str(report)
    after = follow(report.findings[0], result, REGRESSION.target, jnp.zeros(3))
    assert after.check().ok, str(after.check())


def faulty(name):
    """A run with a fault, its target and its start."""
    bowl = rw.Density(round_bowl)
    far, near = jnp.full(2, 300.0), jnp.zeros(2)
    recipes = {
        "step_size": (rw.sgld(), GAUSSIAN.target, near, {"step_size": 1.0 / GAUSSIAN.steepest}),
        "gradient_noise": (rw.sgld(), REGRESSION.target, jnp.zeros(3), {"step_size": 0.3 / STEEPEST, "batch_size": 40}),
        "low_ess": (rw.sghmc(), GAUSSIAN.target, near, {"step_size": 1e-4, "steps": 1_000, "burn_in": 100}),
        "burn_in": (rw.sgld(), GAUSSIAN.target, far, {"step_size": 0.03, "burn_in": 0}),
        "sampler": (rw.sgld(temperature=0.0), bowl, near, {"step_size": 0.1, "steps": 500, "burn_in": 10}),
        "preconditioner": (FROZEN, GAUSSIAN.target, near, {"step_size": 0.3, "steps": 7_100}),
        "diverged": (rw.sgld(), rw.Density(quartic), jnp.array([[0.1, 0], [0, 0.1], [1e3, 0], [0, 0]]), {}),
    }
    sampler, target, start, options = recipes[name]
    if name == "diverged":
        options = {"step_size": 0.02, "start_per_chain": True, "steps": 2_000}
    return run(sampler, target, start=start, **options), target, start


@pytest.mark.parametrize(
    "name",
    [
        "step_size",
        "gradient_noise",
        pytest.param("low_ess", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("burn_in", "sampler", "preconditioner")),
        "diverged",
    ],
)
def test_the_advice_printed_is_runnable_and_leads_out(name):
    result, target, start = faulty(name)
    report = result.check()
    finding = next(one for one in report if one.name == name)
    assert finding.call in str(report)
    after = follow(finding, result, target, start)
    assert name not in after.check().names, f"{finding}\n{after.check()}"


@pytest.mark.slow
def test_advice_leads_out_of_the_hierarchical_model():
    """Following what is printed, at most four times, ends in a run that agrees with NUTS."""
    case = zoo.BY_NAME["hierarchical"]
    starts = case.starts(jax.random.key(3), 4)
    result = run(rw.hasgld_sa(), case.target, start=starts, start_per_chain=True, step_size=0.05, steps=10_000, thin=1)
    position = starts
    for _ in range(4):
        report = result.check()
        if report.ok:
            break
        before, result = result, follow(report.findings[0], result, case.target, position)
        position = before.final_positions  # what `position` is in the next call, if it starts each chain on its own
        if not result.arguments.get("start_per_chain"):
            position = jax.tree.map(lambda leaf: leaf[0], position)
    else:
        pytest.fail(str(report))
    compared = zoo.compare(result, case, ("mu", "log_tau", "b", "log_sigma"))
    assert compared.agrees, compared
