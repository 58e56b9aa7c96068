"""The estimator's habits: shapes, scales, seeds, saving, and errors that say what to do."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.neural.fits import tiny, waves

import ridgewalk as rw
from ridgewalk.neural import fit, optimiser
from ridgewalk.neural.estimator import network_of
from ridgewalk.neural.io import ABOUT, ARRAYS, ModelError
from ridgewalk.neural.networks import FunctionNetwork, mlp
from ridgewalk.neural.posterior import fit_inputs, fit_outputs


@pytest.fixture(scope="module")
def data():
    return waves()


@pytest.fixture(scope="module")
def fitted(data):
    return tiny().fit(*data)


def test_scales_constants_and_noise(data, fitted):
    """Outputs eighteen orders of magnitude apart are learnt alike, and a constant one is given back exactly."""
    x, y = data
    mean, std = fitted.predict(x, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert np.all(mean[:, 2] == 0.1)
    assert np.all(std[:, 2] == 0)
    errors = np.sqrt(np.mean((mean - y) ** 2, axis=0))[:2] / y.std(0)[:2]
    assert np.all(errors < 0.6)
    assert np.all(np.mean(std, axis=0)[:2] < 3 * y.std(0)[:2])
    lower, upper = fitted.predict_interval(x, 0.8)
    wider = fitted.predict_interval(x, 0.99)  # more than the 12 examples held out allow: Gaussian, by the temperature
    assert np.all((lower <= mean) & (mean <= upper))
    assert np.all((wider[0] <= lower) & (upper <= wider[1]))
    assert fitted.report_.constant_outputs == 1
    for word in ("optimiser", "sampling", "step size", "effective sample size", "chain 1: finished", "before", "after"):
        assert word in str(fitted.report_)


def test_scaling_is_by_entry_for_vectors_and_by_field_for_fields():
    rng = np.random.default_rng(0)
    vectors = fit_inputs(rng.normal(size=(50, 3)) * np.array([1e-20, 1.0, 1e20]))
    np.testing.assert_allclose(vectors.scale, [1e-20, 1, 1e20], rtol=0.5)
    assert fit_inputs(rng.normal(size=(50, 4, 4))).scale.shape == (1, 1)
    channels = fit_inputs(rng.normal(size=(50, 4, 4, 2)) * np.array([1.0, 1e6]))
    np.testing.assert_allclose(channels.scale, [[[1, 1e6]]], rtol=0.2)
    outputs = rng.normal(size=(50, 2)) * np.array([1.0, 3.0])
    together = fit_outputs(outputs, "together")
    assert together.scale[0] == together.scale[1] == pytest.approx(np.sqrt(np.mean(outputs.var(0))))
    each = fit_outputs(outputs, "each")
    np.testing.assert_allclose(each.mean(each.forward(outputs)), outputs, rtol=1e-12)
    with pytest.raises(ValueError, match="nothing to learn"):
        fit_outputs(np.ones((5, 2)), "each")


def test_the_same_seed_gives_the_same_model_and_another_does_not(data, fitted):
    x, y = data
    again = tiny(random_state=0).fit(x, y).predict(x)
    np.testing.assert_array_equal(again, fitted.predict(x))
    assert np.any(tiny(random_state=1).fit(x, y).predict(x) != again)


def test_fields_with_a_relative_error_and_a_prior_of_ones_own():
    """Fields (n, 4, 4) to fields (n, 2, 2), with the paper's loss, a network of plain functions and a tight prior."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 4, 4)) + 5
    y = np.stack([x.mean((1, 2)), x[:, 0, 0], x[:, 1, 1], x[:, 2, 3]], axis=1).reshape(40, 2, 2)
    seen = []

    def init(key, input_shape, outputs):
        return {"w": 0.1 * jax.random.normal(key, (int(np.prod(input_shape)), outputs)), "b": jnp.zeros(outputs)}

    def apply(parameters, x):
        return x.reshape(x.shape[0], -1) @ parameters["w"] + parameters["b"][None]

    def tie_the_last_output(position):
        """The weights of the last output are held at zero: only its mean is left to predict."""
        seen.append(sorted(position))
        return -0.5 * jnp.sum(position["w"][:, :3] ** 2) - 0.5e8 * jnp.sum(position["w"][:, 3] ** 2)

    model = tiny(
        network=FunctionNetwork(init, apply),
        prior=tie_the_last_output,
        likelihood="relative_l2",
        recalibration="temperature",
        optimiser_steps=500,
        step_size="auto",
    ).fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert seen[0] == ["b", "w"]
    assert mean.shape == std.shape == (40, 2, 2)
    errors = np.sqrt(np.mean((mean - y) ** 2, axis=0)) / y.std(0)
    assert np.all(errors.reshape(-1)[:3] < 0.2)
    assert errors[1, 1] > 0.9
    assert np.all(std > 0)
    assert model.report_.noise is None
    with pytest.raises(ValueError, match="row 3 is zero everywhere"):
        model.fit(x, np.where(np.arange(40)[:, None, None] == 3, 0, y))
    with pytest.raises(ValueError, match=r"shape \(4, 5\).*\(4, 4\)"):
        model.predict(np.ones((2, 4, 5)))


