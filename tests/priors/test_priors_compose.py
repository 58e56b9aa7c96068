"""An adaptive prior travels with the chain: every sampler, every estimator, resumed, looked at, in the user's dtype."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tests.sampling.problems import assert_same_run

import ridgewalk as rw
from ridgewalk.diagnostics.draw_access import map_gradients
from ridgewalk.gradients import as_estimator, with_prior
from ridgewalk.sampling import checkpoint

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 4)), RNG.normal(size=40)
START = {"weight": np.array([1.0, 0.0, -0.5]), "bias": np.array([0.2])}


def residual(position, batch):
    return batch[1] - batch[0][:, :3] @ position["weight"] - position["bias"]


def posterior(dtype=jnp.float64, **settings) -> rw.Posterior:
    prior = rw.prior_by_leaf({"weight": rw.spike_and_slab(**settings)}, otherwise=rw.gaussian_prior(10.0))
    return rw.Posterior(prior, rw.shared_noise(residual), (jnp.asarray(X, dtype), jnp.asarray(Y, dtype)))


def start(dtype=jnp.float64):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), START)


ESTIMATORS = {
    "minibatch": lambda target: target,
    "control_variates": lambda target: rw.control_variates(target, jax.tree.map(jnp.zeros_like, start())),
    "svrg": lambda target: rw.svrg(target, every=7),
}
SAMPLERS = {
    "sgld": rw.sgld(),
    "psgld": rw.psgld(),
    "hamcmc": rw.hamcmc(),
    "dense": rw.hasgld_sa(),
    "low_rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=1, spare=1)),
    "limited": rw.hasgld_sa(form="snapshot_lbfgs", memory=2),
    "as_printed": rw.hasgld_sa(form="as_printed"),
    "sghmc": rw.sghmc(),
    "sgnht": rw.sgnht(preconditioner=rw.Dense()),
}


def run(sampler=None, target=None, position=None, **options):
    settings = {"steps": 60, "step_size": 1e-4, "batch_size": 10, "chains": 2, "progress": False} | options
    return rw.sample(jax.random.key(0), sampler or rw.sgld(), target or posterior(), position or start(), **settings)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_gradients_are_those_of_the_prior_as_it_is(name):
    """Over all batches of one example the estimates average to ∇U at the σ and ρ of now, not of the anchor's time."""
    target = posterior()
    estimator = as_estimator(ESTIMATORS[name](target))
    begun = target.first_prior(start())
    memory = with_prior(estimator, begun).init(start())
    later = (begun[0]._replace(sigma=jnp.asarray(0.3), delta=jnp.asarray(0.02)), None)
    now = with_prior(estimator, later)

    def estimate(here, batch):
        batch = jax.tree.map(lambda x: x[None], batch)
        gradient, correction = jax.grad(now.target.potential)(here, batch), now.correction(memory, batch)
        return gradient if correction is None else jax.tree.map(jnp.add, gradient, correction)

    def exact(here):
        return jax.grad(target.frozen(later).potential)(here, target.data)

    estimates = jax.jit(jax.vmap(estimate, in_axes=(None, 0)))
    here = jax.tree.map(lambda x: x + 0.1, start())
    found, wanted = jax.tree.map(lambda x: x.mean(0), estimates(here, target.data)), exact(here)
    full = jax.jit(rw.Posterior.full_gradient)(target.frozen(later), here)
    for key in START:
        np.testing.assert_allclose(found[key], wanted[key], rtol=1e-9)
        np.testing.assert_allclose(full[key], wanted[key], rtol=1e-9)
    if name != "minibatch":  # at the centre itself there is no noise, whatever σ is now
        centre = start() if name == "svrg" else jax.tree.map(jnp.zeros_like, start())
        each, wanted = estimates(centre, target.data), exact(centre)
        for key in START:
            np.testing.assert_allclose(each[key], np.broadcast_to(wanted[key], each[key].shape), rtol=1e-8)


def everywhere(cases):
    return [pytest.param(*case, marks=[] if case in FAST else [pytest.mark.slow]) for case in cases]


FAST = [("sgld", "control_variates")]


