"""L-BFGS algebra against the naive dense recursion."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ridgewalk.preconditioners.base import Pair, Transition, bfgs_core, clipped_core, mixed_root
from ridgewalk.preconditioners.lbfgs import LBFGS, SnapshotLBFGS, Window, empty_window

R = 0.2


def naive_bfgs(g, s, ybar):
    """Eq. 5 with matrices."""
    v = np.eye(len(s)) - np.outer(s, ybar) / (s @ ybar)
    return v @ g @ v.T + np.outer(s, s) / (s @ ybar)


def naive_damping(s, y, bs):
    """Powell's damping against B₀ s, the corrected eq. 4."""
    sbs, sy = s @ bs, s @ y
    theta = (1 - R) * sbs / (sbs - sy) if sy < R * sbs else 1.0
    return theta * y + (1 - theta) * bs


def naive_window(pairs, gamma):
    """G̃ and B̃ of the pairs, oldest first, from γ⁻¹ I."""
    d = len(pairs[0][0]) if pairs else 6
    g, b = np.eye(d) / gamma, np.eye(d) * gamma
    for s, y in pairs:
        ybar = naive_damping(s, y, gamma * s)
        assert s @ ybar >= R * gamma * (s @ s) * (1 - 1e-12)
        g = naive_bfgs(g, s, ybar)
        b = b + np.outer(ybar, ybar) / (s @ ybar) - np.outer(b @ s, b @ s) / (s @ b @ s)
    return g, b


def history(rng, count, d, kind):
    """Random pairs of a Hessian: positive, indefinite, or unrelated to any matrix."""
    a = rng.normal(size=(d, d))
    hessian = {"positive": a @ a.T + 0.1 * np.eye(d), "indefinite": a + a.T}.get(kind)
    for _ in range(count):
        s = rng.normal(size=d) * 10 ** rng.uniform(-2, 1)
        yield s, rng.normal(size=d) if hessian is None else hessian @ s


push = jax.jit(Window.push)


def filled(pairs, memory, d, gamma=2.0):
    window = empty_window(memory, jnp.asarray(gamma), jnp.zeros(d), R)
    for s, y in pairs:
        window, _ = push(window, Pair(jnp.asarray(s), jnp.asarray(y)), 1e-8)
    return window


@partial(jax.jit, static_argnums=(1, 2))
def columns(window, name, d):
    """Compiled once for all windows of a size."""
    return jax.vmap(getattr(window, name), out_axes=1)(jnp.eye(d))


def matrix(method, d):
    return np.asarray(columns(method.__self__, method.__name__, d))


drift_plus_noise = jax.jit(Window.drift_plus_noise)


@pytest.mark.parametrize("kind", ["positive", "indefinite", "random"])
@pytest.mark.parametrize(("memory", "count"), [(1, 1), (3, 0), (3, 2), (3, 3), (3, 7), (5, 12)])
def test_products_and_factor_equal_the_dense_recursion(kind, memory, count):
    d, rng = 6, np.random.default_rng(count)
    pairs = list(history(rng, count, d, kind))
    window = filled(pairs, memory, d)
    gamma = float(window.scale)
    g, b = naive_window(pairs[-memory:], gamma)
    scale = np.abs(g).max()

    product = matrix(window.multiply, d)
    np.testing.assert_allclose(product, g, rtol=0, atol=1e-10 * scale)
    np.testing.assert_allclose(np.linalg.inv(g), b, rtol=1e-6, atol=1e-6 * np.abs(b).max())
    factor = matrix(window.factor, d)
    np.testing.assert_allclose(factor @ factor.T, g, rtol=0, atol=1e-10 * scale)
    np.testing.assert_allclose(matrix(window.factor_transpose, d), factor.T, rtol=0, atol=1e-12 * np.abs(factor).max())
    v, z = rng.normal(size=(2, d))
    np.testing.assert_allclose(drift_plus_noise(window, jnp.asarray(v), jnp.asarray(z)), g @ v + factor @ z, rtol=1e-8)


@pytest.mark.parametrize(
    "kind", ["indefinite", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("positive", "random"))]
)
def test_the_operator_stays_positive_definite(kind):
    """Lemma 1."""
    d = 6
    for seed in range(20):
        window = filled(history(np.random.default_rng(seed), 9, d, kind), 4, d)
        g = matrix(window.multiply, d)
        assert np.linalg.eigvalsh((g + g.T) / 2)[0] > 0


