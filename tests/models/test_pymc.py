"""Models of PyMC as targets: their densities, rows, starts, and what is shown of them."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.numpyro_models import cases

import ridgewalk as rw
from ridgewalk.schedules import enable_x64

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
pm = pytest.importorskip("pymc")
from tests.models.pymc_models import MODELS  # noqa: E402

TARGETS = {}
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(50, 2)), RNG.normal(size=50)
GROUP = RNG.integers(0, 50, 50)


def of(name):
    """The model and its target, made once."""
    if name not in TARGETS:
        model = MODELS[name]()
        TARGETS[name] = model, rw.from_pymc(model)
    return TARGETS[name]


def compiled_logp(model):
    """PyMC's own density, in Python: C code would be compiled for ten times as long as this one takes."""
    return model.compile_logp(mode="FAST_COMPILE")


def point(model, position):
    """A position under the names of PyMC's transformed variables."""
    return {model.rvs_to_values[variable].name: np.asarray(position[variable.name]) for variable in model.free_RVs}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n != "poisson" else []) for n in MODELS])
def test_the_density_is_that_of_pymc_and_of_numpyro(name):
    model, target = of(name)
    theirs = compiled_logp(model)
    case = cases()[name]
    other = rw.from_numpyro(case.model, *case.args, **case.kwargs)
    for seed in range(2):
        position = target.model.start(jax.random.key(seed), target)
        ours = float(target.potential(position, target.data))
        assert -ours == pytest.approx(float(theirs(point(model, position))), rel=1e-9)
        assert ours == pytest.approx(float(other.potential(position, other.data)), rel=1e-7)


