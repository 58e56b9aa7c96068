"""The classifier: probabilities, class weights, methods, saving, and what it refuses."""

import numpy as np
import pytest
from tests.neural.fits import blobs

import ridgewalk as rw
from ridgewalk.neural.assessment import assess_classes, draw_class_reliability
from ridgewalk.neural.conformal import Correction, fit_class_temperature, powered
from ridgewalk.neural.io import ABOUT, ARRAYS, ModelError

SMALL = {
    "hidden": (4,),
    "optimiser_steps": 150,
    "learning_rate": 0.05,
    "steps": 40,
    "burn_in": 20,
    "draws": 10,
    "chains": 2,
    "step_size": 1e-3,
    "sampler": "sgld",
}


def small(**settings):
    return rw.NeuralClassifier(**{**SMALL, **settings})


@pytest.fixture(scope="module")
def fitted():
    return small().fit(*blobs())


def test_probabilities(fitted):
    x, y = blobs(seed=1)
    chances = fitted.predict_proba(x)
    assert chances.shape == (80, 3)
    np.testing.assert_allclose(chances.sum(1), 1)
    assert list(fitted.classes_) == ["cat", "dog", "eel"]
    assert fitted.score(x, y) > 0.8
    np.testing.assert_array_equal(fitted.predict(x), fitted.classes_[chances.argmax(1)])
    found = fitted.evaluate(x, y)
    assert found.accuracy == pytest.approx(fitted.score(x, y))
    assert found.nll == pytest.approx(-fitted.log_density(x, y).mean())
    assert found.nll < 0.6
    with pytest.raises(ValueError, match="label 'cow' of row 0 was not among"):
        fitted.evaluate(x, ["cow"] * 80)


def test_two_classes_have_one_logit_and_weights_move_the_border():
    x, names = blobs(60, classes=2)
    y = (names == "dog").astype(int)
    plain = small().fit(x, y)
    assert plain.draws_["network"].layers[-1].weight.shape[-1] == 1
    assert plain.predict(x).dtype == y.dtype
    heavier = small(class_weight={0: 1.0, 1: 8.0}).fit(x, y)
    assert heavier.predict_proba(x)[:, 1].mean() > plain.predict_proba(x)[:, 1].mean() + 0.02
    balanced = small(class_weight="balanced").fit(x, y)
    assert np.all(np.isfinite(balanced.predict_proba(x)))


@pytest.mark.parametrize(
    "method",
    ["ensemble", pytest.param("laplace", marks=pytest.mark.slow), pytest.param("swag", marks=pytest.mark.slow)],
)
def test_methods(method):
    x, y = blobs()
    model = small(method=method).fit(x, y)
    assert model.score(x, y) > 0.8
    assert model.report_.method == method


@pytest.mark.slow
def test_images_go_through_convolutions():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4, 4))
    y = (x[:, :2].mean((1, 2)) > x[:, 2:].mean((1, 2))).astype(int)
    model = small(network="conv:3", hidden=None, optimiser_steps=300).fit(x, y)
    assert model.score(x, y) > 0.8
    assert model.predict_proba(x[:3]).shape == (3, 2)


def test_a_saved_classifier(fitted, tmp_path):
    x, _ = blobs(seed=1)
    fitted.save(tmp_path / "model")
    again = rw.NeuralClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    assert again.get_params() == fitted.get_params()
    assert str(again.report_) == str(fitted.report_)
    with pytest.raises(ModelError, match=r"holds a NeuralClassifier; load it with NeuralClassifier\.load"):
        rw.NeuralRegressor.load(tmp_path / "model")
    content = bytearray((tmp_path / "model" / ARRAYS).read_bytes())
    content[-2] ^= 1
    (tmp_path / "model" / ARRAYS).write_bytes(content)
    with pytest.raises(ModelError, match="checksum"):
        rw.NeuralClassifier.load(tmp_path / "model")
    about = (tmp_path / "model" / ABOUT).read_text()
    (tmp_path / "model" / ABOUT).write_text(about.replace('"cat"', '"cow"'))
    with pytest.raises(ModelError, match=r"checksum of model.json"):
        rw.NeuralClassifier.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"class_weight": "fair"}, "class_weight: 'fair'"),
        ({"prior": 0}, "prior: 0"),
        ({"steps": 1}, "steps: 1"),
        ({"recalibration": "conformal"}, "recalibration"),
    ],
)
def test_bad_settings(settings, match):
    with pytest.raises(ValueError, match=match):
        small(**settings).fit(*blobs())


