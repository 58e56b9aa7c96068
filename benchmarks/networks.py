"""The permeability network's gradient against PyTorch's, and the share of the noise in a step, in one run.

    python benchmarks/networks.py        (needs PyTorch)

8.2 million weights, batch 50, float32, all cores. Times depend on the machine; the ratios are the result.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ridgewalk as rw
from ridgewalk._random import Noise, draw_noise
from ridgewalk.neural.networks import Model, count_weights, permeability_network
from timing import per_step, seconds

BATCH, EXAMPLES, GRID, EDGES = 50, 200, (50, 50), 5_100
STEPS, ROUNDS = 2, 10
RUN_STEPS = 12
"""A run of `rw.sample` has a start-up that varies by more than a step: the slope needs steps enough."""
KINDS: tuple[Noise, ...] = ("gaussian", "two_point")


def data() -> tuple[np.ndarray, np.ndarray]:
    """Fields and fluxes of the right shapes: timings do not depend on what they mean."""
    rng = np.random.default_rng(0)
    fields, fluxes = rng.standard_normal((EXAMPLES, *GRID)), rng.standard_normal((EXAMPLES, EDGES))
    return fields.astype(np.float32), fluxes.astype(np.float32)


def posterior(model: Model) -> rw.Posterior:
    """A Gaussian likelihood and a Gaussian prior."""

    def log_prior(parameters: Any) -> jax.Array:
        return -0.5 * sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters)), start=jnp.zeros(()))

    def log_likelihood(parameters: Any, batch: Any) -> jax.Array:
        return -0.5 * jnp.sum((batch[1] - model.apply(parameters, batch[0])) ** 2, axis=1)

    return rw.Posterior(log_prior, log_likelihood, jax.tree.map(jnp.asarray, data()))


def run_sgld(target: rw.Posterior, start: Any, noise: Noise) -> Callable[[int], Any]:
    """Steps of SGLD through `rw.sample`: batch, gradient, noise and the move."""
    sampler = rw.Sampler(rw.Langevin(noise=noise), rw.Identity())

    def run(steps: int) -> Any:
        return rw.sample(
            jax.random.key(0),
            sampler,
            target,
            start,
            steps=steps,
            step_size=1e-9,
            batch_size=BATCH,
            thin=steps,
            progress=False,
        ).positions

    return run


def run_gradient(target: rw.Posterior, start: Any) -> Callable[[int], Any]:
    """Gradient steps alone, in a compiled loop."""

    def loop(steps: int, position: Any) -> Any:
        def body(k: Any, position: Any) -> Any:
            batch = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, k * 7 % 100, BATCH), target.data)
            gradient = jax.grad(target.potential)(position, batch)
            return jax.tree.map(lambda p, g: p - 1e-9 * g, position, gradient)

        return jax.lax.fori_loop(0, steps, body, position)

    compiled = jax.jit(loop)
    return lambda steps: compiled(steps, start)


def run_noise(size: int, noise: Noise) -> Callable[[int], Any]:
    """Noise alone, in a compiled loop."""

    def loop(steps: int, total: jax.Array) -> jax.Array:
        def body(k: Any, total: jax.Array) -> jax.Array:
            return total + draw_noise(jax.random.fold_in(jax.random.key(0), k), noise, size, total.dtype)

        return jax.lax.fori_loop(0, steps, body, total)

    compiled = jax.jit(loop)
    return lambda steps: compiled(steps, jnp.zeros(size))


def torch_step() -> tuple[Callable[[], Any], int]:
    """A plain gradient step of the same network in PyTorch, in its faster memory format, and its number of weights."""
    import torch
    from torch import nn

    torch.set_num_threads(os.cpu_count() or 1)
    network: Any = nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(25 * 25 * 32, 100),
        nn.ReLU(),
        nn.Unflatten(1, (1, 10, 10)),
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 26, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2_600, 800),
        nn.ReLU(),
        nn.Linear(800, EDGES),
    )
    network = network.to(memory_format=torch.channels_last)
    fields, fluxes = map(torch.tensor, data())
    fields = fields[:, None].to(memory_format=torch.channels_last)
    weights = list(network.parameters())

    def step() -> float:
        loss = 0.5 * EXAMPLES / BATCH * ((fluxes[:BATCH] - network(fields[:BATCH])) ** 2).sum()
        loss = loss + 0.5 * sum((w**2).sum() for w in weights)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-1e-9)
        return float(loss.detach())

    return step, sum(w.numel() for w in weights)


def side_by_side(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The least seconds of each call, taken in turn, so that a change of the machine's speed meets all of them."""
    for call in calls.values():
        seconds(call), seconds(call)
    times = [{name: seconds(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    return {name: min(each[name] for each in times) for name in calls}


def main() -> None:
    model = permeability_network().build(GRID, EDGES)
    start = jax.jit(model.init)(jax.random.key(0))
    target, size = posterior(model), count_weights(start)
    theirs, their_size = torch_step()
    assert their_size == size
    print(
        f"permeability network, {size:,} weights, batch {BATCH}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    gradient = run_gradient(target, start)
    noise = {kind: run_noise(size, kind) for kind in KINDS}
    calls: dict[str, Callable[[], Any]] = {"gradient": lambda: gradient(STEPS)}
    calls |= {"PyTorch": lambda: [theirs() for _ in range(STEPS)]}
    calls |= {kind: lambda run=run: run(STEPS) for kind, run in noise.items()}  # type: ignore[misc]
    least = {name: total / STEPS for name, total in side_by_side(calls).items()}
    ratio = least["gradient"] / least["PyTorch"]
    print(f"  gradient step    {least['gradient']:.3f} s   PyTorch {least['PyTorch']:.3f} s   ratio {ratio:.2f}")
    for kind in KINDS:
        step = per_step(run_sgld(target, start, kind), RUN_STEPS)
        share = least[kind] / (least[kind] + least["gradient"])
        print(
            f"  {kind:10s} noise {least[kind]:.3f} s, {share:.0%} of noise and gradient; "
            f"a step of rw.sample {step:.3f} s, noise {least[kind] / step:.0%}"
        )


if __name__ == "__main__":
    main()
