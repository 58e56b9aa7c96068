"""Scores, coverage and recalibration against closed forms."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from ridgewalk.neural.assessment import (
    LEVELS,
    assess,
    assess_draws,
    assess_intervals,
    coverage,
    crps,
    draw_reliability,
    gaussian_crps,
    gaussian_nll,
)
from ridgewalk.neural.conformal import fit_conformal, fit_temperature, recalibrate
from ridgewalk.neural.predictive import (
    Predictive,
    draw_intervals,
    gaussian_intervals,
    summarise,
    with_noise,
)

EXAMPLES, OUTPUTS = 400, 5


def forecast(seed=0, scale=1.0, examples=EXAMPLES, outputs=OUTPUTS):
    """Means and spreads that vary, and independent targets whose true spread is `scale` times the stated one."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(examples, outputs))
    spread = np.exp(rng.normal(size=(examples, outputs)))
    return Predictive(mean, spread), mean + scale * spread * rng.standard_normal(mean.shape)


def binomial_error(level, count):
    return np.sqrt(level * (1 - level) / count)


# Scores


def test_gaussian_scores_are_their_definitions():
    y, mean, spread = 0.7, -0.2, 1.3
    assert gaussian_nll(*map(np.array, (y, mean, spread))) == pytest.approx(-norm.logpdf(y, mean, spread))
    below = quad(lambda x: norm.cdf(x, mean, spread) ** 2, -np.inf, y)[0]
    above = quad(lambda x: norm.sf(x, mean, spread) ** 2, y, np.inf)[0]
    assert gaussian_crps(*map(np.array, (y, mean, spread))) == pytest.approx(below + above, rel=1e-7)


def test_crps_of_draws_is_that_of_all_pairs():
    rng = np.random.default_rng(0)
    draws, targets = rng.normal(size=(7, 3, 2)), rng.normal(size=(3, 2))
    pairs = np.abs(draws[:, None] - draws[None]).sum((0, 1)) / (7 * 6)
    np.testing.assert_allclose(crps(draws, targets), np.abs(draws - targets[None]).mean(0) - 0.5 * pairs, rtol=1e-12)


@pytest.mark.parametrize("count", [5, 200])
def test_crps_of_draws_estimates_the_closed_form_without_bias(count):
    """Also with 5 draws, where the plain estimator would be higher by E|X − X'|/(2·5), many standard errors."""
    predictive, targets = forecast(examples=4_000)
    rng = np.random.default_rng(1)
    draws = predictive.mean + predictive.std * rng.standard_normal((count, *targets.shape))
    difference = (crps(draws, targets) - gaussian_crps(targets, *predictive)) / predictive.std
    error = difference.std() / np.sqrt(difference.size)
    assert abs(difference.mean()) < 4 * error
    assert 4 * error < 0.5 * (2 / np.sqrt(np.pi)) / count, "this test could not see the bias"


def test_crps_in_slices_is_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    draws, targets = rng.normal(size=(50, 11, 3)), rng.normal(size=(11, 3))
    whole, ends = crps(draws, targets), draw_intervals(draws, [0.5])
    monkeypatch.setattr("ridgewalk.neural.assessment.NUMBERS_AT_ONCE", 200)
    monkeypatch.setattr("ridgewalk.neural.predictive.NUMBERS_AT_ONCE", 200)
    np.testing.assert_allclose(crps(draws, targets), whole, rtol=1e-12)
    np.testing.assert_array_equal(draw_intervals(draws, [0.5]).upper, ends.upper)


# Mean, spread, coverage


def test_summary_adds_the_noise_of_the_observations():
    rng = np.random.default_rng(0)
    draws = 1 + 2 * rng.standard_normal((4_000, 2, 3))
    mean, spread = summarise(draws, noise=np.array([0.0, 1.0, 4.0]))
    np.testing.assert_allclose(mean, 1, atol=0.15)
    np.testing.assert_allclose(spread, np.sqrt(4 + np.array([[0.0, 1.0, 16.0]] * 2)), rtol=0.05)
    noisy = with_noise(draws, np.array([0.0, 1.0, 4.0]), seed=1)
    np.testing.assert_allclose(noisy.std(0), spread, rtol=0.08)


