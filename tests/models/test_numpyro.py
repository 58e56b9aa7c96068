"""Models of NumPyro as targets: their densities, rows, starts, and what is shown of them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.handlers import mask, scale, substitute
from numpyro.infer import init_to_value
from numpyro.infer.util import potential_energy
from tests.models.numpyro_models import SCHOOLS, cases

import ridgewalk as rw

CASES = cases()
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(60, 2)), RNG.normal(size=60)


def target_of(name):
    case = CASES[name]
    return rw.from_numpyro(case.model, *case.args, **case.kwargs)


def starts(target, count=3):
    return [target.model.start(jax.random.key(i), target) for i in range(count)]


def whole(target):
    return jax.tree.map(jnp.asarray, target.data)


def same_potential(target, model, args=(), kwargs=None):
    """At three positions, with all data; networks have fixed `param` sites."""
    model = substitute(model, data=dict(target.model.fixed))
    rows = whole(target) if isinstance(target, rw.Posterior) else None
    both = jax.jit(lambda at: (target.potential(at, rows), potential_energy(model, args, kwargs or {}, at)))
    for position in starts(target):
        ours, theirs = both(position)
        assert float(ours) == pytest.approx(float(theirs), rel=1e-9)


def by_default(*names):
    """The densities of others are tested with PyMC's, and their runs against NUTS in `make test-slow`."""
    return [pytest.param(name, marks=[] if name in names else [pytest.mark.slow]) for name in CASES]


@pytest.mark.parametrize("name", by_default("network", "varying intercepts"))
def test_potential_is_that_of_numpyro(name):
    same_potential(target_of(name), *CASES[name])


@pytest.mark.parametrize("name", by_default("varying intercepts"))
def test_minibatch_gradients_average_to_the_full_gradient(name):
    """Over the batches of a partition exactly."""
    target = target_of(name)
    position, batches = starts(target, 1)[0], 8 if name == "eight schools" else 20
    parts = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(batches, -1, *leaf.shape[1:]), target.data)
    each = jax.jit(jax.vmap(jax.grad(target.potential), (None, 0)))(position, parts)
    whole = jax.jit(rw.Posterior.full_gradient)(target, position)
    for mean, full in zip(jax.tree.leaves(each), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(mean.mean(0), full, rtol=1e-7, atol=1e-7 * np.abs(full).max())


def test_rows_and_axes_of_varying_intercepts():
    target = target_of("varying intercepts")
    assert set(target.data) == {"group", "x", "y"}
    assert target.size == 5_000
    assert target.model.dims == {"z": ("county",)}
    batch = jax.tree.map(lambda leaf: leaf[:9], target.data)
    position = starts(target, 1)[0]
    assert target.log_likelihood(position, batch).shape == (9,)
    assert position["z"].shape == (80,)


def test_without_data_all_of_the_model_is_a_density():
    """Eight schools as in NumPyro's README: one latent value for each row."""

    def schools(error, effect=None):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("school", len(error)):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, error), obs=effect)

    error, effect = (np.array(SCHOOLS[name]) for name in ("error", "effect"))
    target = rw.from_numpyro(schools, error, effect=effect, data=())
    assert isinstance(target, rw.Density)
    same_potential(target, schools, (error,), {"effect": effect})
    result = rw.sample(jax.random.key(0), rw.sgld(), target, steps=20, step_size=1e-3, chains=2, progress=False)
    assert result.to_arviz()["posterior"]["theta"].dims == ("chain", "draw", "school")
    assert target.predictive(result)["y"].shape == (2, 20, 8)


# What models may contain


def regression(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def with_factors(x, y):
    regression(x, y)
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.factor("shrink", -3 * a**2)
    numpyro.factor("unplated", -0.1 * (a * y) ** 2)
    with numpyro.plate("row", len(x)):
        numpyro.factor("plated", 0.2 * a * x[:, 0])


def subsampled(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("row", 60, subsample_size=10) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 0.5), obs=y[rows])