def test_pipeline_clone_and_cross_validation(data, fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "report_")
    x, y = (np.concatenate(parts) for parts in zip(data, waves(seed=1), strict=True))
    scores = cross_val_score(make_pipeline(StandardScaler(), copy), x, y, cv=2)
    assert np.all(scores > 0.5)


def test_a_saved_model_predicts_the_same(data, fitted, tmp_path):
    x, path = data[0], tmp_path / "model"
    fitted.save(path)
    loaded = rw.NeuralRegressor.load(path, network=fitted.network)
    for one, other in zip(fitted.predict(x, return_std=True), loaded.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(fitted.predict_interval(x, 0.8), loaded.predict_interval(x, 0.8), strict=True):
        np.testing.assert_array_equal(one, other)
    assert str(loaded.report_) == str(fitted.report_)
    assert loaded.get_params() == fitted.get_params()
    with pytest.raises(ValueError, match="exists; choose another name"):
        fitted.save(path)
    fitted.save(path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="not overwritten"):
        fitted.save(tmp_path / "other", overwrite=True)


def test_files_that_were_changed_are_refused(fitted, tmp_path):
    path, network = tmp_path / "model", fitted.network
    fitted.save(path)
    arrays, about = (path / ARRAYS).read_bytes(), (path / ABOUT).read_text()

    def refused(match, network=network):
        with pytest.raises(ModelError, match=match):
            rw.NeuralRegressor.load(path, network=network)

    refused("pass it again", network=None)
    refused(r"the network has network.layers.0.weight \[3, 9\]", network=mlp(hidden=(9,)))
    refused(r"network.layers.1.weight \[50, 50\]", network=mlp(hidden=(50, 50)))
    flipped = bytearray(arrays)
    flipped[-3] ^= 1
    for content in (bytes(flipped), arrays[:-10], b""):
        (path / ARRAYS).write_bytes(content)
        refused("checksum of model.safetensors|truncated or damaged")
    (path / ARRAYS).unlink()
    refused("cannot be read")
    (path / ARRAYS).write_bytes(arrays)
    changes = [
        (re.sub('"scale": [0-9.]+', '"scale": 0.001', about), "checksum of model.json"),
        (json.dumps(json.loads(about) | {"format_version": 2}), "upgrade ridgewalk"),
        (json.dumps(json.loads(about) | {"format": "other"}), "is 'other', not"),
        (about[:100], "damaged"),
        ("[]", "damaged"),
    ]
    for content, match in changes:
        (path / ABOUT).write_text(content)
        refused(match)
    with pytest.raises(ModelError, match="does not exist"):
        rw.NeuralRegressor.load(tmp_path / "nothing")
    (path / ABOUT).write_text(about)
    loaded = rw.NeuralRegressor.load(path, network=network)
    assert loaded.report_.draws == fitted.report_.draws


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"network": "resnet"}, "network: 'resnet' is unknown; use one of 'conv', 'mlp'"),
        ({"network": "mlp:0x3"}, "empty layer"),
        ({"network": "mlp:a"}, "write them as 64x64"),
        ({"network": "mlp:3:sin"}, "activation 'sin' is unknown"),
        ({"network": "mlp:3", "hidden": (4,)}, "both give the hidden layers"),
        ({"hidden": (4,)}, "hidden: .* has its own sizes"),
        ({"network": "mlp", "hidden": "wide"}, "hidden: 'wide'"),
        ({"network": "source", "hidden": (4,)}, "hidden: .*'source', which has its own sizes"),
        ({"method": "guess"}, "method: 'guess'"),
        ({"method": "laplace", "likelihood": "relative_l2"}, "needs a normalised likelihood"),
        ({"method": "swag", "sparsity": 0.5}, "not by 'swag'"),
        ({"noise": "much"}, "noise: 'much'"),
        ({"r_hat": -1.0}, "r_hat: -1.0"),
        ({"max_time": 0}, "max_time: 0"),
        ({"batch_size": "big"}, "batch_size: 'big'.*or 'auto'"),
        ({"network": 3}, "network: int is not a Network"),
        ({"sampler": "nuts"}, "sampler: 'nuts' is unknown"),
        ({"sampler": rw.sgld}, "call it"),
        ({"likelihood": "poisson"}, "likelihood: 'poisson'"),
        ({"recalibration": None}, "recalibration: None"),
        ({"dtype": "int8"}, "dtype: 'int8'"),
        ({"prior": -1.0}, "prior: -1.0"),
        ({"prior": "wide"}, "prior: 'wide'"),
        ({"step_size": "big"}, "step_size: 'big'.*or 'auto'"),
        ({"holdout": 1.0}, "holdout: 1.0"),
        ({"holdout": 0.99}, "leaves fewer than 2 of 60"),
        ({"draws": 1000}, "draws: 1000 do not fit"),
        ({"steps": 0}, "steps: 0"),
        ({"random_state": "x"}, "random_state: 'x'"),
        ({"random_state": None, "checkpoint": "somewhere"}, "random_state: a fit with a checkpoint"),
        ({"checkpoint_every": "often"}, "checkpoint_every: 'often'"),
    ],
)
def test_bad_settings(data, settings, match):
    with pytest.raises(ValueError, match=match):
        tiny(**settings).fit(*data)


