"""`find_mode` against minimisers known in closed form, and its warnings."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw


def regression(rows=2_000):
    """Ridge regression whose features differ in scale by 10⁴, and its mode."""
    x = np.asarray(jax.random.normal(jax.random.key(1), (rows, 4))) * np.array([0.01, 1.0, 10.0, 100.0])
    y = x @ np.array([30.0, 1.0, -0.2, 0.05]) + np.asarray(jax.random.normal(jax.random.key(2), (rows,)))
    precision = x.T @ x + np.eye(4) / 100**2
    target = rw.Posterior(lambda w: -0.5 * jnp.sum((w / 100) ** 2), lambda w, b: -0.5 * (b[1] - b[0] @ w) ** 2, (x, y))
    return target, np.linalg.solve(precision, x.T @ y), np.sqrt(np.diag(np.linalg.inv(precision)))


def test_full_data_gives_the_exact_mode():
    target, mode, std = regression()
    found = rw.find_mode(jax.random.key(0), target, jnp.zeros(4))
    np.testing.assert_allclose((found - mode) / std, 0, atol=1e-3)


def test_minibatches_are_refined_over_all_data():
    target, mode, std = regression()
    found = rw.find_mode(jax.random.key(0), target, jnp.zeros(4), batch_size=100)
    assert np.max(np.abs((found - mode) / std)) < 0.02
    again = rw.find_mode(jax.random.key(0), target, jnp.zeros(4), batch_size=100)
    np.testing.assert_array_equal(found, again)


def test_data_on_disk_and_iterables(tmp_path):
    target, mode, _ = regression()
    x, y = target.data
    for name, array in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", array)
    mapped = tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    on_disk = rw.Posterior(target.log_prior, target.log_likelihood, mapped)
    found = rw.find_mode(jax.random.key(0), on_disk, jnp.zeros(4), batch_size=100)
    in_memory = rw.find_mode(jax.random.key(0), target, jnp.zeros(4), batch_size=100)
    np.testing.assert_allclose(found, in_memory, rtol=1e-10)
    with pytest.raises(ValueError, match="batch_size: the data are on disk"):
        rw.find_mode(jax.random.key(0), on_disk, jnp.zeros(4))
    items = [(x[i::20], y[i::20]) for i in range(20)]
    streamed = rw.Posterior(target.log_prior, target.log_likelihood, rw.Batches(items, size=len(y)))
    found = rw.find_mode(jax.random.key(0), streamed, jnp.zeros(4))  # without the refinement
    assert streamed.potential(found, (x, y)) < streamed.potential(jnp.asarray(mode), (x, y)) + 20


def test_structure_and_dtype_are_kept():
    target = rw.Density(lambda p: -jnp.sum((p["a"] - 3) ** 2) - jnp.sum((p["b"] + 1) ** 4 + (p["b"] + 1) ** 2))
    start = {"a": jnp.zeros((2, 2), jnp.float32), "b": jnp.zeros((), jnp.float32)}
    found = rw.find_mode(jax.random.key(0), target, start)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), found) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), start
    )
    np.testing.assert_allclose(found["a"], 3, atol=1e-3)
    np.testing.assert_allclose(found["b"], -1, atol=1e-2)


@pytest.mark.slow
def test_banana_from_a_distant_start():
    """Rosenbrock's function: the minimum is at (1, 1)."""
    target = rw.Density(lambda v: -((1 - v[0]) ** 2) - 100 * (v[1] - v[0] ** 2) ** 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its mean is far from its mode, which is tested below
        found = rw.find_mode(jax.random.key(0), target, jnp.array([-2.0, 3.0]))
    np.testing.assert_allclose(found, 1, atol=1e-3)


@pytest.mark.parametrize("already", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_adaptive_prior_is_held_at_its_first_state(already):
    """Or at the state that it is frozen at."""
    x = jax.random.normal(jax.random.key(1), (100, 3))
    target = rw.Posterior(
        rw.spike_and_slab(), rw.shared_noise(lambda w, b: b[1] - b[0] @ w), (x, x @ jnp.array([2.0, -1.0, 1.0]))
    )
    start = jnp.ones(3)
    frozen = target.frozen(target.first_prior(start))
    found = rw.find_mode(jax.random.key(0), frozen if already else target, start)
    gradient = jax.jit(jax.grad(frozen.potential))(found, frozen.data)
    scale = jnp.sqrt(jnp.diagonal(jax.jit(jax.hessian(frozen.potential))(found, frozen.data)))
    assert np.max(np.abs(gradient / scale)) < 0.01


def test_the_offset_of_the_mean_is_predicted():
    """log-gamma: θ = log x with x ~ Gamma(k, 1) has mode log k, mean ψ(k) ≈ log k − 1/(2k), sd ≈ k^{-1/2}."""
    from ridgewalk.tuning.mode import _mean_offset

    shape = 10.0
    target = rw.Density(lambda v: jnp.sum(shape * v - jnp.exp(v)))
    mode = jnp.full(2, np.log(shape))
    found = _mean_offset(target, mode, mode, None)
    np.testing.assert_allclose(found.offset, -1 / (2 * shape) * np.sqrt(shape), rtol=1e-6)


def test_a_hierarchical_model_is_warned_of():
    """Non-centred groups: at the joint mode τ is too large, because the z prefer to be small."""
    y = jax.random.normal(jax.random.key(2), (40,))

    def log_density(p):
        residual = y - jnp.exp(p["log_tau"]) * p["z"]
        return -2 * jnp.sum(residual**2) - 0.5 * jnp.sum(p["z"] ** 2) - 0.5 * p["log_tau"] ** 2

    with pytest.warns(
        UserWarning, match=r"the posterior mean of .* is estimated to be .* posterior standard deviations from the mode"
    ):
        rw.find_mode(jax.random.key(0), rw.Density(log_density), {"log_tau": jnp.zeros(()), "z": jnp.zeros(40)})


def test_an_unbounded_density_is_warned_of():
    with pytest.warns(UserWarning, match="max_steps|not positive definite"):
        rw.find_mode(jax.random.key(0), rw.Density(lambda v: v[0] - v[1] ** 2), jnp.zeros(2), max_steps=1_000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size: 0 is not an integer of at least 1"),
        ({"batch_size": 5_000}, "batch_size: 5000 exceeds the 2000 examples"),
        ({"learning_rate": -1.0}, "learning_rate: -1.0 is not a positive finite number"),
        ({"max_steps": 0}, "max_steps: 0 is not an integer"),
        ({"position": jnp.zeros(4, int)}, "position: it has leaves that are not float arrays"),
        ({"position": jnp.full(4, jnp.nan)}, "position: the potential is not finite there"),
    ],
)
def test_bad_input(change, message):
    arguments = {"position": jnp.zeros(4), **change}
    with pytest.raises(ValueError, match=message):
        rw.find_mode(jax.random.key(0), regression()[0], **arguments)


def test_a_density_has_no_batches():
    with pytest.raises(ValueError, match="batch_size: a Density has no data"):
        rw.find_mode(jax.random.key(0), rw.Density(lambda v: -jnp.sum(v**2)), jnp.zeros(2), batch_size=10)


def test_a_subsample_with_an_indefinite_hessian_is_not_blamed():
    """A mode of all rows need not be one of the subsample, every second row: no warning, which would be an error."""
    curvature = np.where(np.arange(2_048) % 2, 3.0, -1.0)
    target = rw.Posterior(lambda p: -0.5 * p @ p, lambda p, batch: -0.5 * batch * (p @ p), curvature)
    mode = rw.find_mode(jax.random.key(0), target, jnp.ones(2))
    np.testing.assert_allclose(mode, 0, atol=1e-2)
