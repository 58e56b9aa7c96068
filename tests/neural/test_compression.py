"""Pruned networks in sparse form: the same predictions, less room, and files that are checked."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw
from ridgewalk.neural import sparse_matmul as matmul
from ridgewalk.neural.compression import pack
from ridgewalk.neural.networks import EquinoxNetwork, FunctionNetwork, permeability_network, source_network
from ridgewalk.neural.sparse_matmul import SparseMatrix, can_expand, pattern, wins

RNG = np.random.default_rng(0)


def prune(parameters, share=0.7, draws=None):
    """Matrices with that share of zeros, the same in all draws."""

    def one(leaf):
        kept = RNG.random(leaf.shape) >= share if leaf.ndim > 1 else np.ones(leaf.shape, bool)
        count = () if draws is None else (draws,)
        return np.where(kept, RNG.normal(size=(*count, *leaf.shape)), 0).astype(np.float32)

    return jax.tree.map(one, parameters)


def small_permeability():
    network = permeability_network(first_channels=(3, 2), later_channels=(2, 3), hidden=40, coarse=(4, 5))
    return network.build((8, 10), 30)


def vmapped_mlp():
    """One example at a time, the matrix on the left."""

    def make(shape, size, *, key):
        return eqx.nn.MLP(shape[0], size, 33, 2, key=key)

    return EquinoxNetwork(make).build((7,), 4)


def twice_used():
    """A matrix that is also used otherwise, and a product inside a loop, stay with JAX."""

    def init(key, shape, size):
        return {"a": jnp.ones((shape[0], 5)), "b": jnp.ones((5, 5)), "c": jnp.ones((5, size))}

    def apply(p, x):
        hidden = jax.lax.fori_loop(0, 2, lambda _, h: jnp.tanh(h @ p["b"]), jax.jit(jnp.tanh)(x @ p["a"]))
        return hidden @ p["c"] + jnp.sum(p["a"])

    return FunctionNetwork(init, apply).build((6,), 3)


MODELS = {
    "permeability": (small_permeability, (8, 10), 3),
    "vmapped": (vmapped_mlp, (7,), 3),
    "twice used": (twice_used, (6,), 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_those_of_the_model(name, monkeypatch):
    product, made = SparseMatrix.product, []
    monkeypatch.setattr(SparseMatrix, "product", lambda self, x: made.append(1) or product(self, x))
    build, shape, products = MODELS[name]
    model = build()
    parameters = prune(jax.eval_shape(model.init, jax.random.key(0)))
    compressed = rw.compress(model, parameters)
    for examples in (1,) if name == "permeability" else (1, 5):
        x = RNG.normal(size=(examples, *shape)).astype(np.float32)
        expected = jax.jit(model.apply)(parameters, x)
        made.clear()
        found = compressed.predict(x, sparse=True)
        assert len(made) == products
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-4 * np.abs(expected).max())
        np.testing.assert_array_equal(compressed.predict(x, sparse=False), expected)
        assert len(made) == products


def test_every_draw_is_predicted_and_the_mask_is_stored_once(tmp_path):
    model = source_network(later_channels=(2,), hidden=30, coarse=(3, 3)).build((8, 8), 20)
    draws = prune(jax.eval_shape(model.init, jax.random.key(0)), draws=4)
    compressed = rw.compress(model, draws)
    x = RNG.normal(size=(1, 8, 8)).astype(np.float32)
    expected = jax.vmap(model.apply, in_axes=(0, None))(draws, x)
    np.testing.assert_allclose(compressed.predict(x), expected, rtol=1e-4, atol=1e-4)
    one = rw.compress(model, jax.tree.map(lambda leaf: leaf[0], draws))
    assert one.predict(x).shape == (1, 20)
    bits = sum(array.bits.nbytes for array in one.arrays)
    assert compressed.nbytes == 4 * (one.nbytes - bits) + bits
    path = tmp_path / "model.safetensors"
    for saved in (compressed, one, rw.compress(model, jax.tree.map(lambda leaf: leaf[:1], draws))):
        saved.save(path)
        loaded = rw.CompressedModel.load(path, model)
        np.testing.assert_array_equal(loaded.predict(x), saved.predict(x))


def test_size_is_the_kept_numbers_and_a_bit_each():
    draws = np.where(RNG.random((1, 100, 80)) < 0.3, 1.0, 0.0).astype(np.float32)
    packed = pack("w", draws)
    assert packed.nbytes == 4 * np.count_nonzero(draws) + 1000
    assert packed.nbytes < 0.36 * draws.nbytes
    np.testing.assert_array_equal(packed.dense(0), draws[0])
    whole = pack("b", np.ones((1, 5), np.float32))
    assert whole.nbytes == 20
    np.testing.assert_array_equal(whole.dense(0), np.ones(5))


FORMS = ["csr", "indexed", pytest.param("masked", marks=pytest.mark.skipif(not can_expand(), reason="no AVX-512"))]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(50, 9), (70_000, 3), (4, 1)])
def test_sparse_products(shape, dtype, form):
    matrix = np.where(RNG.random(shape) < 0.3, RNG.normal(size=shape), 0).astype(dtype)
    matrix[:, -1] = 0
    mask = matrix != 0
    sparse = pattern(mask, 0, dtype, form).matrix(matrix[mask])
    if form == "indexed":
        assert sparse.places.dtype == (np.uint16 if shape[0] <= 2**16 else np.uint32)
    assert abs(sparse.density - mask.mean()) < 1e-12
    tolerance = {np.float32: 1e-5, np.float64: 1e-13}[dtype] * np.sqrt(shape[0])
    for examples in (1, 3, 7, 8, 18):
        x = RNG.normal(size=(examples, shape[0])).astype(dtype)
        np.testing.assert_allclose(sparse.product(x), x @ matrix, atol=tolerance)
    turned = pattern(np.ascontiguousarray(mask.T), 1, dtype, form).matrix(matrix.T[mask.T])
    np.testing.assert_array_equal(turned.product(x), sparse.product(x))


@pytest.mark.parametrize("form", FORMS[1:])
def test_several_cores_give_the_bits_of_one(form, monkeypatch):
    """Also for several threads at a time, of which one has the other cores."""
    shape = (700, 200)
    matrix = np.where(RNG.random(shape) < 0.3, RNG.normal(size=shape), 0).astype(np.float32)
    mask = matrix != 0
    sparse = pattern(mask, 0, np.float32, form).matrix(matrix[mask])
    x = RNG.normal(size=(9, shape[0])).astype(np.float32)
    alone = sparse.product(x)
    counts = []

    def counted(tasks):
        counts.append(len(tasks))
        together(tasks)

    together = matmul.run_together
    monkeypatch.setattr(matmul, "run_together", counted)
    monkeypatch.setattr(matmul, "WORTH_SHARING", 1)
    monkeypatch.setattr(matmul, "allowed_cores", lambda: 3)
    np.testing.assert_array_equal(sparse.product(x), alone)
    assert set(counts) == {3}
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: sparse.product(x), range(50)):
            np.testing.assert_array_equal(found, alone)


def test_work_on_several_cores(monkeypatch):
    """Errors come back, helpers are there again after one, and a fork gets helpers of its own."""
    places: list[int] = []

    def fail():
        raise RuntimeError("on another thread")

    def note():
        places.append(threading.get_ident())

    with pytest.raises(RuntimeError, match="on another thread"):
        matmul.run_together([note, fail, note])
    matmul.run_together([note, note, note])
    assert len(places) == 5
    assert len(set(places)) == 3
    # In a process that was forked, which has another number, threads are started afresh.
    monkeypatch.setattr(matmul.os, "getpid", lambda: -1)
    known = set(places)
    matmul.run_together([note, note])
    assert len(set(places) - known) == 1


def test_an_interrupted_product_leaves_nothing_to_the_next():
    """Ctrl-C while a helper works: the next call waits for its own tasks, not for those of the one before."""

    class StoppedError(Exception):
        pass

    def interrupt(number, frame):
        raise StoppedError

    ends: list[str] = []

    def slowly(name):
        time.sleep(0.3)
        ends.append(name)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(StoppedError):
            matmul.run_together([lambda: None, partial(slowly, "interrupted")])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ends == []
    matmul.run_together([lambda: None, partial(slowly, "next")])
    assert ends == ["interrupted", "next"]


def test_cores_that_are_allowed(monkeypatch):
    monkeypatch.setattr(matmul.os, "sched_getaffinity", lambda _: {0, 1, 2})
    for asked, allowed in (("1", 1), ("2,1", 2), ("8", 3), ("", 3), ("many", 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert matmul.allowed_cores() == allowed
    work = np.array([0, 10, 10, 30, 40, 80], np.uint64)
    assert matmul.bounds_of_parts(work, 2).tolist() == [0, 4, 5]
    assert matmul.bounds_of_parts(work, 1).tolist() == [0, 5]
    assert matmul.bounds_of_parts(np.zeros(3, np.uint64), 4).tolist() == [0, 0, 0, 0, 2]


def test_without_numba_products_are_those_of_scipy(monkeypatch):
    monkeypatch.setattr(matmul, "has_kernels", lambda: False)
    monkeypatch.setattr(matmul, "_kernel", None)
    matmul.can_expand.cache_clear()
    model = twice_used()
    parameters = prune(jax.eval_shape(model.init, jax.random.key(0)))
    x = RNG.normal(size=(3, 6)).astype(np.float32)
    found = rw.compress(model, parameters).predict(x, sparse=True)
    np.testing.assert_allclose(found, model.apply(parameters, x), rtol=1e-4, atol=1e-5)
    assert matmul.best_form(0.3) == "csr"
    assert wins(0.1, 1, 10**6)
    assert not wins(0.3, 1, 10**6)
    matmul.can_expand.cache_clear()


def test_what_wins_depends_on_density_examples_and_size(monkeypatch):
    many = 10**6
    assert wins(0.5, 1, many, "masked")
    assert wins(0.3, 2, many, "masked")
    assert wins(0.1, 1, many, "indexed")
    assert not wins(0.3, 4, many, "masked")
    assert not wins(0.5, 1, many, "indexed")
    assert not wins(0.1, 100, many, "indexed")
    assert not wins(0.7, 1, many, "masked")
    assert not wins(0.1, 1, 10_000)
    model = source_network(later_channels=(2,), hidden=300, coarse=(10, 10)).build((20, 20), 2_000)
    parameters = prune(jax.eval_shape(model.init, jax.random.key(0)), 0.7)
    compressed = rw.compress(model, parameters)
    monkeypatch.setattr(matmul, "can_expand", lambda: True)  # what is chosen with AVX-512, on any machine
    assert compressed.sparse_layers(1) == ("decode.weight",)
    assert compressed.sparse_layers(100) == ()


def test_files_that_do_not_fit_are_refused(tmp_path):
    model, other = vmapped_mlp(), twice_used()
    path = tmp_path / "model.safetensors"
    rw.compress(model, prune(jax.eval_shape(model.init, jax.random.key(0)))).save(path)
    with pytest.raises(ValueError, match="holds other parameters than the model has"):
        rw.CompressedModel.load(path, other)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="its checksum does not match"):
        rw.CompressedModel.load(path, model)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is not a compressed ridgewalk model, or damaged"):
        rw.CompressedModel.load(path, model)


def test_bad_parameters():
    model = twice_used()
    good = {"a": np.ones((6, 5)), "b": np.ones((5, 5)), "c": np.ones((5, 3))}
    rw.compress(model, good)
    compress = partial(rw.compress, model)
    with pytest.raises(ValueError, match=r"parameters: their arrays are a, those of model.init\(key\) are a, b, c"):
        compress({"a": np.ones((6, 5))})
    with pytest.raises(ValueError, match=r"with axes for chains and draws.* pass one chain: jax.tree.map"):
        compress(jax.tree.map(lambda leaf: np.ones((2, 3, *leaf.shape)), good))
    with pytest.raises(ValueError, match=r"model: NeuralRegressor is not a ridgewalk.Model; .*sparsity=0.7"):
        rw.compress(rw.NeuralRegressor(), good)
    with pytest.raises(ValueError, match=r"parameters: a has shape \(5, 6\); the model takes \(6, 5\)"):
        compress(good | {"a": np.ones((5, 6))})
    with pytest.raises(ValueError, match="some arrays have an axis for draws and others none"):
        compress(good | {"a": np.ones((2, 6, 5))})
    with pytest.raises(ValueError, match="parameters: a is int64; convert it"):
        compress(good | {"a": np.ones((6, 5), int)})
    with pytest.raises(ValueError, match="x: shape"):
        rw.compress(model, good).predict(np.zeros((0, 6)))
