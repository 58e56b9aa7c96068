"""The learning forms, step by step, against recursions written with matrices and loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.targets import correlated_gaussian
from tests.test_lbfgs import R, naive_bfgs, naive_damping, naive_window

import ridgewalk as rw

GAUSSIAN = correlated_gaussian()
START = np.array([0.3, 0.2])


def gradient(x):
    return np.linalg.solve(GAUSSIAN.covariance, x - GAUSSIAN.mean)


def trace(sampler, steps, step_size):
    """Positions (from the start on), noises and the states of a chain made with the bare kernel."""
    kernel = rw.build_kernel(sampler, GAUSSIAN.target)
    step = jax.jit(kernel.step)
    states = [kernel.init(jnp.asarray(START))]
    noises = []
    for key in jax.random.split(jax.random.key(5), steps):
        noises.append(np.asarray(kernel.draw(key, states[-1].position)))
        states.append(step(key, states[-1], None, step_size)[0])
    return np.array([state.position for state in states]), noises, states


def omega(k):
    return 5.0 * (k + 10.0) ** -0.9


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
        g = (1 - omega(block + 1)) * g + omega(block + 1) * newest
    np.testing.assert_allclose(rw.preconditioner_matrix(states[-1]), g, rtol=1e-9)


@pytest.mark.parametrize(("form", "snapshots"), [("dense", 0), ("limited", 8)])
def test_scaled_identity_base(form, snapshots):
    """Every pair enters the average at once; with a share below ω each pair is a window of its own."""
    memory, step_size, first = 1, 0.02, 30.0
    options = {"snapshots": snapshots} if snapshots else {"base": "scaled_identity"}
    sampler = rw.hasgld_sa(form=form, memory=memory, first_curvature=first, **options)
    positions, _, states = trace(sampler, 6, step_size)
    g, gamma = np.eye(2) / first, first
    for k in range(6):
        s = positions[k + 1] - positions[k]
        y = gradient(positions[k + 1]) - gradient(positions[k])
        gamma = y @ y / (s @ y)
        newest, _ = naive_window([(s, y)], gamma)
        g = (1 - omega(k + 1)) * g + omega(k + 1) * newest
    np.testing.assert_allclose(rw.preconditioner_matrix(states[-1]), g, rtol=1e-9)


def test_limited_form_with_longer_windows_is_a_weighted_sum_of_windows():
    """Two windows of two pairs, weights from the recursion, the oldest given up and its weight shared."""
    memory, snapshots, first, steps = 2, 2, 30.0, 40
    sampler = rw.hasgld_sa(form="limited", memory=memory, snapshots=snapshots, first_curvature=first)
    positions, _, states = trace(sampler, steps, 0.02)
    weights, contents, newest = np.array([1.0, 0.0, 0.0]), [[], []], 0
    for k in range(steps):
        s = positions[k + 1] - positions[k]
        y = gradient(positions[k + 1]) - gradient(positions[k])
        if weights[1 + newest] >= 1 / snapshots:
            newest = (newest + 1) % snapshots
            contents[newest] = []
            weights[1 + newest] = 0
            weights /= weights.sum()
        contents[newest] = [*contents[newest], (s, y)][-memory:]
        weights *= 1 - omega(k + 1)
        weights[1 + newest] += omega(k + 1)
    assert weights.sum() == pytest.approx(1)
    g = weights[0] * np.eye(2) / first
    for weight, pairs in zip(weights[1:], contents, strict=True):
        s, y = pairs[-1]
        g = g + weight * naive_window(pairs, y @ y / (s @ y))[0]
    np.testing.assert_allclose(rw.preconditioner_matrix(states[-1]), g, rtol=1e-8)


@pytest.mark.parametrize("memory", [2, 3, 4])
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
            gamma = pairs[-1][1] @ pairs[-1][1] / (pairs[-1][0] @ pairs[-1][1])
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
    """Why the docstring warns: the spread depends on the step size, not on the target."""
    spreads = []
    for step_size in (0.001, 0.004):
        result = rw.sample(
            jax.random.key(0), rw.hasgld_sa(form="as_printed", memory=2), GAUSSIAN.target, jnp.asarray(GAUSSIAN.mean),
            steps=60_000, step_size=step_size, chains=2, burn_in=20_000, thin=10, progress=False,
        )  # fmt: skip
        spreads.append(np.asarray(rw.posterior_variance(result)).sum() / np.trace(GAUSSIAN.covariance))
    assert max(spreads) < 0.5


@pytest.mark.parametrize("form", ["dense", "limited", "low_rank"])
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
    kernel = rw.build_kernel(rw.hasgld_sa(memory=1, first_curvature=1.0), rw.Density(lambda x: jnp.sum(x**2)))
    state, info = jax.jit(kernel.step)(jax.random.key(0), kernel.init(jnp.ones(3)), None, 0.01)
    assert 0 < float(info.damping) < 1
    assert float(info.damping) == pytest.approx((1 - R) / (1 - -2.0))
    assert np.linalg.eigvalsh(rw.preconditioner_matrix(state))[0] > 0
