"""Models of the kinds people write, each with a NUTS reference: `for case in CASES: case.target, case.reference`.

Every position is a dict of unconstrained arrays; scales are sampled as logarithms, with the Jacobian in the prior.
`python benchmarks/zoo_reference.py zoo` makes `zoo_reference.npz`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from jax.scipy.special import gammaln

import ridgewalk as rw

REFERENCE = Path(__file__).parent / "zoo_reference.npz"
LOG_2PI = float(np.log(2 * np.pi))
SEED = 20_240_611


class Reference(NamedTuple):
    """Of NUTS, each in the structure of the position."""

    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]
    mcse: dict[str, np.ndarray]
    """Monte Carlo error of the mean."""
    ess: dict[str, np.ndarray]
    r_hat: dict[str, np.ndarray]
    potential: np.ndarray
    """Mean and standard deviation of the potential."""

    @property
    def max_r_hat(self) -> float:
        """Above 1.01 the chains of NUTS itself do not agree: the posterior has several modes."""
        return max(float(np.max(leaf)) for leaf in self.r_hat.values())


class Comparison(NamedTuple):
    """Posterior means and standard deviations, pooled over chains, against the reference."""

    z: float
    """The largest difference of a mean, in posterior standard deviations."""
    worst: str
    """The parameter it is of."""
    sd_low: float
    sd_high: float
    """The smallest and the largest ratio of standard deviations."""

    @property
    def agrees(self) -> bool:
        """Means within 0.25 of a posterior standard deviation, standard deviations within 15 %."""
        return self.z <= 0.25 and self.sd_low >= 0.85 and self.sd_high <= 1.15


@dataclass(frozen=True)
class Case:
    """A model. With rows, `log_likelihood(position, batch)` has one value a row and `data` the rows."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    log_prior: Callable[[Any], Any]
    log_likelihood: Callable[[Any, Any], Any] | None = None
    data: Any = None

    @property
    def posterior(self) -> rw.Posterior:
        """The model with its rows."""
        if self.log_likelihood is None:
            raise ValueError(f"{self.name} has no rows; use target")
        return rw.Posterior(self.log_prior, self.log_likelihood, jax.tree.map(jnp.asarray, self.data))

    @cached_property
    def target(self) -> rw.Density:
        """The model as a density: every gradient is exact."""
        prior, likelihood = self.log_prior, self.log_likelihood
        if likelihood is None:
            return rw.Density(prior)
        data = self.data

        def log_density(p: Any) -> Any:
            return prior(p) + jnp.sum(likelihood(p, jax.tree.map(jnp.asarray, data)))

        return rw.Density(log_density)

    def starts(self, key: jax.Array, chains: int) -> dict[str, jax.Array]:
        """U(−2, 2), NumPyro's default, with a leading axis of chains (`start_per_chain=True`)."""
        keys = jax.random.split(key, len(self.shapes))
        return {
            name: jax.random.uniform(k, (chains, *shape), jnp.float32, -2.0, 2.0).astype(jnp.result_type(float))
            for k, (name, shape) in zip(keys, self.shapes.items(), strict=True)
        }

    @cached_property
    def reference(self) -> Reference:
        """The stored reference of NUTS."""
        with np.load(REFERENCE) as stored:
            fields = ("mean", "sd", "mcse", "ess", "r_hat")
            trees = {field: {leaf: stored[f"{self.name}/{leaf}/{field}"] for leaf in self.shapes} for field in fields}
            return Reference(**trees, potential=stored[f"{self.name}/potential"])


def compare(result: rw.Result, case: Case, leaves: tuple[str, ...] = ()) -> Comparison:
    """Means and standard deviations of all chains that did not diverge, pooled; of some leaves, or of all."""
    mean, std = rw.posterior_mean(result), rw.posterior_std(result)
    worst, z, ratios = "", 0.0, []
    for name in leaves or tuple(case.shapes):
        sd = case.reference.sd[name]
        distance = np.abs(np.asarray(mean[name], float) - case.reference.mean[name]) / sd
        distance = np.where(np.isfinite(distance), distance, np.inf)
        if distance.max() >= z:
            at = np.unravel_index(distance.argmax(), distance.shape)
            worst, z = name + (str([int(i) for i in at]) if at else ""), float(distance.max())
        ratios.append(np.ravel(np.asarray(std[name], float) / sd))
    ratio = np.concatenate(ratios)
    return Comparison(z, worst, float(ratio.min()), float(ratio.max()))


