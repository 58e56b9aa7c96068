"""Positions of any structure: dicts, equinox and flax models, single and double precision."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw

X = jnp.linspace(-1, 1, 40, dtype=jnp.float32)[:, None]
Y = jnp.sin(3 * X[:, 0])


def gaussian_prior(parameters):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))


def plain():
    start = {"w": jnp.ones((1, 8), jnp.float32), "v": [jnp.ones(8, jnp.float32), jnp.zeros((), jnp.float32)]}

    def predict(p, x):
        return jnp.tanh(x @ p["w"]) @ p["v"][0] + p["v"][1]

    return start, predict


def equinox_model():
    model = eqx.nn.MLP(1, "scalar", 8, 1, key=jax.random.key(0))
    parameters, static = eqx.partition(model, eqx.is_inexact_array)
    parameters = jax.tree.map(lambda x: x.astype(jnp.float32), parameters)
    return parameters, lambda p, x: jax.vmap(eqx.combine(p, static))(x)


class FlaxModel(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))[:, 0]


def flax_model():
    model = FlaxModel()
    return model.init(jax.random.key(0), X), model.apply


MODELS = {"plain": plain, "equinox": equinox_model, "flax": flax_model}
SAMPLERS = {
    "sgld": rw.sgld(),
    "hasgld_sa": rw.hasgld_sa(memory=2),
    "low_rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=2, spare=1)),
    "limited": rw.hasgld_sa(form="snapshot_lbfgs", memory=2),
    "sgnht": rw.sgnht(preconditioner=rw.RMSProp()),
}


BY_DEFAULT = {("plain", "hasgld_sa"), ("plain", "sgnht"), ("equinox", "sgld"), ("flax", "sgld")}
COMBINATIONS = [
    pytest.param(model, sampler, marks=[] if (model, sampler) in BY_DEFAULT else [pytest.mark.slow])
    for model in MODELS
    for sampler in SAMPLERS
]


@pytest.mark.parametrize(("model", "sampler"), COMBINATIONS)
def test_structure_and_dtypes_are_kept(model, sampler):
    start, predict = MODELS[model]()

    def log_likelihood(p, batch):
        return -50 * (batch[1] - predict(p, batch[0])) ** 2

    target = rw.Posterior(gaussian_prior, log_likelihood, (X, Y))
    result = rw.sample(
        jax.random.key(0), SAMPLERS[sampler], target, start, steps=60, step_size=1e-4, batch_size=10, chains=2,
        thin=20, progress=False,
    )  # fmt: skip
    assert jax.tree.structure(result.positions) == jax.tree.structure(start)
    assert jax.tree.structure(result.final_states[0].position) == jax.tree.structure(start)
    for drawn, given in zip(jax.tree.leaves(result.positions), jax.tree.leaves(start), strict=True):
        assert drawn.dtype == given.dtype == jnp.float32
        assert drawn.shape == (2, 3, *given.shape)
        assert np.all(np.isfinite(drawn))


def test_mixed_and_double_precision():
    start = {"a": jnp.zeros(2, jnp.float32), "b": jnp.zeros(3, jnp.float64)}
    target = rw.Density(lambda p: -0.5 * (jnp.sum(p["a"] ** 2) + jnp.sum(p["b"] ** 2)))
    result = rw.sample(
        jax.random.key(0), rw.hasgld_sa(memory=2), target, start, steps=50, step_size=0.1, progress=False
    )
    assert result.positions["a"].dtype == jnp.float32
    assert result.positions["b"].dtype == jnp.float64


def test_single_precision_reaches_the_same_preconditioner():
    """Float32 is JAX's default: the dense form must not need float64."""
    covariance = np.array([[0.12**2, -0.95 * 0.12], [-0.95 * 0.12, 1.0]])
    precision = jnp.asarray(np.linalg.inv(covariance), jnp.float32)
    target = rw.Density(lambda x: -0.5 * x @ precision @ x)
    start = jnp.zeros(2, jnp.float32)
    result = rw.sample(jax.random.key(0), rw.hasgld_sa(), target, start, steps=20_000, step_size=0.1, progress=False)
    assert result.positions.dtype == jnp.float32
    g = np.asarray(rw.preconditioner_matrix(result.final_states[0]), float)
    assert np.linalg.cond(g @ np.linalg.inv(covariance)) < 1.01