def test_bad_labels():
    x, _ = blobs()
    with pytest.raises(ValueError, match="one class"):
        small().fit(x, np.zeros(80))
    with pytest.raises(ValueError, match="Unknown label type"):
        small().fit(x, np.linspace(0, 1, 80))


def test_scores_of_probabilities_by_hand():
    chances = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.65, 0.35]])
    found = assess_classes(chances, [0, 1, 1, 0], bins=10)
    assert found.accuracy == 0.75
    assert found.nll == pytest.approx(-np.log([0.9, 0.4, 0.8, 0.65]).mean())
    # Bins of 0.9, of 0.6 and 0.65 (half of them right), and of 0.8.
    assert found.ece == pytest.approx((0.1 + 2 * abs(0.5 - 0.625) + 0.2) / 4)
    assert found.brier == pytest.approx(np.mean([0.02, 0.72, 0.08, 0.245]))
    assert len(draw_class_reliability({"one": found}).axes) == 1
    for bad, codes, words in (
        (chances, [0, 1], "does not fit"),
        (chances, [0, 1, 2, 0], "between 0 and 1, got 0 to 2"),
        (2 * chances, [0, 1, 1, 0], "sum to 1"),
    ):
        with pytest.raises(ValueError, match=words):
            assess_classes(bad, codes)


def test_the_temperature_of_probabilities_that_are_off_by_a_known_power():
    """Labels drawn from p; given p² (normalised) or its root, the power is undone."""
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.ones(3), size=4_000)
    codes = (rng.uniform(size=(4_000, 1)) > np.cumsum(true, axis=1)).sum(axis=1)
    for power in (0.5, 2.0):
        given = powered(true, 1 / power)
        found = fit_class_temperature(given, codes, np.ones(4_000))
        assert found.temperature == pytest.approx(power, rel=0.06)
        assert found.gain > 4 * found.error
        again = fit_class_temperature(powered(given, found.temperature), codes, np.ones(4_000))
        assert again.temperature == pytest.approx(1, abs=0.01)
    right = fit_class_temperature(true, codes, np.ones(4_000))
    assert right.temperature == pytest.approx(1, abs=0.06)
    assert right.gain <= 2 * right.error + 1e-3


def test_recalibrated_probabilities(fitted, tmp_path):
    x, y = blobs(seed=1)
    assert "leave-one-out estimates: mean log probability of a label" in str(fitted.report_)
    same = small(recalibration="none").fit(*blobs())
    raw = same.predict_proba(x)
    assert "not recalibrated" in str(same.report_)
    always = small(recalibration="temperature").fit(*blobs())
    assert always.report_.scale != 1
    np.testing.assert_allclose(always.predict_proba(x), powered(raw, always.report_.scale), rtol=1e-6)
    assert f"temperature {always.report_.scale:.3f} of the probabilities" in str(always.report_)
    np.testing.assert_array_equal(always.predict(x), same.predict(x), "the order of the classes stays")
    assert always.evaluate(x, y).nll == pytest.approx(-always.log_density(x, y).mean())
    always.save(tmp_path / "model")
    again = rw.NeuralClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(x), always.predict_proba(x))
    assert again._fitted.correction.kind == "temperature"
    assert isinstance(again._fitted.correction, Correction)
