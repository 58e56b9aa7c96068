"""step_size="auto" against the best step size of a grid, warm-up included; and a network against hand-tuned SGHMC.

python benchmarks/warmup.py [gaussian] [logistic] [outliers] [network]

Errors are those of the studies of the same name: of the sample covariance of single chains (gaussian, logistic), and
cond(G H) at the end of the chain (outliers). The network has one hidden layer of 50 tanh units, 8 inputs, 927 rows,
unit-normal weights in units of the prior and a learnt noise, at temperature 1; its measure is the median ESS of
predictions per 1,000 gradients of a chain, burn-in not counted, and the mean potential.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ridgewalk as rw
from ridgewalk.diagnostics.mixing import ess, r_hat
from ridgewalk.studies.framework.comparison import condition, covariance_error, operator_matrix
from ridgewalk.studies.gaussian.study import paper_gaussian
from ridgewalk.studies.logistic import logistic_regression
from ridgewalk.studies.outliers import outlier_regression

Row = tuple[str, str, float, float]
"""What was sampled, the step size, its error and the standard error over seeds."""


def compare(name: str, error_of: Callable[[Any, int], float], grid: tuple[float, ...], seeds: int) -> Iterator[Row]:
    """The errors over the grid, and of "auto"; then their ratio."""
    means = {}
    for step_size in (*grid, "auto"):
        errors = np.array([error_of(step_size, seed) for seed in range(seeds)])
        means[step_size] = errors.mean()
        yield name, str(step_size), float(errors.mean()), float(errors.std() / max(1, seeds - 1) ** 0.5)
    yield name, "auto / best of the grid", means["auto"] / min(means[step_size] for step_size in grid), 0.0


def gaussian() -> Iterator[Row]:
    """The paper's 2D Gaussian, 30,000 steps, from the mode and (auto only) from a distant start."""
    problem = paper_gaussian()
    covariance = np.linalg.inv(problem.hessian)

    def error(step_size: Any, seed: int) -> float:
        result = rw.sample(
            jax.random.key(seed),
            rw.hasgld_sa(),
            problem.target,
            jnp.asarray(problem.mode),
            steps=30_000,
            step_size=step_size,
            burn_in=500,
            chains=1,
            progress=False,
        )
        return float(np.abs(np.cov(np.asarray(result.positions, float)[0].T) - covariance).mean())

    yield from compare("2D Gaussian, hasgld_sa", error, (0.02, 0.035, 0.05, 0.07, 0.1, 0.2), 12)


def logistic() -> Iterator[Row]:
    """The 50-d logistic regression, batches of 100 of 10,000 rows, without and with control variates."""
    problem = logistic_regression()
    mode = jnp.asarray(problem.mode)
    assert isinstance(problem.target, rw.Posterior)
    for label, target, grid in (
        ("logistic, hasgld_sa", problem.target, (0.005, 0.0075, 0.01, 0.015)),
        ("logistic, hasgld_sa, control variates", rw.control_variates(problem.target, mode), (0.05, 0.075, 0.1, 0.15)),
    ):

        def error(step_size: Any, seed: int, target: Any = target) -> float:
            result = rw.sample(
                jax.random.key(seed),
                rw.hasgld_sa(),
                target,
                mode,
                steps=20_000,
                step_size=step_size,
                batch_size=100,
                burn_in=2_000,
                chains=1,
                progress=False,
            )
            return covariance_error(np.asarray(result.positions, float)[0], problem.hessian)

        yield from compare(label, error, grid, 4)


def outliers() -> Iterator[Row]:
    """1,000 parameters with 20 outlying eigenvalues, the low-rank form, 3,000 steps: cond(G H)."""
    problem = outlier_regression()

    def error(step_size: Any, seed: int) -> float:
        result = rw.sample(
            jax.random.key(seed),
            rw.hasgld_sa(form="low_rank"),
            problem.target,
            jnp.asarray(problem.mode),
            steps=3_000,
            step_size=step_size,
            burn_in=600,
            batch_size=200,
            chains=1,
            progress=False,
        )
        return condition(operator_matrix(result.final_states[0]), problem.hessian)

    yield from compare("outliers, low rank: cond(G H)", error, (0.02, 0.05, 0.1), 2)


UNITS = 50


