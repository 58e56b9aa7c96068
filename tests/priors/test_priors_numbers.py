"""Densities and single updates of the priors against SciPy and NumPy, in float64 and float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tests.priors.exact import Hyper, log_parts

import ridgewalk as rw

POSITION = {"a": jnp.array([0.3, -2.0]), "b": {"c": jnp.array([[5.0]])}}
FLAT = np.array([0.3, -2.0, 5.0])


@pytest.mark.parametrize(
    ("prior", "law"),
    [
        (rw.gaussian_prior(2.0), stats.norm(scale=2.0)),
        (rw.laplace_prior(0.7), stats.laplace(scale=0.7)),
        (rw.student_t_prior(3.0, 2.0), stats.t(3.0, scale=2.0)),
    ],
)
def test_plain_priors_are_the_densities_they_say(prior, law):
    assert float(prior(POSITION)) == pytest.approx(law.logpdf(FLAT).sum(), rel=1e-12)
    small = jax.tree.map(lambda x: x.astype(jnp.float32), POSITION)
    assert prior(small).dtype == jnp.float32
    np.testing.assert_array_equal(jax.grad(prior)(jnp.zeros(2)), np.zeros(2))
    assert prior == type(prior)(**vars(prior))  # equal settings share one compiled loop


def frozen_state(prior, position, sigma, delta):
    begun = prior.init(position, None)
    return begun._replace(sigma=jnp.asarray(sigma, begun.sigma.dtype), delta=jnp.asarray(delta, begun.delta.dtype))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(("sigma", "delta"), [(1.0, 0.5), (0.01, 1e-6), (30.0, 0.999)])
def test_spike_and_slab_neither_under_nor_overflows(dtype, sigma, delta):
    sizes = [0.0, 1e-8, 1e-3, 0.3, 1.0, 3.0, 300.0, 1e4]
    beta = np.array(sizes + [-size for size in sizes])
    prior = rw.spike_and_slab()
    position = jnp.asarray(beta, dtype)
    state = frozen_state(prior, position, sigma, delta)
    beta, hyper = np.asarray(position, float), Hyper(float(state.sigma), float(state.delta))
    slab, spike = log_parts(beta, hyper)
    odds = slab - spike
    share = 0.5 * (1 + np.tanh(odds / 2))
    near = {"rtol": 1e-4, "atol": 1e-6} if dtype == jnp.float32 else {"rtol": 1e-9, "atol": 1e-12}
    found = jax.jit(prior.inclusion_at)(state, position)
    np.testing.assert_allclose(found, share, **near)
    value, gradient = jax.jit(jax.value_and_grad(prior.log_density, argnums=1))(state, position)
    assert value.dtype == found.dtype == dtype
    assert float(value) == pytest.approx(np.logaddexp(slab, spike).sum(), rel=1e-5)
    slope = -share * beta / (hyper.sigma**2 * 100) - (1 - share) * np.sign(beta) / (hyper.sigma * 0.1)
    np.testing.assert_allclose(gradient, slope, **near)
    after = jax.jit(lambda s, p: prior.update(s, p, None, jnp.asarray(1)))(state, position)
    learnt = jax.tree.leaves(after._replace(kept=None))
    assert all(leaf.dtype == dtype and bool(jnp.all(jnp.isfinite(leaf))) for leaf in learnt)


@pytest.mark.parametrize(("penalty", "delay"), [("mixture", 0), ("averaged", 4)])
def test_updates_follow_the_chain(penalty, delay):
    """Fifteen steps on minibatches, with the averages made again in NumPy from the draws."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=12)
    start = jnp.array([1.0, -0.2, 0.0])
    prior = rw.spike_and_slab(
        penalty=penalty, nu=2.0, lam=0.7, a=1.5, b=4.0, spike_scale=0.2, slab_variance=50.0, delay=delay
    )
    target = rw.Posterior(prior, rw.shared_noise(lambda w, b: b[1] - b[0] @ w), (jnp.asarray(x), jnp.asarray(y)))
    kernel = rw.build_kernel(rw.sgld(), target, start)
    state, step = jax.jit(kernel.init)(start), jax.jit(kernel.step)
    sigma, delta = np.sqrt(np.mean((y - x @ np.asarray(start)) ** 2)), 0.5
    rho, sums = np.full(3, 0.5), np.array([0.5 * 3 * sigma, 0.5 * 3 * sigma**2, 12 * sigma**2])
    for k in range(1, 16):
        assert float(state.prior.sigma) == pytest.approx(sigma, rel=1e-10)
        assert float(state.prior.delta) == pytest.approx(delta, rel=1e-10)
        rows, beta, omega = rng.integers(0, 12, 4), np.asarray(state.position), min(1, 5 * (10 + k - delay) ** -0.9)
        if k <= delay:
            omega = 0.0
        slab = delta * stats.norm.pdf(beta, scale=sigma * np.sqrt(50))
        inside = slab / (slab + (1 - delta) * stats.laplace.pdf(beta, scale=0.2 * sigma))
        rho = rho + omega * (inside - rho)
        share = inside if penalty == "mixture" else rho
        residuals = y[rows] - x[rows] @ beta
        new = np.array([((1 - share) * abs(beta)).sum() / 0.2, (share * beta**2).sum() / 50, 3 * (residuals**2).sum()])
        sums = sums + omega * (new - sums)
        order, constant = 12 + 3 + 2 + 2, sums[1] + sums[2] + 2 * 0.7
        state, info = step(jax.random.key(k), state, (jnp.asarray(x[rows]), jnp.asarray(y[rows])), 1e-3)
        likelihood = stats.norm.logpdf(residuals, scale=sigma).sum()
        if penalty == "mixture":
            mixture = slab + (1 - delta) * stats.laplace.pdf(beta, scale=0.2 * sigma)
            assert float(info.potential) == pytest.approx(-np.log(mixture).sum() - 3 * likelihood, rel=1e-9)
        if k <= delay:
            continue
        sigma = (sums[0] + np.sqrt(sums[0] ** 2 + 4 * order * constant)) / (2 * order)
        delta = (0.5 + rho.sum()) / (1.5 + 4 + 3 - 2)
    np.testing.assert_allclose(state.prior.inclusion, rho, rtol=1e-9)


