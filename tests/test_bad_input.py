"""Every wrong argument is named, with its value and what to do about it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.scipy.stats import norm

import ridgewalk as rw

X, Y = jnp.ones((20, 3)), jnp.zeros(20)


def log_prior(theta):
    return -jnp.sum(theta**2)


def log_likelihood(theta, batch):
    return -((batch[1] - batch[0] @ theta) ** 2)


TARGET = rw.Posterior(log_prior, log_likelihood, (X, Y))


def run(sampler=None, target=TARGET, position=None, **options):
    settings = {"steps": 10, "step_size": 0.01, "batch_size": 5, "progress": False} | options
    start = jnp.zeros(3) if position is None else position
    return rw.sample(jax.random.key(0), sampler or rw.sgld(), target, start, **settings)


CASES = {
    "batch too large": (lambda: run(batch_size=21), ["batch_size", "21", "20 examples"]),
    "batch of none": (lambda: run(batch_size=0), ["batch_size", "0", "at least 1"]),
    "batch negative": (lambda: run(batch_size=-3), ["batch_size", "-3"]),
    "batch not whole": (lambda: run(batch_size=2.5), ["batch_size", "2.5"]),
    "batch without data": (lambda: run(target=rw.Density(log_prior)), ["batch_size", "Density", "leave it out"]),
    "leading axes": (
        lambda: run(target=rw.Posterior(log_prior, log_likelihood, (X, Y[:7]))),
        ["data", "data[0] has 20", "data[1] has 7"],
    ),
    "scalar data": (lambda: run(target=rw.Posterior(log_prior, log_likelihood, (X, 1.0))), ["data[1]", "scalar"]),
    "no data": (lambda: run(target=rw.Posterior(log_prior, log_likelihood, ())), ["data", "no arrays"]),
    "empty data": (
        lambda: run(target=rw.Posterior(log_prior, log_likelihood, (X[:0], Y[:0]))),
        ["data", "0 examples"],
    ),
    "NaN in the data": (
        lambda: run(target=rw.Posterior(log_prior, log_likelihood, (X.at[jnp.array([3, 17]), 1].set(jnp.nan), Y))),
        ["data[0]: NaN or infinity in rows 3, 17,", "remove these rows"],
    ),
    "infinity in many rows": (
        lambda: run(target=rw.Posterior(log_prior, log_likelihood, (X, np.full(20, np.inf, np.float32)))),
        ["data[1]: NaN", "in rows 0, 1, 2, 3, 4 and 15 more"],
    ),
    "NaN where a step size is looked for": (
        lambda: rw.find_step_size(
            jax.random.key(0),
            rw.sgld(),
            rw.Posterior(log_prior, log_likelihood, (X, Y.at[7].set(jnp.nan))),
            jnp.zeros(3),
        ),
        ["data[1]: NaN", "in row 7,"],
    ),
    "likelihood summed": (
        lambda: run(target=rw.Posterior(log_prior, lambda t, b: jnp.sum(log_likelihood(t, b)), (X, Y))),
        ["log_likelihood", "shape ()", "one value per example"],
    ),
    "likelihood too long": (
        lambda: run(target=rw.Posterior(log_prior, lambda t, b: jnp.zeros(7), (X, Y))),
        ["log_likelihood", "(7,)", "(5,)"],
    ),
    "likelihood not an array": (
        lambda: run(target=rw.Posterior(log_prior, lambda t, b: (jnp.zeros(5),), (X, Y))),
        ["log_likelihood", "tuple"],
    ),
    "prior per parameter": (
        lambda: run(target=rw.Posterior(lambda t: -(t**2), log_likelihood, (X, Y))),
        ["log_prior", "(3,)", "scalar"],
    ),
    "density per parameter": (
        lambda: run(target=rw.Density(lambda t: -(t**2)), batch_size=None),
        ["log_density", "(3,)", "scalar"],
    ),
    "integer leaf": (
        lambda: run(position={"w": jnp.zeros(3), "n": jnp.arange(3)}),
        ["position['n']", "int", "float array"],
    ),
    "function as leaf": (lambda: run(position={"w": jnp.zeros(3), "f": jnp.tanh}), ["position['f']", "float array"]),
    "nothing to sample": (lambda: run(position={}), ["position", "no arrays"]),
    "NaN at the start": (lambda: run(position=jnp.array([0.0, jnp.nan, 0.0])), ["position", "NaN"]),
    "infinite density": (
        lambda: run(target=rw.Density(lambda t: jnp.sum(jnp.log(t))), batch_size=None),
        ["position", "-inf", "start where"],
    ),
    "memory": (lambda: rw.hasgld_sa(memory=0), ["memory", "0", "at least 1"]),
    "memory of HAMCMC": (lambda: rw.hamcmc(memory=1), ["memory", "1", "at least 2"]),
    "step size zero": (lambda: run(step_size=0.0), ["step_size", "0", "positive"]),
    "step size negative": (lambda: run(step_size=-0.1), ["step_size", "-0.1"]),
    "step size NaN": (lambda: run(step_size=float("nan")), ["step_size", "nan"]),
    "step size a string": (lambda: run(step_size="small"), ["step_size", "'small'", "schedule"]),
    "schedule runs out": (lambda: run(step_size=lambda k: 0.05 - 0.01 * k), ["step_size", "step 5"]),
    "burn-in": (lambda: run(burn_in=10), ["burn_in", "10", "steps = 10"]),
    "burn-in negative": (lambda: run(burn_in=-1), ["burn_in", "-1"]),
    "thin": (lambda: run(thin=0), ["thin", "0", "at least 1"]),
    "thin beyond the end": (lambda: run(thin=8, burn_in=5), ["thin", "8", "5 steps"]),
    "steps": (lambda: run(steps=0), ["steps", "0"]),
    "chains": (lambda: run(chains=0), ["chains", "0"]),
    "starts per chain": (lambda: run(chains=2, start_per_chain=True), ["position", "(3,)", "2 chains"]),
    "sampler not called": (lambda: run(sampler=rw.sgld), ["sampler", "call it"]),
    "target": (lambda: run(target=log_prior), ["target", "function", "Posterior"]),
    "dense too large": (
        lambda: run(
            sampler=rw.hasgld_sa(form="dense"),
            target=rw.Density(log_prior),
            position=jnp.zeros(50_000),
            batch_size=None,
        ),
        ["form", "50000 x 50000", "10,000,000,000 bytes", "low_rank"],
    ),
    "rank too large": (
        lambda: run(sampler=rw.hasgld_sa(form="low_rank")),
        ["rank", "20", "3 parameters", "dense"],
    ),
    "form": (lambda: rw.hasgld_sa(form="sparse"), ["form", "'sparse'", "low_rank"]),
    "base": (lambda: rw.hasgld_sa(base="identity"), ["base", "'identity'"]),
    "base without recursion": (
        lambda: rw.hasgld_sa(form="low_rank", base="scaled_identity"),
        ["base", "low_rank", "leave base out"],
    ),
    "Γ with momentum": (
        lambda: run(sampler=rw.sghmc(preconditioner=rw.InverseMetric(lambda t: 1 + t**2))),
        ["preconditioner", "InverseMetric", "Hamiltonian"],
    ),
    "base without G": (lambda: rw.hasgld_sa(form="snapshot_lbfgs", base="running"), ["base", "running", "dense"]),
    "c1": (lambda: rw.PowerDecay(c1=0.0), ["c1", "0.0", "positive"]),
    "c2": (lambda: rw.PowerDecay(c2=-1.0), ["c2", "-1.0"]),
    "alpha": (lambda: rw.PowerDecay(alpha=1.5), ["alpha", "1.5", "(0, 1]"]),
    "alpha zero": (lambda: rw.PowerDecay(alpha=0.0), ["alpha", "0.0"]),
    "damping": (lambda: rw.hasgld_sa(damping=1.0), ["damping", "1.0", "(0, 1)"]),
    "curvature_every": (lambda: rw.hasgld_sa(curvature_every=0), ["curvature_every", "0"]),
    "first_curvature": (lambda: rw.hasgld_sa(first_curvature=0.0), ["first_curvature", "0.0"]),
    "growth": (lambda: rw.Dense(growth=1.0), ["growth", "1.0"]),
    "base growth": (lambda: rw.SnapshotLBFGS(base_growth=0.5), ["base_growth", "0.5"]),
    "snapshots": (lambda: rw.hasgld_sa(form="snapshot_lbfgs", snapshots=0), ["snapshots", "0"]),
    "rank": (lambda: rw.hasgld_sa(rank=0), ["rank", "0"]),
    "temperature": (lambda: rw.sgld(temperature=-1.0), ["temperature", "-1.0"]),
    "noise": (lambda: rw.sgld(noise="uniform"), ["noise", "'uniform'", "two_point"]),
    "friction": (lambda: rw.sghmc(friction=0.0), ["friction", "0.0"]),
    "gradient noise": (lambda: rw.sghmc(friction=0.1, gradient_noise=0.2), ["gradient_noise", "0.2"]),
    "diffusion": (lambda: rw.sgnht(diffusion=0.0), ["diffusion", "0.0"]),
    "decay": (lambda: rw.psgld(decay=1.0), ["decay", "1.0"]),
    "second moment": (
        lambda: rw.build_kernel(rw.psgld(second_moment=jnp.ones(3)), rw.Density(lambda x: -x @ x), jnp.ones(2)).init(
            jnp.ones(2)
        ),
        ["second_moment", "(3,)", "(2,)"],
    ),
    "regularizer": (lambda: rw.psgld(regularizer=0.0), ["regularizer", "0.0"]),
    "metric of a wrong shape": (lambda: run(sampler=rw.sgrld(lambda t: jnp.ones(2))), ["metric", "2 numbers", "3"]),
    "covariance of a wrong shape": (lambda: rw.fixed(np.ones((2, 3))), ["covariance", "(2, 3)"]),
    "covariance not positive": (lambda: rw.fixed(np.diag([1.0, -1.0])), ["covariance", "positive definite"]),
    "covariance of another model": (
        lambda: run(sampler=rw.Sampler(rw.Langevin(), rw.fixed(np.eye(2)))),
        ["covariance", "2 parameters", "3"],
    ),
    "missing key": (
        lambda: run(target=rw.Density(lambda p: -jnp.sum(p["b"] ** 2)), position={"a": jnp.ones(2)}, batch_size=None),
        ["log_density", "'b'", "arrays are a"],
    ),
    "keys of two kinds": (
        lambda: run(position={"a": jnp.ones(2), 1: jnp.ones(1)}),
        ["position", "not a valid pytree", "strings"],
    ),
    "key": (lambda: rw.sample(0, rw.sgld(), TARGET, jnp.zeros(3), steps=5, step_size=0.1), ["0", "jax.random.key(0)"]),
    "several keys": (
        lambda: rw.find_step_size(jax.random.split(jax.random.key(0)), rw.sgld(), TARGET, jnp.zeros(3), batch_size=5),
        ["key", "(2,)"],
    ),
    "table for data": (
        lambda: run(target=rw.Posterior(log_prior, log_likelihood, (X, pd.Series(np.zeros(20))))),
        ["data[1]", "Series", "label", ".to_numpy()"],
    ),
    "spread of a prior": (lambda: rw.gaussian_prior(None), ["scale", "None", "1.0"]),
    "svrg never": (lambda: rw.svrg(TARGET, every=0), ["every", "0"]),
    "svrg without data": (lambda: rw.svrg(rw.Density(log_prior), every=5), ["target", "Density"]),
    "control variates without data": (
        lambda: rw.control_variates(rw.Density(log_prior), jnp.zeros(3)),
        ["target", "Density"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_names_argument_value_and_fix(name):
    call, words = CASES[name]
    with pytest.raises(ValueError, match=r"^[a-z_0-9\[\]']+: ") as caught:
        call()
    message = str(caught.value)
    for word in words:
        assert word in message, message


def test_schedules_may_be_plain_python():
    """`0.1 if k < 100 else 0.01` asks for the number, which a traced step is not."""
    by_hand = run(step_size=lambda k: 0.001 if k < 5 else 0.0001 / math.sqrt(k))
    assert by_hand.step_sizes[[4, 9]].tolist() == [0.001, 0.0001 / 3]
    with pytest.raises(TypeError, match="unsupported operand"):
        run(step_size=lambda k: k + "1")


def test_numbers_may_be_numpys():
    rw.gaussian_prior(np.float32(2.0))
    assert rw.Batches([(X, Y)], size=np.int64(1_000)).size == 1_000


def censored(theta, batch):
    """y ~ N(x · θ, 1) is known to be in an interval, infinite where it is open; x is NaN where it is missing."""
    mean = jnp.nan_to_num(batch["x"]) @ theta
    return jnp.log(norm.cdf(batch["upper"] - mean) - norm.cdf(batch["lower"] - mean))


INTERVALS = {
    "lower": np.where(np.arange(20) < 10, -1.0, -np.inf),
    "upper": np.where(np.arange(20) < 10, np.inf, 1.0),
    "x": np.where(np.eye(20, 3) == 1, np.nan, 1.0),
}


def test_a_likelihood_may_be_made_for_infinity_and_nan():
    target = rw.Posterior(log_prior, censored, INTERVALS)
    assert np.isfinite(run(target=target).positions).all()
    with pytest.raises(
        ValueError, match=r"curvature .* where data\['lower'\] and data\['upper'\] and data\['x'\] hold"
    ):
        rw.find_step_size(jax.random.key(0), rw.sgld(), target, jnp.zeros(3))  # φ'(∞) is −∞ · 0


@pytest.mark.slow
def test_a_step_size_is_found_with_nan_for_what_is_missing():
    options = {"batch_size": 5, "steps": 200, "progress": False}
    missing = rw.Posterior(log_prior, lambda t, b: -((1 - jnp.nan_to_num(b) @ t) ** 2), INTERVALS["x"])
    assert rw.find_step_size(jax.random.key(0), rw.sgld(), missing, jnp.zeros(3), **options) > 0


def test_of_arrays_with_infinity_those_are_named_that_hold_the_row_at_fault():
    """Row 19 is NaN, after nine rows in which infinity is meant."""
    lower = INTERVALS["lower"].copy()
    lower[19] = np.nan
    with pytest.raises(ValueError, match=r"^data\['lower'\]: .* at the start is not finite for row 19; remove"):
        run(target=rw.Posterior(log_prior, censored, INTERVALS | {"lower": lower}))
    x = INTERVALS["x"].copy()
    x[4] = np.inf  # which nan_to_num makes so large that the interval has no probability
    with pytest.raises(ValueError, match=r"^data\['upper'\] and data\['x'\]: NaN or infinity in rows 0, 1, 2, 4, and"):
        run(target=rw.Posterior(log_prior, censored, INTERVALS | {"x": x}), position=jnp.ones(3))


def test_a_gradient_that_is_not_finite_is_refused_as_well():
    """With NaN masked after the square root the value is finite, the gradient is not: 0 · ∞."""

    def masked(theta, batch):
        return jnp.where(jnp.isnan(batch), 0.0, -jnp.sqrt(jnp.abs(batch - theta[0])))

    with pytest.raises(ValueError, match="data: NaN or infinity in row 3, and log_likelihood or its gradient"):
        run(target=rw.Posterior(log_prior, masked, jnp.ones(20).at[3].set(jnp.nan)))


@pytest.mark.parametrize("position", [jnp.zeros(0), {"a": jnp.zeros((0, 3)), "b": jnp.zeros((2, 0))}])
def test_positions_without_elements(position):
    with pytest.raises(ValueError, match=r"position: its arrays have no elements \(shapes \("):
        rw.sample(jax.random.key(0), rw.sgld(), rw.Density(lambda p: 0.0), position, steps=3, step_size=0.1)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("preconditioner", [rw.Dense(), rw.SnapshotLBFGS(memory=2), rw.LowRank(rank=1, spare=1)])
def test_half_precision_and_matrices(dtype, preconditioner):
    sampler = rw.Sampler(rw.Langevin(), preconditioner)
    target = rw.Density(lambda w: -0.5 * jnp.sum(w**2))
    with pytest.raises(ValueError, match=f"position: its dtype is {dtype.__name__}, .* convert it to float32"):
        rw.sample(jax.random.key(0), sampler, target, jnp.zeros(4, dtype), steps=3, step_size=0.1)
