"""The learning forms, step by step, against recursions written with matrices and loops."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.preconditioners.test_lbfgs import R, naive_bfgs, naive_damping, naive_window
from tests.targets import correlated_gaussian

import ridgewalk as rw

GAUSSIAN = correlated_gaussian()
START = np.array([0.3, 0.2])


def gradient(x):
    return np.linalg.solve(GAUSSIAN.covariance, x - GAUSSIAN.mean)


def trace(sampler, steps, step_size):
    """Positions (from the start on), noises and the states of a chain made with the bare kernel."""
    kernel = rw.build_kernel(sampler, GAUSSIAN.target, START)
    step = jax.jit(kernel.step)
    states = [kernel.init(jnp.asarray(START))]
    noises = []
    for key in jax.random.split(jax.random.key(5), steps):
        noises.append(np.asarray(kernel.draw(key)))
        states.append(step(key, states[-1], None, step_size)[0])
    return np.array([state.position for state in states]), noises, states


def omega(k):
    return 5.0 * (k + 10.0) ** -0.9


def pairs_of(positions):
    return [(b - a, gradient(b) - gradient(a)) for a, b in pairwise(positions)]


def base(s, y):
    """γ of a pair of a positive definite Hessian, which falls too little here to be held."""
    return y @ y / max(s @ y, R * np.linalg.norm(s) * np.linalg.norm(y))


def test_dense_form():
    memory, step_size, first = 3, 0.02, 30.0
    positions, noises, states = trace(rw.hasgld_sa(form="dense", memory=memory, first_curvature=first), 12, step_size)
    g = np.eye(2) / first
    for block in range(4):
        pairs = []
        for k in range(block * memory, (block + 1) * memory):
            before, after = positions[k], positions[k + 1]
            s = np.asarray(states[k].preconditioner.root)
            np.testing.assert_allclose(s @ s.T, g, rtol=1e-10)
            expected = before - step_size * g @ gradient(before) + np.sqrt(2 * step_size) * s @ noises[k]
            np.testing.assert_allclose(after, expected, rtol=1e-10)
            pairs.append((after - before, gradient(after) - gradient(before)))
        newest, base_curvature = g, np.linalg.inv(g)
        for s, y in pairs:
            newest = naive_bfgs(newest, s, naive_damping(s, y, base_curvature @ s))
        root = np.linalg.cholesky(g)
        inverse_root = np.linalg.inv(root)
        growth, axes = np.linalg.eigh(inverse_root @ newest @ inverse_root.T)
        newest = root @ axes @ np.diag(np.minimum(growth, 3.0)) @ axes.T @ root.T
        g = (1 - omega(block + 1)) * g + omega(block + 1) * newest
    np.testing.assert_allclose(rw.preconditioner_matrix(states[-1]), g, rtol=1e-9)


def test_dense_form_with_the_scaled_identity_as_base():
    """Every pair enters the average at once."""
    first = 30.0
    sampler = rw.hasgld_sa(form="dense", base="scaled_identity", memory=1, first_curvature=first)
    positions, _, states = trace(sampler, 6, 0.02)
    g = np.eye(2) / first
    for k, (s, y) in enumerate(pairs_of(positions)):
        g = (1 - omega(k + 1)) * g + omega(k + 1) * naive_window([(s, y)], base(s, y))[0]
    np.testing.assert_allclose(rw.preconditioner_matrix(states[-1]), g, rtol=1e-9)


@pytest.mark.parametrize(
    ("memory", "snapshots"),
    [*(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 2), (2, 2), (3, 1)]), (2, 3)],
)
def test_limited_form_is_the_mean_of_windows_exchanged_as_they_come_due(memory, snapshots):
    first, steps = 30.0, 60
    sampler = rw.hasgld_sa(form="snapshot_lbfgs", memory=memory, snapshots=snapshots, first_curvature=first)
    positions, _, states = trace(sampler, steps, 0.02)
    pairs, due = pairs_of(positions), 0.0
    kept, exchanges = [np.eye(2) / first] * snapshots, 0
    for window in range(1, steps // memory + 1):
        due += omega(window)
        if due >= 1 / snapshots:
            due = min(due - 1 / snapshots, 1 / snapshots)
            content = pairs[(window - 1) * memory : window * memory]
            g, _ = naive_window(content, base(*content[-1]))
            values, axes = np.linalg.eigh(g)
            held = np.minimum(values, 1 / (R * base(*content[-1])))
            kept[exchanges % snapshots] = axes @ np.diag(held) @ axes.T
            exchanges += 1
    assert exchanges > snapshots
    np.testing.assert_allclose(rw.preconditioner_matrix(states[-1]), np.mean(kept, axis=0), rtol=1e-8)


@pytest.mark.parametrize("memory", [3, *(pytest.param(m, marks=pytest.mark.slow) for m in (2, 4))])
def test_hamcmc_takes_turns_and_leaves_out_the_point_it_leaves_from(memory):
    step_size, first = 0.02, 30.0
    positions, noises, states = trace(rw.hamcmc(memory=memory, first_curvature=first), 12, step_size)
    theta = dict.fromkeys(range(1 - memory, 1), START)
    theta |= {k: positions[k] for k in range(1, 13)}
    gamma = first
    for k in range(1, 13):
        history = [j for j in range(k - memory + 1, k) if j >= 1]
        pairs = [(theta[j] - theta[j - memory], gradient(theta[j]) - gradient(theta[j - memory])) for j in history]
        if pairs:
            gamma = max(base(*pairs[-1]), gamma / 10)
        g, _ = naive_window(pairs, gamma) if pairs else (np.eye(2) / gamma, None)
        operator = states[k - 1].preconditioner
        np.testing.assert_allclose(rw.preconditioner_matrix(states[k - 1]), g, rtol=1e-9)
        noise = np.sqrt(2 * step_size) * np.asarray(operator.factor(jnp.asarray(noises[k - 1])))
        origin = theta[k - memory]
        np.testing.assert_allclose(theta[k], origin - step_size * g @ gradient(origin) + noise, rtol=1e-9)


def test_as_printed_follows_algorithm_2():
    memory, step_size = 2, 0.02
    positions, noises, states = trace(rw.hasgld_sa(form="as_printed", memory=memory), 8, step_size)
    drift = diffusion = None
    for k in range(8):
        operator, g = states[k].preconditioner, gradient(positions[k])
        if drift is None:
            drift, diffusion = g, noises[k]
        w = omega(k + 2)  # the paper counts from k = 1 and uses ω_{k+1}
        drift = (1 - w) * drift + w * np.asarray(operator.multiply(jnp.asarray(g)))
        diffusion = (1 - w) * diffusion + w * np.asarray(operator.factor(jnp.asarray(noises[k])))
        expected = positions[k] - step_size * drift / np.linalg.norm(drift)
        expected = expected + np.sqrt(2 * step_size) * diffusion / np.linalg.norm(diffusion)
        np.testing.assert_allclose(positions[k + 1], expected, rtol=1e-10)


def test_as_printed_does_not_sample_the_posterior():
    """Why the docstring warns: its noise persists ever longer as ω falls, and the chain leaves the posterior."""
    for step_size in (0.001, 0.01):
        with pytest.raises(rw.DivergenceError, match="all 2 chains diverged"):
            rw.sample(
                jax.random.key(0), rw.hasgld_sa(form="as_printed", memory=2), GAUSSIAN.target,
                jnp.asarray(GAUSSIAN.mean), steps=60_000, step_size=step_size, chains=2, progress=False,
            )  # fmt: skip


@pytest.mark.parametrize(
    "form", [*(pytest.param(form, marks=pytest.mark.slow) for form in ("dense", "snapshot_lbfgs")), "low_rank"]
)
def test_curvature_every_learns_only_in_those_steps(form):
    options = {"rank": 1} if form == "low_rank" else {"memory": 1}
    sampler = rw.hasgld_sa(form=form, curvature_every=3, **options)
    if form == "low_rank":
        sampler = rw.Sampler(rw.Langevin(), rw.LowRank(rank=1, spare=1, curvature_every=3))
    _, _, states = trace(sampler, 9, 0.01)
    period = 6 if form == "low_rank" else 3
    for k in range(9):
        before, after = states[k].preconditioner, states[k + 1].preconditioner
        same = all(
            bool(jnp.array_equal(a, b)) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
        )
        assert same == ((k + 1) % period != 0)


def test_damping_is_reported():
    """A concave stretch of the target: curvature is negative, the pair is damped, G stays positive."""
    start, sampler = jnp.ones(3), rw.hasgld_sa(memory=1, first_curvature=1.0)
    kernel = rw.build_kernel(sampler, rw.Density(lambda x: jnp.sum(x**2)), start)
    state, info = jax.jit(kernel.step)(jax.random.key(0), kernel.init(start), None, 0.01)
    assert 0 < float(info.damping) < 1
    assert float(info.damping) == pytest.approx((1 - R) / (1 - -2.0))
    assert np.linalg.eigvalsh(rw.preconditioner_matrix(state))[0] > 0


@pytest.mark.parametrize("bound", [None, pytest.param(5.0, marks=pytest.mark.slow)])
def test_the_limited_base_grows_no_more_than_it_may(bound):
    """Cold, and started in the valley, a chain sees the curvature along it only, here 1/731 of the largest."""
    curvatures, axes = np.linalg.eigh(np.linalg.inv(GAUSSIAN.covariance))
    form = rw.SnapshotLBFGS(memory=1, first_curvature=curvatures[-1], base_growth=bound)
    kernel = rw.build_kernel(rw.Sampler(rw.Langevin(0.0), form), GAUSSIAN.target, GAUSSIAN.mean)
    state, step, bases = kernel.init(GAUSSIAN.mean + axes[:, 0]), jax.jit(kernel.step), []
    for key in jax.random.split(jax.random.key(5), 40):
        bases.append(float(state.preconditioner.identity) * curvatures[-1])
        state = step(key, state, None, 0.5)[0]
    assert bases[0] == pytest.approx(1)
    assert max(bases) == pytest.approx(bound or curvatures[-1] / curvatures[0], rel=1e-6)