# Log densities without constants that do not depend on the parameters.


def normal(x: Any, mean: Any = 0.0, sd: Any = 1.0) -> Any:
    return -0.5 * ((x - mean) / sd) ** 2 - jnp.log(jnp.asarray(sd, x.dtype)) - 0.5 * LOG_2PI


def half_normal(log_scale: Any, width: float) -> Any:
    """Density of log s with s ~ half-normal."""
    return -0.5 * (jnp.exp(log_scale) / width) ** 2 + log_scale


def half_cauchy(log_scale: Any) -> Any:
    return -jnp.log1p(jnp.exp(2 * log_scale)) + log_scale


def exponential(log_scale: Any, rate: float = 1.0) -> Any:
    return -rate * jnp.exp(log_scale) + log_scale


def student(x: Any, mean: Any, log_sd: Any, df: Any) -> Any:
    z = (x - mean) * jnp.exp(-log_sd)
    norm = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * jnp.log(df)
    return norm - log_sd - 0.5 * (df + 1) * jnp.log1p(z**2 / df)


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *name.encode()])


def hierarchical() -> Case:
    """80 groups, 5,000 rows, non-centred: 84 parameters."""
    rng, groups, rows = _rng("hierarchical"), 80, 5_000
    group, x = rng.integers(groups, size=rows), rng.normal(size=rows)
    effects = 1.0 + 0.7 * rng.normal(size=groups)
    y = effects[group] + 0.5 * x + 0.8 * rng.normal(size=rows)

    def log_prior(p: Any) -> Any:
        fixed = normal(p["mu"], 0.0, 5.0) + normal(p["b"], 0.0, 5.0)
        return fixed + half_normal(p["log_tau"], 2.0) + half_normal(p["log_sigma"], 2.0) + jnp.sum(normal(p["z"]))

    def log_likelihood(p: Any, batch: Any) -> Any:
        mean = p["mu"] + jnp.exp(p["log_tau"]) * p["z"][batch["group"]] + p["b"] * batch["x"]
        return normal(batch["y"], mean, jnp.exp(p["log_sigma"]))

    shapes = {"mu": (), "log_tau": (), "b": (), "log_sigma": (), "z": (groups,)}
    return Case("hierarchical", shapes, log_prior, log_likelihood, {"group": group.astype(np.int32), "x": x, "y": y})


def eight_schools() -> Case:
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def log_prior(p: Any) -> Any:
        tau = -jnp.log1p((jnp.exp(p["log_tau"]) / 5) ** 2) + p["log_tau"]
        return normal(p["mu"], 0.0, 5.0) + tau + jnp.sum(normal(p["z"]))

    def log_likelihood(p: Any, batch: Any) -> Any:
        effects = p["mu"] + jnp.exp(p["log_tau"]) * p["z"][batch["school"]]
        return normal(batch["y"], effects, batch["sigma"])

    data = {"school": np.arange(8, dtype=np.int32), "y": y, "sigma": sigma}
    return Case("eight_schools", {"mu": (), "log_tau": (), "z": (8,)}, log_prior, log_likelihood, data)


def varying_slopes() -> Case:
    """Intercepts and slopes of 30 groups, correlated, non-centred."""
    rng, groups, rows = _rng("varying_slopes"), 30, 900
    group, x = rng.integers(groups, size=rows), rng.normal(size=rows)
    root = np.array([[0.8, 0.0], [-0.2, 0.4]])
    effects = np.array([1.0, 2.0]) + rng.normal(size=(groups, 2)) @ root.T
    y = effects[group, 0] + effects[group, 1] * x + 0.6 * rng.normal(size=rows)

    def log_prior(p: Any) -> Any:
        scales = jnp.sum(exponential(p["log_tau"])) + exponential(p["log_sigma"])
        # ρ = tanh(r), ρ ~ LKJ(2): (1 − ρ²)^1, and dρ/dr = 1 − ρ².
        correlation = -4 * (jnp.logaddexp(p["r"], -p["r"]))
        return jnp.sum(normal(p["mu"], 0.0, 5.0)) + scales + correlation + jnp.sum(normal(p["z"]))

    def log_likelihood(p: Any, batch: Any) -> Any:
        tau, rho = jnp.exp(p["log_tau"]), jnp.tanh(p["r"])
        z = p["z"][:, batch["group"]]
        intercept = p["mu"][0] + tau[0] * z[0]
        slope = p["mu"][1] + tau[1] * (rho * z[0] + z[1] / jnp.cosh(p["r"]))
        return normal(batch["y"], intercept + slope * batch["x"], jnp.exp(p["log_sigma"]))

    shapes = {"mu": (2,), "log_tau": (2,), "r": (), "log_sigma": (), "z": (2, groups)}
    data = {"group": group.astype(np.int32), "x": x, "y": y}
    return Case("varying_slopes", shapes, log_prior, log_likelihood, data)