def test_sums_begin_again_when_parameters_are_pruned():
    """Once for every event; for those before learning begins, when it does."""
    prior, size = rw.spike_and_slab(delay=2), 6
    here = jnp.array([2.0, -1.0, 0.5, 0.0, 0.0, 0.0])
    begun = prior.init(here, None)
    begun = begun._replace(spike=begun.spike + 100, slab=begun.slab + 100)
    all_kept, few = jnp.ones(size), (here != 0).astype(float)
    waiting = prior.update(begun, here, None, jnp.asarray(2), few)
    assert float(waiting.spike) == float(begun.spike)
    assert int(waiting.kept) == size
    share = np.asarray(prior.inclusion_at(begun, here))
    expected = {
        "spike": float(((1 - share) * np.abs(here)).sum() / 0.1),
        "slab": float((share * np.asarray(here) ** 2).sum() / 100),
    }
    omega = min(1, 5 * 11**-0.9)
    pruned, plain = (prior.update(waiting, here, None, jnp.asarray(3), kept) for kept in (few, all_kept))
    again = prior.update(pruned._replace(spike=pruned.spike + 1, sigma=begun.sigma, delta=begun.delta), here, None,
                         jnp.asarray(3), few)  # fmt: skip
    for name, value in expected.items():
        old = float(getattr(begun, name))
        assert float(getattr(pruned, name)) == pytest.approx(value, rel=1e-9)
        assert float(getattr(plain, name)) == pytest.approx(old + omega * (value - old), rel=1e-9)
    assert float(again.spike) == pytest.approx(expected["spike"] + 1 - omega, rel=1e-9)
    assert (int(pruned.kept), int(plain.kept)) == (3, size)


