"""What targets show of a position, and bijections to constrained parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw

BIJECTIONS = {
    "positive": (rw.positive, (3,), (3,)),
    "interval": (rw.interval(-2.0, 5.0), (3,), (3,)),
    "simplex": (rw.simplex, (3,), (4,)),
}


@pytest.mark.parametrize("name", BIJECTIONS)
def test_bijections(name):
    """The inverse undoes them, and log_det is that of the Jacobian."""
    bijection, shape, after = BIJECTIONS[name]
    x = jax.random.normal(jax.random.key(0), shape)
    y = bijection(x)
    assert y.shape == after
    np.testing.assert_allclose(bijection.inverse(y), x, rtol=1e-10)
    jacobian = jax.jacobian(lambda x: bijection(x)[: shape[0]])(x)
    assert float(bijection.log_det(x)) == pytest.approx(float(jnp.linalg.slogdet(jacobian)[1]))
    rows = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(bijection(rows)[0], y)
    assert float(bijection.log_det(rows)) == pytest.approx(float(bijection.log_det(x) + bijection.log_det(2 * x)))
    assert jnp.isfinite(bijection.log_det(jnp.full(shape, 40.0)))


def test_ranges_of_bijections():
    x = jnp.linspace(-30, 30, 7)
    assert (rw.positive(x) > 0).all()
    low, high = np.asarray(rw.interval(-2, 5)(x))[[0, -1]]
    assert (low, high) == pytest.approx((-2, 5))
    np.testing.assert_allclose(rw.simplex(jnp.zeros(3)), 0.25)
    assert float(rw.simplex(x).sum()) == pytest.approx(1)


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (0, np.inf)])
def test_an_interval_has_ends(low, high):
    with pytest.raises(ValueError, match="is not an interval; give finite numbers"):
        rw.interval(low, high)


def exponential(p):
    """σ ~ Exponential(1), as a density of x = log σ; w ~ N(0, I)."""
    return -rw.positive(p["sigma"]) + rw.positive.log_det(p["sigma"]) - 0.5 * jnp.sum(p["w"] ** 2)


def run(target, start, steps=20, **options):
    return rw.sample(
        jax.random.key(0), rw.sgld(), target, start, steps=steps, step_size=0.05, chains=2, progress=False, **options
    )


START = {"sigma": jnp.zeros(()), "w": jnp.zeros(2)}


def test_constrain_is_what_is_shown():
    target = rw.Density(exponential, constrain=lambda p: {"noise": rw.positive(p["sigma"]), "first": p["w"][0]})
    result = run(target, START)
    assert set(result.posterior) == {"noise", "first"}
    np.testing.assert_allclose(result.posterior["noise"], np.exp(result.positions["sigma"]))
    assert result.summary().index == ("first", "noise")
    assert result.summary().row("noise")["mean"] == pytest.approx(np.exp(result.positions["sigma"]).mean())
    assert set(result.to_arviz()["posterior"].data_vars) == {"noise", "first"}
    assert result.summary(max_parameters=1).row("noise")["parameters"] == 1
    plain = run(rw.Density(exponential), START)
    np.testing.assert_array_equal(plain.positions["sigma"], result.positions["sigma"])
    np.testing.assert_array_equal(plain.posterior["w"], plain.positions["w"])


def test_plots_take_the_names_of_the_summary():
    pytest.importorskip("matplotlib").use("agg")
    result = run(rw.Density(exponential, constrain=lambda p: {"noise": rw.positive(p["sigma"])}), START)
    assert result.plot_trace(["noise"]).shape == (1, 2)
    with pytest.raises(ValueError, match="there is no 'sigma'; the leaves are noise"):
        result.plot_trace(["sigma"])


def test_the_log_determinant_gives_the_prior():
    result = run(rw.Density(exponential), START, steps=8_000)
    assert np.exp(result.positions["sigma"]).mean() == pytest.approx(1, abs=0.1)


def test_names_of_entries_and_leaves():
    bowl = rw.Density(lambda x: -0.5 * jnp.sum(x**2), names=["a", "b", "c"])
    result = run(bowl, jnp.zeros(3))
    assert set(result.posterior) == {"a", "b", "c"}
    np.testing.assert_array_equal(result.posterior["b"], result.positions[..., 1])
    data = {"x": jnp.arange(6.0)}
    pair = rw.Posterior(
        lambda p: -0.5 * (p[0] ** 2 + jnp.sum(p[1] ** 2)),
        lambda p, batch: -0.5 * (batch["x"] - p[0]) ** 2,
        data,
        names=("m", "w"),
    )
    assert {name: draws.shape for name, draws in run(pair, (jnp.zeros(()), jnp.zeros(2))).posterior.items()} == {
        "m": (2, 20),
        "w": (2, 20, 2),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": "a"}, "names: 'a' is not a sequence of strings"),
        ({"names": ["a", 1]}, "is not a sequence of strings"),
        ({"names": ["a", "a"]}, "has repeated names"),
        ({"constrain": 3}, "constrain: 3 is not a function"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        rw.Density(lambda x: -0.5 * jnp.sum(x**2), **options)


def test_names_that_do_not_fit_are_noticed_before_the_run():
    with pytest.raises(ValueError, match=r"names: there are 2, for position \(3,\)"):
        run(rw.Density(lambda x: -0.5 * jnp.sum(x**2), names=["a", "b"]), jnp.zeros(3))


def test_a_diverged_chain_is_left_out():
    target = rw.Density(lambda x: jnp.where(jnp.abs(x[0]) < 1, -0.5, jnp.nan) * jnp.sum(x**2), names=["a", "b"])
    starts = jnp.array([[0.999, 0.0], [0.0, 0.0]])
    result = rw.sample(
        jax.random.key(3), rw.sgld(), target, starts, steps=40, step_size=1e-3, chains=2, start_per_chain=True,
        progress=False,
    )  # fmt: skip
    assert not result.alive.all()
    assert result.posterior["a"].shape == (result.alive.sum(), 40)