@pytest.mark.parametrize("name", MODELS)
def test_minibatch_gradients_average_to_the_full_gradient(name):
    """Over the batches of a partition exactly."""
    _, target = of(name)
    position, batches = target.model.start(jax.random.key(0), target), 8 if name == "eight schools" else 20
    parts = jax.tree.map(lambda leaf: leaf.reshape(batches, -1, *leaf.shape[1:]), target.data)
    each = jax.jit(jax.vmap(jax.grad(target.potential), (None, 0)))(position, parts)
    whole = jax.jit(rw.Posterior.full_gradient)(target, position)
    for mean, full in zip(jax.tree.leaves(each), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(mean.mean(0), full, rtol=1e-7, atol=1e-7 * np.abs(full).max())


def test_a_run_with_dims_coords_and_predictions(tmp_path):
    model, target = of("poisson")
    assert set(target.data) == {"count", "x", "exposure"}
    options = {"step_size": 1e-5, "batch_size": 50, "chains": 2, "thin": 5, "progress": False}

    def run(steps, **more):
        return rw.sample(jax.random.key(0), rw.sgld(), target, steps=steps, **options, **more)

    result = run(40)
    run(20, checkpoint=tmp_path)
    again = run(40, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(result.positions["w"], again.positions["w"])
    shown = result.posterior
    assert set(shown) == {"intercept", "w", "total"}, "`mean` has the rows as an axis"
    x, exposure = (np.asarray(target.data[name]) for name in ("x", "exposure"))
    mean = np.exp(shown["intercept"][..., None] + shown["w"] @ x.T) * exposure
    np.testing.assert_allclose(shown["total"], mean.sum(-1), rtol=1e-6)
    data = result.to_arviz(log_likelihood=True)
    assert list(data["posterior"]["w"].coords["feature"].values) == ["a", "b", "c"]
    assert data["log_likelihood"]["log_likelihood"].shape == (2, 8, 600)
    predicted = target.predictive(result, x=np.zeros((4, 3)), exposure=np.full(4, 1e6))
    np.testing.assert_allclose(predicted["count"] / 1e6, np.exp(shown["intercept"])[..., None] * np.ones(4), rtol=0.05)
    assert model["x"].get_value().shape == (600, 3), "the model is as it was"
    assert target.predictive(result, key=jax.random.key(1))["count"].shape == (2, 8, 600)


def test_potentials_constraints_and_starts():
    with pm.Model() as model:
        x = pm.Data("x", X)
        p = pm.Dirichlet("p", np.ones(3))
        s = pm.HalfNormal("s", 1)
        w = pm.Uniform("w", -1, 2, shape=2)
        pm.Potential("global", -3 * p[0])
        pm.Potential("rows", 0.1 * (x @ w))
        pm.Normal("y", x @ w, s, observed=Y)
        pm.MvNormal("x_model", np.zeros(2), np.eye(2) * 2, observed=X)
        pm.Poisson("n", s, observed=pm.Data("counts", np.arange(50) % 3))
    target = rw.from_pymc(model)
    assert set(target.model.with_rows) == {"rows", "y", "x_model", "n"}
    assert set(target.data) == {"x", "y", "x_model", "counts"}
    theirs = compiled_logp(model)
    starts = [target.model.start(jax.random.key(seed), target) for seed in range(3)]
    for position in starts:
        assert float(-target.potential(position, target.data)) == pytest.approx(float(theirs(point(model, position))))
    initial = model.initial_point()["w_interval__"]
    assert all(np.abs(np.asarray(position["w"]) - initial).max() <= 1 for position in starts)
    result = rw.sample(jax.random.key(0), rw.sgld(), target, steps=4, step_size=1e-3, progress=False)
    assert result.posterior["p"].sum(-1) == pytest.approx(1)


def test_small_integers_of_many_rows():
    """PyTensor holds labels below 128 in eight bits; there may be more rows than that."""
    rows = 300
    x, grade, kind = RNG.normal(size=(rows, 2)), RNG.integers(0, 3, rows), RNG.integers(0, 3, rows)
    with pm.Model() as model:
        features = pm.Data("features", x)
        w = pm.Normal("w", 0, 1, shape=2)
        ordered = pm.distributions.transforms.ordered
        cut = pm.Normal("cut", 0, 2, shape=2, transform=ordered, initval=[-1.0, 1.0])
        pm.OrderedLogistic("grade", eta=features @ w, cutpoints=cut, observed=grade, compute_p=False)
        pm.Categorical("kind", p=pm.Dirichlet("p", np.ones(3)), observed=kind)
    target = rw.from_pymc(model)
    assert set(target.data) == {"features", "grade", "kind"}
    position = target.model.start(jax.random.key(0), target)
    ours = float(target.potential(position, target.data))
    assert -ours == pytest.approx(float(compiled_logp(model)(point(model, position))))
    batch = jax.tree.map(lambda leaf: leaf[100:], target.data)
    np.testing.assert_allclose(
        target.log_likelihood(position, batch), target.log_likelihood(position, target.data)[100:], rtol=1e-9
    )


def test_without_rows_all_of_the_model_is_a_density():
    with pm.Model(coords={"row": np.arange(50)}) as model:
        z = pm.Normal("z", 0, 1, dims="row")
        pm.Normal("y", z, 1, observed=Y, dims="row")
    target = rw.from_pymc(model, data=())
    position = target.model.start(jax.random.key(0), target)
    assert float(-target.potential(position)) == pytest.approx(float(compiled_logp(model)(point(model, position))))
    assert target.model.dims == {"z": ("row",)}


def test_settings_of_jax_and_the_environment_are_kept():
    flags = os.environ.get("XLA_FLAGS")
    with enable_x64(False), pm.Model() as model:
        w = pm.Normal("w", 0, 1)
        pm.Normal("y", w, 1, observed=Y)
    jax.config.update("jax_enable_x64", False)
    try:
        target = rw.from_pymc(model)
        result = rw.sample(jax.random.key(0), rw.sgld(), target, steps=4, step_size=1e-3, batch_size=5, progress=False)
        assert not jax.config.read("jax_enable_x64")
        assert result.positions["w"].dtype == jnp.float32
    finally:
        jax.config.update("jax_enable_x64", True)
    assert os.environ.get("XLA_FLAGS") == flags


def no_observed():
    pm.Normal("w", 0, 1)


def discrete():
    k = pm.Bernoulli("k", 0.5)
    pm.Normal("y", k, 1, observed=Y)


def constants():
    w = pm.Normal("w", 0, 1, shape=2)
    pm.Normal("y", X @ w, 1, observed=Y)


def local():
    z = pm.Normal("z", 0, 1, shape=50)
    pm.Normal("y", z, 1, observed=Y)


def two_lengths():
    w = pm.Normal("w", 0, 1)
    pm.Normal("a", w, 1, observed=Y)
    pm.Normal("b", w, 1, observed=Y[:20])


def ambiguous():
    group, u, b = pm.Data("group", GROUP), pm.Data("u", X[:, 0]), pm.Normal("b", 0, 1)
    pm.Normal("y", b * u[group], 1, observed=Y)


def summed():
    x, w = pm.Data("x", X), pm.Normal("w", 0, 1, shape=2)
    pm.Normal("y", x @ w, 1, observed=Y)
    pm.Potential("penalty", -((x @ w) ** 2).sum())


def standardised():
    x, w = pm.Data("x", X), pm.Normal("w", 0, 1, shape=2)
    pm.Normal("y", (x - x.mean(0)) @ w, 1, observed=Y)


BAD = {
    no_observed: r"no variable is observed \(its variables are w\)",
    discrete: r"'k' is discrete; sum over its values",
    constants: r"constants with 50 rows \(shapes \(50, 2\)\), which cannot be batched; wrap them in pm.Data",
    local: r"'z' has one value per row.*theta\[group\].*data=\(\)",
    two_lengths: r"numbers of rows differ \(a has 50, b has 20\); name the observed",
    ambiguous: r"u may also be a constant; say which are data, for example data=\('y', 'group'\)",
    summed: r"'penalty' depends on the rows of the data but has no rows itself",
    standardised: r"of 'y' depends on the other rows of its batch",
}


@pytest.mark.parametrize("build", BAD)
def test_bad_models(build):
    with pm.Model() as model:
        build()
    with pytest.raises(ValueError, match=f"(?s){BAD[build]}"):
        rw.from_pymc(model)


def test_data_settles_what_is_ambiguous():
    with pm.Model() as model:
        ambiguous()
    target = rw.from_pymc(model, data=("group", "y"))
    position = target.model.start(jax.random.key(0), target)
    assert float(-target.potential(position, target.data)) == pytest.approx(
        float(compiled_logp(model)(point(model, position)))
    )
    with pytest.raises(ValueError, match=r"'z' is neither observed nor pm.Data"):
        rw.from_pymc(model, data="z")
    with pytest.raises(ValueError, match=r"function is not a pm.Model"):
        rw.from_pymc(ambiguous)