def test_priors_by_leaf():
    position = {"layers": [{"weight": jnp.ones((2, 2)), "bias": jnp.full(2, 3.0)}], "noise": jnp.zeros(())}
    plain = rw.prior_by_leaf(
        {"bias": rw.gaussian_prior(10.0), "noise": rw.student_t_prior(2.0, 1.0)}, otherwise=rw.laplace_prior(0.5)
    )
    expected = (
        stats.norm.logpdf([3.0, 3.0], scale=10).sum() + stats.t.logpdf(0.0, 2) + 4 * stats.laplace.logpdf(1, scale=0.5)
    )
    assert float(plain(position)) == pytest.approx(expected)
    assert plain == rw.prior_by_leaf(
        {"bias": rw.gaussian_prior(10.0), "noise": rw.student_t_prior(2.0, 1.0)}, otherwise=rw.laplace_prior(0.5)
    )
    sparse = rw.spike_and_slab()
    mixed = rw.prior_by_leaf({"layers.0.weight": sparse}, otherwise=rw.gaussian_prior(10.0))
    state = mixed.init(position, None)
    weights = {"layers.0.weight": position["layers"][0]["weight"]}
    own = sparse.init(weights, None)
    assert float(mixed.log_density(state, position)) == pytest.approx(
        float(sparse.log_density(own, weights)) + stats.norm.logpdf([3, 3, 0], scale=10).sum()
    )
    state = mixed.update(state, position, None, jnp.asarray(1))
    rho = mixed.inclusion_probabilities(state, position)
    assert jax.tree.structure(rho) == jax.tree.structure(position)
    after = sparse.update(own, weights, None, jnp.asarray(1))
    np.testing.assert_allclose(rho["layers"][0]["weight"], after.inclusion["layers.0.weight"])
    np.testing.assert_array_equal(rho["layers"][0]["bias"], np.ones(2))
    assert float(mixed.noise(state)) == float(after.sigma)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rw.gaussian_prior(0.0), r"scale: 0.0 is not a positive finite number"),
        (lambda: rw.laplace_prior(float("nan")), r"scale: nan is not"),
        (lambda: rw.student_t_prior(-1.0, 1.0), r"degrees: -1.0 is not"),
        (lambda: rw.spike_and_slab(spike_scale=-0.1), r"spike_scale: -0.1 is not"),
        (lambda: rw.spike_and_slab(delta=1.0), r"delta: 1.0 is not in \(0, 1\); it is a probability"),
        (lambda: rw.spike_and_slab(a=0.5), r"a: 0.5 is not in \[1, inf\)"),
        (lambda: rw.spike_and_slab(b=0.0), r"b: 0.0 is not in \[1, inf\)"),
        (lambda: rw.spike_and_slab(sigma=0.0), r"sigma: 0.0 is not"),
        (lambda: rw.spike_and_slab(delay=-1), r"delay: -1 is not an integer of at least 0"),
        (lambda: rw.spike_and_slab(penalty="lasso"), r"penalty: 'lasso' is unknown; use one of 'mixture', 'averaged'"),
        (lambda: rw.spike_and_slab(slab_variance=1e-4), r"slab_variance: 0.0001 is not wider than the spike"),
        (lambda: rw.shared_noise(3.0), r"residual: 3.0 is not a function"),
        (lambda: rw.prior_by_leaf({}), r"groups: it is empty"),
        (lambda: rw.prior_by_leaf({"bias": 3.0}), r"groups: 'bias': 3.0 is not a name and a prior"),
        (lambda: rw.prior_by_leaf({"bias": rw.gaussian_prior(1.0)})({"b": jnp.zeros(1)}), r"no leaf is named 'bias'"),
        (lambda: rw.prior_by_leaf({"a": rw.gaussian_prior(1.0)})(POSITION), r"leaves \['b.c'\] have no prior"),
        (
            lambda: rw.prior_by_leaf({"b": rw.gaussian_prior(1.0), "c": rw.gaussian_prior(1.0)})(POSITION),
            r"the leaf 'b.c' belongs to \['b', 'c'\]",
        ),
        (
            lambda: rw.Posterior(rw.gaussian_prior(1.0), rw.shared_noise(lambda w, b: b - w), jnp.zeros(3)),
            r"log_likelihood: shared_noise takes σ from the prior",
        ),
        (
            lambda: rw.Posterior(
                rw.prior_by_leaf({"a": rw.spike_and_slab()}, otherwise=rw.spike_and_slab()),
                rw.shared_noise(lambda w, b: b - w["a"]),
                jnp.zeros(3),
            ),
            r"must have exactly one",
        ),
        (
            lambda: rw.Posterior(rw.spike_and_slab(), lambda w, b: -((b - w) ** 2), jnp.zeros(3)).potential(
                jnp.zeros(()), jnp.zeros(3)
            ),
            r"log_prior: SpikeAndSlab learns its hyper-parameters.*frozen",
        ),
    ],
)  # fmt: skip
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
