"""The paper's networks, and the slot that any other network fits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import ridgewalk as rw
from ridgewalk.neural.networks import (
    Convolution,
    EquinoxNetwork,
    FunctionNetwork,
    LinenNetwork,
    LocallyConnected,
    NnxNetwork,
    average_pool,
    count_weights,
    permeability_network,
    source_network,
)

GRID, EDGES = (20, 20), 20 * 21 + 21 * 20


def key(seed):
    """A generator that compiles faster than the default one."""
    return jax.random.key(seed, impl="unsafe_rbg")


@pytest.mark.parametrize(
    ("network", "ours", "paper"),
    [(source_network(), 2_549_028, 2_566_828), (permeability_network(), 8_192_938, 8_252_320)],
)
def test_weights_of_the_paper(network, ours, paper):
    parameters = jax.eval_shape(network.build((50, 50), 5_100).init, key(0))
    assert count_weights(parameters) == ours
    assert abs(ours / paper - 1) < 0.05


def test_source_network_layer_by_layer():
    """Against the same network written out with XLA's own convolution and pooling."""
    model = source_network(later_channels=(3, 4), hidden=11).build(GRID, EDGES)
    weights = jax.jit(model.init)(key(1))
    weights = jax.tree.map(lambda w: w + 0.01, weights)  # biases that count
    x = jax.random.normal(key(2), (5, *GRID))

    @jax.jit
    def expected(weights, x):
        pooled = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2), (1, 2, 2), "VALID") / 4
        code = jax.nn.relu(pooled.reshape(5, 100) @ weights.encode.weight + weights.encode.bias[None])
        field = code.reshape(5, 10, 10, 1)
        for layer in weights.later:
            layout = ("NHWC", "HWIO", "NHWC")
            field = jax.lax.conv_general_dilated(field, layer.weight, (1, 1), "SAME", dimension_numbers=layout)
            field = jax.nn.relu(field + layer.bias[None, None, None])
        hidden = jax.nn.relu(field.reshape(5, -1) @ weights.hidden.weight + weights.hidden.bias[None])
        return hidden @ weights.decode.weight + weights.decode.bias[None]

    np.testing.assert_allclose(jax.jit(model.apply)(weights, x), expected(weights, x), rtol=1e-10, atol=1e-12)


def test_first_convolutions_see_the_field_before_the_pool():
    model = permeability_network(first_channels=(4, 2), later_channels=(2, 3), hidden=7).build((*GRID, 2), EDGES)
    weights = jax.jit(model.init)(key(1))
    assert [layer.weight.shape for layer in weights.first] == [(3, 3, 2, 4), (3, 3, 4, 2)]
    assert weights.encode.weight.shape == (10 * 10 * 2, 100)
    x = jax.random.normal(key(2), (3, *GRID, 2))
    apply = jax.jit(model.apply)
    assert apply(weights, x).shape == (3, EDGES)
    # A checkerboard has pooled mean zero: only a convolution before the pool can tell it from nothing.
    board = jnp.where((jnp.arange(20)[:, None] + jnp.arange(20)[None, :]) % 2 == 0, 1.0, -1.0)
    boards = jnp.broadcast_to(board[None, :, :, None], x.shape)
    assert jnp.abs(apply(weights, boards) - apply(weights, jnp.zeros_like(x))).max() > 1e-3


def test_locally_connected_with_equal_kernels_is_a_convolution():
    convolution = Convolution(3, 4, 3, key=key(0))
    local = LocallyConnected((5, 6), 3, 4, 3, key=key(0))
    assert local.weight.std() == pytest.approx(float(convolution.weight.std()), rel=0.1)
    same = jnp.broadcast_to(convolution.weight.reshape(1, -1, 4), local.weight.shape)
    local = eqx.tree_at(lambda m: m.weight, local, same)
    x = jax.random.normal(key(1), (2, 5, 6, 3))
    run = eqx.filter_jit(lambda layer: layer(x))
    np.testing.assert_allclose(run(local), run(convolution), rtol=1e-10, atol=1e-12)
    one_place = eqx.tree_at(lambda m: m.weight, local, same.at[7].add(1.0))
    moved = jnp.abs(run(one_place) - run(convolution)).max((0, 3)) > 1e-9
    assert moved.sum() == 1
    assert moved[1, 1]


def test_locally_connected_network():
    model = source_network(later_channels=(2, 3), locally_connected=True).build(GRID, EDGES)
    weights = jax.jit(model.init)(key(0))
    assert weights.later[0].weight.shape == (100, 9, 2)
    assert jax.jit(model.apply)(weights, jnp.ones((2, *GRID))).shape == (2, EDGES)


def test_pool_leaves_out_what_fills_no_square():
    x = jnp.arange(15.0).reshape(1, 3, 5, 1)
    np.testing.assert_allclose(average_pool(x, 2)[0, :, :, 0], [[3.0, 5.0]])


class LinenDense(linen.Module):
    outputs: int

    @linen.compact
    def __call__(self, x):
        x = jnp.tanh(linen.Dense(8)(x.reshape(x.shape[0], -1)))
        return linen.Dense(self.outputs)(x)


class LinenNormalised(LinenDense):
    @linen.compact
    def __call__(self, x):
        return linen.BatchNorm(use_running_average=False)(linen.Dense(self.outputs)(x.reshape(x.shape[0], -1)))