@pytest.mark.parametrize("kind", ["gaussian", "draws"])
def test_coverage_of_a_right_distribution_is_the_level(kind):
    predictive, targets = forecast(examples=2_000)
    levels = np.array([0.1, 0.5, 0.9, 0.95])
    if kind == "gaussian":
        intervals = gaussian_intervals(predictive, levels)
    else:  # only as many draws as the widest level needs: there plain quantiles cover too little
        draws = np.random.default_rng(1).standard_normal((39, *targets.shape))
        intervals = draw_intervals(predictive.mean + predictive.std * draws, levels)
    allowed = 4 * binomial_error(levels, targets.size)
    assert np.all(np.abs(coverage(intervals, targets) - levels) < allowed)
    assert allowed.max() < 0.021


def test_wrong_spreads_are_found():
    predictive, targets = forecast(scale=2.0, examples=2_000)
    found = assess(predictive, targets)
    expected = 2 * norm.cdf(norm.ppf(0.5 + 0.5 * np.array(LEVELS)) / 2) - 1
    assert np.all(np.abs(found.coverage - expected) < 4 * binomial_error(expected, targets.size))
    assert found.calibration_error == pytest.approx(np.mean(np.array(LEVELS) - expected), abs=0.01)
    np.testing.assert_allclose(found.width, 2 * norm.ppf(0.5 + 0.5 * np.array(LEVELS)) * predictive.std.mean())
    assert "coverage" in repr(found)


def test_assessment_of_draws_agrees_with_that_of_their_gaussian():
    predictive, targets = forecast(examples=300)
    draws = predictive.mean + predictive.std * np.random.default_rng(2).standard_normal((400, *targets.shape))
    ours, gaussian = assess_draws(draws, targets), assess(predictive, targets)
    assert ours.nll == pytest.approx(gaussian.nll, rel=0.01)
    assert ours.crps == pytest.approx(gaussian.crps, rel=0.01)
    np.testing.assert_allclose(ours.coverage, gaussian.coverage, atol=0.02)
    np.testing.assert_allclose(ours.width, gaussian.width, rtol=0.02)


# Recalibration


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_temperature_recovers_a_known_scale(scale):
    predictive, targets = forecast(scale=scale)
    found = fit_temperature(predictive, targets)
    assert abs(found.scale / scale - 1) < 4 / np.sqrt(2 * targets.size)
    nll = [
        assess(Predictive(predictive.mean, s * predictive.std), targets).nll
        for s in found.scale * np.array([0.97, 1, 1.03])
    ]
    assert nll[1] < min(nll[0], nll[2])


def test_temperature_scales_draws_about_their_mean():
    draws = np.random.default_rng(0).normal(size=(50, 4, 2))
    scaled = fit_temperature(summarise(draws), draws.mean(0) + 3 * draws.std(0, ddof=1)).apply_to_draws(draws)
    np.testing.assert_allclose(scaled.mean(0), draws.mean(0), atol=1e-12)
    np.testing.assert_allclose(scaled.std(0), 3 * draws.std(0), rtol=1e-12)


def test_conformal_quantile_is_the_rank_of_the_theorem():
    scores = np.arange(1.0, 20.0)[:, None]  # n = 19, one output
    known = Predictive(np.zeros((19, 1)), np.ones((19, 1)))
    found = fit_conformal(known, scores, [0.5, 0.9, 0.95])
    np.testing.assert_array_equal(found.quantiles[:, 0], [10, 18, 19])
    with pytest.raises(ValueError, match="at least 24 held-out examples, not 19"):
        fit_conformal(known, scores, [0.96])