@pytest.mark.parametrize(("name", "kind"), everywhere([(a, b) for a in SAMPLERS for b in ESTIMATORS]))
def test_composes_resumes_and_keeps_float32(tmp_path, name, kind):
    sampler, target = SAMPLERS[name], posterior(jnp.float32)
    if kind == "control_variates":
        target = rw.control_variates(target, jax.tree.map(jnp.zeros_like, start(jnp.float32)))
    elif kind == "svrg":
        target = rw.svrg(target, every=7)
    whole = run(sampler, target, start(jnp.float32), checkpoint=tmp_path, checkpoint_every=20)
    assert all(status.outcome == "finished" for status in whole.status)
    floats = [
        x for x in jax.tree.leaves((whole.positions, whole.final_states)) if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    assert {x.dtype for x in floats} == {np.dtype("float32")}
    first, second = (state.prior[0] for state in whole.final_states)
    assert first.sigma != second.sigma  # each chain learns its own
    assert np.all(np.isfinite(first.inclusion["weight"]))
    rho = whole.inclusion_probabilities
    assert rho["weight"].shape == (2, 3)
    np.testing.assert_array_equal(rho["bias"], np.ones((2, 1)))
    for path in checkpoint.files(Path(tmp_path)):
        if "060" in path.stem:
            path.unlink()
    assert_same_run(
        whole, run(sampler, target, start(jnp.float32), checkpoint=tmp_path, checkpoint_every=20, resume=True)
    )


def test_runner_equals_the_kernel_and_looks_at_each_chain_with_its_own_prior(tmp_path):
    target = posterior()
    result = run(target=target, steps=15, checkpoint=tmp_path)
    kernel = rw.build_kernel(rw.sgld(), target, start())
    state, step = jax.jit(kernel.init)(start()), jax.jit(kernel.step)
    key = jax.random.split(jax.random.key(0), 2)[1]
    for k in range(15):
        noise_key, batch_key = jax.random.split(jax.random.fold_in(key, k))
        rows = jax.random.randint(batch_key, (10,), 0, 40)
        state, _ = step(noise_key, state, jax.tree.map(lambda x, rows=rows: x[rows], target.data), 1e-4)
    for mine, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(result.final_states[1]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)

    sigmas = [float(state.prior[0].sigma) for state in result.final_states]
    table = rw.pointwise_log_likelihood(result)
    gradients = map_gradients(result, result.positions, lambda position, gradient: gradient)
    assert table.shape == (2, 15, 40)
    for chain in range(2):
        last = jax.tree.map(lambda x, c=chain: x[c, 14], result.positions)
        wanted = stats.norm.logpdf(residual(last, (X, Y)), scale=sigmas[chain])
        np.testing.assert_allclose(table[chain, 14], wanted, rtol=1e-9)
        frozen = target.frozen(result.final_states[chain].prior)
        exact = jax.grad(frozen.potential)(last, target.data)
        np.testing.assert_allclose(gradients[chain, 14], [*exact["bias"], *exact["weight"]], rtol=1e-9)

    with pytest.raises(ValueError, match=r"log_prior.groups.named.*0\.1.*0\.2"):
        run(target=posterior(spike_scale=0.2), steps=15, checkpoint=tmp_path, resume=True)


def test_a_plain_prior_adds_nothing_to_the_state():
    target = rw.Posterior(rw.gaussian_prior(1.0), lambda p, b: -0.5 * residual(p, b) ** 2, posterior().data)
    state = rw.build_kernel(rw.sgld(), target, start()).init(start())
    assert state.prior is None
    assert len(jax.tree.leaves(state)) == 4  # the two words of the step counter and two arrays
    assert jax.tree.structure(target) == jax.tree.structure(target.frozen(None))


@pytest.mark.slow
def test_step_size_and_checks_see_the_learnt_prior():
    target = posterior()
    size = rw.find_step_size(
        jax.random.key(0), rw.hasgld_sa(), target, start(), batch_size=20, steps=5_000, progress=False
    )
    assert 1e-3 < size < 1
    result = run(rw.hasgld_sa(), target, steps=5_000, burn_in=1_000, batch_size=20, step_size=float(size))
    report = result.check()
    assert "step size / stability limit" in report.numbers
    assert rw.stein_discrepancy(result, max_draws=200) > 0
    assert rw.gradient_noise_fraction(result) > 0
    temperature = rw.configurational_temperature(result)
    assert temperature.value == pytest.approx(1.0, abs=0.3)
