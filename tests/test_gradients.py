"""Gradient estimators: unbiased, exact where they should be, and one batch per curvature pair."""

import jax
import jax.numpy as jnp
import numpy as np
from tests.targets import linear_regression

import ridgewalk as rw
from ridgewalk.gradients import as_estimator

REGRESSION = linear_regression()
TARGET = REGRESSION.target
HERE = jnp.array([0.7, -0.4, 0.1])


def estimates(estimator, state, position):
    """The gradient estimate on each single example as the batch."""

    def one(i):
        batch = jax.tree.map(lambda x: x[i][None], TARGET.data)
        gradient = jax.grad(estimator.target.potential)(position, batch)
        correction = estimator.correction(state, batch)
        return gradient if correction is None else gradient + correction

    return jax.vmap(one)(jnp.arange(TARGET.size))


def exact(position):
    return jax.grad(TARGET.potential)(position, TARGET.data)


def test_all_estimators_are_unbiased():
    for target in (TARGET, rw.control_variates(TARGET, jnp.ones(3)), rw.svrg(TARGET, every=3)):
        estimator = as_estimator(target)
        mean = estimates(estimator, estimator.init(jnp.ones(3)), HERE).mean(0)
        np.testing.assert_allclose(mean, exact(HERE), rtol=1e-10)


def test_corrections_remove_the_variance_at_their_centre():
    for target in (rw.control_variates(TARGET, HERE), rw.svrg(TARGET, every=3)):
        estimator = as_estimator(target)
        values = estimates(estimator, estimator.init(HERE), HERE)
        np.testing.assert_allclose(values, jnp.broadcast_to(exact(HERE), values.shape), rtol=1e-8)
        near = estimates(estimator, estimator.init(HERE), HERE + 0.01)
        plain = estimates(as_estimator(TARGET), None, HERE + 0.01)
        assert near.std(0).max() < 0.1 * plain.std(0).min()


def test_full_gradient_in_slices():
    large = linear_regression(size=2_500).target
    whole = jax.grad(large.potential)(HERE, large.data)
    np.testing.assert_allclose(jax.jit(rw.Posterior.full_gradient)(large, HERE), whole, rtol=1e-9)


def test_svrg_renews_its_anchor_on_time():
    kernel = rw.build_kernel(rw.sgld(), rw.svrg(TARGET, every=3), HERE)
    batch = jax.tree.map(lambda x: x[:10], TARGET.data)
    states = [kernel.init(HERE)]
    for key in jax.random.split(jax.random.key(0), 7):
        states.append(jax.jit(kernel.step)(key, states[-1], batch, 1e-3)[0])
    for k, state in enumerate(states):
        anchor = states[3 * (k // 3)].position
        np.testing.assert_array_equal(state.estimator.position, anchor)
        likelihood = exact(anchor) - TARGET.prior_gradient(anchor)
        np.testing.assert_allclose(state.estimator.likelihood_gradient, likelihood, rtol=1e-9)


def test_curvature_pairs_use_one_batch():
    """With an example per batch, a pair mixing batches would not show that example's Hessian."""
    for target in (TARGET, rw.control_variates(TARGET, jnp.ones(3)), rw.svrg(TARGET, every=2)):
        kernel = rw.build_kernel(rw.Sampler(rw.Langevin(), rw.LBFGS(memory=2)), target, HERE)
        state = kernel.init(HERE)
        for i in range(3):
            batch = jax.tree.map(lambda x, i=i: x[i : i + 1], TARGET.data)
            before = state.position
            state, _ = jax.jit(kernel.step)(jax.random.key(i), state, batch, 1e-4)
            x = np.asarray(batch["x"][0])
            hessian = TARGET.size * np.outer(x, x) + np.eye(3) / 4
            row = i % 2
            np.testing.assert_allclose(state.preconditioner.y[row], hessian @ (state.position - before), rtol=1e-6)
