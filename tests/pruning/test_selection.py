"""Which weights are pruned: exactly the number asked for, the smallest ones, those already pruned among them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw
from ridgewalk._pytree import layout_of, pytree_dataclass
from ridgewalk.pruning import Pruning, Span, without_smallest
from ridgewalk.schedules import enable_x64

RNG = np.random.default_rng(0)


def reference(weights, mask, where, n):
    """By sorting: pruned ones first, then by magnitude, then by index."""
    order = sorted(where, key=lambda i: (mask[i], abs(weights[i]) if mask[i] else 0.0, i))
    kept = mask.copy()
    kept[order[:n]] = False
    return kept


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_smallest_go(dtype):
    weights = jnp.asarray(RNG.normal(size=40), dtype).at[jnp.array([3, 9, 20, 21, 37])].set(0.25).at[11].set(0.0)
    mask = np.ones(40, bool)
    mask[[3, 5, 30]] = False
    spans = [Span(2, 12), Span(20, 40)]
    where = [*range(2, 12), *range(20, 40)]
    pick = jax.jit(lambda n: without_smallest(weights, jnp.asarray(mask), spans, n))
    for n in range(31):
        expected = reference(np.asarray(weights, float), mask, where, n)
        np.testing.assert_array_equal(pick(jnp.asarray(n)), expected)


def test_ties_go_by_index_in_every_chain():
    weights = jnp.array([[1.0, 1.0, 1.0, 1.0, -1.0], [2.0, -1.0, 1.0, 0.5, 1.0]])
    pick = jax.vmap(lambda w: without_smallest(w, jnp.ones(5, bool), [Span(0, 5)], jnp.asarray(2)))
    np.testing.assert_array_equal(pick(weights), [[0, 0, 1, 1, 1], [1, 0, 1, 0, 1]])


def test_without_64_bits():
    with enable_x64(False):
        weights = jnp.array([3.0, -1.0, 2.0, 1.0, 0.5])
        assert weights.dtype == jnp.float32
        mask = jax.jit(lambda n: without_smallest(weights, jnp.ones(5, bool), [Span(0, 5)], n))(jnp.asarray(2))
        np.testing.assert_array_equal(mask, [1, 0, 1, 1, 0])


POSITION = {"a": jnp.zeros((7, 9)), "b": jnp.zeros(50), "c": jnp.zeros((3, 3, 2))}
FORM = layout_of(POSITION)


@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.7, 0.9])
def test_counts_end_at_the_target(sparsity):
    plan = Pruning(sparsity, 10, 95, 9)
    assert plan.events == 10
    counts = plan.counts(FORM)
    assert counts.shape == (11, 1)
    assert counts[0, 0] == 0
    assert counts[-1, 0] == round(sparsity * 81)
    assert np.all(np.diff(counts[:, 0]) >= 0)
    layers = Pruning(sparsity, 10, 95, 9, scope="layer").counts(FORM)[-1]
    np.testing.assert_array_equal(layers, [round(sparsity * 63), round(sparsity * 18)])


def test_schedules():
    steep = Pruning(0.5, 1, 4, 1, "cubic").fractions()
    np.testing.assert_allclose(steep, [0, 1 - 0.75**3, 1 - 0.5**3, 1 - 0.25**3, 1])
    np.testing.assert_allclose(Pruning(0.5, 1, 4, 1, "linear").fractions(), [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(Pruning(0.5, 1, 4, 1, lambda t: t**2).fractions(), np.arange(5) ** 2 / 16)
    assert Pruning(0.5, 7, 7, 1).fractions().tolist() == [0, 1]
    steps = jnp.arange(30)
    plan = Pruning(0.5, 10, 20, 4)
    assert steps[plan.due(steps)].tolist() == [10, 14, 18]
    kept = [int(plan.kept(FORM, jnp.asarray(step))) for step in (0, 9, 10, 13, 14, 18, 1000)]
    free = 131 - plan.counts(FORM)[:, 0]
    assert kept == free[[0, 0, 1, 1, 2, 3, 3]].tolist()


def test_leaves_can_be_chosen():
    assert Pruning(0.5, 1, 1, 1, leaves=("b",)).groups(FORM) == [[Span(63, 113)]]
    assert Pruning(0.5, 1, 1, 1).groups(FORM) == [[Span(0, 63), Span(113, 131)]]
    assert Pruning(0.5, 1, 1, 1, scope="layer").groups(FORM) == [[Span(0, 63)], [Span(113, 131)]]
    by_function = Pruning(0.5, 1, 1, 1, leaves=lambda name, leaf: name != "a" and leaf.size > 20)
    assert by_function.groups(FORM) == [[Span(63, 113)]]
    assert rw.pruned(rw.sgld(), stop=5, leaves="b").pruning.leaves == ("b",)


def test_defaults_make_twenty_events():
    plan = rw.pruned(rw.sgld(), stop=2_000).pruning
    assert (plan.sparsity, plan.start, plan.every) == (0.7, 1, 105)
    assert plan.events == 20
    assert rw.pruned(rw.sgld(), stop=3, start=3).pruning.events == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 1.0}, "sparsity: 1.0 is not in \\(0, 1\\); 0.7 prunes"),
        ({"sparsity": 70}, "sparsity: 70"),
        ({"start": 0}, "start: 0 is not an integer of at least 1"),
        ({"start": 20}, "stop: 10 is not an integer of at least 20"),
        ({"every": 0}, "every: 0"),
        ({"every": 2.5}, "every: 2.5"),
        ({"schedule": "square"}, "schedule: 'square' is unknown"),
        ({"schedule": lambda t: 0.5 * t}, "they must be non-decreasing, from 0 or more, to 1"),
        ({"schedule": lambda t: 1 - t}, "they must be non-decreasing"),
        ({"scope": "row"}, "scope: 'row' is unknown"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        rw.pruned(rw.sgld(), **({"stop": 10} | options))


def run(sampler, position, steps=20):
    def log_density(p):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))

    return rw.sample(
        jax.random.key(0), sampler, rw.Density(log_density), position, steps=steps, step_size=0.1, progress=False
    )


def test_bad_runs():
    with pytest.raises(ValueError, match="leaves: 'w' is not one of a, b, c"):
        run(rw.pruned(rw.sgld(), stop=10, leaves=["w"]), POSITION)
    with pytest.raises(ValueError, match="leaves: none of position is chosen, as none has two axes"):
        run(rw.pruned(rw.sgld(), stop=10), jnp.zeros(3))
    with pytest.raises(ValueError, match="pruning ends at step 30, after the last of 20 steps"):
        run(rw.pruned(rw.sgld(), stop=30), POSITION)
    few = rw.pruned(rw.Sampler(rw.Langevin(), rw.LowRank(rank=20)), 0.9, stop=10, leaves=["a", "b", "c"])
    with pytest.raises(ValueError, match="rank: 20 and 4 spare directions do not fit 13 parameters"):
        run(few, POSITION)


def test_a_preconditioner_without_prune_is_an_error():
    @pytree_dataclass
    class Mine(rw.Identity):
        prune = rw.Preconditioner.prune

    with pytest.raises(ValueError, match="Mine has no method prune"):
        run(rw.pruned(rw.Sampler(rw.Langevin(), Mine()), stop=10), POSITION)
