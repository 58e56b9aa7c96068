"""`Result.predict`: functions of all draws, in blocks of draws and batches of data."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.sampling.problems import run

import ridgewalk as rw
from ridgewalk.diagnostics import draw_access

X = np.linspace(-1, 1, 11 * 3).reshape(11, 3)


def line(position, x):
    return x @ position


def moments(position, x):
    values = x @ position
    return {"values": values, "both": jnp.stack([values, values**2], axis=1)}


@pytest.fixture(scope="module", name="result")
def _result():
    return run(chains=3, steps=23)


@pytest.mark.parametrize("numbers", [1, 40, 2**24])
@pytest.mark.parametrize("batch", [None, 1, 4, 11, 50])
def test_values_are_those_of_a_double_vmap(result, monkeypatch, numbers, batch):
    monkeypatch.setattr(draw_access, "MAX_BLOCK_NUMBERS", numbers)
    found = result.predict(moments, X, batch=batch)
    expected = jax.vmap(jax.vmap(lambda position: moments(position, X)))(jnp.asarray(result.positions))
    assert found["values"].shape == (3, 23, 11)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)


def test_draws_and_data_on_disk(tmp_path, result, monkeypatch):
    monkeypatch.setattr(draw_access, "MAX_BLOCK_NUMBERS", 60)
    run(chains=3, steps=23, store=tmp_path / "s")
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    opened = rw.open_result(tmp_path / "s")
    for batch in (None, 4):
        np.testing.assert_allclose(opened.predict(line, mapped, batch=batch), result.predict(line, X), rtol=1e-12)


def test_draws_are_not_in_memory_at_once(tmp_path, monkeypatch):
    """No more of a store is read at a time than a block takes."""
    monkeypatch.setattr(draw_access, "MAX_BLOCK_NUMBERS", 5 * (3 + 11))
    stored, lengths = run(chains=3, steps=23, store=tmp_path / "s"), []
    read = type(stored.positions).__getitem__

    def noted(array, selection):
        values = read(array, selection)
        lengths.append(values.shape[0])
        return values

    monkeypatch.setattr(type(stored.positions), "__getitem__", noted)
    stored.predict(line, X)
    assert lengths == [5, 5, 5, 5, 3] * 3


def test_any_value_of_all_rows(result):
    found = result.predict(lambda position, x: jnp.sum(x @ position), X)
    np.testing.assert_allclose(found, result.predict(line, X).sum(axis=2))
    scaled = result.predict(lambda position, data: data["x"] @ position * data["scale"], {"x": X, "scale": 2.0})
    np.testing.assert_allclose(scaled, 2 * result.predict(line, X))


def test_functions_that_hold_arrays(result):
    found = result.predict(functools.partial(lambda shift, position, x: line(position, x) + shift, np.ones(11)), X)
    other = result.predict(jax.tree_util.Partial(lambda shift, p, x: line(p, x) + shift, jnp.ones(11)), X)
    np.testing.assert_allclose(found, result.predict(line, X) + 1)
    np.testing.assert_array_equal(found, other)


def test_chains_that_diverged_are_left_out(result):
    gone = rw.ChainStatus("diverged", 3, "a cause", "a hint")
    part = dataclasses.replace(result, status=(result.status[0], gone, result.status[2]))
    np.testing.assert_array_equal(part.predict(line, X), result.predict(line, X)[[0, 2]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, X), "function: 3 is not a function"),
        ((line, X, 0), "batch: 0 "),
        ((lambda position, x: jnp.sum(x), X, 4), "batch: for 4 rows the function returned shape"),
        ((moments, {"x": X, "y": X[:5]}, 4), "new_data: leading axes .* cannot be split"),
        ((line, X[:0], 4), "new_data: it has 0 rows"),
    ],
)
def test_bad_input(result, arguments, message):
    function, data, *batch = arguments
    with pytest.raises(ValueError, match=message):
        result.predict(function, data, batch=batch[0] if batch else None)


def test_a_run_without_draws_is_refused():
    with pytest.raises(ValueError, match="positions: predict needs the draws"):
        run(keep="moments").predict(line, X)