def test_bad_data(data):
    x, y = data
    bad = x.copy()
    bad[[4, 17], 0] = np.nan
    with pytest.raises(ValueError, match=r"X: contains NaN or infinity in 2 of 60 rows \(4, 17; the first is 0\)"):
        tiny().fit(bad, y)
    with pytest.raises(ValueError, match="y: contains NaN"):
        tiny().fit(x, np.full_like(y, np.inf))
    with pytest.raises(ValueError, match="nothing to learn"):
        tiny().fit(x, np.ones(60))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        tiny().fit(x, y[:-1])


def test_a_fit_that_stops_goes_on_bit_for_bit(data, tmp_path, monkeypatch):
    """Stopped in the optimiser phase and in the sampling; other settings are refused."""
    x, y = data
    settings = {"checkpoint_every": 20, "checkpoint": tmp_path / "fit"}
    whole = tiny(**settings | {"checkpoint": tmp_path / "whole"}).fit(x, y).predict(x)

    class Killed(Exception):
        pass

    advance, calls = optimiser.advance_steps, []

    def dying(*arguments, **options):
        calls.append(1)
        if len(calls) > 9:
            raise Killed
        return advance(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(optimiser, "advance_steps", dying)
        with pytest.raises(Killed):
            tiny(**settings).fit(x, y)
    with pytest.raises(ValueError, match="begun with other settings"):
        tiny(**settings, learning_rate=0.1).fit(x, y)
    with monkeypatch.context() as patch:
        patch.setattr(fit, "sample", lambda *a, **o: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            tiny(**settings).fit(x, y)
    with monkeypatch.context() as patch:
        patch.setattr(optimiser, "advance_steps", None)  # the optimiser phase is over: it is not done again
        np.testing.assert_array_equal(tiny(**settings).fit(x, y).predict(x), whole)


@pytest.fixture(scope="module")
def line():
    """A straight line with noise 0.3, and its exact posterior predictive distribution."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(50, 2))
    return x, x @ np.array([1.0, -0.5]) + 0.3 * rng.normal(size=50)


LINE = {"hidden": (3,), "optimiser_steps": 150, "steps": 400, "burn_in": 150, "draws": 40, "chains": 2}


@pytest.fixture(scope="module")
def sampled(line):
    return rw.NeuralRegressor(**LINE).fit(*line)


def test_warm_up_and_leave_one_out(line, sampled):
    x, y = line
    report = sampled.report_
    assert report.data_weight == 1
    assert report.held_out == 0
    assert report.examples == 50
    assert "no more steps were asked for" in report.ending or "is at most 1.1" in report.ending
    assert report.gain is None, "all rows were learnt from: nothing is known of the modes"
    for word in ("leave-one-out estimates: log density", "of the raw intervals", "sampling ended after 400 steps"):
        assert word in str(report)
    stated = float(str(report).split("log density of an example ")[1].split(",")[0])
    assert stated == pytest.approx(-0.5 - np.log(0.3) - 0.5 * np.log(2 * np.pi), abs=0.35)
    densities = sampled.log_density(x, y)
    assert densities.shape == (50,)
    mean, std = sampled.predict(x, return_std=True)
    gaussian = -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(densities.mean(), gaussian.mean(), atol=0.15)
    lower, upper = sampled.predict_interval(x, 0.9)
    assert 0.8 < np.mean((lower < y) & (y < upper)) <= 1.0
    np.testing.assert_allclose((upper - lower).mean(), 2 * 1.645 * std.mean(), rtol=0.1)
    with pytest.raises(ValueError, match="does not fit predictions"):
        sampled.log_density(x, y[:-1])


@pytest.mark.parametrize(
    "method", ["ensemble", *(pytest.param(name, marks=pytest.mark.slow) for name in ("laplace", "swag"))]
)
def test_other_methods_have_the_same_interface(line, method, tmp_path):
    x, y = line
    model = rw.NeuralRegressor(**{**LINE, "method": method}).fit(x, y)
    assert model.report_.draws == (2 if method == "ensemble" else 40)
    assert model.score(x, y) > 0.8
    mean, std = model.predict(x, return_std=True)
    lower, upper = model.predict_interval(x)
    assert np.all((lower < upper) & (std > 0))
    assert method in str(model.report_)
    model.save(tmp_path / "model")
    again = rw.NeuralRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(x), mean)
    np.testing.assert_array_equal(again.log_density(x, y), model.log_density(x, y))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"likelihood": "gaussian"}, {"noise": "input"}],
)
def test_other_noise(line, settings):
    x, y = line
    given = {**LINE, **settings, "step_size": 1e-5, "steps": 40, "burn_in": 20, "recalibration": "none"}
    model = rw.NeuralRegressor(**given).fit(x, y)
    assert model.score(x, y) > 0.8
    assert np.isfinite(model.log_density(x, y)).all()
    assert ("log_tail" in model.draws_) == ("likelihood" not in settings)


@pytest.mark.slow
def test_scores_of_rows_left_out_of_each_chain(line):
    """Recalibration without holding out: every row has a score of the chain that did not learn from it."""
    x, y = line
    given = {**LINE, "step_size": 1e-5, "steps": 40, "burn_in": 20, "recalibration": "conformal"}
    model = rw.NeuralRegressor(**given).fit(x, y)
    assert model.report_.held_out == 0
    assert model._fitted.correction.scores.shape == (50, 1)
    assert "rows left out" in str(model.report_)
    assert model.report_.gain.how == "on rows left out of each chain"
    assert model.report_.draws == 40
    with pytest.raises(ValueError, match=r"chains=1 leaves no row to learn from.*holdout=0\.2"):
        model.set_params(chains=1, draws=20).fit(x, y)


def test_max_time_ends_the_sampling(line, monkeypatch):
    x, y = line
    with pytest.raises(fit.FitError, match=r"max_time: 1e-06 s were over after .* in the burn-in"):
        rw.NeuralRegressor(**LINE, max_time=1e-6).fit(x, y)


def test_names_stand_for_sizes():
    network = network_of("mlp:5x4:relu")
    assert network is network_of("mlp:5x4:relu"), "fits share compiled programs"
    model = network.build((3,), 2)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert [layer.weight.shape for layer in shapes.layers] == [(3, 5), (5, 4), (4, 2)]
    assert [layer.weight.shape for layer in _shapes("mlp", (7,))] == [(3, 7), (7, 2)]
    assert [layer.weight.shape for layer in _shapes("mlp", None)] == [(3, 50), (50, 2)]
    images = jax.eval_shape(network_of("conv:2x3").build((8, 8), 4).init, jax.random.key(0))
    assert [layer.weight.shape for layer in images.convolutions] == [(3, 3, 1, 2), (3, 3, 2, 3)]
    assert images.dense[0].weight.shape == (12, 4)


def _shapes(name, hidden):
    return jax.eval_shape(network_of(name, hidden).build((3,), 2).init, jax.random.key(0)).layers


@pytest.mark.slow
def test_large_networks_have_a_cold_posterior():
    """More weights than 32,768: at temperature 1 chains of few steps forget what the optimiser learnt."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (300, 2))
    y = np.sin(2 * x[:, 0]) * x[:, 1] + 0.1 * rng.normal(size=300)
    model = rw.NeuralRegressor("mlp:190x180", optimiser_steps=1_000, steps=200, burn_in=100).fit(x[:200], y[:200])
    assert model.report_.data_weight == pytest.approx(35_131 / 160, rel=0.01)
    assert "cold posterior: likelihood to the power 220" in str(model.report_)
    assert model.score(x[200:], y[200:]) > 0.9
