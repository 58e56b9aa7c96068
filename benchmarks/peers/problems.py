"""The posteriors on which samplers are compared, each with starts, a mode and what is known about its moments."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import ridgewalk as rw
import warmup
from ridgewalk.studies.logistic import logistic_regression
from ridgewalk.studies.tall.problem import TallProblem, importance_reference, laplace, tall_problem

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import zoo

CHAINS = 4
REFERENCE_WORK = 2 * 10**8
"""Rows times draws of the importance-weighted references."""


@dataclass(frozen=True)
class Problem:
    """A posterior in single precision."""

    name: str
    title: str
    target: rw.Posterior
    starts: Any
    """A position for each chain, on a leading axis."""
    mode: Any
    batch_size: int
    quantities: Callable[[Any], np.ndarray]
    """Draws (chain, draw, …) as numbers (chain, draw, number), whose mixing is measured."""
    mean: np.ndarray | None
    """Reference of the quantities; None where NUTS of the same benchmark is the reference."""
    sd: np.ndarray | None
    step_limit: float
    """2 / λ_max of the Hessian at the mode: the largest stable step of Langevin dynamics."""

    def start(self, chain: int) -> Any:
        """The start of one chain."""
        return jax.tree.map(lambda leaf: leaf[chain], self.starts)


def _flat(draws: Any) -> np.ndarray:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(draws)]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=2)


def _step_limit(target: rw.Posterior, position: Any) -> float:
    """By power iterations on the Hessian over all rows."""
    gradient = jax.grad(target.potential)

    @jax.jit
    def largest(position: Any, data: Any) -> jax.Array:
        def iterate(_: int, found: Any) -> Any:
            direction, _ = found
            image = jax.jvp(lambda p: gradient(p, data), (position,), (direction,))[1]
            length = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(image)))
            return jax.tree.map(lambda leaf: leaf / length, image), length

        keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(position))))
        first = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape, leaf.dtype), position)
        return jax.lax.fori_loop(0, 30, iterate, (first, jnp.zeros(())))[1]

    return 2 / float(largest(position, target.data))


def _at_mode(name: str, title: str, target: rw.Posterior, like: Any, mode: Any, batch_size: int) -> Problem:
    """A posterior that Laplace's approximation is close to: chains start at the mode."""
    size = target.size
    features, labels = target.data[:2] if isinstance(target.data, tuple) else (None, None)
    problem = TallProblem(None, features, labels, target, like)
    approximation = laplace(problem, mode).gaussian
    draws = int(np.clip(REFERENCE_WORK // size, 4_096, 65_536))
    reference = importance_reference(problem, approximation, draws).gaussian
    found = ravel_pytree(like)[1](jnp.asarray(approximation.mean, jnp.float32))
    return Problem(
        name,
        title,
        target,
        jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (CHAINS, *leaf.shape)), found),
        found,
        batch_size,
        _flat,
        reference.mean,
        np.sqrt(np.diag(reference.covariance)),
        _step_limit(target, found),
    )


def logistic() -> Problem:
    """The study's regression, in a dict."""
    study = logistic_regression()
    assert isinstance(study.target, rw.Posterior)
    prior: Any = study.target.log_prior
    likelihood: Any = study.target.log_likelihood
    data = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), study.target.data)
    target = rw.Posterior(lambda p: prior(p["w"]), lambda p, batch: likelihood(p["w"], batch), data)
    mode = {"w": jnp.asarray(study.mode, jnp.float32)}
    title = "logistic regression, 50 weights, 10,000 rows, condition 1.4e5"
    return _at_mode("logistic", title, target, jax.tree.map(jnp.zeros_like, mode), mode, 100)


def tall(rows: int = 100_000) -> Problem:
    """The study's logistic regression with many rows."""
    found = tall_problem("logistic", rows)
    mode = rw.find_mode(jax.random.key(0), found.target, found.like, batch_size=500)
    title = f"tall logistic regression, 50 weights, {rows:,} rows"
    return _at_mode("tall", title, found.target, found.like, mode, 500)


def hierarchical() -> Problem:
    """80 groups of 5,000 rows, started at random as NumPyro does; its reference is a long run of NUTS."""
    case = zoo.BY_NAME["hierarchical"]
    data = {
        name: jnp.asarray(value, jnp.int32 if name == "group" else jnp.float32) for name, value in case.data.items()
    }
    assert case.log_likelihood is not None
    target = rw.Posterior(case.log_prior, case.log_likelihood, data)
    mean, sd = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in (case.reference.mean, case.reference.sd)
    )
    # The mode is at τ = 0; the reference mean stands for it, where a centre of the likelihood is needed.
    centre = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), case.reference.mean)
    return Problem(
        "hierarchical",
        "hierarchical regression, 84 parameters, 80 groups, 5,000 rows",
        target,
        case.starts(jax.random.key(1), CHAINS),
        centre,
        500,
        _flat,
        mean,
        sd,
        _step_limit(target, centre),
    )


def network() -> Problem:
    """One hidden layer of 50 units: what mixes, or not, are predictions."""
    found = warmup.network_posterior("")
    starts = warmup.network_starts(found.target, CHAINS)

    @jax.jit
    def predict(draws: Any) -> jax.Array:
        return jax.vmap(jax.vmap(lambda weights: found.function(weights, found.inputs)))(draws)

    mode = jax.tree.map(lambda leaf: leaf[0], starts)
    return Problem(
        "network",
        "network of 50 tanh units, 501 weights, 927 rows; effective draws are of predictions",
        found.target,
        starts,
        mode,
        100,
        lambda draws: np.asarray(predict(draws)),
        None,
        None,
        _step_limit(found.target, mode),
    )


MAKERS: dict[str, Callable[[], Problem]] = {
    "logistic": logistic,
    "tall": tall,
    "hierarchical": hierarchical,
    "network": network,
}


@cache
def problem(name: str) -> Problem:
    """One of `MAKERS`, made once in a process."""
    return MAKERS[name]()


def known_moments() -> dict[str, tuple[list[float], list[float]]]:
    """Means and standard deviations of the quantities, where they do not come from this benchmark."""
    return {
        name: (made.mean.tolist(), made.sd.tolist())
        for name in MAKERS
        if name != "network" and (made := problem(name)).mean is not None and made.sd is not None
    }