def poisson() -> Case:
    rng, rows = _rng("poisson"), 500
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, 4))])
    y = rng.poisson(np.exp(x @ np.array([1.0, 0.3, -0.5, 0.2, 0.0]))).astype(float)

    def log_likelihood(p: Any, batch: Any) -> Any:
        rate = batch["x"] @ p["beta"]
        return batch["y"] * rate - jnp.exp(rate)

    return Case("poisson", {"beta": (5,)}, _normal_beta, log_likelihood, {"x": x, "y": y})


def _normal_beta(p: Any) -> Any:
    return jnp.sum(normal(p["beta"], 0.0, 2.5))


def negative_binomial() -> Case:
    rng, rows, shape = _rng("negative_binomial"), 500, 2.0
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, 4))])
    mean = np.exp(x @ np.array([1.5, 0.4, -0.3, 0.0, 0.2]))
    y = rng.poisson(mean * rng.gamma(shape, 1 / shape, size=rows)).astype(float)

    def log_prior(p: Any) -> Any:
        return _normal_beta(p) + exponential(p["log_shape"], 0.2)

    def log_likelihood(p: Any, batch: Any) -> Any:
        shape, log_mean, count = jnp.exp(p["log_shape"]), batch["x"] @ p["beta"], batch["y"]
        log_total = jnp.logaddexp(log_mean, p["log_shape"])
        counts = gammaln(count + shape) - gammaln(shape)
        return counts + shape * (p["log_shape"] - log_total) + count * (log_mean - log_total)

    return Case("negative_binomial", {"beta": (5,), "log_shape": ()}, log_prior, log_likelihood, {"x": x, "y": y})


def robust() -> Case:
    """Regression with Student-t errors, degrees of freedom learnt."""
    rng, rows = _rng("robust"), 300
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, 3)) * np.array([1.0, 10.0, 0.1])])
    y = x @ np.array([2.0, 1.0, -0.1, 3.0]) + 0.5 * rng.standard_t(3, size=rows)

    def log_prior(p: Any) -> Any:
        df = jnp.exp(p["log_df"])  # Gamma(2, 0.1), as Stan recommends
        slopes = jnp.sum(normal(p["beta"], 0.0, 10.0))
        return slopes + exponential(p["log_sigma"]) + 2 * p["log_df"] - 0.1 * df

    def log_likelihood(p: Any, batch: Any) -> Any:
        return student(batch["y"], batch["x"] @ p["beta"], p["log_sigma"], jnp.exp(p["log_df"]))

    shapes = {"beta": (4,), "log_sigma": (), "log_df": ()}
    return Case("robust", shapes, log_prior, log_likelihood, {"x": x, "y": y})


def separation() -> Case:
    """Logistic regression in which one feature separates the classes: only the prior bounds its coefficient."""
    rng, rows = _rng("separation"), 60
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, 3))])
    x[:, 1] += 0.2 * np.sign(x[:, 1])
    y = (x[:, 1] > 0).astype(float)

    def log_likelihood(p: Any, batch: Any) -> Any:
        return log_sigmoid((2 * batch["y"] - 1) * (batch["x"] @ p["beta"]))

    return Case(
        "separation", {"beta": (4,)}, lambda p: jnp.sum(normal(p["beta"], 0.0, 5.0)), log_likelihood, {"x": x, "y": y}
    )


