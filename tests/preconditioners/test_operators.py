"""What every preconditioner owes: multiply and factor agree, after a real run, for every form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.targets import linear_regression

import ridgewalk as rw
from ridgewalk._compilation import when
from ridgewalk._pytree import layout_of
from ridgewalk.preconditioners.dense import DenseScaled

REGRESSION = linear_regression()

FORMS = {
    "identity": rw.Identity(),
    "leaf scaled": rw.LeafScaled(),
    "fixed": rw.fixed(REGRESSION.covariance),
    "fixed diagonal": rw.fixed(np.diag(REGRESSION.covariance)),
    "rmsprop": rw.RMSProp(),
    "metric": rw.InverseMetric(lambda x: jnp.eye(3) * (1 + x[0] ** 2)),
    "metric diagonal": rw.InverseMetric(lambda x: 1 + x**2),
    "lbfgs": rw.LBFGS(),
    "dense": rw.Dense(),
    "diagonal": rw.Diagonal(),
    "dense scaled": DenseScaled(),
    "limited": rw.SnapshotLBFGS(memory=2, snapshots=3),
    "low_rank": rw.LowRank(rank=1, spare=1),
    "rescaled": rw.rescaled(rw.SnapshotLBFGS(memory=2), jnp.array([0.1, 1.0, 3.0])),
}


SIMPLE = {"identity", "leaf scaled", "fixed diagonal", "metric diagonal", "dense scaled"}
"""Forms with nothing of their own beside those that the default suite runs."""


@pytest.fixture(
    params=[pytest.param(form, marks=[pytest.mark.slow] if form in SIMPLE else []) for form in FORMS],
    name="state",
    scope="module",
)
def _state(request):
    result = rw.sample(
        jax.random.key(3), rw.Sampler(rw.Langevin(), FORMS[request.param]), REGRESSION.target, jnp.zeros(3),
        steps=77, step_size=1e-3, batch_size=50, progress=False,
    )  # fmt: skip
    return result.final_states[0]


V, Z = np.random.default_rng(0).normal(size=(2, 3))


@jax.jit
def shown(operator):
    """G, S and Sᵀ as matrices, and G V + S Z: one program for each form."""
    methods = operator.multiply, operator.factor, operator.factor_transpose
    matrices = [jax.vmap(method, out_axes=1)(jnp.eye(3)) for method in methods]
    return *matrices, operator.drift_plus_noise(jnp.asarray(V), jnp.asarray(Z))


def test_multiply_and_factor_agree(state):
    g, s, transposed, both = (np.asarray(each) for each in shown(state.preconditioner))
    np.testing.assert_allclose(s @ s.T, g, rtol=0, atol=1e-10 * np.abs(g).max())
    np.testing.assert_allclose(transposed, s.T, rtol=0, atol=1e-12 * np.abs(s).max())
    assert np.linalg.eigvalsh(g)[0] > 0
    np.testing.assert_allclose(both, g @ V + s @ Z, rtol=0, atol=1e-10 * np.abs(g @ V + s @ Z).max())


def test_preconditioner_matrix_shows_g(state):
    np.testing.assert_allclose(rw.preconditioner_matrix(state), shown(state.preconditioner)[0], rtol=1e-12)


def test_work_that_is_not_due_is_not_done():
    """XLA moves what does not depend on a loop's own values out of it, into every step, unless `when` prevents it."""

    def run(x, matrix, steps):
        def body(k, x):
            return when(k % 10 == 0, lambda kept, given: kept @ (given @ given), x, matrix + k)

        return jax.lax.fori_loop(0, steps, body, x)

    compiled = jax.jit(run).lower(jnp.eye(4), jnp.eye(4), 100).compile().as_text()
    products = [computation.count(" dot(") for computation in compiled.split("\n}\n") if " dot(" in computation]
    assert products == [2], "both products belong in the inner loop's body"


def test_the_base_that_was_asked_for_is_used_at_any_size():
    """γ⁻¹ I needs pairs, which the low-rank form has not; the running G must be stored."""
    asked = {base: rw.hasgld_sa(base=base).preconditioner for base in ("auto", "scaled_identity", "running")}
    forms = {
        (base, d): type(rule.resolve(layout_of(jnp.zeros(d)))) for base, rule in asked.items() for d in (10, 3_000)
    }
    assert forms == {
        ("auto", 10): rw.Dense,
        ("auto", 3_000): rw.LowRank,
        ("scaled_identity", 10): DenseScaled,
        ("scaled_identity", 3_000): rw.SnapshotLBFGS,
        ("running", 10): rw.Dense,
        ("running", 3_000): rw.Dense,
    }


def test_leaf_scaled_has_the_fourth_root_of_the_mean_curvature_of_each_leaf():
    position = {"a": jnp.ones(30), "b": jnp.ones(2), "c": jnp.ones(())}
    layout = layout_of(position)

    def potential(vector):
        p = layout.unravel(vector)
        return 0.5 * jnp.sum(p["a"] ** 2) + 128 * jnp.sum(p["b"] ** 2) + 8 * p["c"] ** 2 + 0.1 * p["c"] * p["b"][0]

    begin = jax.jit(lambda at: rw.LeafScaled().resolve(layout).init(at, jax.grad(potential)).root)
    root = begin(layout.ravel(position))
    np.testing.assert_allclose(root / root[0], np.repeat([1, 1 / 4, 1 / 2], [30, 2, 1]), rtol=0.01)
    np.testing.assert_allclose(jnp.mean(root**2), 1)
    one = layout_of(jnp.ones(3))
    np.testing.assert_array_equal(rw.LeafScaled().resolve(one).init(jnp.ones(3), jax.grad(potential)).root, 1)