@pytest.mark.parametrize("per_output", [True, False])
def test_conformal_covers_at_least_its_level_whatever_the_model(per_output):
    """Heavy tails, wrong spreads, outputs of an example that move together, and only 19 held-out examples.

    Mean coverage over many repetitions is compared: conformal's guarantee is about that, and is sharp here, so that a
    plain quantile of the scores, which covers 1 in n + 1 less, fails.
    """
    rng = np.random.default_rng(0)
    levels = np.array([0.5, 0.9])
    rates, plain = [], []
    for _ in range(1_500):
        spread = np.array([[0.2, 1.0, 5.0]]) * np.ones((60, 1))
        common = rng.standard_t(3, size=(60, 1))
        targets = (0.8 * common + 0.6 * rng.standard_t(3, size=(60, 3))) * np.array([[1.0, 2.0, 0.5]])
        seen = Predictive(np.zeros((19, 3)), spread[:19])
        unseen = Predictive(np.zeros((41, 3)), spread[19:])
        found = fit_conformal(seen, targets[:19], levels, per_output=per_output)
        rates.append(coverage(found.intervals(unseen), targets[19:]))
        scores = np.abs(targets) / spread
        axis = 0 if per_output else None
        quantiles = np.stack([np.quantile(scores[:19], level, axis=axis) for level in levels])
        plain.append([np.mean(scores[19:] <= q) for q in quantiles])
    error = np.std(rates, axis=0) / np.sqrt(len(rates))
    assert np.all(np.mean(rates, axis=0) > levels - 3 * error)
    assert np.all(np.mean(rates, axis=0) < levels + 1 / 20 + 3 * error), "wider than it need be"
    assert np.mean(plain, axis=0)[1] < 0.9 - 5 * error[1], "this test could not tell a plain quantile"


def test_recalibration_before_and_after():
    predictive, targets = forecast(scale=0.4, examples=1_000)
    found = recalibrate(predictive, targets)
    assert found.temperature.scale == pytest.approx(0.4, rel=0.05)
    assert found.before.calibration_error > 0.15
    for after in (found.after_temperature, found.after_conformal):
        assert after.calibration_error < 0.03
        assert np.all(after.width < 0.5 * found.before.width)
    assert found.after_temperature.nll < found.before.nll
    assert found.after_temperature.crps < found.before.crps
    assert found.after_conformal.nll is None


def test_recalibration_checks_on_examples_it_did_not_fit():
    """With spreads fitted and checked on the same 20 examples, pooled coverage would be exact."""
    predictive, targets = forecast(examples=40, outputs=1)
    half = recalibrate(predictive, targets, [0.5])
    rows = np.random.default_rng(0).permutation(40)[:20]
    same = Predictive(predictive.mean[rows], predictive.std[rows])
    assert assess_intervals(half.conformal.intervals(same), targets[rows]).coverage == pytest.approx(11 / 20)


def test_figure_shows_every_curve():
    predictive, targets = forecast(scale=2.0)
    found = recalibrate(predictive, targets)
    figure = draw_reliability({"before": found.before, "temperature": found.after_temperature}, examples=200)
    left, right = figure.axes
    curves = {line.get_label(): line for line in left.lines}
    np.testing.assert_allclose(
        curves[next(n for n in curves if n.startswith("before"))].get_ydata(), found.before.coverage
    )
    assert len(right.lines) == 2
    with pytest.raises(ValueError, match="assessments"):
        draw_reliability({})


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda p, y: assess(p, y[:3]), "targets: shape"),
        (lambda p, y: assess(p._replace(std=0 * p.std), y), "standard deviation is zero"),
        (lambda p, y: assess(p, y, [0.5, 1.0]), "levels"),
        (lambda p, y: summarise(y), "draws: shape"),
        (lambda p, y: summarise(np.full((3, 2, 2), np.nan)), "not finite"),
        (lambda p, y: summarise(np.zeros((3, 2, 2)), noise=-1.0), "noise"),
        (lambda p, y: draw_intervals(np.zeros((18, 2, 2)), 0.9), "at least 19 draws, not 18"),
        (lambda p, y: recalibrate(p, y, share=1.0), "share"),
        (lambda p, y: fit_temperature(p, p.mean), "temperature 0"),
        (lambda p, y: crps(np.zeros((1, 2, 2)), np.zeros((2, 2))), "at least 2"),
    ],
)
def test_bad_input_is_named(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call(*forecast(examples=20))
