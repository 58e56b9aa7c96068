"""One process of runs that tests start: `python run_child.py '{"cases": [{…}, …]}'`, with settings as JSON.

Without the environment variables of `ridgewalk launch` it is a single process.
"""

import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import ridgewalk as rw  # noqa: E402
from ridgewalk._pytree import to_host  # noqa: E402
from ridgewalk.distributed import initialize, shard  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.distributed.children import EXAMPLES, FEATURES, arrays, digest, summands  # noqa: E402

ASKED = json.loads(sys.argv[1])
initialize(heartbeat=ASKED.get("heartbeat", 30.0))

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.flatten_util import ravel_pytree  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from ridgewalk.distributed.shards import vector_over_shards  # noqa: E402
from ridgewalk.sampling.runner import Runner  # noqa: E402


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


CURVATURE = {"first_curvature": 100.0}
COLD = rw.Langevin(temperature=0.0)  # without noise, which is not the same on another number of devices

SAMPLERS = {
    "cold_sgld": rw.Sampler(COLD, rw.sgld().preconditioner),
    "cold_sghmc": rw.Sampler(rw.Hamiltonian(0.5, temperature=0.0), rw.Diagonal(**CURVATURE)),
    "cold_low_rank": rw.Sampler(COLD, rw.LowRank(rank=3, spare=2, **CURVATURE)),
    "cold_limited": rw.Sampler(COLD, rw.SnapshotLBFGS(memory=2, **CURVATURE)),
    "auto": rw.auto(),
    "diagonal": rw.Sampler(rw.Langevin(), rw.Diagonal()),
    "sgld": rw.sgld(),
    "sghmc": rw.sghmc(),
    "sgnht": rw.sgnht(),
    "psgld": rw.psgld(),
    "dense": rw.hasgld_sa(form="dense"),
    "low_rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=2, spare=1)),
    "low_rank_5": rw.Sampler(rw.Langevin(), rw.LowRank(rank=5, spare=2)),
    "limited": rw.hasgld_sa(form="snapshot_lbfgs"),
    "pruned": rw.pruned(rw.hasgld_sa(form="dense"), 0.5, stop=30, start=10, every=10, leaves=("w",)),
}


class Loader:
    """Rows of this process, a few at a time, always the same; each shard gives as many."""

    def __init__(self, rows, shards):
        self.rows, self.shards = rows, shards

    def __iter__(self):
        each = len(self.rows["y"]) // self.shards
        for first in range(0, each - 3, 4):
            chosen = np.concatenate([np.arange(first, first + 4) + shard * each for shard in range(self.shards)])
            yield {name: array[chosen] for name, array in self.rows.items()}


def on_host(rows, settings):
    """The rows of this process in memory, on disk, or from a loader."""
    if settings.get("loader"):
        return rw.Batches(Loader(rows, settings["shards"] // jax.process_count()), EXAMPLES)
    if not settings.get("on_disk"):
        return rows
    folder = Path(tempfile.mkdtemp())
    for name, array in rows.items():
        np.save(folder / f"{name}.npy", array)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in rows}


def build(settings):
    """The estimator, its data split over devices where the settings have shards."""
    shards = settings.get("shards")
    rows = arrays()
    if "bad_row" in settings:
        rows["x"][settings["bad_row"]] = np.nan
    if "columns" in settings:
        rows["x"] = rows["x"][:, : settings["columns"]]
    if settings.get("estimator") == "gaussian":
        return rw.Density(gaussian)
    if "hidden" in settings:
        data = rows if shards is None else shard(local_part(rows, 1), shards=shards)
        return rw.Posterior(log_prior, network_likelihood, data)
    groups = settings.get("chain_groups", 1)
    if shards is not None:
        rows = on_host(local_part(rows, groups), settings)
    if "first_rows" in settings:
        rows = {name: array[: settings["first_rows"]] for name, array in rows.items()}
    if settings.get("shard_again"):
        shard(rows, shards=shards, chain_groups=groups)
    data = rows if shards is None else shard(rows, shards=shards, chain_groups=groups)
    kind = settings.get("estimator", "minibatch")
    if kind == "spike":
        return rw.Posterior(rw.spike_and_slab(), rw.shared_noise(residual), data)
    target = rw.Posterior(log_prior, log_likelihood, data)
    if kind == "control_variates":
        return rw.control_variates(target, start())
    return rw.svrg(target, 7) if kind == "svrg" else target


def start():
    return {"w": np.linspace(-0.1, 0.1, FEATURES), "b": np.zeros(())}


def network_likelihood(theta, batch):
    hidden = jnp.tanh(batch["x"] @ theta["in"] + theta["shift"])
    return -0.5 * (batch["y"] - hidden @ theta["out"] - theta["b"]) ** 2


def gaussian(theta):
    """Curvatures 100, 64, 36, 16, 4 and 1, along random directions."""
    flat = ravel_pytree(theta)[0]
    axes = np.linalg.qr(np.random.default_rng(2).normal(size=(flat.size, 5)))[0]
    return -0.5 * (flat @ flat + jnp.array([99.0, 63.0, 35.0, 15.0, 3.0]) @ (flat @ axes) ** 2)


def network_start(hidden):
    """Weights of a network with a hidden layer."""
    rng = np.random.default_rng(1)
    shapes = {"in": (FEATURES, hidden), "shift": (hidden,), "out": (hidden,), "b": ()}
    return {name: np.asarray(0.3 * rng.normal(size=shape)) for name, shape in shapes.items()}


def spread(theta):
    """Parameters sharded over all devices, those of a network along its hidden layer."""
    mesh = jax.make_mesh((jax.device_count(),), ("devices",))
    specs = {"in": P(None, "devices"), "shift": P("devices"), "out": P("devices"), "w": P("devices"), "b": P()}

    def placed(value, spec):
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])

    return {name: placed(value, specs[name]) for name, value in theta.items()}


