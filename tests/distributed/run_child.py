"""One process of runs that tests start: `python run_child.py '{"cases": [{…}, …]}'`, with settings as JSON.

Without the environment variables of `ridgewalk launch` it is a single process.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import ridgewalk as rw  # noqa: E402
from ridgewalk.distributed import initialize, shard  # noqa: E402

ASKED = json.loads(sys.argv[1])
initialize(heartbeat=ASKED.get("heartbeat", 30.0))

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

FEATURES, EXAMPLES = 4, 96


def arrays():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, FEATURES))
    return {"x": x, "y": x @ rng.normal(size=FEATURES) + rng.normal(size=EXAMPLES)}


def local_part(data, groups):
    """The rows of this process; all of them where each group of chains has one device."""
    if jax.device_count() == groups:
        return data
    each = EXAMPLES // jax.process_count()
    start = each * jax.process_index()
    return {name: array[start : start + each] for name, array in data.items()}


def log_prior(theta):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(theta))


def residual(theta, batch):
    return batch["y"] - batch["x"] @ theta["w"] - theta["b"]


def log_likelihood(theta, batch):
    return -0.5 * residual(theta, batch) ** 2


SAMPLERS = {
    "sgld": rw.sgld(),
    "sghmc": rw.sghmc(),
    "sgnht": rw.sgnht(),
    "psgld": rw.psgld(),
    "dense": rw.hasgld_sa(form="dense"),
    "low_rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=2, spare=1)),
    "limited": rw.hasgld_sa(form="snapshot_lbfgs"),
    "pruned": rw.pruned(rw.hasgld_sa(form="dense"), 0.5, stop=30, start=10, every=10, leaves=("w",)),
}


def build(settings):
    """The estimator, its data split over devices where the settings have shards."""
    shards = settings.get("shards")
    rows = arrays()
    if "bad_row" in settings:
        rows["x"][settings["bad_row"]] = np.nan
    groups = settings.get("chain_groups", 1)
    data = rows if shards is None else shard(local_part(rows, groups), shards=shards, chain_groups=groups)
    kind = settings.get("estimator", "minibatch")
    if kind == "spike":
        return rw.Posterior(rw.spike_and_slab(), rw.shared_noise(residual), data)
    target = rw.Posterior(log_prior, log_likelihood, data)
    if kind == "control_variates":
        return rw.control_variates(target, start())
    return rw.svrg(target, 7) if kind == "svrg" else target


def start():
    return {"w": np.linspace(-0.1, 0.1, FEATURES), "b": np.zeros(())}


def run(settings):
    options = dict(settings.get("options", {}))
    for name in ("store", "checkpoint"):
        if name in options:
            options[name] = Path(options[name])
    return rw.sample(
        jax.random.key(3),
        SAMPLERS[settings.get("sampler", "sgld")],
        build(settings),
        start(),
        step_size=settings.get("step_size", 1e-3),
        progress=False,
        **options,
    )


def digest(tree):
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.ascontiguousarray(np.asarray(leaf)).tobytes())
    return found.hexdigest()[:16]


def send_later(settings):
    """Send a signal to this process some seconds after the first checkpoint was written."""
    folder = Path(settings["options"]["checkpoint"])

    def wait():
        while not list(folder.glob("step-????????????.safetensors")):
            time.sleep(0.01)
        time.sleep(settings.get("after", 0.0))
        os.kill(os.getpid(), getattr(signal, settings["signal"]))

    threading.Thread(target=wait, daemon=True).start()


def main():
    for settings in ASKED["cases"]:
        if "signal" in settings and settings["process"] == jax.process_index():
            send_later(settings)
        result = run(settings)
        summary = {
            "positions": digest(result.positions),
            "info": digest(result.info),
            "states": digest([state.position for state in result.final_states]),
            "moments": digest(result.moments),
            "status": [str(status) for status in result.status],
            "shape": None if result.positions is None else list(np.shape(jax.tree.leaves(result.positions)[0])),
        }
        print("RESULT", json.dumps(summary), flush=True)


main()
