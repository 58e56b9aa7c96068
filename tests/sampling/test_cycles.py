"""Cyclical schedules: step sizes, which steps are kept, and runs that are resumed within a cycle."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.sampling.problems import assert_same_run, run

import ridgewalk as rw
from ridgewalk.schedules import RunSchedule, StepSizes

CYCLES = rw.cycles(20, 2e-3, explore=0.75)
KEPT = np.array([step for step in range(100) if step % 20 >= 15])


def plain(step):
    """The same step sizes; all steps are kept."""
    return CYCLES(step)


class EverySeventh:
    """A schedule that asks for one number at a time."""

    def __call__(self, step):
        return 1e-3 + 0.0 * step

    def keep(self, step):
        return True if step % 7 == 6 else False  # noqa: SIM210


def test_step_sizes_are_cosines():
    sizes = StepSizes(CYCLES, 45).between(0, 45)
    expected = 1e-3 * (1 + np.cos(np.pi * (np.arange(45) % 20) / 20))
    np.testing.assert_allclose(sizes, expected, rtol=1e-6)
    assert sizes[0] == sizes[20] == pytest.approx(2e-3)
    assert (sizes > 0).all()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"thin": 3}, marks=pytest.mark.slow),
        {"burn_in": 17, "thin": 2, "chains": 2},
        {"keep": "draws", "collect": jnp.sum},
    ],
    ids=["all", "thin", "burn_in", "asked"],
)
def test_draws_are_those_of_the_steps_that_are_kept(options):
    """The chain is that of a run that keeps every step."""
    whole = run(steps=100, step_size=plain, chains=options.get("chains", 1))
    result = run(steps=100, step_size=CYCLES, **options)
    thin = options.get("thin", 1)
    steps = KEPT[options.get("burn_in", 0) <= KEPT][thin - 1 :: thin]
    np.testing.assert_array_equal(result.draw_steps, steps + 1)
    np.testing.assert_array_equal(result.positions, whole.positions[:, steps])
    np.testing.assert_array_equal(result.info.potential, whole.info.potential[:, steps])
    np.testing.assert_array_equal(result.step_sizes, whole.step_sizes[steps])
    if result.collected is not None:
        np.testing.assert_allclose(result.collected, np.sum(result.positions, axis=2))


def test_any_schedule_may_say_which_steps_are_kept():
    result = run(steps=60, step_size=EverySeventh())
    np.testing.assert_array_equal(result.draw_steps, np.arange(7, 61, 7))
    np.testing.assert_array_equal(result.positions, run(steps=60, step_size=1e-3, thin=7).positions)


def test_moments_are_of_the_draws():
    draws, moments = (run(steps=100, step_size=CYCLES, keep=keep) for keep in ("draws", "moments"))
    np.testing.assert_allclose(rw.posterior_mean(moments), rw.posterior_mean(draws), rtol=1e-9)


@pytest.mark.parametrize("stored", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_resumed_run_is_bit_identical(tmp_path, stored):
    where = {"checkpoint": tmp_path / "c", "checkpoint_every": 10}
    where |= {"store": tmp_path / "s"} if stored else {}
    options = {"step_size": CYCLES, "thin": 2, "chains": 2}
    run(steps=37, **options, **where)  # within the part of a cycle that is kept
    resumed = run(steps=100, **options, **where, resume=True)
    whole = run(steps=100, **options)
    assert_same_run(resumed, whole)
    np.testing.assert_array_equal(resumed.draw_steps, whole.draw_steps)


def test_a_run_that_kept_other_steps_is_not_continued(tmp_path):
    where = {"checkpoint": tmp_path, "checkpoint_every": 10}
    run(steps=40, step_size=CYCLES, **where)
    with pytest.raises(ValueError, match=r"other settings:\n  kept_steps: "):
        run(steps=60, step_size=rw.cycles(20, 2e-3, explore=0.5), **where, resume=True)
    with pytest.raises(ValueError, match=r"other settings:\n  kept_steps: .* then, None now"):
        run(steps=60, step_size=plain, **where, resume=True)


def test_the_schedule_of_a_long_run_counts_in_blocks(monkeypatch):
    monkeypatch.setattr("ridgewalk.schedules.BLOCK", 7)
    schedule = RunSchedule(100, 3, 4, 1, StepSizes(CYCLES, 100))
    np.testing.assert_array_equal(schedule.draw_steps(0, schedule.draws), KEPT[3::4] + 1)
    made = [schedule.draws_by(step) for step in range(101)]
    np.testing.assert_array_equal(made, schedule.slots(0, 100))
    assert [schedule.step_of_draw(draw) for draw in range(made[-1] + 1)] == [*(KEPT[3::4] + 1), 100]


class KeepsNumbers(EverySeventh):
    def keep(self, step):
        return 1.0 * step


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rw.cycles(1, 0.1), "length: 1 "),
        (lambda: rw.cycles(20, 0.0), "peak: 0.0 "),
        (lambda: rw.cycles(20, 0.1, explore=1.0), "explore: 1.0 "),
        (lambda: run(steps=14, step_size=CYCLES), "step_size: of 14 steps .* leaves no draw"),
        (lambda: run(steps=14, step_size=KeepsNumbers()), r"step_size: its keep\(step\) gave float64"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
