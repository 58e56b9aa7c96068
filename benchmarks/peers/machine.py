"""Times of a step, peak memory, and resumption: each measured in processes of its own.

python benchmarks/peers/machine.py memory CASE | resume LIBRARY
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import steps

WEIGHTS = (100, 1_000, 800, 125)
"""Widths of the network whose draws are kept: about 10⁶ weights."""


class StepTimes(NamedTuple):
    """Seconds per step by case, of one section of benchmarks/steps.py."""

    section: str
    title: str
    names: list[str]
    seconds: list[float]


def step_times(section: str, rounds: int) -> StepTimes:
    """The cases in turn, on all cores."""
    (found,) = steps.measure(section, [Path(__file__).parents[2]], rounds)
    return StepTimes(section, steps.SECTIONS[section][0], list(found), list(found.values()))


class Memory(NamedTuple):
    """Peak resident memory of a process, before and after draws are made."""

    case: str
    draws: int
    weights: int
    before: float
    """MB, with the library, data and a first short run in memory."""
    peak: float
    disk: float
    """MB of the draws on disk."""


class Resumed(NamedTuple):
    """Whether a run in two parts has the draws of one run."""

    library: str
    how: str
    """What has to be written by hand."""
    after_kill: bool
    """Whether a run that is killed without notice can be continued without code of one's own."""
    identical: bool


def _in_own_process(*arguments: str) -> Any:
    command = [sys.executable, __file__, *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def memory(case: str, draws: int) -> Memory:
    """One of `MEMORY_CASES` in a process of its own."""
    return Memory(**_in_own_process("memory", case, str(draws)))


def resumed(library: str) -> Resumed:
    """One of `RESUME_CASES` in a process of its own."""
    return Resumed(**_in_own_process("resume", library))


# Memory: a network of 10⁶ weights, SGLD, every fifth step kept.

THIN = 5


def _ours(store: Path | None) -> Callable[[int], None]:
    import ridgewalk as rw

    target, start = steps.network(WEIGHTS)

    def run(draws: int) -> None:
        rw.sample(
            jax.random.key(0), rw.sgld(), target, start, steps=THIN * draws, step_size=1e-6, batch_size=50, thin=THIN,
            store=None if store is None else store / f"{draws}.zarr", progress=False,
        )  # fmt: skip

    return run


def _blackjax() -> Callable[[int], None]:
    import blackjax

    target, start = steps.network(WEIGHTS)
    step = blackjax.sgld(lambda p, batch: jax.grad(lambda q: -target.potential(q, batch))(p)).step

    def run(draws: int) -> None:
        def advance(position: Any, key: Any) -> tuple[Any, None]:
            rows = jax.random.randint(key, (50,), 0, target.size)
            return step(key, position, jax.tree.map(lambda x: x[rows], target.data), 1e-6), None

        def keep(position: Any, key: Any) -> tuple[Any, Any]:
            position = jax.lax.scan(advance, position, jax.random.split(key, THIN))[0]
            return position, position

        keys = jax.random.split(jax.random.key(0), draws)
        jax.block_until_ready(jax.jit(lambda keys: jax.lax.scan(keep, start, keys))(keys))

    return run


def _posteriors() -> Callable[[int], None]:
    import posteriors
    import torch

    target, start = steps.network(WEIGHTS)
    data = [torch.tensor(np.asarray(x)) for x in target.data]
    first = jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf)), start)
    transform = posteriors.sgmcmc.sgld.build(
        lambda p, batch: (steps.network_in_torch(torch, p, batch), torch.tensor([])), lr=1e-6, beta=0.0
    )

    def run(draws: int) -> None:
        state, kept = transform.init(first), []
        for i in range(THIN * draws):
            rows = torch.randint(0, target.size, (50,))
            state, _ = transform.update(state, tuple(part[rows] for part in data), inplace=False)
            if (i + 1) % THIN == 0:
                kept.append(state.params)

    return run


MEMORY_CASES: dict[str, Callable[[Path], Callable[[int], None]]] = {
    "Ridgewalk, draws streamed to disk": _ours,
    "Ridgewalk, draws in memory": lambda folder: _ours(None),
    "BlackJAX, lax.scan": lambda folder: _blackjax(),
    "posteriors (PyTorch), a list of states": lambda folder: _posteriors(),
}


def _measure_memory(case: str, draws: int) -> Memory:
    def megabytes() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    with tempfile.TemporaryDirectory() as folder:
        run = MEMORY_CASES[case](Path(folder))
        run(4)
        before = megabytes()
        run(draws)
        files = [file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()]
        weights = sum((a + 1) * b for a, b in pairwise(WEIGHTS))
        return Memory(case, draws, weights, before, megabytes(), sum(files) / 1e6)


