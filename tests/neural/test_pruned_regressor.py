"""Regressors with pruned weights: exactly as sparse as asked, smaller on disk, and the same predictions either way."""

import numpy as np
import pytest
from tests.neural.fits import tiny, waves

import ridgewalk as rw
from ridgewalk.neural import sparse_matmul as matmul
from ridgewalk.neural.compression import PrunedNetworks
from ridgewalk.neural.predictive import predict_scaled

SPARSITY = 0.7


@pytest.fixture(scope="module")
def pruned():
    return tiny(network="mlp", sparsity=SPARSITY).fit(*waves())


def test_every_draw_is_as_sparse_as_asked(pruned):
    matrices = [leaf for leaf in pruned._fitted.draws if leaf.ndim > 2]
    zeros = sum(np.sum(leaf == 0, axis=(1, 2)) for leaf in matrices)
    np.testing.assert_array_equal(zeros, round(SPARSITY * sum(leaf[0].size for leaf in matrices)))
    assert all(np.all(leaf != 0) for leaf in pruned._fitted.draws if leaf.ndim == 2), "biases and noise are left alone"


def test_sparse_products_predict_what_dense_ones_do(pruned, monkeypatch):
    monkeypatch.setattr(matmul, "START", -1e6)  # so small a network would not gain
    monkeypatch.setattr(pruned, "_pruned", PrunedNetworks())
    x = waves(seed=1)[0][:1]
    spec, scaled = pruned._spec(pruned._fitted), pruned._fitted.inputs.forward(x).astype("float32")
    sparse = pruned._pruned.predict(spec, pruned.draws_, scaled)
    assert sparse is not None, "one example is where sparse products win"
    dense = predict_scaled(spec, pruned.draws_, scaled)
    np.testing.assert_allclose(sparse.mean, dense.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sparse.std, dense.std, rtol=1e-4)
    np.testing.assert_allclose(pruned.predict(x)[0], pruned.predict(np.repeat(x, 200, axis=0))[0], rtol=1e-4, atol=1e-5)


def test_a_pruned_model_is_small_on_disk_and_comes_back_whole(pruned, tmp_path):
    pruned.save(tmp_path / "model")
    again = rw.NeuralRegressor.load(tmp_path / "model")
    for one, other in zip(pruned._fitted.draws, again._fitted.draws, strict=True):
        np.testing.assert_array_equal(one, other)
    size = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert size < 0.7 * sum(leaf.nbytes for leaf in pruned._fitted.draws)  # biases and headers weigh in tiny networks
    x = waves(seed=1)[0]
    np.testing.assert_array_equal(pruned.predict(x[:1]), again.predict(x[:1]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sparsity": 1.0}, "sparsity: 1.0"),
        ({"sparsity": "much"}, "sparsity: 'much'"),
        ({"sparsity": 0.5, "burn_in": 1}, "burn_in: 1"),
        ({"sparsity": 0.5, "sampler": rw.pruned(rw.sgld(), 0.5, stop=4)}, "pruned already"),
    ],
)
def test_bad_input(settings, words):
    with pytest.raises(ValueError, match=words):
        tiny(**settings).fit(*waves())
