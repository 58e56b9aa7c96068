"""step_size="auto" against the best step size of a grid, warm-up included; and a network against hand-tuned SGHMC.

python benchmarks/warmup.py [gaussian] [logistic] [outliers] [network] [FILE.npz]

Errors are those of the studies of the same name: of the sample covariance of single chains (gaussian, logistic), and
cond(G H) at the end of the chain (outliers). The network has one hidden layer of 50 tanh units, 8 inputs, 927 rows,
unit-normal weights in units of the prior and a learnt noise, at temperature 1, four chains from modes; its measures are
the median bulk ESS of predictions, per 1,000 gradients of a chain after warm-up and per second, and the mean potential,
beside that of NUTS. A file has the arrays x and y of other rows for it.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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


UNITS, STEPS, WARMUP, THIN = 50, 20_000, 4_000, 16


class Network(NamedTuple):
    """The posterior, inputs to predict at, and the network."""

    target: rw.Posterior
    inputs: jax.Array
    function: Callable[[Any, jax.Array], jax.Array]


def network_posterior(file: str) -> Network:
    """Of a file with arrays x (rows, 8) and y, nine tenths of whose rows are fitted; by default of simulated rows."""
    rng = np.random.default_rng(0)
    if file:
        with np.load(file) as stored:
            x, y = np.asarray(stored["x"], float), np.asarray(stored["y"], float)
        order = rng.permutation(len(x))
        x, y = (x[order] - x.mean(0)) / x.std(0), y[order]
    else:
        x = rng.normal(size=(1030, 8))
        y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + np.tanh(x[:, 3] - x[:, 4]) + 0.3 * x[:, 5] ** 2
        y = y + 0.2 * rng.normal(size=len(y))
    y = (y - y.mean()) / y.std()
    first, second = 2 / x.shape[1] ** 0.5, 2 / UNITS**0.5

    def network(w: Any, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ (first * w["W1"]) + w["b1"]) @ (second * w["W2"]) + w["b2"]

    def log_prior(w: Any) -> jax.Array:
        return -0.5 * sum(jnp.sum(v**2) for k, v in w.items() if k != "noise") - 0.5 * (w["noise"] + 1.5) ** 2

    def log_likelihood(w: Any, batch: Any) -> jax.Array:
        return -0.5 * ((batch[1] - network(w, batch[0])) * jnp.exp(-w["noise"])) ** 2 - w["noise"]

    fitted = len(x) * 9 // 10
    rows = jnp.asarray(x[:fitted], jnp.float32), jnp.asarray(y[:fitted], jnp.float32)
    return Network(rw.Posterior(log_prior, log_likelihood, rows), jnp.asarray(x[fitted:], jnp.float32), network)


def network_starts(target: rw.Posterior, number: int) -> Any:
    """Modes from different starts, one a chain."""

    def start(key: jax.Array) -> Any:
        k = jax.random.split(key, 3)
        shapes = {"W1": (target.data[0].shape[1], UNITS), "b1": (UNITS,), "W2": (UNITS,)}
        weights = {name: 0.5 * jax.random.normal(k, s) for k, (name, s) in zip(k, shapes.items(), strict=True)}
        return {**weights, "b2": jnp.zeros(()), "noise": jnp.asarray(-1.0)}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode of a network is far from its mean
        modes = [rw.find_mode(jax.random.key(i), target, start(jax.random.key(10 + i))) for i in range(number)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *modes)


def prediction_ess(problem: Network, draws: Any) -> tuple[float, float]:
    """The median over inputs of ESS and R-hat of predictions; leading axes of the draws: (chain, draw)."""
    predictions = np.asarray(jax.jit(jax.vmap(jax.vmap(lambda w: problem.function(w, problem.inputs))))(draws))
    columns = [predictions[:, :, j] for j in range(predictions.shape[2])]
    return float(np.median([ess(c) for c in columns])), float(np.median([r_hat(c) for c in columns]))


def nuts(problem: Network, starts: Any, draws: int = 300) -> Iterator[Row]:
    """NumPyro's NUTS on the network, two chains: the potential that the others should have, and its mixing."""
    from numpyro.infer import MCMC, NUTS

    target = problem.target
    found = []
    for chain in range(2):
        mcmc = MCMC(
            NUTS(potential_fn=lambda w: target.potential(w, target.data)),
            num_warmup=500,
            num_samples=draws,
            progress_bar=False,
        )
        fields = ("potential_energy", "num_steps")
        first = jax.tree.map(lambda leaf, c=chain: leaf[c], starts)
        mcmc.run(jax.random.key(chain), init_params=first, extra_fields=fields)
        found.append((mcmc.get_samples(), *(np.asarray(mcmc.get_extra_fields()[field]) for field in fields)))
    size, reliability = prediction_ess(problem, jax.tree.map(lambda *x: jnp.stack(x), *(one[0] for one in found)))
    gradients, potential = sum(one[2].sum() for one in found), np.stack([one[1] for one in found])
    yield "network", "NUTS: ESS / 1,000 gradients, warm-up not counted", size / gradients * 1_000, 0.0
    yield "network", f"NUTS: mean potential and its sd (R-hat {reliability:.2f})", potential.mean(), potential.std()


