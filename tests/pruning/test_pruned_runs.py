"""Pruned runs: resumed bit for bit, streamed, in every way of running chains, of networks in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.pruning.pruning_cases import draws_of, regression, start
from tests.sampling.problems import assert_same_run
from tests.sampling.test_checkpoint import SAMPLERS as RESUMED
from tests.sampling.test_checkpoint import forget_after

import ridgewalk as rw
from ridgewalk._pytree import leaf_names
from ridgewalk.diagnostics.curvature import is_isotropic
from ridgewalk.sampling.checkpoint import config_snapshot, differences

REGRESSION = regression()
SAMPLERS = {**RESUMED, "sgrld": rw.sgrld(lambda position: jnp.eye(8)), "svrg": rw.sgld()}


def run(sampler, *, sparsity=0.5, target=REGRESSION.target, **options):
    pruned = rw.pruned(sampler, sparsity, start=10, stop=40, every=6)
    given = {"steps": 60, "step_size": 1e-5, "batch_size": 40, "chains": 2, "burn_in": 40, "progress": False}
    return rw.sample(jax.random.key(0), pruned, target, start(), **(given | options))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "sgld" else [pytest.mark.slow]) for name in SAMPLERS]
)
def test_resume_is_bit_identical(tmp_path, name):
    options = {"burn_in": 0}
    if name == "svrg":
        options["target"] = rw.svrg(REGRESSION.target, every=7)
    whole = run(SAMPLERS[name], **options)
    assert_same_run(whole, run(SAMPLERS[name], **options, checkpoint=tmp_path, checkpoint_every=20))
    forget_after(tmp_path, 20)
    assert_same_run(whole, run(SAMPLERS[name], **options, checkpoint=tmp_path, checkpoint_every=20, resume=True))


def test_other_pruning_is_another_run():
    then, now = (config_snapshot(rw.pruned(rw.sgld(), sparsity, stop=40)) for sparsity in (0.5, 0.6))
    assert differences(then, now) == ["pruning.sparsity: 0.5 then, 0.6 now"]
    assert differences(then, config_snapshot(rw.sgld())) != []
    assert differences({"type": "Sampler"}, {"type": "Sampler", "pruning": config_snapshot(rw.sgld().pruning)}) == []


@pytest.mark.slow
def test_every_way_of_running_gives_the_same_chains(tmp_path):
    together = run(rw.sgld())
    apart = run(rw.sgld(), chain_method="sequential")
    np.testing.assert_allclose(draws_of(together), draws_of(apart), rtol=1e-12)
    streamed = run(rw.sgld(), store=tmp_path / "draws.zarr")
    assert_same_run(together, streamed)


def test_zeros_come_with_the_schedule_and_stay():
    result = run(rw.sgld(), burn_in=0)
    zeros = draws_of(result) == 0
    assert np.all(zeros[:, 1:] >= zeros[:, :-1]), "what is pruned stays pruned"
    share = np.array([0, *(1 - (1 - np.arange(1, 7) / 6) ** 3)])
    counts = np.round(0.5 * 6 * share).astype(int)
    events = np.clip((np.arange(1, 61) - 10) // 6 + 1, 0, 6)
    np.testing.assert_array_equal(zeros.sum(-1), np.tile(counts[events], (2, 1)))
    assert not zeros[..., 6:].any(), "biases stay"


@pytest.mark.parametrize(
    ("scope", "sampler"),
    [
        ("global", rw.sgld()),
        pytest.param("layer", rw.sgld(), marks=pytest.mark.slow),
        pytest.param("layer", rw.hasgld_sa(form="snapshot_lbfgs", memory=2), marks=pytest.mark.slow),
        pytest.param("global", rw.hasgld_sa(rank=3), marks=pytest.mark.slow),
    ],
    ids=["global", "layer", "layer limited", "global dense"],
)
def test_sparsity_of_a_network_is_exact(scope, sampler):
    """Two layers of different scale, float32, each chain with its own mask."""

    def log_prior(p):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))

    def log_likelihood(p, batch):
        x, y = batch
        return -0.5 * (y - (jnp.tanh(x @ p["a"] + p["b"][None, :]) @ p["c"])[:, 0]) ** 2

    x = jax.random.normal(jax.random.key(1), (50, 5), jnp.float32)
    target = rw.Posterior(log_prior, log_likelihood, (x, jnp.sin(x[:, 0])))
    keys = jax.random.split(jax.random.key(2), 2)
    position = {
        "a": 0.1 * jax.random.normal(keys[0], (5, 33), jnp.float32),
        "b": jnp.zeros(33, jnp.float32),
        "c": jax.random.normal(keys[1], (33, 1), jnp.float32),
    }
    result = rw.sample(
        jax.random.key(0),
        rw.pruned(sampler, 0.7, start=4, stop=30, every=3, scope=scope),
        target,
        position,
        steps=40,
        step_size=1e-3,
        batch_size=10,
        chains=2,
        burn_in=30,
        progress=False,
    )
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(result.positions))
    zeros = {
        name: (np.asarray(leaf) == 0).reshape(2, 10, -1).sum(-1)
        for name, leaf in zip(leaf_names(position), jax.tree.leaves(result.positions), strict=True)
    }
    assert np.all(zeros["b"] == 0)
    if scope == "layer":
        assert np.all(zeros["a"] == round(0.7 * 165))
        assert np.all(zeros["c"] == round(0.7 * 33))
    else:
        assert np.all(zeros["a"] + zeros["c"] == round(0.7 * 198))
        assert np.all(zeros["c"] < round(0.7 * 33)), "the larger layer keeps more of its weights"
    kept = [np.asarray(state.mask) for state in result.final_states]
    assert all(int(mask.sum()) == 231 - sum(count[0, 0] for count in zeros.values()) for mask in kept)
    assert np.any(kept[0] != kept[1])


@pytest.mark.parametrize("penalty", ["mixture", pytest.param("averaged", marks=pytest.mark.slow)])
def test_an_adaptive_prior_learns_as_on_the_smaller_model(penalty):
    """Step for step: a pruned chain, and one of the kept weights alone that gets the same noise, its sums fresh."""
    rng = np.random.default_rng(2)
    x = jnp.asarray(rng.normal(size=(30, 6)))
    y = x @ jnp.array([2.0, -1.5, 0.0, 1.0, 0.0, 0.0]) + 0.3 * jnp.asarray(rng.normal(size=30))
    shared = rw.shared_noise(lambda w, batch: batch[1] - batch[0] @ w)
    alone = rw.spike_and_slab(penalty=penalty)
    prior = rw.prior_by_leaf({"position": alone})
    pruned = rw.pruned(rw.sgld(), 0.5, start=1, stop=1, leaves=lambda name, leaf: True)
    start = jnp.array([1.8, -1.2, 0.02, 0.8, 0.01, -0.03])
    large = rw.build_kernel(pruned, rw.Posterior(prior, shared, (x, y)), start)
    state, _ = large.advance(jnp.zeros(6), large.init(start), (x, y), 1e-3)
    kept = np.asarray(state.mask)
    assert kept.tolist() == [True, True, False, True, False, False]
    small = rw.build_kernel(rw.sgld(), rw.Posterior(prior, shared, (x[:, kept], y)), start[kept])
    learnt = state.prior[0]
    inclusion, here = learnt.inclusion["position"][kept], state.position[kept]
    share = alone.inclusion_at(learnt, here)
    if penalty == "averaged":
        share = inclusion + 5 * 12**-0.9 * (share - inclusion)
    begun = small.init(here)
    fresh = begun.prior[0]._replace(
        inclusion={"position": inclusion},
        sigma=learnt.sigma,
        delta=learnt.delta,
        spike=jnp.sum((1 - share) * jnp.abs(here)) / 0.1,
        slab=jnp.sum(share * here**2) / 100,
        residual=learnt.residual,
    )
    same = begun._replace(step=state.step, prior=(fresh,))
    advance, smaller = jax.jit(large.advance), jax.jit(small.advance)
    for _ in range(30):
        noise = jnp.asarray(rng.normal(size=6))
        state, _ = advance(noise, state, (x, y), 1e-3)
        same, _ = smaller(noise[kept], same, (x[:, kept], y), 1e-3)
    np.testing.assert_allclose(state.position[kept], same.position, rtol=1e-10)
    one, other = state.prior[0], same.prior[0]
    for name in ("sigma", "delta", "spike", "slab", "residual"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-10)
    np.testing.assert_allclose(one.inclusion["position"][kept], other.inclusion["position"], rtol=1e-10)
    assert np.all(np.asarray(one.inclusion["position"])[~kept] == 0)
    assert float(other.delta) > 1.2 * 3 / (1 + 6 + 6 - 2), "with p = 6 it would be less"


def test_summary_counts_what_was_pruned_and_r_hat_leaves_it_out():
    result, moments = run(rw.sgld()), run(rw.sgld(), keep="moments")
    masks = np.stack([np.asarray(state.mask) for state in result.final_states])
    for table in (result.summary(), moments.summary()):
        assert table["pruned"].tolist() == (~masks).sum(0).tolist()
        none, both = table["pruned"] == 2, table["pruned"] == 0
        assert none.any()
        assert np.isnan(table["r_hat"][none]).all()
        assert np.isfinite(table["r_hat"][both]).all()
        assert (table["mean"][none] == 0).all()
        assert (table["sd"][none] == 0).all()
    for some in (result, moments):
        assert some.summary(max_parameters=2)["pruned"].tolist() == [3.0, 0.0]
    assert "r_hat" in str(result.summary())


def test_a_g_that_has_not_learnt_is_scalar_among_kept_coordinates():
    sampler = rw.pruned(rw.hasgld_sa(curvature_every=100), 0.5, start=1, stop=1)
    start = {"w": jnp.ones((2, 3))}
    kernel = rw.build_kernel(sampler, rw.Density(lambda p: -jnp.sum(p["w"] ** 2)), start)
    state, _ = kernel.step(jax.random.key(0), kernel.init(start), None, 0.01)
    assert int(state.mask.sum()) == 3
    assert is_isotropic(state)