def gaussian_process() -> Case:
    """Hyper-parameters of a Gaussian process at 100 points, the function integrated out. It has no rows."""
    rng = _rng("gaussian_process")
    x = np.sort(rng.uniform(0, 10, size=100))
    square = (x[:, None] - x[None, :]) ** 2
    covariance = np.exp(-0.5 * square / 1.5**2) + 0.3**2 * np.eye(100)
    y = np.linalg.cholesky(covariance) @ rng.normal(size=100)

    def log_density(p: Any) -> Any:
        amplitude, length, noise = jnp.exp(p["log_amplitude"]), jnp.exp(p["log_length"]), jnp.exp(p["log_noise"])
        gram = amplitude**2 * jnp.exp(-0.5 * jnp.asarray(square) / length**2) + (noise**2 + 1e-4) * jnp.eye(100)
        root = jnp.linalg.cholesky(gram)
        whitened = jax.scipy.linalg.solve_triangular(root, jnp.asarray(y), lower=True)
        likelihood = -0.5 * whitened @ whitened - jnp.sum(jnp.log(jnp.diagonal(root)))
        # length ~ InverseGamma(5, 5), as Stan recommends
        prior = (
            -5 * p["log_length"] - 5 / length + half_normal(p["log_amplitude"], 1.0) + half_normal(p["log_noise"], 1.0)
        )
        return likelihood + prior

    return Case("gaussian_process", {"log_amplitude": (), "log_length": (), "log_noise": ()}, log_density)


def mixture() -> Case:
    """Two normals with ordered means; a second mode has one component over all rows."""
    rng, rows = _rng("mixture"), 300
    second = rng.uniform(size=rows) < 0.35
    y = np.where(second, 2.0 + 0.6 * rng.normal(size=rows), -1.0 + 0.9 * rng.normal(size=rows))

    def log_prior(p: Any) -> Any:
        first, gap = p["first"], jnp.exp(p["log_gap"])
        means = normal(first, 0.0, 3.0) + normal(first + gap, 0.0, 3.0) + p["log_gap"]
        weight = 2 * (log_sigmoid(p["logit"]) + log_sigmoid(-p["logit"]))  # Beta(2, 2) and the Jacobian's part
        return means + weight + jnp.sum(half_normal(p["log_sigma"], 2.0))

    def log_likelihood(p: Any, batch: Any) -> Any:
        first, sigma = p["first"], jnp.exp(p["log_sigma"])
        lower = log_sigmoid(-p["logit"]) + normal(batch["y"], first, sigma[0])
        upper = log_sigmoid(p["logit"]) + normal(batch["y"], first + jnp.exp(p["log_gap"]), sigma[1])
        return jnp.logaddexp(lower, upper)

    shapes = {"first": (), "log_gap": (), "logit": (), "log_sigma": (2,)}
    return Case("mixture", shapes, log_prior, log_likelihood, {"y": y})


def autoregressive() -> Case:
    """AR(3) with an intercept, given its first three values."""
    rng, length = _rng("autoregressive"), 300
    series = np.zeros(length + 50)
    for t in range(3, length + 50):
        series[t] = 0.5 + 0.6 * series[t - 1] - 0.3 * series[t - 2] + 0.25 * series[t - 3] + 0.7 * rng.normal()
    series = series[50:]
    lags = np.column_stack([np.ones(length - 3), series[2:-1], series[1:-2], series[:-3]])

    def log_prior(p: Any) -> Any:
        return jnp.sum(normal(p["beta"], 0.0, 1.0)) + half_normal(p["log_sigma"], 1.0)

    def log_likelihood(p: Any, batch: Any) -> Any:
        return normal(batch["y"], batch["x"] @ p["beta"], jnp.exp(p["log_sigma"]))

    data = {"x": lags, "y": series[3:]}
    return Case("autoregressive", {"beta": (4,), "log_sigma": ()}, log_prior, log_likelihood, data)


def horseshoe() -> Case:
    """20 features, three of which matter; non-centred horseshoe prior, half-Cauchy scales."""
    rng, rows, features = _rng("horseshoe"), 100, 20
    x = rng.normal(size=(rows, features))
    y = x[:, :3] @ np.array([2.0, -1.5, 1.0]) + rng.normal(size=rows)

    def log_prior(p: Any) -> Any:
        scales = jnp.sum(half_cauchy(p["log_lambda"])) + half_cauchy(p["log_tau"]) + half_normal(p["log_sigma"], 2.0)
        return scales + jnp.sum(normal(p["z"]))

    def log_likelihood(p: Any, batch: Any) -> Any:
        beta = p["z"] * jnp.exp(p["log_lambda"] + p["log_tau"])
        return normal(batch["y"], batch["x"] @ beta, jnp.exp(p["log_sigma"]))

    shapes = {"log_lambda": (features,), "log_tau": (), "log_sigma": (), "z": (features,)}
    return Case("horseshoe", shapes, log_prior, log_likelihood, {"x": x, "y": y})


