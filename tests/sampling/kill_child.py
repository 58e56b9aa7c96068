"""A run that a test kills: `python kill_child.py CASE FOLDER KILL`.

With a number KILL > 0 the process kills itself in the middle of its KILL-th write, fsync or rename; with "step:K" when
it has made step K, before that is saved; with "phase:K" between two phases of warm-up, the first of which ends at K.
"""

import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402

import ridgewalk as rw  # noqa: E402
from ridgewalk.sampling.runner import Runner  # noqa: E402

SAMPLERS = {
    "sgld": rw.sgld(),
    "dense": rw.hasgld_sa(form="dense"),
    "low_rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=2, spare=1)),
    "spike": rw.sgld(),
    "warmup": rw.hasgld_sa(),
    "auto": rw.auto(),
}
STEPS, EVERY = 1_500, 100


def data(folder: Path, kind: str):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(500, 5)), "y": rng.normal(size=500)}
    if kind == "grain":
        import grain

        rows = [{name: array[i] for name, array in arrays.items()} for i in range(500)]
        return rw.Batches(grain.MapDataset.source(rows).shuffle(seed=1).repeat().batch(20), 500)
    if kind in ("memory", "exact"):
        return {name: jnp.asarray(array) for name, array in arrays.items()}
    mapped = {}
    for name, array in arrays.items():
        file = folder / f"{name}.npy"
        if not file.exists():
            np.save(folder / f"fresh-{name}.npy", array)
            os.rename(folder / f"fresh-{name}.npy", file)
        mapped[name] = np.load(file, mmap_mode="r")
    return mapped


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def log_likelihood(theta, batch):
    return -0.5 * (batch["y"] - batch["x"] @ theta) ** 2


def run(case: str, folder: Path):
    name, kind = case.split("-")
    prior = rw.spike_and_slab() if name == "spike" else log_prior
    target = rw.Posterior(prior, log_likelihood, data(folder, kind))
    store = folder / "draws.zarr" if kind == "memmap" else None
    if name in ("warmup", "auto"):  # a checkpoint in every phase: 100, 200, 300 and 400 steps, and after it
        position = {
            "start_per_chain": True,
            "position": jnp.array([[5.0, -5.0, 2.0, 0.0, 1.0], [0.1, 3.0, -2.0, 9.0, 0.0]]),
        }
        tuned = {"step_size": "auto", "burn_in": 450, **position}
        if name == "warmup" and kind != "exact":
            target = rw.control_variates(target, jnp.zeros(5))
    else:
        tuned = {"step_size": 1e-3, "burn_in": 70, "position": jnp.zeros(5)}
    return rw.sample(
        jax.random.key(3), SAMPLERS[name], target, steps=STEPS, batch_size=None if kind == "exact" else 20, chains=2,
        thin=3, replacement=kind != "memmap", checkpoint=folder / "checkpoint",
        checkpoint_every=EVERY, resume=True, progress=False, store=store, **tuned,
    )  # fmt: skip


def die_at(count: int) -> None:
    """Kill this process in its `count`-th disk event."""
    left = [count]

    def dying(act):
        def wrapped(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*arguments, **options)

        return wrapped

    def write_bytes(path, content):
        left[0] -= 1
        with open(path, "wb") as file:
            if left[0] == 0:
                file.write(content[: len(content) // 2])
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            file.write(content)

    os.replace, os.fsync = dying(os.replace), dying(os.fsync)
    Path.write_bytes = write_bytes


def die_at_step(number: int) -> None:
    """Kill this process in the device call that makes step `number`."""
    advance = Runner._advance

    def dying(self, start, stop, *arguments):
        advance(self, start, stop, *arguments)
        if start < number <= stop:
            os.kill(os.getpid(), signal.SIGKILL)

    Runner._advance = dying


def die_between_phases(number: int) -> None:
    """Kill this process when the phase of warm-up that ends at step `number` has ended and the next has begun."""
    enter = Runner._enter_phase

    def dying(self, start):
        enter(self, start)
        if start == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Runner._enter_phase = dying


def save(result: rw.Result, path: Path) -> None:
    leaves = jax.tree.leaves((result.positions, result.final_states, result.info))
    np.savez(path, *[np.asarray(leaf) for leaf in leaves])


if __name__ == "__main__":
    case, folder = sys.argv[1], Path(sys.argv[2])
    kind, _, count = sys.argv[3].rpartition(":")
    if int(count):
        {"": die_at, "step": die_at_step, "phase": die_between_phases}[kind](int(count))
    print("ready", flush=True)
    save(run(case, folder), folder / "result.npz")