class NnxDense(nnx.Module):
    def __init__(self, input_shape, output_size, rngs, normalise=False):
        size = int(np.prod(input_shape))
        self.hidden, self.output = nnx.Linear(size, 8, rngs=rngs), nnx.Linear(8, output_size, rngs=rngs)
        self.normalise = nnx.BatchNorm(output_size, rngs=rngs) if normalise else None

    def __call__(self, x):
        return self.output(jnp.tanh(self.hidden(x.reshape(x.shape[0], -1))))


def make_mlp(input_shape, output_size, *, key):
    """eqx.nn.MLP holds functions among its leaves, and sees one example at a time."""
    return eqx.nn.Sequential(
        [eqx.nn.Lambda(jnp.ravel), eqx.nn.MLP(int(np.prod(input_shape)), output_size, 8, 1, key=key)]
    )


def linear_start(key, input_shape, output_size):
    return {"w": 0.1 * jax.random.normal(key, (int(np.prod(input_shape)), output_size))}


NETWORKS = {
    "ours": source_network(later_channels=(1, 1), hidden=5, coarse=(2, 2)),
    "equinox": EquinoxNetwork(make_mlp),
    "linen": LinenNetwork(LinenDense),
    "nnx": NnxNetwork(NnxDense),
    "functions": FunctionNetwork(linear_start, lambda p, x: x.reshape(x.shape[0], -1) @ p["w"]),
}


def posterior(model, x, y):
    return rw.Posterior(
        lambda p: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)),
        lambda p, batch: -0.5 * jnp.sum((batch[1] - model.apply(p, batch[0])) ** 2, axis=1),
        (x, y),
    )


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "ours"])  # which the next test runs
def test_every_kind_of_network_is_a_pure_function_that_learns(name):
    model = NETWORKS[name].build((4, 4), 3)
    init, apply = jax.jit(model.init), jax.jit(model.apply)
    parameters, other = init(key(0)), init(key(1))
    assert jax.tree.structure(parameters) == jax.tree.structure(other)
    assert all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(parameters))
    x = jax.random.normal(key(2), (10, 4, 4))
    outputs = apply(parameters, x)
    assert jnp.abs(outputs - apply(other, x)).max() > 1e-3, "parameters do not reach apply"
    np.testing.assert_allclose(outputs[4:5], apply(parameters, x[4:5]), rtol=1e-6, atol=1e-7)
    target = posterior(model, x, 2 + outputs)

    @jax.jit
    def descend(p):
        gradient = jax.grad(target.potential)(p, target.data)
        return jax.tree.map(lambda a, g: a - 1e-3 * g, p, gradient), gradient

    moved, gradient = descend(parameters)
    assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(gradient)[-2:])
    assert target.potential(moved, target.data) < target.potential(parameters, target.data)


@pytest.mark.slow
def test_an_equinox_network_goes_through_a_run():
    """Parameters, in their own structure, are a position; draws come back in it."""
    model = NETWORKS["ours"].build((4, 4), 3)
    parameters = jax.jit(model.init)(key(0))
    x = jax.random.normal(key(2), (10, 4, 4))
    target = posterior(model, x, jnp.full((10, 3), 10.0))
    result = rw.sample(key(3), rw.sgld(), target, parameters, steps=100, step_size=1e-3, batch_size=5, progress=False)
    assert jax.tree.structure(result.positions) == jax.tree.structure(parameters)
    assert result.info.potential[0, -20:].mean() < 0.5 * result.info.potential[0, 0]


def test_state_and_integers_are_refused():
    with pytest.raises(ValueError, match="batch_stats"):
        LinenNetwork(LinenNormalised).build((4, 4), 3)
    with pytest.raises(ValueError, match="BatchStat"):
        NnxNetwork(lambda *sizes: NnxDense(*sizes, normalise=True)).build((4, 4), 3)
    counted = FunctionNetwork(lambda key, *sizes: {"w": jnp.zeros((16, 3)), "n": jnp.array(3)}, lambda p, x: x)
    with pytest.raises(ValueError, match=r"'n'.* is int64"):
        counted.build((4, 4), 3)
    wide = FunctionNetwork(linear_start, lambda p, x: x.reshape(x.shape[0], -1))
    with pytest.raises(ValueError, match=r"have shape \(2, 16\)"):
        wide.build((4, 4), 3)


def test_integer_arrays_of_an_equinox_module_stay_as_they_are():
    class Picks(eqx.Module):
        weight: jax.Array
        which: jax.Array

        def __call__(self, x):
            return x[self.which] * self.weight

    network = EquinoxNetwork(lambda shape, size, *, key: Picks(jax.random.normal(key, (size,)), jnp.array([2, 0])))
    model = network.build((3,), 2)
    parameters = model.init(key(0))
    outputs = model.apply(parameters, jnp.array([[1.0, 2.0, 3.0]]))
    np.testing.assert_allclose(outputs, jnp.array([[3.0, 1.0]]) * parameters.weight[None])


@pytest.mark.parametrize(
    ("options", "shape", "size", "complaint"),
    [
        ({}, (20,), 3, "input_shape"),
        ({}, (1, 20), 3, "smaller than one pool"),
        ({}, GRID, 0, "output_size"),
        ({"kernel": 2}, GRID, 3, "kernel: 2"),
        ({"hidden": 0}, GRID, 3, "hidden"),
        ({"later_channels": (3, 0)}, GRID, 3, "channels"),
    ],
)
def test_bad_sizes_are_named(options, shape, size, complaint):
    with pytest.raises(ValueError, match=complaint):
        source_network(**options).build(shape, size)
