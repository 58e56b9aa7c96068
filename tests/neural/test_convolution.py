"""Our convolution against XLA's: values, both transposes, both modes of differentiation, chains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ridgewalk.neural import convolution
from ridgewalk.neural.convolution import convolve


def key(seed):
    """A generator that compiles faster than the default one."""
    return jax.random.key(seed, impl="unsafe_rbg")


def reference(x, weights):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weights, (1, 1), "SAME", dimension_numbers=layout)


def case(before, after, kernel=3, examples=6):
    keys = jax.random.split(key(before + 10 * after), 4)
    x = jax.random.normal(keys[0], (examples, 5, 7, before))
    weights = jax.random.normal(keys[1], (kernel, kernel, before, after))
    return x, weights, jax.random.normal(keys[2], x.shape), jax.random.normal(keys[3], weights.shape)


CASES = [(1, 4, 3), (4, 2, 3), (2, 3, 5)]


@pytest.mark.parametrize(("numbers", "examples"), [(2**20, 6), (1, 4)], ids=["whole batch", "example by example"])
@pytest.mark.parametrize(("before", "after", "kernel"), CASES)
def test_values_and_gradients_are_those_of_xla(before, after, kernel, numbers, examples, monkeypatch):
    monkeypatch.setattr(convolution, "NUMBERS_AT_ONCE", numbers)
    x, weights, *_ = case(before, after, kernel, examples)  # other shapes, so that nothing compiled is used again

    def loss(f):
        return lambda x, w: jnp.sum(jnp.sin(f(x, w)))

    both = jax.jit(
        lambda: [(f(x, weights), *jax.grad(loss(f), argnums=(0, 1))(x, weights)) for f in (convolve, reference)]
    )
    ours, theirs = both()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("before", "after", "kernel"), CASES[1:])
def test_hessian_products_are_those_of_xla_in_either_mode(before, after, kernel):
    """Preconditioners take forward-mode derivatives of gradients; a `custom_vjp` would refuse them."""
    x, weights, dx, dw = case(before, after, kernel)

    def gradient(f):
        return jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x, w))), argnums=(0, 1))

    def forward(f):
        return jax.jvp(gradient(f), (x, weights), (dx, dw))[1]

    def backward(f):
        return jax.vjp(gradient(f), x, weights)[1]((dx, dw))

    # Backward mode for both: JAX 0.7 compiles the forward-mode product of its own convolution wrongly.
    *ours, theirs = jax.jit(lambda: (forward(convolve), backward(convolve), backward(reference)))()
    for product in ours:
        for a, b in zip(product, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


def test_chains_by_vmap():
    x, weights, *_ = case(3, 4)
    many = jnp.stack([weights, -weights, 2 * weights])

    def gradients(f, w):
        return jax.grad(lambda w: jnp.sum(f(x, w) ** 2))(w)

    np.testing.assert_allclose(
        jax.vmap(lambda w: gradients(convolve, w))(many), jax.vmap(lambda w: gradients(reference, w))(many), rtol=1e-10
    )
    np.testing.assert_allclose(
        jax.vmap(convolve, in_axes=(1, None))(x[:, None], weights), reference(x, weights)[None], rtol=1e-10
    )


def test_number_of_examples_that_has_no_divisor(monkeypatch):
    monkeypatch.setattr(convolution, "NUMBERS_AT_ONCE", 5 * 7 * 3 * 5 * 3)  # three examples would fit
    x, weights, *_ = case(2, 3, examples=7)
    np.testing.assert_allclose(convolve(x, weights), reference(x, weights), rtol=1e-12, atol=1e-12)


def test_bad_shapes_are_named():
    with pytest.raises(ValueError, match="weights: shape"):
        convolve(jnp.zeros((2, 5, 5, 3)), jnp.zeros((3, 3, 2, 4)))
    with pytest.raises(ValueError, match="odd width"):
        convolve(jnp.zeros((2, 5, 5, 3)), jnp.zeros((2, 2, 3, 4)))


def test_other_platforms_get_the_convolution_of_xla():
    """Lowered for a GPU, values and both gradients are convolutions; on CPU none is."""
    x, weights, *_ = case(2, 3)

    def loss(x, weights):
        return jnp.sum(jnp.sin(convolve(x, weights)))

    traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(x, weights)
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("stablehlo.convolution") == 3
    assert traced.lower(lowering_platforms=("cpu",)).as_text().count("stablehlo.convolution") == 0


@pytest.mark.parametrize(("before", "after", "kernel"), [*CASES[:2], pytest.param(*CASES[2], marks=pytest.mark.slow)])
def test_the_convolution_of_xla_gives_the_same_numbers(before, after, kernel):
    x, weights, *_ = case(before, after, kernel)
    y = convolve(x, weights)
    np.testing.assert_allclose(convolution._xla_convolve(x, weights, kernel=kernel), y, rtol=1e-10, atol=1e-12)
    expected = convolution.correlate_p.bind(x, y, kernel=kernel)
    np.testing.assert_allclose(convolution._xla_correlate(x, y, kernel=kernel), expected, rtol=1e-10, atol=1e-10)