def move(progress):
    """As if this process computed something else: its copy of the state is another one in the next call."""
    for runner in (found for found in gc.get_objects() if isinstance(found, Runner)):
        for group in runner.groups:
            states = group.carry.states
            elsewhere = jax.tree.map(lambda x: x * (1 + 1e-12), states.position)
            group.carry = group.carry._replace(states=states._replace(position=elsewhere))


def run(settings):
    position = network_start(settings["hidden"]) if "hidden" in settings else start()
    if settings.get("sharded"):
        position = spread(position)
    options = dict(settings.get("options", {}))
    if settings.get("ends"):
        sys.exit(0)
    if settings.get("ends_in_run"):
        options["callback"] = lambda progress: sys.exit(0)
    if settings.get("moved"):
        options["callback"] = move
    for name in ("store", "checkpoint"):
        if name in options:
            options[name] = Path(options[name])
    return rw.sample(
        jax.random.key(3),
        SAMPLERS[settings.get("sampler", "sgld")],
        build(settings),
        position,
        step_size=settings.get("step_size", 1e-3),
        progress=False,
        **options,
    )


def whole_state(result):
    """The state of the first chain on one device."""
    state = result.final_states[0]
    return state._replace(position=jax.tree.map(jnp.asarray, to_host(state.position)))


def sum_of_rows(settings):
    """A row of each shard, added over all of them as gradients are."""
    rows = summands(settings["shards"], settings["sum"])
    each = len(rows) // jax.process_count()
    data = shard(rows[each * jax.process_index() :][:each], shards=len(rows))
    add = jax.jit(lambda data: vector_over_shards(data, lambda _, rows: rows[0], jnp.zeros(()), data.arrays))
    return {"sum": digest(to_host(add(data)))}


def send_later(settings):
    """Send a signal to this process some seconds after the first new checkpoint was written."""
    folder = Path(settings["options"]["checkpoint"])
    before = set(folder.glob("step-????????????.safetensors"))

    def wait():
        while not set(folder.glob("step-????????????.safetensors")) - before:
            time.sleep(0.01)
        time.sleep(settings.get("after", 0.0))
        os.kill(os.getpid(), getattr(signal, settings["signal"]))

    threading.Thread(target=wait, daemon=True).start()


def main():
    for case in ASKED["cases"]:
        settings = {**case, **case.get("of_process", {}).get(str(jax.process_index()), {})}
        if "signal" in settings and settings["process"] == jax.process_index():
            send_later(settings)
        if "sum" in settings:
            print("RESULT", json.dumps(sum_of_rows(settings)), flush=True)
            continue
        result = run(settings)
        summary = {
            "positions": digest(result.positions),
            "info": digest(result.info),
            "states": digest([to_host(state.position) for state in result.final_states]),
            "sharding": [list(leaf.sharding.spec) for leaf in jax.tree.leaves(result.final_states[0].position)]
            if settings.get("sharded")
            else None,
            "G": np.asarray(rw.preconditioner_matrix(whole_state(result))).tolist() if settings.get("G") else None,
            "last": [np.asarray(leaf)[:, -1].tolist() for leaf in jax.tree.leaves(result.positions)]
            if settings.get("last")
            else None,
            "moments": digest(to_host(result.moments)),
            "status": [str(status) for status in result.status],
            "shape": None if result.positions is None else list(np.shape(jax.tree.leaves(result.positions)[0])),
        }
        print("RESULT", json.dumps(summary), flush=True)


main()
