"""Models that cannot be sampled from minibatches, or not at all: the error names the site or argument, and the fix."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import ridgewalk as rw

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(50, 2)), RNG.normal(size=50)
GROUP = RNG.integers(0, 50, 50)


def weights():
    return numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))


def regression(x, y=None):
    w = weights()
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


def local_latents(y):
    with numpyro.plate("row", len(y)):
        theta = numpyro.sample("theta", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(theta, 1), obs=y)


def local_latents_without_plate(y):
    theta = numpyro.sample("theta", dist.Normal(0, 1).expand([len(y)]))
    numpyro.sample("y", dist.Normal(theta, 1), obs=y)


def two_lengths(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("first", len(x)):
        numpyro.sample("a", dist.Normal(w, 1), obs=x)
    with numpyro.plate("second", len(y)):
        numpyro.sample("b", dist.Normal(w, 1), obs=y)


def global_discrete(y):
    k = numpyro.sample("k", dist.Bernoulli(0.5))
    m = numpyro.sample("m", dist.Normal(k, 1))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(m, 1), obs=y)


def local_counts(y):
    rate = numpyro.sample("rate", dist.Exponential(1))
    with numpyro.plate("row", len(y)):
        n = numpyro.sample("n", dist.Poisson(rate))
        numpyro.sample("y", dist.Normal(n, 1), obs=y)


def closed_over():
    w = weights()
    with numpyro.plate("row", 50):
        numpyro.sample("y", dist.Normal(X @ w, 1), obs=Y)


def one_number(x, y):
    w = weights()
    numpyro.sample("y", dist.Normal(x @ w, 1).to_event(1), obs=y)


def gaussian_process(x, y):
    length = numpyro.sample("length", dist.LogNormal(0, 1))
    distances = (x[:, None, 0] - x[None, :, 0]) / length
    covariance = jnp.exp(-(distances**2)) + 0.1 * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)


def summed_factor(x, y):
    w = weights()
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)
    numpyro.factor("penalty", -jnp.sum((x @ w) ** 2))


def prior_from_data(x, y):
    m = numpyro.sample("m", dist.Normal(y.mean(), 1))
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(m, 1), obs=y)


def standardised(x, y):
    w = weights()
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal((x - x.mean(0)) / x.std(0) @ w, 1), obs=y)


def counts_groups(group, y):
    with numpyro.plate("group", len(np.unique(group))):
        a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(a[group], 1), obs=y)


def group_covariate(group, u, y):
    """`u` has one value for each of 50 groups, and there happen to be 50 rows."""
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(b * u[group], 1), obs=y)


def prior_scales(x, scales, y):
    with numpyro.plate("feature", len(scales)):
        w = numpyro.sample("w", dist.Normal(0, scales))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


def nothing_latent(y):
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(0, 1), obs=y)


def sphere(y):
    direction = numpyro.sample("direction", dist.ProjectedNormal(jnp.zeros(2)))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(direction[0], 1), obs=y)


SQUARE = RNG.normal(size=(50, 50))

BAD = {
    "no observed site": (regression, (X,), {}, r"no site is observed \(its sites are w, y\).*obs="),
    "wrong shapes": (regression, (X, Y[:49]), {}, r"it fails with these arguments \(x \(50, 2\), y \(49,\)\)"),
    "a column observed": (regression, (X, Y[:, None]), {}, r"values of site 'y' have the shape \(50, 1\), .* \(50,\)"),
    "local latents": (local_latents, (Y,), {}, r"'theta' is in the plate of the 50 rows.*theta\[group\].*data=\(\)"),
    "local latents without a plate": (local_latents_without_plate, (Y,), {}, r"'theta' has the shape \(50,\) with all"),
    "data of two lengths": (two_lengths, (X[:, 0], Y[:20]), {}, r"'a' has 50 in plate 'first', 'b' has 20.*data="),
    "discrete": (global_discrete, (Y,), {}, r"'k' is discrete, and it is not a site of the rows; write the sum"),
    "discrete without end": (local_counts, (Y,), {}, r"'n' is discrete, and it cannot be summed over row by row"),
    "data not arguments": (closed_over, (), {}, r"no argument has the 50 rows of the observed site 'y'.*pass the data"),
    "to_event": (one_number, (X, Y), {}, r"observed site 'y' is a single number, without rows; leave out to_event"),
    "dependent rows": (gaussian_process, (X, Y), {}, r"'y' is a single number, without rows.*data=\(\)"),
    "factor summed over rows": (summed_factor, (X, Y), {}, r"of 'penalty' depends on the rows.*no sum"),
    "prior from data": (prior_from_data, (X, Y), {}, r"of 'm' depends on the rows.*compute what it needs"),
    "standardised in the model": (standardised, (X, Y), {}, r"of 'y' depends on the other rows of its batch"),
    "values in Python": (counts_groups, (GROUP, Y), {}, r"outside of JAX.*compute them before and pass them"),
    "ambiguous": (group_covariate, (GROUP, X[:, 0], Y), {}, r"group, u, y have 50 rows.*data=\('group', 'y'\)"),
    "ambiguous prior": (prior_scales, (SQUARE, np.ones(50), Y), {}, r"scales may also be.*data=\('x', 'y'\)"),
    "nothing latent": (nothing_latent, (Y,), {}, "no latent sites"),
    "no transform": (sphere, (Y,), {}, "direction.*ProjectedNormalReparam"),
    "unknown data": (regression, (X, Y), {"data": ("z",)}, r"data: 'z' is no array among the arguments.*x \(50, 2\)"),
    "unequal data": (two_lengths, (X[:, 0], Y[:20]), {"data": ("x", "y")}, r"numbers of rows differ \(x has 50, y"),
    "data that are no rows": (
        prior_scales,
        (X, np.ones(2), Y),
        {"data": "scales"},
        r"scales has 2 rows, but 'y' has 50",
    ),
    "missing argument": (group_covariate, (GROUP,), {}, r"cannot be called with these arguments \(missing a required"),
    "no model": (3, (), {}, "3 is not a function"),
    "a list": (regression, (X, list(Y)), {}, r"y: a list of 50 numbers cannot be batched; pass np.array\(y\)"),
    "pandas": (regression, (X, pd.Series(Y)), {}, r"y: a pandas Series cannot be batched; pass .to_numpy\(\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models(name):
    model, args, kwargs, message = BAD[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        rw.from_numpyro(model, *args, **kwargs)


@pytest.mark.parametrize(
    ("model", "args", "data", "names"),
    [
        (group_covariate, (GROUP, X[:, 0], Y), ("group", "y"), {"group", "y"}),
        (prior_scales, (SQUARE, np.ones(50), Y), ("x", "y"), {"x", "y"}),
        (two_lengths, (X[:, 0], Y[:20]), "x", {"x"}),
    ],
)
def test_data_settles_what_is_ambiguous(model, args, data, names):
    target = rw.from_numpyro(model, *args, data=data)
    assert set(target.data) == names
    position = target.model.start(jax.random.key(0), target)
    whole = rw.from_numpyro(model, *args, data=())
    assert float(target.potential(position, target.data)) == pytest.approx(float(whole.potential(position)))


@pytest.mark.parametrize(
    "name",
    [
        "local latents",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("dependent rows", "to_event", "prior from data", "standardised in the model")
        ),
    ],
)
def test_the_fix_of_all_data_works(name):
    model, args, _, _ = BAD[name]
    target = rw.from_numpyro(model, *args, data=())
    result = rw.sample(jax.random.key(0), rw.sgld(), target, steps=5, step_size=1e-4, progress=False)
    assert np.isfinite(result.info.potential).all()


def test_a_plain_target_needs_a_position():
    with pytest.raises(ValueError, match="position: it is missing, and this Density has no start of its own"):
        rw.sample(jax.random.key(0), rw.sgld(), rw.Density(lambda x: -x @ x), steps=5, step_size=0.1, progress=False)


def test_a_model_without_a_finite_start_says_so():
    def impossible(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("row", len(y)):
            numpyro.factor("never", jnp.where(y * m > 0, jnp.nan, jnp.nan))

    target = rw.from_numpyro(impossible, Y)
    with pytest.raises(ValueError, match=r"not finite at 100 starts.*pass position="):
        rw.sample(jax.random.key(0), rw.sgld(), target, steps=5, step_size=0.1, progress=False)


def test_predictions_with_wrong_arguments_name_their_shapes():
    target = rw.from_numpyro(regression, X, Y)
    result = rw.sample(jax.random.key(0), rw.sgld(), target, steps=2, step_size=1e-4, progress=False)
    with pytest.raises(ValueError, match=r"predictive: the model fails with these arguments \(x \(4, 3\)\).*left out"):
        target.predictive(result, np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"cannot be called with these arguments \(missing a required argument: 'x'"):
        target.predictive(result, y=Y)


def test_only_targets_of_models_predict():
    target = rw.Density(lambda x: -x @ x)
    result = rw.sample(jax.random.key(0), rw.sgld(), target, jnp.zeros(2), steps=5, step_size=0.1, progress=False)
    with pytest.raises(ValueError, match="was not made of a model"):
        target.predictive(result)
