"""The prior in units of its functions: the same for every initialisation, and a standard normal in its coordinates."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ridgewalk.neural.networks import EquinoxNetwork, FunctionNetwork, LinenNetwork, mlp
from ridgewalk.neural.posterior import SCALE_WIDTH, function_prior


def ours(factor=1.0):
    def init(key, input_shape, outputs):
        first, second = jax.random.split(key)
        return {
            "a": factor * jax.random.normal(first, (input_shape[0], 20)),
            "b": jnp.zeros(20),
            "c": factor * jax.random.normal(second, (20, outputs)) / 5,
        }

    def apply(w, x):
        return jnp.tanh(x @ w["a"] + w["b"][None]) @ w["c"]

    return FunctionNetwork(init, apply)


def spread(prior, model, seed=0):
    """The variation of functions of the prior with all scales 1, from draws of its own."""
    rng = np.random.default_rng(seed)
    like = jax.eval_shape(model.init, jax.random.key(0))
    x = jnp.asarray(rng.normal(size=(200, 3)), jnp.float32)
    found = []
    for _ in range(100):
        z = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), like)
        found.append(np.var(np.asarray(model.apply(prior.weights(z, None), x)), axis=0).mean())
    return np.sqrt(np.mean(found))


@pytest.mark.parametrize("variation", [0.5, 2.0])
def test_functions_vary_as_asked(variation):
    model = ours().build((3,), 1)
    prior = function_prior(model, (3,), 1, variation)
    assert spread(prior, model) == pytest.approx(variation, rel=0.15)
    assert prior.scales == 2
    assert [leaf.unit for leaf in prior.leaves if not leaf.scaled] == [1.0]


def test_the_initialisation_does_not_matter():
    """Ten times larger weights at initialisation, and the uniform ones of equinox, give the same prior."""
    units = [
        [leaf.unit for leaf in function_prior(network.build((3,), 1), (3,), 1, 1.5).leaves]
        for network in (ours(), ours(10.0))
    ]
    np.testing.assert_allclose(units[0], units[1], rtol=0.02)


@pytest.mark.slow
def test_networks_of_equinox_and_flax_and_our_own_have_the_same_prior():
    linen = pytest.importorskip("flax.linen")

    class Flax(linen.Module):
        outputs: int

        @linen.compact
        def __call__(self, x):
            return linen.Dense(self.outputs)(jnp.tanh(linen.Dense(30)(x)))

    def make(input_shape, outputs, *, key):
        return eqx.nn.MLP(input_shape[0], outputs, 30, 1, activation=jnp.tanh, key=key)

    sizes = []
    for network in (mlp(hidden=(30,)), EquinoxNetwork(make), LinenNetwork(Flax)):
        prior = function_prior(network.build((4,), 1), (4,), 1, 1.5)
        sizes.append(sorted(leaf.unit for leaf in prior.leaves))
    np.testing.assert_allclose(sizes[0], sizes[1], rtol=0.15)
    np.testing.assert_allclose(sizes[0], sizes[2], rtol=0.15)


def test_coordinates_and_scales():
    model = ours().build((3,), 1)
    prior = function_prior(model, (3,), 1, 1.0)
    weights = model.init(jax.random.key(5))
    z = prior.coordinates(weights)
    for one, other in zip(jax.tree.leaves(prior.weights(z, jnp.zeros(2))), jax.tree.leaves(weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    larger = prior.weights(z, jnp.array([1.0, 0.0]))
    np.testing.assert_allclose(larger["a"], np.exp(SCALE_WIDTH) * np.asarray(weights["a"]), rtol=1e-5)
    np.testing.assert_allclose(larger["c"], weights["c"], rtol=1e-5)
    squares = sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(z))
    assert float(prior.log_density(z, jnp.array([1.0, 2.0]))) == pytest.approx(-0.5 * (squares + 5), rel=1e-5)
    fixed = function_prior(model, (3,), 1, 1.0, learnt=False)
    assert fixed.scales == 0
    assert float(fixed.log_density(z, None)) == pytest.approx(-0.5 * squares, rel=1e-5)


def test_gains_are_centred_where_they_start():
    def init(key, input_shape, outputs):
        return {"gain": jnp.ones(input_shape[0]), "w": jax.random.normal(key, (input_shape[0], outputs))}

    model = FunctionNetwork(init, lambda w, x: (x * w["gain"][None]) @ w["w"]).build((3,), 1)
    prior = function_prior(model, (3,), 1, 1.0)
    assert [leaf.centre for leaf in prior.leaves] == [1.0, 0.0]


def test_a_network_without_variation_is_refused():
    model = FunctionNetwork(
        lambda key, shape, outputs: {"w": jax.random.normal(key, (2, outputs))},
        lambda w, x: jnp.zeros((x.shape[0], 1)) + 0 * w["w"].sum(),
    ).build((3,), 1)
    with pytest.raises(ValueError, match="constant or not finite"):
        function_prior(model, (3,), 1, 1.0)