def network(seeds: int = 3) -> Iterator[Row]:
    """ESS of predictions per 1,000 gradients of a chain: SGHMC in units of the prior over a grid, and `auto`."""
    problem = network_posterior(FILE)
    starts = network_starts(problem.target, 12)
    yield from nuts(problem, starts)
    cases: list[tuple[str, rw.Sampler, Any]] = [
        (f"SGHMC, friction {friction:g}, eps {step_size:g}", rw.sghmc(friction=friction), step_size)
        for friction in (0.0007, 0.0015, 0.003, 0.01)
        for step_size in (3e-5, 4e-5, 4.5e-5)
    ]
    limited = rw.rescaled(rw.SnapshotLBFGS(memory=2, curvature_every=10, base_growth=5.0), "auto")
    cases += [("auto", rw.auto(), "auto"), ("SGHMC, both auto", rw.sghmc(), "auto")]
    cases += [("SGHMC, limited pairs over a diagonal", rw.sghmc(preconditioner=limited), "auto")]
    for label, sampler, step_size in cases:
        found = []
        for seed in range(seeds):
            chosen = (4 * seed + np.arange(4)) % 12
            began = time.perf_counter()
            try:
                # A given step size is used after the same warm-up, or many would diverge from the modes.
                result = rw.sample(
                    jax.random.key(seed),
                    sampler,
                    problem.target,
                    jax.tree.map(lambda leaf, rows=chosen: leaf[rows], starts),
                    steps=STEPS,
                    step_size=step_size,
                    warmup=WARMUP,
                    burn_in=WARMUP,
                    thin=THIN,
                    chains=4,
                    start_per_chain=True,
                    progress=False,
                )
            except rw.DivergenceError:
                found.append((np.nan,) * 4)
                continue
            seconds = time.perf_counter() - began
            size, reliability = prediction_ess(problem, result.kept_positions())
            found.append((size, reliability, float(np.nanmean(np.asarray(result.info.potential))), seconds))
        size, reliability, potential, seconds = np.array(found).T
        each, error = size / (4 * (STEPS - WARMUP) / 1_000), max(1, seeds - 1) ** 0.5
        yield "network", f"{label}: ESS / 1,000 gradients after warm-up", float(each.mean()), float(each.std() / error)
        yield "network", f"{label}: ESS / s, warm-up counted", float(size.mean() / seconds.min()), 0.0
        yield "network", f"{label}: mean potential (R-hat {reliability.mean():.2f})", float(potential.mean()), 0.0


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "gaussian": gaussian,
    "logistic": logistic,
    "outliers": outliers,
    "network": network,
}


FILE = next((name for name in sys.argv[1:] if name.endswith(".npz")), "")


def main() -> None:
    """Print every row as soon as it is measured."""
    for name in [name for name in sys.argv[1:] if name != FILE] or SECTIONS:
        for label, setting, value, error in SECTIONS[name]():
            print(f"{label:40s} {setting:60s} {value:10.4g} ± {error:.2g}", flush=True)


if __name__ == "__main__":
    main()
