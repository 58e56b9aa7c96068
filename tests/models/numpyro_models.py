"""Six models as people write them in NumPyro, with simulated data, and what NUTS finds for them.

`python benchmarks/zoo_reference.py models` makes `reference.npz`.
"""

from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.module import random_flax_module

REFERENCE = Path(__file__).parent / "reference.npz"
SCHOOLS = {"effect": [28.0, 8, -3, 7, -1, 1, 18, 12], "error": [15.0, 10, 16, 11, 9, 11, 10, 18]}


class Case(NamedTuple):
    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def eight_schools(school: Any, error: Any, effect: Any = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        z = numpyro.sample("z", dist.Normal(0, 1))
    theta = numpyro.deterministic("theta", mu + tau * z)
    with numpyro.plate("result", len(school)):
        numpyro.sample("y", dist.Normal(theta[school], error), obs=effect)


def varying_intercepts(group: Any, x: Any, groups: Any, y: Any = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    b = numpyro.sample("b", dist.Normal(0, 5))
    sigma = numpyro.sample("sigma", dist.Exponential(1))
    with numpyro.plate("county", groups):
        z = numpyro.sample("z", dist.Normal(0, 1))
    with numpyro.plate("house", x.shape[0]):
        numpyro.sample("y", dist.Normal((mu + tau * z)[group] + b * x, sigma), obs=y)


def poisson(x: Any, exposure: Any, count: Any = None) -> None:
    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    with numpyro.plate("feature", x.shape[1]):
        w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("row", len(x)):
        numpyro.sample("count", dist.Poisson(jnp.exp(intercept + x @ w) * exposure), obs=count)


def robust(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfCauchy(1))
    df = numpyro.sample("df", dist.Gamma(2, 0.1))
    numpyro.sample("y", dist.StudentT(df, x @ w, scale), obs=y)


def item_response(person: Any, item: Any, people: Any, items: Any, correct: Any = None) -> None:
    spread = numpyro.sample("spread", dist.LogNormal(0, 0.5))
    with numpyro.plate("person", people):
        ability = numpyro.sample("ability", dist.Normal(0, 1))
    with numpyro.plate("item", items):
        difficulty = numpyro.sample("difficulty", dist.Normal(0, 2))
        discrimination = numpyro.sample("discrimination", dist.LogNormal(0, 0.5))
    logits = discrimination[item] * (spread * ability[person] - difficulty[item])
    with numpyro.plate("answer", len(person)):
        numpyro.sample("correct", dist.Bernoulli(logits=logits), obs=correct)


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(1)(nn.tanh(nn.Dense(6)(x)))[:, 0]


def network(x: Any, y: Any = None) -> None:
    net = random_flax_module("net", Network(), dist.Normal(0, 1), input_shape=(1, 2))
    noise = numpyro.sample("noise", dist.LogNormal(-1, 1))
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(net(x), noise), obs=y)


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 80, 5_000)
    x = rng.normal(size=5_000)
    heights = 1 + 0.7 * rng.normal(size=80)[groups] - 0.5 * x + 0.8 * rng.normal(size=5_000)
    features, exposure = rng.normal(size=(600, 3)), rng.uniform(0.5, 2, 600)
    counts = rng.poisson(np.exp(0.3 + features @ [0.4, -0.3, 0.2]) * exposure)
    outcome = features @ [1.0, -1, 0.5] + 0.3 * rng.standard_t(3, size=600)
    people, items = np.divmod(np.arange(40 * 12), 12)
    ability, difficulty = rng.normal(size=40), rng.normal(size=12)
    correct = rng.random(480) < 1 / (1 + np.exp(difficulty[items] - ability[people]))
    curve = np.tanh(features[:200, 0]) * features[:200, 1] + 0.3 * rng.normal(size=200)
    return {
        "eight schools": Case(
            eight_schools, (np.arange(8), np.array(SCHOOLS["error"])), {"effect": np.array(SCHOOLS["effect"])}
        ),
        "varying intercepts": Case(varying_intercepts, (groups, x, 80), {"y": heights}),
        "poisson": Case(poisson, (features, exposure), {"count": counts}),
        "robust": Case(robust, (features,), {"y": outcome}),
        "item response": Case(item_response, (people, items, 40, 12), {"correct": correct.astype(int)}),
        "network": Case(network, (features[:200, :2],), {"y": curve}),
    }


def quantities(name: str, draws: dict[str, Any]) -> dict[str, np.ndarray]:
    """What is compared with NUTS: of draws with leading axes (chain, draw), every site.

    The units of a network can be permuted and their signs changed, so that its weights have several modes and their
    means no meaning: of it the outputs on a grid and the noise are compared.
    """
    draws = {site: np.asarray(values) for site, values in draws.items()}
    if name != "network":
        return draws
    grid = np.stack(np.meshgrid(*[np.linspace(-1.5, 1.5, 4)] * 2), -1).reshape(-1, 2)

    @jax.jit
    @jax.vmap
    @jax.vmap
    def outputs(weights: Any) -> Any:
        params: dict[str, Any] = {}
        for site, value in weights.items():
            layer, part = site.removeprefix("net/").split(".")
            params.setdefault(layer, {})[part] = value
        return Network().apply({"params": params}, grid)

    weights = {site: values for site, values in draws.items() if site.startswith("net/")}
    return {"outputs": np.asarray(outputs(weights)), "noise": draws["noise"]}


class Agreement(NamedTuple):
    """Means and standard deviations against those of NUTS, over all quantities."""

    z: float
    """The largest difference of a mean, in posterior standard deviations."""
    sd_low: float
    sd_high: float
    potential_z: float
    """The difference of the mean potential, in its standard deviations; NaN where it was not given."""


def agreement(name: str, draws: dict[str, Any], potentials: Any = np.nan) -> Agreement:
    """Draws with leading axes (chain, draw), by constrained site, against the stored reference."""
    z, ratios = 0.0, []
    with np.load(REFERENCE) as stored:
        for site, values in quantities(name, draws).items():
            mean, sd = stored[f"{name}/{site}/mean"], stored[f"{name}/{site}/sd"]
            z = max(z, float(np.max(np.abs(values.mean((0, 1)) - mean) / sd)))
            ratios.append(np.ravel(values.std((0, 1)) / sd))
        mean, sd = stored[f"{name}/potential"]
    ratio = np.concatenate(ratios)
    return Agreement(z, float(ratio.min()), float(ratio.max()), float(abs(np.mean(potentials) - mean) / sd))
