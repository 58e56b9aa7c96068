"""The cost of a step, side by side in one run: ours, BlackJAX's and posteriors' SGLD, and every form of HASGLD-SA.

    make benchmark        (installs the peers: BlackJAX, and posteriors with PyTorch)

Times depend on the machine; the ratios are the result.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import ridgewalk as rw
from ridgewalk.studies.logistic import logistic_regression
from timing import per_step

BATCH = 100


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


def run_blackjax(target: rw.Posterior, start: jax.Array, step_size: float, *, ahead: bool) -> Callable[[int], Any]:
    """BlackJAX's SGLD in a `lax.scan` written by hand; `ahead` draws all batch indices before the loop."""
    import blackjax

    def gradient(position: jax.Array, batch: Any) -> jax.Array:
        return jax.grad(lambda p: -target.potential(p, batch))(position)

    step = blackjax.sgld(gradient).step

    def rows_of(key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (BATCH,), 0, target.size)

    def compiled(key: jax.Array, steps: int) -> jax.Array:
        def body(position: jax.Array, xs: Any) -> tuple[jax.Array, None]:
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


def run_posteriors(target: rw.Posterior, start: jax.Array, step_size: float) -> Callable[[int], Any] | None:
    """posteriors' SGLD in its Python loop, or None where PyTorch is not installed."""
    try:
        import numpy as np
        import posteriors
        import torch
    except ImportError:
        return None
    features, labels = (torch.tensor(np.asarray(x)) for x in target.data)

    def log_posterior(weights: Any, batch: Any) -> tuple[Any, Any]:
        logits = batch[0] @ weights
        value = (batch[1] * logits - torch.nn.functional.softplus(logits)).sum() * (target.size / BATCH)
        return value - (weights**2).sum() / 200, torch.tensor([])

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=step_size, beta=0.0)

    def run(steps: int) -> float:
        state = transform.init(torch.tensor(np.asarray(start)))
        for _ in range(steps):
            rows = torch.randint(0, target.size, (BATCH,))
            state, _ = transform.update(state, (features[rows], labels[rows]), inplace=False)
        return float(state.params[0])

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


def shares(target: rw.Posterior, start: Any, batch_size: int, steps: int) -> tuple[float, float]:
    """Seconds of one draw of noise and of one gradient, each alone in a compiled loop."""
    kernel = rw.build_kernel(rw.sgld(), target, start)
    flat = kernel.draw(jax.random.key(0))
    scattered = 7_919 * jnp.arange(batch_size)

    def noise(steps: int, total: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(
            0, steps, lambda k, t: t + kernel.draw(jax.random.fold_in(jax.random.key(0), k)), total
        )

    def gradient(steps: int, position: Any) -> Any:
        def body(k: Any, p: Any) -> Any:
            batch = jax.tree.map(lambda x: x[(scattered + k) % target.size], target.data)
            return jax.tree.map(lambda a, g: a - 1e-9 * g, p, jax.grad(target.potential)(p, batch))

        return jax.lax.fori_loop(0, steps, body, position)

    draw, slope = jax.jit(noise), jax.jit(gradient)
    return per_step(lambda n: draw(n, jnp.zeros_like(flat)), steps), per_step(lambda n: slope(n, start), steps)


def compare_sgld() -> None:
    problem = logistic_regression()
    target, start = problem.target, jnp.asarray(problem.mode, jnp.float32)
    assert isinstance(target, rw.Posterior)
    steps, step_size = 10_000, 1e-5
    runs = {
        "ridgewalk": per_step(run_ours(rw.sgld(), target, start, step_size, BATCH), steps),
        "BlackJAX, lax.scan": per_step(run_blackjax(target, start, step_size, ahead=False), steps),
        "BlackJAX, lax.scan, batches drawn ahead": per_step(run_blackjax(target, start, step_size, ahead=True), steps),
    }
    theirs = run_posteriors(target, start, step_size)
    if theirs is not None:
        runs["posteriors (PyTorch), its loop"] = per_step(theirs, 1_000)
    print("SGLD, 50-d logistic regression, batch 100")
    for name, cost in runs.items():
        print(f"  {name:42s} {cost * 1e6:9.1f} µs a step   {cost / runs['ridgewalk']:7.2f} x")


class Form(NamedTuple):
    """A form of HASGLD-SA, and a number of steps that holds whole periods of its curvature."""

    sampler: rw.Sampler
    period: int = 1


def compare_forms(
    name: str, target: rw.Posterior, start: Any, batch_size: int, steps: int, repeats: int, forms: dict[str, Form]
) -> None:
    noise, gradient = shares(target, start, batch_size, steps)
    base = per_step(run_ours(rw.sgld(), target, start, 1e-6, batch_size), steps, repeats)
    alone = f"noise alone {noise * 1e6:,.0f}, gradient alone {gradient * 1e6:,.0f}"
    print(f"\n{name}: SGLD {base * 1e6:,.0f} µs a step; {alone}")
    print(f"  {'form':42s}{'multiple of SGLD':>18s}{'noise':>8s}{'gradient':>10s}{'curvature, products':>21s}")
    for form, (sampler, period) in forms.items():
        whole = -(-steps // period) * period
        cost = per_step(run_ours(sampler, target, start, 1e-6, batch_size), whole, repeats if whole == steps else 1)
        rest = 1 - (noise + gradient) / cost
        print(f"  {form:42s}{cost / base:16.2f} x{noise / cost:8.0%}{gradient / cost:10.0%}{rest:21.0%}", flush=True)


def main() -> None:
    compare_sgld()
    problem = logistic_regression()
    assert isinstance(problem.target, rw.Posterior)
    limited = {
        "limited M=2, a pair every step": Form(rw.hasgld_sa(form="snapshot_lbfgs", memory=2)),
        "limited M=2, a pair every 10 steps": Form(rw.hasgld_sa(form="snapshot_lbfgs", memory=2, curvature_every=10)),
    }
    low_rank = {
        "low rank R=20, a product every step": Form(rw.hasgld_sa(form="low_rank"), 24),
        "low rank R=20, a product every 10 steps": Form(rw.hasgld_sa(form="low_rank", curvature_every=10), 240),
    }
    dense = {
        "dense, a pair every step": Form(rw.hasgld_sa(form="dense")),
        "dense, a pair every 10 steps": Form(rw.hasgld_sa(form="dense", curvature_every=10)),
    }
    start = jnp.asarray(problem.mode, jnp.float32)
    name = "d = 50, logistic regression, batch 100"
    compare_forms(name, problem.target, start, BATCH, 10_000, 5, dense | limited | low_rank)
    target, weights = network((32, 96, 70))
    compare_forms("d = 10⁴, dense network, batch 50", target, weights, 50, 1_200, 3, limited | low_rank)
    target, weights = network((625, 100, 484, 5_000))
    compare_forms("d = 2.5·10⁶, dense network, batch 50", target, weights, 50, 120, 2, limited | low_rank)


if __name__ == "__main__":
    main()
