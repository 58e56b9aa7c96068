"""The cost of a step: SGLD against BlackJAX's and posteriors', and the forms of HASGLD-SA as multiples of SGLD.

    python benchmarks/steps.py [SECTION …] [--only PATTERN] [--against TREE] [--rounds N]

Sections: peers, peers-network and peers-large, logistic, network and large.
Without one all are run; `make benchmark` installs the peers (BlackJAX, and posteriors with PyTorch). The cases of
a section are timed in turn, round after round, so that all of them see the same machine; times depend on it, the ratios
are the result. `--against` names another checkout, whose cases are timed in turn with these by a process of its own.
"""

import argparse
import inspect
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import ridgewalk as rw
from timing import seconds

BATCH = 100
LONG = 10.0
"""Seconds of a timed run, from which on one round must do."""


class Case(NamedTuple):
    """A run of n steps, and the number of steps that is timed, which holds whole periods of the curvature."""

    run: Callable[[int], Any]
    steps: int


def run_ours(
    sampler: rw.Sampler, target: rw.Posterior, start: Any, step_size: float, batch_size: int
) -> Callable[[int], Any]:
    """A run of n steps that keeps one draw, through `rw.sample`."""

    def run(steps: int) -> Any:
        return rw.sample(
            jax.random.key(0),
            sampler,
            target,
            start,
            steps=steps,
            step_size=step_size,
            batch_size=batch_size,
            thin=steps,
            progress=False,
        ).positions

    return run


def run_blackjax(
    target: rw.Posterior, start: Any, step_size: float, batch_size: int, *, ahead: bool = False
) -> Callable[[int], Any] | None:
    """BlackJAX's SGLD in a `lax.scan` written by hand, or None where it is not installed.

    `ahead` draws all batch indices before the loop.
    """
    try:
        import blackjax
    except ImportError:
        return None

    def gradient(position: Any, batch: Any) -> Any:
        return jax.grad(lambda p: -target.potential(p, batch))(position)

    step = blackjax.sgld(gradient).step

    def rows_of(key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (batch_size,), 0, target.size)

    def compiled(key: jax.Array, steps: int) -> Any:
        def body(position: Any, xs: Any) -> tuple[Any, None]:
            key, rows = xs
            if rows is None:
                key, batch_key = jax.random.split(key)
                rows = rows_of(batch_key)
            batch = jax.tree.map(lambda x: x[rows], target.data)
            return step(key, position, batch, step_size), None

        keys = jax.random.split(key, steps)
        rows = jax.vmap(rows_of)(jax.random.split(key, steps)) if ahead else None
        return jax.lax.scan(body, start, (keys, rows))[0]

    jitted = jax.jit(compiled, static_argnums=1)
    return lambda steps: jitted(jax.random.key(0), steps)


def run_posteriors(
    target: rw.Posterior, start: Any, step_size: float, batch_size: int, log_density: Callable[[Any, Any, Any], Any]
) -> Callable[[int], Any] | None:
    """posteriors' SGLD in its Python loop, or None where PyTorch is not installed.

    `log_density(torch, parameters, batch)` is that of the target, its likelihood weighted for all rows.
    """
    try:
        import posteriors
        import torch
    except ImportError:
        return None
    data = [torch.tensor(np.asarray(x)) for x in target.data]
    first = jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf)), start)

    def log_posterior(parameters: Any, batch: Any) -> tuple[Any, Any]:
        return log_density(torch, parameters, batch), torch.tensor([])

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=step_size, beta=0.0)

    def run(steps: int) -> float:
        state = transform.init(jax.tree.map(lambda leaf: leaf.clone(), first))
        for _ in range(steps):
            rows = torch.randint(0, target.size, (batch_size,))
            state, _ = transform.update(state, tuple(part[rows] for part in data), inplace=False)
        return float(jax.tree.leaves(state.params)[0].sum())

    return run


