"""Operators of all forms, restricted: the inverse of the kept block of G⁻¹, with a factor that fits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.pruning.pruning_cases import MEAN, gaussian

import ridgewalk as rw
from ridgewalk._pytree import layout_of
from ridgewalk.preconditioners.base import prune_core, prune_matrix, prune_root
from ridgewalk.preconditioners.dense import DenseScaled

GAUSSIAN = gaussian()
MASK = np.array([0, 1, 1, 0, 1, 1, 0, 1], bool)
FEWER = np.array([0, 1, 0, 0, 1, 1, 0, 1], bool)


def conditional(matrix, mask):
    """(G⁻¹_kept)⁻¹, zero elsewhere."""
    whole = np.zeros_like(matrix)
    whole[np.ix_(mask, mask)] = np.linalg.inv(np.linalg.inv(matrix)[np.ix_(mask, mask)])
    return whole


def on_kept(matrix, mask):
    return np.asarray(matrix) * mask[:, None] * mask[None, :]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_root_and_matrix(dtype):
    root = jnp.asarray(np.linalg.cholesky(GAUSSIAN.covariance) @ np.linalg.qr(np.vander(np.arange(8.0) / 4))[0], dtype)
    tolerance = {"float64": 1e-12, "float32": 1e-6}[dtype]
    expected = conditional(GAUSSIAN.covariance, MASK)
    restricted = prune_root(root, jnp.asarray(MASK))
    assert restricted.dtype == dtype
    np.testing.assert_allclose(on_kept(restricted @ restricted.T, MASK), expected, atol=tolerance)
    assert np.all(np.asarray(restricted)[np.ix_(MASK, ~MASK)] == 0)
    assert np.all(np.asarray(restricted)[np.ix_(~MASK, MASK)] == 0)
    again = prune_root(restricted, jnp.asarray(FEWER))
    np.testing.assert_allclose(on_kept(again @ again.T, FEWER), conditional(GAUSSIAN.covariance, FEWER), atol=tolerance)
    matrix = prune_matrix(jnp.asarray(GAUSSIAN.covariance, dtype), jnp.asarray(MASK))
    np.testing.assert_allclose(on_kept(matrix, MASK), expected, atol=tolerance)


def test_core():
    rng = np.random.default_rng(2)
    vectors, lower = rng.normal(size=(4, 8)), 0.3 * rng.normal(size=(4, 4))
    core = lower @ lower.T - 0.01 * np.eye(4)
    left = vectors * MASK
    pruned = vectors @ vectors.T - left @ left.T
    found = prune_core(jnp.asarray(core), jnp.asarray(0.7), jnp.asarray(pruned))
    whole = 0.7 * np.eye(8) + vectors.T @ core @ vectors
    assert np.linalg.eigvalsh(whole)[0] > 0
    restricted = on_kept(0.7 * np.eye(8) + left.T @ np.asarray(found) @ left, MASK)
    np.testing.assert_allclose(restricted, conditional(whole, MASK), atol=1e-12)


FORMS = {
    "identity": rw.Identity(),
    "leaf scaled": rw.LeafScaled(),
    "fixed": rw.fixed(GAUSSIAN.covariance),
    "fixed diagonal": rw.fixed(np.diag(GAUSSIAN.covariance)),
    "rmsprop": rw.RMSProp(),
    "metric": rw.InverseMetric(lambda p: jnp.asarray(GAUSSIAN.covariance) * (1 + p[1] ** 2)),
    "dense": rw.Dense(memory=2),
    "dense_scaled": DenseScaled(memory=2),
    "limited": rw.SnapshotLBFGS(memory=2),
    "low_rank": rw.LowRank(rank=2, spare=1),
    "lbfgs": rw.LBFGS(memory=3),
}


POSITION = np.where(MASK, MEAN, 0.0)
EVERY_TIME = {"low_rank"}


def gradient(x):
    return jnp.asarray(GAUSSIAN.precision) @ (x - MEAN)


def held_gradient(x):
    return jnp.where(MASK, gradient(x), 0)


def matrices(operator):
    """G, S and Sᵀ as matrices, and a displacement."""
    eye = jnp.eye(8)
    parts = (jax.vmap(part)(eye).T for part in (operator.multiply, operator.factor, operator.factor_transpose))
    return *parts, operator.drift_plus_noise(jnp.asarray(POSITION), jnp.asarray(MASK, float))


@jax.jit
def restricted_after_some_steps(rule):
    """An operator that a chain has taught, as it was and restricted; whole matrices of both."""
    kernel = rw.build_kernel(
        rw.Sampler(rw.Langevin(), rule), rw.Density(lambda x: -0.5 * (x - MEAN) @ gradient(x)), MEAN
    )

    def step(k, state):
        return kernel.step(jax.random.key(k), state, None, 0.1)[0]

    operator = jax.lax.fori_loop(0, 40, step, kernel.init(jnp.asarray(MEAN))).preconditioner
    chosen = rule.resolve(layout_of(jnp.zeros(8)))
    after = chosen.prune(operator, jnp.asarray(MASK), jnp.asarray(POSITION), held_gradient)
    return matrices(operator), matrices(after), after


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[] if form in EVERY_TIME else [pytest.mark.slow]) for form in FORMS]
)
def test_every_form_is_restricted(form):
    before, (whole, factor, transposed, displacement), after = jax.tree.map(
        np.asarray, restricted_after_some_steps(FORMS[form])
    )
    for matrix in (whole, factor, transposed):
        assert np.all(matrix[np.ix_(~MASK, MASK)] == 0), "held vectors must stay held"
    np.testing.assert_allclose(on_kept(factor @ np.diag(MASK) @ factor.T, MASK), on_kept(whole, MASK), atol=1e-12)
    np.testing.assert_allclose(on_kept(transposed, MASK), on_kept(factor, MASK).T, atol=1e-12)
    np.testing.assert_allclose(displacement, whole @ POSITION + factor @ MASK, atol=1e-10)
    if form == "metric":
        expected = conditional(GAUSSIAN.covariance * (1 + POSITION[1] ** 2), MASK)
    elif form == "lbfgs":  # its pairs are seen anew: the newest satisfies the secant equation of the kept block
        newest = after.s[(after.pushed - 1) % 3]
        np.testing.assert_allclose(whole @ on_kept(GAUSSIAN.precision, MASK) @ newest, newest, atol=1e-10)
        return
    else:
        expected = conditional(before[0], MASK)
    if form == "limited":  # the mean of restricted windows lies below the restricted mean of them
        gap = (expected - on_kept(whole, MASK))[np.ix_(MASK, MASK)]
        assert np.linalg.eigvalsh(gap)[0] > -1e-12
        assert np.linalg.norm(gap) < 0.2 * np.linalg.norm(whole)
        return
    np.testing.assert_allclose(on_kept(whole, MASK), expected, rtol=1e-6, atol=1e-9)


def test_a_stable_step_stays_stable():
    """The kept block of H⁻¹ itself would make steps 50 times too long where two weights are nearly collinear."""
    covariance = jnp.asarray([[1.0, 0.99], [0.99, 1.0]])
    mask = jnp.array([True, False])
    rule = rw.fixed(covariance)

    @jax.jit
    def along_the_kept():
        after = rule.prune(rule.init(jnp.zeros(2), None), mask, None, None)
        return after.multiply(jnp.array([1.0, 0.0]))[0]

    np.testing.assert_allclose(along_the_kept() * np.linalg.inv(covariance)[0, 0], 1)


@pytest.mark.slow
def test_probes_that_lay_in_pruned_weights_are_drawn_anew():
    rule = rw.LowRank(rank=1, spare=1)
    operator = jax.jit(lambda: rule.init(jnp.asarray(MEAN), lambda x: x))()
    probes = jnp.zeros((2, 8)).at[0, 0].set(1.0).at[1, 1].set(1.0)
    after = jax.jit(lambda old: rule.prune(old, jnp.asarray(MASK), jnp.zeros(8), lambda x: x))(
        operator._replace(probes=probes)
    )
    np.testing.assert_allclose(after.probes @ after.probes.T, np.eye(2), atol=1e-6)
    assert np.all(np.asarray(after.probes)[:, ~MASK] == 0)