def test_eigenvalues_stay_within_the_bounds_of_lemma_2():
    d, memory, delta = 5, 3, 0.5
    for seed in range(20):
        rng = np.random.default_rng(seed)
        turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
        largest = 8.0
        hessian = turn @ np.diag(rng.uniform(0.05, largest, d)) @ turn.T
        window = empty_window(memory, jnp.asarray(1.0), jnp.zeros(d), R)
        for _ in range(7):
            s = rng.normal(size=d)
            window, _ = push(window, Pair(jnp.asarray(s), jnp.asarray(hessian @ s)), delta)
        assert delta <= float(window.scale) <= delta + largest
        b = np.linalg.eigvalsh(np.linalg.inv(matrix(window.multiply, d)))
        upper = d * (delta + largest) + memory / R * (largest**2 / delta + (delta + largest) + 2 * largest)
        lower = (R / upper) ** memory * delta ** (d + memory) / upper ** (d - 1)
        assert lower <= b[0]
        assert b[-1] <= upper


def test_scale_follows_the_newest_pair_and_is_bounded_where_curvature_is_negative():
    window = empty_window(2, jnp.asarray(3.0), jnp.zeros(2), R)
    window, lesson = window.push(Pair(jnp.array([1.0, 0.0]), jnp.array([4.0, 3.0])), 1e-8)
    assert float(window.scale) == pytest.approx(25 / 4)
    assert not bool(lesson.rejected)
    window, lesson = window.push(Pair(jnp.array([0.0, 1.0]), jnp.array([0.0, -5.0])), 1e-8)
    assert float(window.scale) == pytest.approx(5 / R)
    assert float(lesson.damping) < 1


@pytest.mark.parametrize("bad", [Pair(jnp.zeros(2), jnp.ones(2)), Pair(jnp.ones(2), jnp.array([jnp.nan, 1.0]))])
def test_unusable_pairs_are_rejected(bad):
    before = filled([(np.array([1.0, 2.0]), np.array([3.0, 4.0]))], 2, 2)
    after, lesson = before.push(bad, 1e-8)
    assert bool(lesson.rejected)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("kind", ["positive", "indefinite", "random"])
def test_compact_form_equals_the_dense_recursion(kind):
    d, count, gamma = 7, 3, 1.7
    pairs = list(history(np.random.default_rng(3), count, d, kind))
    vectors = jnp.asarray(np.array([v for pair in pairs for v in pair]))
    core = jnp.zeros((2 * count, 2 * count))
    for i in range(count):
        core = bfgs_core(vectors @ vectors.T, core, jnp.asarray(gamma), 2 * i, 2 * i + 1, R)
    g, _ = naive_window(pairs, gamma)
    np.testing.assert_allclose(np.eye(d) / gamma + vectors.T @ core @ vectors, g, rtol=0, atol=1e-10 * np.abs(g).max())


@pytest.mark.parametrize("dependent", [False, True])
def test_functions_of_a_low_rank_correction(dependent):
    """Roots and bounds are exact also where rows of P are parallel or empty, as pairs are near convergence."""
    rng = np.random.default_rng(5)
    p = rng.normal(size=(4, 9)) * np.array([[1e-3], [1.0], [1e3], [1.0]])
    if dependent:
        p[1], p[3] = 2 * p[0], 0
    w = rng.normal(size=(4, 4))
    lengths = np.linalg.norm(p, axis=1)
    scale = np.diag(np.where(lengths > 0, 1 / np.maximum(lengths, 1e-9), 0))
    q = scale @ (w @ w.T - 0.2 * np.eye(4)) @ scale
    gram, core = jnp.asarray(p @ p.T), jnp.asarray(q)
    values, axes = np.linalg.eigh(np.eye(9) + p.T @ q @ p)
    assert values[0] > 0.1

    for most in (np.inf, 1.5):
        held = axes @ np.diag(np.minimum(values, most)) @ axes.T
        for weight in (1.0, 0.3):
            root = np.eye(9) + p.T @ np.asarray(mixed_root(gram, core, weight, most)) @ p
            np.testing.assert_allclose(root @ root, (1 - weight) * np.eye(9) + weight * held, rtol=1e-10, atol=1e-10)
    cut = np.eye(9) + p.T @ np.asarray(clipped_core(gram, core, 1.5)) @ p
    np.testing.assert_allclose(cut, held, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", [LBFGS(memory=2), SnapshotLBFGS(memory=2), SnapshotLBFGS(memory=2, curvature_every=3)])
def test_vectors_that_are_not_read_are_not_needed(rule):
    """What `reads` leaves out is not computed in steps without an update."""
    start, end = jnp.array([1.0, -2.0]), jnp.array([0.5, -1.0])

    def gradient_at(x):
        return jnp.array([1.0, 3.0]) * x

    operator = rule.init(start, gradient_at)
    whole = Transition(jnp.asarray(3), start, end, gradient_at(start), start, end, gradient_at)
    left_out = {name: None for name in ("before", "after", "gradient", "covector", "noise") if name not in rule.reads}
    assert set(left_out) == {"covector", "noise"}
    expected = rule.update(operator, whole)
    jax.tree.map(np.testing.assert_array_equal, rule.update(operator, whole._replace(**left_out)), expected)