def network_posterior() -> tuple[rw.Posterior, jax.Array, Callable[[Any, jax.Array], jax.Array]]:
    """Simulated rows of a smooth function of 8 inputs, and the network."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1030, 8))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + np.tanh(x[:, 3] - x[:, 4]) + 0.3 * x[:, 5] ** 2
    y = y + 0.2 * rng.normal(size=len(y))
    y = (y - y.mean()) / y.std()
    first, second = 2 / 8**0.5, 2 / UNITS**0.5

    def network(w: Any, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ (first * w["W1"]) + w["b1"]) @ (second * w["W2"]) + w["b2"]

    def log_prior(w: Any) -> jax.Array:
        return -0.5 * sum(jnp.sum(v**2) for k, v in w.items() if k != "noise") - 0.5 * (w["noise"] + 1.5) ** 2

    def log_likelihood(w: Any, batch: Any) -> jax.Array:
        return -0.5 * ((batch[1] - network(w, batch[0])) * jnp.exp(-w["noise"])) ** 2 - w["noise"]

    rows = jnp.asarray(x[:927], jnp.float32), jnp.asarray(y[:927], jnp.float32)
    return rw.Posterior(log_prior, log_likelihood, rows), jnp.asarray(x[927:], jnp.float32), network


def network(seeds: int = 2) -> Iterator[Row]:
    """ESS of predictions per 1,000 gradients of a chain: SGHMC in units of the prior over a grid, and `auto`."""
    target, inputs, function = network_posterior()

    def start(key: jax.Array) -> Any:
        k = jax.random.split(key, 3)
        shapes = {"W1": (8, UNITS), "b1": (UNITS,), "W2": (UNITS,)}
        weights = {name: 0.5 * jax.random.normal(k, s) for k, (name, s) in zip(k, shapes.items(), strict=True)}
        return {**weights, "b2": jnp.zeros(()), "noise": jnp.asarray(-1.0)}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode of a network is far from its mean
        modes = [rw.find_mode(jax.random.key(i), target, start(jax.random.key(10 + i))) for i in range(4)]
    starts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *modes)
    cases: list[tuple[str, rw.Sampler, Any]] = [
        (f"SGHMC, friction {friction:g}, eps {step_size:g}", rw.sghmc(friction=friction), step_size)
        for friction in (0.003, 0.01, 0.03)
        for step_size in (1e-5, 2e-5, 4e-5)
    ]
    cases += [("auto", rw.auto(), "auto"), ("sghmc, step size and friction auto", rw.sghmc(), "auto")]
    for label, sampler, step_size in cases:
        found = []
        for seed in range(seeds):
            began = time.perf_counter()
            try:
                # A given step size is used after the same warm-up, or many would diverge from the modes.
                result = rw.sample(
                    jax.random.key(seed),
                    sampler,
                    target,
                    starts,
                    steps=20_000,
                    step_size=step_size,
                    warmup=4_000,
                    burn_in=4_000,
                    thin=16,
                    chains=4,
                    start_per_chain=True,
                    progress=False,
                )
            except rw.DivergenceError:
                found.append((np.nan, np.nan, np.nan))
                continue
            predictions = np.asarray(jax.vmap(jax.vmap(lambda w: function(w, inputs)))(result.kept_positions()))
            columns = [predictions[:, :, j] for j in range(0, predictions.shape[2], 3)]
            found.append(
                (
                    float(np.median([ess(column) for column in columns])) / (result.alive.sum() * 16),
                    float(np.median([r_hat(column) for column in columns])),
                    float(np.nanmean(np.asarray(result.info.potential))),
                )
            )
            took = time.perf_counter() - began
            print(f"    {label}: ESS {found[-1][0]:.2f}, U {found[-1][2]:.1f}, {took:.0f} s", flush=True)
        values = np.array(found)
        yield "network", f"{label}: ESS / 1,000 gradients", float(values[:, 0].mean()), float(values[:, 0].std())
        yield "network", f"{label}: mean potential (R-hat {values[:, 1].mean():.2f})", float(values[:, 2].mean()), 0.0


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "gaussian": gaussian,
    "logistic": logistic,
    "outliers": outliers,
    "network": network,
}


def main() -> None:
    """Print every row as soon as it is measured."""
    for name in sys.argv[1:] or SECTIONS:
        for label, setting, value, error in SECTIONS[name]():
            print(f"{label:40s} {setting:55s} {value:10.4g} ± {error:.2g}", flush=True)


if __name__ == "__main__":
    main()