# Resumption


def _density(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(x**2 * jnp.array([1.0, 100.0]))


KILLED = """
import os, sys, threading, time
import jax, jax.numpy as jnp
import ridgewalk as rw
from peers.machine import _density
def after(progress):
    if progress.step >= 40_000:
        os.kill(os.getpid(), 9)
rw.sample(jax.random.key(0), rw.auto(), rw.Density(_density), jnp.ones(2), steps=100_000, chains=2, progress=False,
          checkpoint=sys.argv[1], checkpoint_every="0.01 s", callback=after)
"""


def _resume_ridgewalk() -> Resumed:
    import ridgewalk as rw

    def run(**options: Any) -> np.ndarray:
        found = rw.sample(
            jax.random.key(0), rw.auto(), rw.Density(_density), jnp.ones(2), steps=100_000, chains=2,
            progress=False, **options,
        )  # fmt: skip
        return np.asarray(found.positions)

    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-c", KILLED, f"{folder}/run"]
        code = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False).returncode
        again = run(checkpoint=f"{folder}/run", resume=True)
    same = bool(np.array_equal(run(), again))
    return Resumed("Ridgewalk", "nothing: sample(checkpoint=…, resume=True)", code == -9, same)


def _resume_blackjax() -> Resumed:
    import blackjax

    step = blackjax.nuts(_density, step_size=0.1, inverse_mass_matrix=jnp.ones(2)).step
    keys = jax.random.split(jax.random.key(0), 400)

    @jax.jit
    def run(state: Any, keys: Any) -> Any:
        def one(state: Any, key: Any) -> Any:
            state, _ = step(key, state)
            return state, state.position

        return jax.lax.scan(one, state, keys)

    first = blackjax.nuts.init(jnp.ones(2), _density)
    whole = run(first, keys)[1]
    state, before = run(first, keys[:200])
    state = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), state)  # through a file of the user's
    parts = np.concatenate([before, run(state, keys[200:])[1]])
    how = "writing and reading of the state, the keys and the draws, and the loop"
    return Resumed("BlackJAX", how, False, bool(np.array_equal(np.asarray(whole), parts)))


def _resume_numpyro() -> Resumed:
    from numpyro import infer

    def mcmc(samples: int) -> Any:
        kernel = infer.NUTS(potential_fn=lambda x: -_density(x))
        return infer.MCMC(kernel, num_warmup=200, num_samples=samples, progress_bar=False)

    whole = mcmc(400)
    whole.run(jax.random.key(0), init_params=jnp.ones(2))
    parts = mcmc(200)
    parts.run(jax.random.key(0), init_params=jnp.ones(2))
    before = np.asarray(parts.get_samples())
    parts.post_warmup_state = parts.last_state
    parts.run(parts.post_warmup_state.rng_key)
    made = np.concatenate([before, np.asarray(parts.get_samples())])
    how = "writing and reading of last_state and the draws, between calls of run"
    return Resumed("NumPyro", how, False, bool(np.array_equal(np.asarray(whole.get_samples()), made)))


def _resume_posteriors() -> Resumed:
    import posteriors
    import torch

    transform = posteriors.sgmcmc.sgld.build(lambda p, batch: (-0.5 * (p**2).sum(), torch.tensor([])), lr=0.1)

    def run(state: Any, count: int) -> tuple[Any, list[Any]]:
        kept = []
        for _ in range(count):
            state, _ = transform.update(state, None, inplace=False)
            kept.append(state.params)
        return state, kept

    torch.manual_seed(0)
    whole = run(transform.init(torch.ones(2)), 40)[1]
    torch.manual_seed(0)
    state, before = run(transform.init(torch.ones(2)), 20)
    generator = torch.get_rng_state()
    torch.rand(3)
    torch.set_rng_state(generator)
    after = run(state, 20)[1]
    same = torch.equal(torch.stack(whole), torch.stack(before + after))
    how = "writing and reading of the state, the generator's state and the draws, and the loop"
    return Resumed("posteriors", how, False, bool(same))


RESUME_CASES: dict[str, Callable[[], Resumed]] = {
    "Ridgewalk": _resume_ridgewalk,
    "BlackJAX": _resume_blackjax,
    "NumPyro": _resume_numpyro,
    "posteriors": _resume_posteriors,
}


if __name__ == "__main__":
    if sys.argv[1] == "memory":
        print(json.dumps(_measure_memory(sys.argv[2], int(sys.argv[3]))._asdict()))
    else:
        print(json.dumps(RESUME_CASES[sys.argv[2]]()._asdict()))
