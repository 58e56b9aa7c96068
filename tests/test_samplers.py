"""Samplers that must coincide, each compared with the other one."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.harness import flat_draws
from tests.targets import correlated_gaussian, linear_regression

import ridgewalk as rw
from ridgewalk.preconditioners.static import divergence

REGRESSION = linear_regression()
GAUSSIAN = correlated_gaussian()
SOME = np.array([[0.5, 0.2, 0.0], [0.2, 0.4, 0.1], [0.0, 0.1, 0.3]])


def positions(sampler, step_size=1e-3, **options):
    result = rw.sample(
        jax.random.key(2), sampler, REGRESSION.target, jnp.zeros(3),
        steps=50, step_size=step_size, batch_size=40, progress=False, **options,
    )  # fmt: skip
    return flat_draws(result)


PAIRS = {
    "identity preconditioner = SGLD": (rw.Sampler(rw.Langevin(), rw.fixed(np.eye(3))), rw.sgld()),
    "ω = 0, dense = fixed preconditioner": (
        rw.hasgld_sa(form="dense", adaptation=lambda k: 0.0, first_curvature=4.0),
        rw.Sampler(rw.Langevin(), rw.fixed(np.eye(3) / 4)),
    ),
    "ω = 0, limited = fixed preconditioner": (
        rw.hasgld_sa(form="snapshot_lbfgs", adaptation=lambda k: 0.0, first_curvature=4.0),
        rw.Sampler(rw.Langevin(), rw.fixed(np.full(3, 0.25))),
    ),
    "low rank before its first sweep = fixed preconditioner": (
        rw.Sampler(rw.Langevin(), rw.LowRank(rank=1, spare=1, curvature_every=100, first_curvature=4.0)),
        rw.Sampler(rw.Langevin(), rw.fixed(np.full(3, 0.25))),
    ),
    "SGRLD with constant metric = preconditioned SGLD": (
        rw.sgrld(lambda x: jnp.asarray(SOME)),
        rw.Sampler(rw.Langevin(), rw.fixed(SOME)),
    ),
    "SGRLD with diagonal metric = diagonal preconditioner": (
        rw.sgrld(lambda x: jnp.array([1.0, 2.0, 3.0])),
        rw.Sampler(rw.Langevin(), rw.fixed(np.diag([1.0, 2.0, 3.0]))),
    ),
    "SGHMC with friction 1 = SGLD": (rw.sghmc(friction=1.0), rw.sgld()),
    "preconditioned SGHMC with friction 1 = preconditioned SGLD": (
        rw.sghmc(friction=1.0, preconditioner=rw.fixed(SOME)),
        rw.Sampler(rw.Langevin(), rw.fixed(SOME)),
    ),
}


BY_DEFAULT = {name for name in PAIRS if not any(word in name for word in ("limited", "diagonal", "low rank"))}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in BY_DEFAULT else [pytest.mark.slow]) for n in PAIRS])
def test_coincide(name):
    one, other = PAIRS[name]
    np.testing.assert_allclose(positions(one), positions(other), rtol=1e-9, atol=1e-12)


def test_one_step_equals_blackjax():
    batch = jax.tree.map(lambda x: x[:40], REGRESSION.target.data)
    key, start, step_size = jax.random.key(9), jnp.array([0.1, -0.2, 0.3]), 1e-3

    def log_density_gradient(position, batch):
        return jax.grad(lambda p: -REGRESSION.target.potential(p, batch))(position)

    theirs = blackjax.sgld(log_density_gradient).step(key, start, batch, step_size)
    kernel = rw.build_kernel(rw.sgld(), REGRESSION.target, start)
    ours, _ = kernel.step(key, kernel.init(start), batch, step_size)
    np.testing.assert_allclose(ours.position, theirs, rtol=1e-12)


def test_psgld_step_by_hand():
    batch = jax.tree.map(lambda x: x[:40], REGRESSION.target.data)
    kernel = rw.build_kernel(rw.psgld(decay=0.9, regularizer=0.5), REGRESSION.target, jnp.ones(3))
    state, step_size = kernel.init(jnp.ones(3)), 1e-3
    second = state.preconditioner.second_moment
    largest = np.linalg.eigvalsh(np.linalg.inv(REGRESSION.covariance))[-1]
    np.testing.assert_allclose(second, np.full(3, largest), rtol=0.05)
    for key in jax.random.split(jax.random.key(0), 4):
        g = jax.grad(REGRESSION.target.potential)(state.position, batch)
        second = 0.9 * second + 0.1 * g**2
        diagonal = 1 / (0.5 + jnp.sqrt(second))
        noise = jnp.sqrt(2 * step_size * diagonal) * jax.random.normal(key, (3,))
        expected = state.position - step_size * diagonal * g + noise
        state, _ = jax.jit(kernel.step)(key, state, batch, step_size)
        np.testing.assert_allclose(state.position, expected, rtol=1e-10)


def test_psgld_starts_from_the_second_moment_it_is_given():
    moment = jnp.array([4.0, 9.0, 16.0])
    plain = lambda x: -0.5 * jnp.sum(x["a"] ** 2) - x["b"] ** 2  # noqa: E731
    start = {"a": jnp.ones(2), "b": jnp.ones(())}
    sampler = rw.psgld(decay=0.5, regularizer=1.0, second_moment={"a": moment[:2], "b": moment[2]})
    state = rw.build_kernel(sampler, rw.Density(plain), start).init(start)
    np.testing.assert_allclose(state.preconditioner.multiply(jnp.ones(3)), 1 / (1 + np.sqrt(moment)))
    step = rw.build_kernel(sampler, rw.Density(plain), start).step(jax.random.key(0), state, None, 0.1)[0]
    gradient = np.array([1.0, 1.0, 2.0])
    np.testing.assert_allclose(step.preconditioner.second_moment, (moment + gradient**2) / 2)
    one = rw.build_kernel(rw.psgld(first_curvature=25.0), rw.Density(plain), start).init(start).preconditioner
    np.testing.assert_allclose(one.second_moment, 25.0)


def test_psgld_correction_is_the_derivative_of_its_preconditioner():
    decay, regularizer, v, x = 0.9, 0.5, jnp.array([2.0, 3.0]), jnp.array([0.4, 0.1])
    gradient = jax.grad(GAUSSIAN.target.potential)

    def g_diagonal(p):
        return 1 / (regularizer + jnp.sqrt(decay * v + (1 - decay) * gradient(p) ** 2))

    form = rw.RMSProp(decay, regularizer, curvature_correction=True)
    before = form.init(x, gradient)._replace(second_moment=v)
    after = form.prepare(
        before, rw.StepContext(jnp.asarray(2), x, gradient(x), gradient, jnp.zeros(2), jnp.asarray(0.1), 2)
    )
    np.testing.assert_allclose(form.correction(after), jnp.diagonal(jax.jacobian(g_diagonal)(x)), rtol=1e-10)


def test_gamma_of_a_metric_by_hand():
    """G = [[1 + x², x y], [x y, 2 + y²]]: Γ = (2x + x, y + 2y)."""

    def g(p):
        x, y = p
        return jnp.array([[1 + x**2, x * y], [x * y, 2 + y**2]])

    np.testing.assert_allclose(divergence(g, jnp.array([0.3, -0.7])), [0.9, -2.1], rtol=1e-12)
    np.testing.assert_allclose(divergence(lambda p: p**3, jnp.array([2.0, 1.0])), [12.0, 3.0], rtol=1e-12)