def network(widths: tuple[int, ...], size: int = 512) -> tuple[rw.Posterior, dict[str, jax.Array]]:
    """A dense network with a Gaussian likelihood on random data."""
    keys = jax.random.split(jax.random.key(0), len(widths) + 1)
    start: dict[str, jax.Array] = {}
    for i, (before, after) in enumerate(pairwise(widths)):
        start[f"weight{i}"] = jax.random.normal(keys[i], (before, after)) / jnp.sqrt(before)
        start[f"bias{i}"] = jnp.zeros(after)
    layers = len(widths) - 1

    def predict(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for i in range(layers):
            x = x @ parameters[f"weight{i}"] + parameters[f"bias{i}"][None, :]
            x = jnp.tanh(x) if i < layers - 1 else x
        return x

    def log_prior(parameters: dict[str, jax.Array]) -> jax.Array:
        return -0.5 * sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters)), start=jnp.zeros(()))

    def log_likelihood(parameters: dict[str, jax.Array], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        return -0.5 * jnp.sum((batch[1] - predict(parameters, batch[0])) ** 2, axis=1)

    data = (jax.random.normal(keys[-2], (size, widths[0])), jax.random.normal(keys[-1], (size, widths[-1])))
    return rw.Posterior(log_prior, log_likelihood, data), start


def network_in_torch(torch: Any, parameters: Any, batch: Any, size: int = 512) -> Any:
    """The log density of `network` in PyTorch."""
    x, layers = batch[0], len(parameters) // 2
    for i in range(layers):
        x = x @ parameters[f"weight{i}"] + parameters[f"bias{i}"]
        x = torch.tanh(x) if i < layers - 1 else x
    prior = sum((leaf**2).sum() for leaf in parameters.values())
    return -0.5 * ((batch[1] - x) ** 2).sum() * (size / len(x)) - 0.5 * prior


def logistic_in_torch(torch: Any, weights: Any, batch: Any, size: int = 10_000) -> Any:
    """The log density of `logistic` in PyTorch."""
    logits = batch[0] @ weights
    value = (batch[1] * logits - torch.nn.functional.softplus(logits)).sum() * (size / len(logits))
    return value - (weights**2).sum() / 200


def logistic() -> tuple[rw.Posterior, jax.Array]:
    """50-dimensional logistic regression with 10,000 examples and a Hessian of condition number about 1e5."""
    rng = np.random.default_rng(0)
    scale = np.logspace(-1, 0.5, 50)
    features = rng.multivariate_normal(
        np.zeros(50), 0.95 ** np.abs(np.subtract.outer(np.arange(50), np.arange(50))), size=10_000
    )
    truth = rng.normal(size=50) / scale / np.sqrt(50)
    labels = rng.uniform(size=10_000) < 1 / (1 + np.exp(-(features * scale) @ truth))

    def log_prior(weights: jax.Array) -> jax.Array:
        return -jnp.sum(weights**2) / 200

    def log_likelihood(weights: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = batch[0] @ weights
        return batch[1] * logits - jax.nn.softplus(logits)

    data = (jnp.asarray(features * scale, jnp.float32), jnp.asarray(labels, jnp.float32))
    return rw.Posterior(log_prior, log_likelihood, data), jnp.asarray(truth, jnp.float32)


def peers(
    target: rw.Posterior, start: Any, in_torch: Callable[[Any, Any, Any], Any], batch_size: int, steps: int
) -> dict[str, Case]:
    """SGLD of three libraries."""
    step_size = 1e-6
    runs = {
        "Ridgewalk": run_ours(rw.sgld(), target, start, step_size, batch_size),
        "BlackJAX, lax.scan": run_blackjax(target, start, step_size, batch_size),
        "BlackJAX, lax.scan, batches drawn ahead": run_blackjax(target, start, step_size, batch_size, ahead=True),
        "posteriors (PyTorch), its loop": run_posteriors(target, start, step_size, batch_size, in_torch),
    }
    return {
        name: Case(run, min(steps, 1_000) if "PyTorch" in name else steps)
        for name, run in runs.items()
        if run is not None
    }


def recipe(start: Any) -> rw.Sampler:
    """The sampler of large networks in `rw.auto`: momentum, and L-BFGS snapshots over a diagonal base."""
    snapshots = getattr(rw, "SnapshotLBFGS", None) or getattr(rw, "Limited")  # noqa: B009 - its name in older checkouts
    limited = snapshots(memory=2, curvature_every=10, base_growth=5.0)
    scale = jax.tree.map(lambda leaf: 2.0 ** jnp.arange(-2, 2)[jnp.arange(leaf.size) % 4].reshape(leaf.shape), start)
    return rw.sghmc(friction=0.1, preconditioner=rw.rescaled(limited, scale))


def forms(target: rw.Posterior, start: Any, batch_size: int, steps: int, *, dense: bool = False) -> dict[str, Case]:
    """SGLD, SGHMC and the forms of HASGLD-SA."""
    known = str(inspect.signature(rw.hasgld_sa))
    limited = "snapshot_lbfgs" if "snapshot_lbfgs" in known else "limited"  # its name in older checkouts
    samplers = {
        "SGLD": (rw.sgld(), 1),
        "SGHMC": (rw.sghmc(friction=0.1), 1),
        "L-BFGS snapshots M=2, a pair every step": (rw.hasgld_sa(form=limited, memory=2), 1),  # type: ignore[arg-type]
        "L-BFGS snapshots M=2, a pair every 10 steps": (
            rw.hasgld_sa(form=limited, memory=2, curvature_every=10),  # type: ignore[arg-type]
            10,
        ),
        "network recipe: M=2, a pair every 10 steps, diagonal base, momentum": (recipe(start), 10),
        "low rank R=20, a product every step": (rw.hasgld_sa(form="low_rank"), 24),
        "low rank R=20, a product every 10 steps": (rw.hasgld_sa(form="low_rank", curvature_every=10), 240),
    }
    if dense:
        samplers |= {
            "dense, a pair every step": (rw.hasgld_sa(form="dense"), 1),
            "dense, a pair every 10 steps": (rw.hasgld_sa(form="dense", curvature_every=10), 10),
        }
    return {
        name: Case(run_ours(sampler, target, start, 1e-6, batch_size), math.ceil(steps / period) * period)
        for name, (sampler, period) in samplers.items()
    }


SECTIONS: dict[str, tuple[str, Callable[[], dict[str, Case]]]] = {
    "peers": (
        "SGLD, d = 50, logistic regression, batch 100",
        lambda: peers(*logistic(), logistic_in_torch, BATCH, 40_000),
    ),
    "peers-network": (
        "SGLD, d = 10⁴, dense network, batch 50",
        lambda: peers(*network((32, 96, 70)), network_in_torch, 50, 2_400),
    ),
    "peers-large": (
        "SGLD, d = 2.5·10⁶, dense network, batch 50",
        lambda: peers(*network((625, 100, 484, 5_000)), network_in_torch, 50, 24),
    ),
    "logistic": ("d = 50, logistic regression, batch 100", lambda: forms(*logistic(), BATCH, 40_000, dense=True)),
    "network": ("d = 10⁴, dense network, batch 50", lambda: forms(*network((32, 96, 70)), 50, 2_400)),
    "large": ("d = 2.5·10⁶, dense network, batch 50", lambda: forms(*network((625, 100, 484, 5_000)), 50, 24)),
}


def time_twice(case: Case) -> tuple[float, float]:
    """Seconds of n and of 2 n steps."""
    return seconds(lambda: case.run(case.steps)), seconds(lambda: case.run(2 * case.steps))


def serve(section: str) -> None:
    """Print the names of a section's cases; then for each name that is read, seconds of a short and of a long run."""
    cases = SECTIONS[section][1]()
    print(json.dumps(list(cases)), flush=True)
    compiled = set()
    for line in sys.stdin:
        name = line.strip()
        if name not in compiled:
            time_twice(cases[name])
            compiled.add(name)
        print(json.dumps([cases[name].steps, *time_twice(cases[name])]), flush=True)


class Worker:
    """A process that times the cases of a section with the package of a checkout."""

    def __init__(self, tree: Path, section: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src")}
        command = [sys.executable, __file__, "--worker", section]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.names: list[str] = self.answer()
        self.times: dict[str, list[list[float]]] = {name: [] for name in self.names}

    def answer(self) -> Any:
        """What the process says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of the timings ended with exit code {self.process.wait()}")
        return json.loads(line)

    def time(self, name: str) -> None:
        """Time a short and a long run of a case."""
        assert self.process.stdin is not None
        print(name, file=self.process.stdin, flush=True)
        self.times[name].append(self.answer())

    def per_step(self, name: str) -> float:
        """Seconds per step: the slope between the short and the long runs, of each the least time."""
        n, short, long = np.min(self.times[name], axis=0)
        return float((long - short) / n)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(section: str, trees: list[Path], rounds: int, only: str = "") -> list[dict[str, float]]:
    """Seconds per step of the cases of a section with the package of each checkout, timed in turn."""
    workers = [Worker(tree, section) for tree in trees]
    shared = [name for name in workers[0].names if all(name in worker.names for worker in workers)]
    names = [name for name in shared if re.search(only, name)]
    for i in range(rounds):
        for name in names:
            for worker in workers if i % 2 == 0 else reversed(workers):
                if i == 0 or worker.times[name][0][2] < LONG:
                    worker.time(name)
            print(f"  timed, round {i + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
    found = [{name: worker.per_step(name) for name in names} for worker in workers]
    for worker in workers:
        worker.close()
    return found


def compare(section: str, trees: list[Path], rounds: int, only: str) -> None:
    """Time the cases of a section in turn and print them."""
    print(f"\n{SECTIONS[section][0]}", flush=True)
    first, *others = measure(section, trees, rounds, only)
    base = next(iter(first))
    for name, cost in first.items():
        line = f"  {name:66s}{cost * 1e6:12,.1f} µs a step {cost / first[base]:7.2f} x {base}"
        for other in others:
            line += f" {cost / other[name]:9.3f} x the other tree's {other[name] * 1e6:,.1f} µs"
        print(line, flush=True)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--against", type=Path, help="another checkout, timed in turn with this one")
    parser.add_argument("--only", default="", help="regular expression that the names of cases must match")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", choices=SECTIONS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        serve(given.worker)
        return
    if unknown := set(given.sections) - set(SECTIONS):
        parser.error(f"SECTION {unknown.pop()!r} is unknown; use some of {', '.join(SECTIONS)}")
    trees = [Path(__file__).parents[1], *([given.against] if given.against else [])]
    for section in given.sections or SECTIONS:
        compare(section, trees, given.rounds, given.only)


if __name__ == "__main__":
    main()
