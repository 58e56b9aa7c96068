"""The cost of a step with data over two processes, each held to one core, and the prediction for many hosts.

    python benchmarks/distributed.py [--quick]

Three models: d = 50, 10⁴ and 10⁶ parameters, and one whose gradient is heavy enough that two processes are faster than
one. Every figure is the median over repetitions of a run in fresh processes, which hold themselves to one core. The
prediction is the time of the gradient on one core and batch, divided by the hosts, plus what the sum of a gradient
costs in a network that is stated.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from ridgewalk.distributed.launch import PROCESS

HOSTS = (2, 8, 64)
LATENCY, BANDWIDTH = 20e-6, 10e9 / 8
"""Of the network of the prediction: seconds for a message, and bytes per second (10 Gbit/s)."""


class Model(NamedTuple):
    name: str
    parameters: int
    rows: int
    """Of all shards."""
    batch_size: int
    layers: int
    """0: logistic regression; else a network with so many hidden layers, whose gradient costs more per parameter."""
    steps: int


MODELS = (
    Model("logistic", 50, 4096, 256, 0, 4000),
    Model("logistic", 10_000, 2048, 256, 0, 400),
    Model("logistic", 1_000_000, 256, 64, 0, 40),
    Model("network", 40_000, 8192, 2048, 3, 60),
)


def child(model: Model, repetitions: int) -> None:
    """One process: the seconds of a step, written by process 0."""
    import ridgewalk as rw

    cores = sorted(os.sched_getaffinity(0))  # before JAX makes its threads
    os.sched_setaffinity(0, {cores[int(os.environ[PROCESS]) % len(cores)]})
    rw.distributed.initialize()
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(jax.process_index())
    width = model.parameters if model.layers == 0 else int((model.parameters / model.layers) ** 0.5)
    here = model.rows // jax.process_count()
    rows = {"x": rng.normal(size=(here, width)).astype("float32"), "y": rng.integers(0, 2, here).astype("float32")}
    data = rw.distributed.shard(rows, shards=2)

    def scores(w: Any, x: Any) -> Any:
        for layer in range(model.layers):
            x = jnp.tanh(x @ w["hidden"][layer])
        return x @ w["out"]

    def log_likelihood(w: Any, batch: Any) -> Any:
        s = scores(w, batch["x"])
        return batch["y"] * s - jnp.logaddexp(0.0, s)

    common = np.random.default_rng(7)  # the start is the same in every process
    hidden = 0.1 * common.normal(size=(model.layers, width, width)).astype("float32")
    start = (
        {"hidden": hidden, "out": np.zeros(width, "float32")} if model.layers else {"out": np.zeros(width, "float32")}
    )
    target = rw.Posterior(rw.gaussian_prior(1.0), log_likelihood, data)

    def seconds(steps: int) -> float:
        begun = time.perf_counter()
        rw.sample(
            jax.random.key(0), rw.sgld(), target, start, steps=steps, step_size=1e-6, batch_size=model.batch_size,
            thin=steps, progress=False,
        )  # fmt: skip
        return time.perf_counter() - begun

    seconds(model.steps), seconds(4 * model.steps)  # both compile
    found = [(seconds(4 * model.steps) - seconds(model.steps)) / (3 * model.steps) for _ in range(repetitions)]
    if jax.process_index() == 0:
        print("SECONDS", json.dumps(sorted(found)[len(found) // 2]), flush=True)


def measure(model: Model, processes: int, repetitions: int) -> float:
    """The seconds of a step with so many processes."""
    arguments = [__file__, "--child", json.dumps(model), str(repetitions)]
    with tempfile.TemporaryFile("w+") as output:
        code = (
            f"import sys; from ridgewalk.distributed.launch import launch; sys.exit(launch({arguments!r}, {processes}))"
        )
        subprocess.run([sys.executable, "-c", code], stdout=output, check=True, cwd=Path(__file__).parent)
        output.seek(0)
        (line,) = [line for line in output if "SECONDS" in line]
    return float(line.split("SECONDS ")[1])


def predicted(alone: float, parameters: int, hosts: int) -> float:
    """Seconds of a step on so many hosts: compute / hosts + 2 log2(hosts) latencies + 2 (H − 1)/H d numbers."""
    traffic = 2 * (hosts - 1) / hosts * 4 * (parameters + 1) / BANDWIDTH
    return alone / hosts + 2 * max(1, (hosts - 1).bit_length()) * LATENCY + traffic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two models, few steps: to see that it runs")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(Model(*json.loads(asked.child[0])), int(asked.child[1]))
        return
    models = [model._replace(steps=20) for model in (MODELS[0], MODELS[-1])] if asked.quick else list(MODELS)
    print(f"network of the prediction: latency {LATENCY * 1e6:.0f} µs, {BANDWIDTH * 8 / 1e9:.0f} Gbit/s")
    print("seconds of a step = compute / H + 2 ⌈log2 H⌉ latency + 2 (H − 1)/H × 4 (d + 1) bytes / bandwidth")
    for model in models:
        one, two = (measure(model, processes, 1 if asked.quick else 5) for processes in (1, 2))
        further = ", ".join(f"{hosts}: {predicted(one, model.parameters, hosts) * 1e6:,.0f}" for hosts in HOSTS)
        print(
            f"{model.name} d = {model.parameters:,}, n = {model.batch_size}: 1 process {one * 1e6:,.0f} µs, "
            f"2 processes {two * 1e6:,.0f} µs ({one / two:.2f}×); predicted µs on hosts {further}"
        )


if __name__ == "__main__":
    main()