def subsample_statement(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("row", 60, subsample_size=10):
        batch = numpyro.subsample(x, event_dim=1)
        numpyro.sample("y", dist.Normal(batch @ w, 0.5), obs=numpyro.subsample(y, event_dim=0))


def masked_and_scaled(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("row", 60), mask(mask=x[:, 0] > 0), scale(scale=0.3):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def several_observed(x, y):
    rate = numpyro.sample("rate", dist.Exponential(1))
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(w, rate), obs=y)
        numpyro.sample("x", dist.MultivariateNormal(w * jnp.ones(2), rate * jnp.eye(2)), obs=x)
    numpyro.sample("pooled", dist.Normal(w, 0.1), obs=0.7)


def outputs(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("output", 2, dim=-1), numpyro.plate("row", len(x), dim=-2):
        numpyro.sample("x", dist.Normal(w, 1), obs=x)
    with numpyro.plate("output", 2, dim=-2), numpyro.plate("other", len(x), dim=-1):
        numpyro.sample("y", dist.Normal(w, 2), obs=x.T + y[None])


def improper(x, y):
    m = numpyro.sample("m", dist.ImproperUniform(constraints.positive, (), ()))
    probabilities = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    factor = numpyro.sample("l", dist.LKJCholesky(2, 1.5))
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(m * probabilities[1], 1 + factor[1, 0] ** 2), obs=y)


def nested(tables, settings):
    w = numpyro.sample("w", dist.Normal(0, settings["sd"]).expand([2]).to_event(1))
    with numpyro.plate("row", settings["rows"]):
        numpyro.sample("y", dist.Normal(tables["x"] @ w, settings["noise"][0]), obs=tables["y"])


CONTENTS = {
    "factors": (with_factors, (X, Y)),
    "masked and scaled": (masked_and_scaled, (X, Y)),
    "several observed sites": (several_observed, (X, Y)),
    "several plates": (outputs, (X, Y)),
    "improper and constrained sites": (improper, (X, Y)),
    "nested arguments": (nested, ({"x": X, "y": Y}, {"sd": 2.0, "rows": 60, "noise": np.array([0.5, 1])})),
    "handled": (scale(regression, scale=0.5), (X, Y)),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_contents(name):
    """All of the density is there, and batches keep all of it but the rows that they leave out."""
    model, args = CONTENTS[name]
    target = rw.from_numpyro(model, *args)
    same_potential(target, model, args)
    position = starts(target, 1)[0]
    halves = [jax.tree.map(lambda leaf, part=part: jnp.asarray(leaf[part]), target.data) for part in HALVES]
    mean = sum(target.potential(position, half) for half in halves) / 2
    assert float(mean) == pytest.approx(float(target.potential(position, whole(target))), rel=1e-9)


HALVES = (slice(0, 30), slice(30, 60))


@pytest.mark.parametrize("model", [subsampled, subsample_statement])
def test_subsampling_of_the_model_is_left_to_batch_size(model):
    target = rw.from_numpyro(model, X, Y)
    assert set(target.data) == {"x", "y"}
    plain = rw.from_numpyro(regression, X, Y)
    for position in starts(plain):
        for part in HALVES:
            batches = [jax.tree.map(lambda leaf, part=part: jnp.asarray(leaf[part]), t.data) for t in (target, plain)]
            ours, theirs = (t.potential(position, b) for t, b in zip((target, plain), batches, strict=True))
            assert float(ours) == pytest.approx(float(theirs))


def test_discrete_sites_of_the_rows_are_summed_out():
    def enumerated(y):
        p = numpyro.sample("p", dist.Beta(2, 2))
        means = numpyro.sample("means", dist.Normal(0, 2).expand([2]).to_event(1))
        with numpyro.plate("row", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(p))
            numpyro.sample("y", dist.Normal(means[z], 0.5), obs=y)

    def marginal(y):
        p = numpyro.sample("p", dist.Beta(2, 2))
        means = numpyro.sample("means", dist.Normal(0, 2).expand([2]).to_event(1))
        mixing = dist.Categorical(probs=jnp.stack([1 - p, p]))
        with numpyro.plate("row", len(y)):
            numpyro.sample("y", dist.MixtureSameFamily(mixing, dist.Normal(means, 0.5)), obs=y)

    target = rw.from_numpyro(enumerated, Y)
    assert list(target.model.latents) == ["p", "means"]
    same_potential(target, marginal, (Y,))


def test_deterministic_sites():
    """Those of the rows are left out; those over all rows use all of them."""

    def model(x, y):
        w = numpyro.sample("w", dist.LogNormal(0, 1).expand([2]).to_event(1))
        numpyro.deterministic("total", w.sum())
        mean = numpyro.deterministic("mean", x @ w)
        numpyro.deterministic("largest", mean.max())
        with numpyro.plate("row", len(x)):
            numpyro.deterministic("twice", 2 * mean)
            numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    target = rw.from_numpyro(model, X, Y)
    result = rw.sample(
        jax.random.key(0), rw.sgld(), target, steps=6, step_size=1e-3, batch_size=7, chains=2, progress=False
    )
    shown = result.posterior
    assert set(shown) == {"w", "total", "largest"}
    np.testing.assert_allclose(shown["w"], np.exp(result.positions["w"]), rtol=1e-6)
    np.testing.assert_allclose(shown["total"], shown["w"].sum(-1), rtol=1e-6)
    np.testing.assert_allclose(shown["largest"], (shown["w"] @ X.T).max(-1), rtol=1e-6)
    predicted = target.predictive(result, X[:5], None)
    np.testing.assert_allclose(predicted["twice"], 2 * shown["w"] @ X[:5].T, rtol=1e-6)
    assert predicted["y"].shape == (2, 6, 5)


# Runs


def test_a_run_from_the_starts_of_the_model(tmp_path):
    case = CASES["poisson"]
    target = rw.from_numpyro(case.model, *case.args, **case.kwargs)
    options = {"step_size": 1e-5, "batch_size": 50, "chains": 3, "progress": False, "thin": 5}

    def run(steps, **more):
        return rw.sample(jax.random.key(0), rw.sgld(), target, steps=steps, **options, **more)

    result = run(40)
    first = rw.sample(jax.random.key(0), rw.sgld(), target, steps=1, step_size=1e-12, chains=3, progress=False)
    drawn = np.asarray(first.positions["w"][:, 0])
    assert np.abs(drawn).max() <= 2.001
    assert len(np.unique(drawn)) == drawn.size
    run(20, checkpoint=tmp_path)
    again = run(40, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(result.positions["w"], again.positions["w"])
    data = result.to_arviz(log_likelihood=True, observed_data=True)
    assert data["posterior"]["w"].dims == ("chain", "draw", "feature")
    assert data["log_likelihood"]["log_likelihood"].shape == (3, 8, 600)
    np.testing.assert_array_equal(data["observed_data"]["count"], case.kwargs["count"])
    assert result.summary().index == ("intercept", "w[0]", "w[1]", "w[2]")


def test_init_strategy_and_position():
    case, value = CASES["poisson"], {"intercept": 0.3, "w": np.array([0.1, 0.2, 0.3])}
    target = rw.from_numpyro(case.model, *case.args, **case.kwargs, init_strategy=init_to_value(values=value))
    options = {"steps": 1, "step_size": 1e-12, "chains": 2, "progress": False}
    result = rw.sample(jax.random.key(0), rw.sgld(), target, **options)
    np.testing.assert_allclose(result.posterior["w"][:, 0], [value["w"]] * 2, atol=1e-3)
    zeros = {"intercept": jnp.zeros(()), "w": jnp.zeros(3)}
    result = rw.sample(jax.random.key(0), rw.sgld(), target, zeros, **options)
    np.testing.assert_allclose(result.posterior["w"], 0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [rw.control_variates, lambda target, _: rw.svrg(target, every=20)],
    ids=["control_variates", "svrg"],
)
def test_mode_and_estimators(make):
    target = target_of("poisson")
    mode = rw.find_mode(jax.random.key(0), target)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(target.full_gradient(mode))) < 1e-2
    result = rw.sample(
        jax.random.key(1), rw.sgld(), make(target, mode), steps=40, step_size=1e-4, batch_size=50, progress=False
    )
    assert result.posterior["w"].shape == (1, 40, 3)


def test_a_network_keeps_the_names_of_its_sites():
    target = target_of("network")
    result = rw.sample(
        jax.random.key(0), rw.sgld(), target, steps=8, step_size=1e-5, batch_size=20, chains=2, progress=False
    )
    assert result.posterior["net/Dense_1.kernel"].shape == (2, 8, 2, 6)
    assert "net_Dense_0.kernel" in result.to_arviz()["posterior"]
    assert target.predictive(result, np.zeros((4, 2)))["y"].shape == (2, 8, 4)


@pytest.mark.slow
def test_data_on_disk(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("x", "y"))
    target, plain = rw.from_numpyro(regression, x, y), rw.from_numpyro(regression, X, Y)
    options = {"steps": 6, "step_size": 1e-3, "batch_size": 10, "progress": False}
    one, two = (rw.sample(jax.random.key(0), rw.sgld(), t, **options) for t in (target, plain))
    np.testing.assert_allclose(one.posterior["w"], two.posterior["w"])


def test_a_resumed_run_knows_the_model_and_its_constants(tmp_path):
    def run(sd, steps, **options):
        target = rw.from_numpyro(nested, {"x": X, "y": Y}, {"sd": sd, "rows": 60, "noise": np.array([0.5, 1])})
        return rw.sample(
            jax.random.key(0), rw.sgld(), target, steps=steps, step_size=1e-3, checkpoint=tmp_path, progress=False,
            **options,
        )  # fmt: skip

    run(2.0, 4)
    assert run(2.0, 8, resume=True).draws == 8
    with pytest.raises(ValueError, match=r"settings\['sd'\]: 2\.0 then, 3\.0 now"):
        run(3.0, 12, resume=True)