def item_response() -> Case:
    """Two-parameter logistic model: 60 persons, 15 items, 900 answers."""
    rng, persons, items = _rng("item_response"), 60, 15
    person, item = (index.ravel() for index in np.meshgrid(np.arange(persons), np.arange(items), indexing="ij"))
    ability, difficulty = rng.normal(size=persons), rng.normal(size=items)
    slope = np.exp(0.3 * rng.normal(size=items))
    chance = 1 / (1 + np.exp(-slope[item] * (ability[person] - difficulty[item])))
    y = (rng.uniform(size=len(chance)) < chance).astype(float)

    def log_prior(p: Any) -> Any:
        spread = half_normal(p["log_spread"], 2.0) + jnp.sum(normal(p["log_slope"], 0.0, 0.5))
        return jnp.sum(normal(p["ability"])) + jnp.sum(normal(p["z"])) + normal(p["mu"], 0.0, 2.0) + spread

    def log_likelihood(p: Any, batch: Any) -> Any:
        difficulty = p["mu"] + jnp.exp(p["log_spread"]) * p["z"]
        gap = p["ability"][batch["person"]] - difficulty[batch["item"]]
        return log_sigmoid((2 * batch["y"] - 1) * jnp.exp(p["log_slope"])[batch["item"]] * gap)

    shapes = {"ability": (persons,), "z": (items,), "log_slope": (items,), "mu": (), "log_spread": ()}
    data = {"person": person.astype(np.int32), "item": item.astype(np.int32), "y": y}
    return Case("item_response", shapes, log_prior, log_likelihood, data)


def network() -> Case:
    """One hidden layer of 5 tanh units: units can be exchanged and their signs turned, so there are many modes."""
    rng, rows, units = _rng("network"), 150, 5
    x = rng.uniform(-3, 3, size=rows)
    y = np.sin(1.5 * x) + 0.3 * x + 0.2 * rng.normal(size=rows)

    def log_prior(p: Any) -> Any:
        weights = sum(jnp.sum(normal(p[name])) for name in ("w1", "b1", "w2", "b2"))
        return weights + half_normal(p["log_sigma"], 1.0)

    def log_likelihood(p: Any, batch: Any) -> Any:
        hidden = jnp.tanh(batch["x"][:, None] * p["w1"][None, :] + p["b1"][None, :])
        return normal(batch["y"], hidden @ p["w2"] + p["b2"], jnp.exp(p["log_sigma"]))

    shapes = {"w1": (units,), "b1": (units,), "w2": (units,), "b2": (), "log_sigma": ()}
    return Case("network", shapes, log_prior, log_likelihood, {"x": x, "y": y})


def survival() -> Case:
    """Weibull regression, a third of the times censored."""
    rng, rows, shape = _rng("survival"), 400, 1.5
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, 3))])
    time = np.exp(x @ np.array([1.0, 0.5, -0.4, 0.0])) * rng.weibull(shape, size=rows)
    limit = rng.exponential(8.0, size=rows)

    def log_prior(p: Any) -> Any:
        return _normal_beta(p) + half_normal(p["log_shape"], 2.0)

    def log_likelihood(p: Any, batch: Any) -> Any:
        z = jnp.exp(p["log_shape"]) * (batch["log_time"] - batch["x"] @ p["beta"])
        return batch["event"] * (p["log_shape"] + z) - jnp.exp(z)

    data = {"x": x, "log_time": np.log(np.minimum(time, limit)), "event": (time <= limit).astype(float)}
    return Case("survival", {"beta": (4,), "log_shape": ()}, log_prior, log_likelihood, data)


CASES = tuple(
    make()
    for make in (
        hierarchical,
        eight_schools,
        varying_slopes,
        poisson,
        negative_binomial,
        robust,
        separation,
        gaussian_process,
        mixture,
        autoregressive,
        horseshoe,
        item_response,
        network,
        survival,
    )
)
BY_NAME = {case.name: case for case in CASES}
