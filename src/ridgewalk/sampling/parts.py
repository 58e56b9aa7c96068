"""Chains over several processes: which process has which chains, and how their draws and states come together.

A part is a range of chains that run in one loop. A process keeps the draws of the parts that it runs; one of the
processes that run a part, its owner, writes them. A run in one process uses nothing of this module but `ChainPart`.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.distributed import processes
from ridgewalk.distributed.shards import Sharded, local_copy
from ridgewalk.result import ChainStatus, Moments
from ridgewalk.sampling.checkpoint import config_snapshot, differences


class ChainPart(NamedTuple):
    """Chains that run together: where, and who writes their draws."""

    chains: slice
    device: Any
    """The device, or None for the default one or those of `Sharded` data."""
    group: int | None
    """The group of devices of `Sharded` data, or None for all."""
    processes: tuple[int, ...]
    """The processes that run these chains, each with a copy of their states."""
    owner: int
    """The process that writes them."""


def cuts(chains: int, count: int) -> list[slice]:
    """`count` ranges of chains, as equal as possible."""
    stops = [chains * i // count for i in range(count + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(stops)]


def parallel_parts(chains: int, data: PyTree) -> list[ChainPart]:
    """Chains over the devices of all processes; of `Sharded` data, over their groups of devices."""
    if isinstance(data, Sharded):
        groups = data.mesh.devices
        if len(groups) > chains:
            raise ValueError(
                f"chains: {chains} cannot be split into the {len(groups)} groups of shard(chain_groups={len(groups)}); "
                "run more chains, or use fewer groups"
            )
        owners = [sorted({device.process_index for device in group}) for group in groups]
        each = enumerate(zip(cuts(chains, len(groups)), owners, strict=True))
        return [ChainPart(cut, None, i, tuple(own), own[i % len(own)]) for i, (cut, own) in each]
    if chains < jax.process_count():
        raise ValueError(
            f"chains: {chains} cannot be spread over {jax.process_count()} processes; run at least one in each, or use "
            "chain_method='vectorized' with distributed.shard"
        )
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    count = min(chains, len(devices))
    chosen = [devices[i * len(devices) // count] for i in range(count)]
    return [
        ChainPart(cut, device, None, (device.process_index,), device.process_index)
        for cut, device in zip(cuts(chains, count), chosen, strict=True)
    ]


def parts_of(parts: Sequence[ChainPart], process: int) -> list[ChainPart]:
    """The parts that a process runs."""
    return [part for part in parts if process in part.processes]


def count_chains(parts: Sequence[ChainPart]) -> int:
    """The chains of some parts."""
    return sum(part.chains.stop - part.chains.start for part in parts)


def local_rows(parts: Sequence[ChainPart], process: int) -> list[tuple[ChainPart, slice]]:
    """The parts of a process, each with its place among the chains that the process has."""
    found, start = [], 0
    for part in parts_of(parts, process):
        stop = start + part.chains.stop - part.chains.start
        found.append((part, slice(start, stop)))
        start = stop
    return found


def written_chains(parts: Sequence[ChainPart]) -> list[tuple[slice, slice]]:
    """The chains that this process writes, and their places among those that it has."""
    here = jax.process_index()
    return [(part.chains, rows) for part, rows in local_rows(parts, here) if part.owner == here]


# Together


def same_settings(settings: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run; with several processes their description, after a comparison of it, and of others.

    Functions count by their code and data by a digest, so that processes with different scripts or rows are found.
    """
    if jax.process_count() == 1:
        return settings
    described: dict[str, Any] = config_snapshot(settings)
    told = processes.exchange_json("settings", described | config_snapshot(others))
    for process, other in enumerate(told):
        changed = differences(told[0], other, words=("in process 0", f"in process {process}"))
        if changed:
            raise ValueError(
                "sample: the processes do not make the same call; run the same script in each, and pass rows that "
                "differ to distributed.shard:\n  " + "\n  ".join(changed)
            )
    return described


def gather_chains(parts: Sequence[ChainPart], tree: PyTree) -> PyTree:
    """Arrays of all chains in every process, from arrays with a leading axis of the chains of this one."""
    everyone = range(jax.process_count())
    if all(len(parts_of(parts, process)) == len(parts) for process in everyone):
        return tree
    most = max(count_chains(parts_of(parts, process)) for process in everyone)

    def padded(x: Any) -> np.ndarray:
        values = np.asarray(x)
        return np.concatenate([values, np.zeros((most - len(values), *values.shape[1:]), values.dtype)])

    whole = processes.gather(jax.tree.map(padded, tree), [True for _ in everyone])
    places = {(process, part.chains.start): rows for process in everyone for part, rows in local_rows(parts, process)}
    chosen = [(part.owner, places[part.owner, part.chains.start]) for part in parts]
    return jax.tree.map(lambda *leaves: np.concatenate([leaves[owner][rows] for owner, rows in chosen]), *whole)


def gather_statuses(chains: Sequence[int], statuses: Sequence[ChainStatus]) -> list[ChainStatus]:
    """How every chain ended, from how those of this process did."""
    own = [(chain, dataclasses.asdict(status)) for chain, status in zip(chains, statuses, strict=True)]
    listed = processes.exchange_json("status", own)
    found = {chain: ChainStatus(**status) for process in reversed(listed) for chain, status in process}
    return [found[chain] for chain in sorted(found)]


def gather_numbers(chains: Sequence[int], found: Sequence[Sequence[float]], bad_steps: np.ndarray) -> list[list[float]]:
    """The numbers of every chain that did not diverge, from those of the chains of this process."""
    own = [(c, list(one), int(bad)) for c, one, bad in zip(chains, found, bad_steps, strict=True)]
    listed = [one for process in processes.exchange_json("warmup", own) for one in process]
    every = {chain: numbers for chain, numbers, bad in listed if bad < 0}
    return [every[chain] for chain in sorted(every)]


@jax.jit
def _checksum(tree: PyTree) -> jax.Array:
    """32 bits that depend on every bit of the arrays and on its place."""
    total = jnp.zeros((), jnp.uint32)
    for leaf in jax.tree.leaves(tree):
        plain = leaf.astype(jnp.uint8) if leaf.dtype == bool else jax.lax.bitcast_convert_type(leaf, jnp.uint8)
        words = plain.reshape(-1).astype(jnp.uint32)
        total = total * jnp.uint32(31) + jnp.sum(
            words * (jax.lax.iota(jnp.uint32, words.size) * jnp.uint32(2654435761) + 1)
        )
    return total


def _replicated(tree: PyTree) -> list[jax.Array]:
    """The arrays that every process has whole; of a sharded position each has its part."""
    return [leaf for leaf in jax.tree.leaves(tree) if leaf.is_fully_replicated]


def agree(
    groups: Sequence[Any], step: int, after: int, due: bool, alive: bool, signal: str
) -> tuple[int, bool, bool, str]:
    """What all processes do after `step` steps: the length and the checkpoint of process 0, any signal, any chain."""
    own = {"after": after, "due": due, "alive": alive, "signal": signal, "step": step}
    of_all = processes.exchange_json("chunk", own | {"states": check_equal_states(groups)})
    check_equal_states(groups, of_all)
    signals = [one["signal"] for one in of_all if one["signal"]]
    return of_all[0]["after"], of_all[0]["due"], any(one["alive"] for one in of_all), signals[0] if signals else ""


def check_equal_states(groups: Sequence[Any], of_all: list[dict[str, Any]] | None = None) -> dict[str, int]:
    """Checksums of the states that several processes have; with those of all processes, raise where they differ."""
    if of_all is None:
        shared = [group for group in groups if len(group.part.processes) > 1]
        return {str(g.part.chains.start): int(_checksum(local_copy(_replicated(g.carry.states)))) for g in shared}
    for process, other in enumerate(of_all):
        for first, own in of_all[0]["states"].items():
            if other["states"].get(first, own) != own or other["step"] != of_all[0]["step"]:
                raise RuntimeError(
                    f"the chains from {first} on are not the same in processes 0 and {process} after "
                    f"{of_all[0]['step']} and {other['step']} steps; run the same program, with the same versions and "
                    "kind of device, in every process"
                )
    return {}


# Checkpoints


def regroup(arrays: list[np.ndarray], like: list[PyTree], chains: list[slice]) -> list[np.ndarray]:
    """The arrays of all chains of a checkpoint, whose parts were others, as the groups of this process have them.

    Arrays of a state are those of the first group, then of the next; each has a leading axis of chains, or is common.
    """
    each = len(jax.tree.leaves(like[0]))
    if not each or len(arrays) % each:
        return arrays
    parts = [arrays[start : start + each] for start in range(0, len(arrays), each)]
    counts = {cut.stop - cut.start: tree for cut, tree in zip(chains, like, strict=True)}
    if any(len(jax.tree.leaves(tree)) != each for tree in counts.values()):
        return arrays
    per_chain = _has_chains(like[0])
    whole = [
        np.concatenate([part[i] for part in parts]) if per_chain[i] and parts[0][i].ndim else parts[0][i]
        for i in range(each)
    ]
    return [leaf[cut] if per_chain[i] else leaf for cut in chains for i, leaf in enumerate(whole)]


def _has_chains(saved: PyTree) -> list[bool]:
    """Which leaves of what a group saves have a leading axis of chains: not the step, nor the weight of moments."""
    states, moments, monitor = saved
    flags = states._replace(step=jax.tree.map(lambda _: False, states.step))
    flags = flags._replace(**{k: jax.tree.map(lambda _: True, v) for k, v in states._asdict().items() if k != "step"})
    known = None if moments is None else jax.tree.map(lambda _: True, moments)._replace(weight=False)
    return jax.tree.leaves((flags, known, jax.tree.map(lambda _: True, monitor)))


def merge_manifests(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What the stores of all processes hold, in the order of the chains."""
    if "columns" not in parts[0]:
        return {"parts": sorted((one for part in parts for one in part["parts"]), key=lambda one: one["chains"][0])}
    columns = {}
    for name in sorted({name for part in parts for name in part["columns"]}):
        owned = sorted((c for part in parts for c in part["columns"].get(name, [])), key=lambda c: c["first_chain"])
        chunks = zip(*(column["chunks"] for column in owned), strict=True)
        columns[name] = {
            **{key: value for key, value in owned[0].items() if key != "first_chain"},
            "chunks": [[digest for blocks in chunk for digest in blocks] for chunk in chunks],
            "last": [digest for column in owned for digest in column["last"]],
        }
    return {"run": parts[0]["run"], "columns": columns}


def join_data_states(states: list[Any]) -> Any:
    """Where the iterables of all processes were read up to, for a checkpoint; None where they do not say."""
    return {"processes": states} if any(state is not None for state in states) else None


def own_data_state(saved: Any) -> Any:
    """What a checkpoint says of the iterable of this process; None where it is of another number of processes, whose
    batches are read again up to the step.
    """
    of_several = isinstance(saved, dict) and "processes" in saved
    if jax.process_count() == 1:
        return None if of_several else saved
    same = of_several and len(saved["processes"]) == jax.process_count()
    return saved["processes"][jax.process_index()] if same else None


def advice(shards: int, folder: Path | None) -> str:
    """What to do after a process was lost."""
    if folder is None:
        return "start all processes again; checkpoint=folder would let the run be resumed"
    number = f"any number of processes that divides {shards} shards" if shards else "any number of processes"
    return f"rerun with resume=True to resume with {number}"


def gather_result(
    parts: Sequence[ChainPart], draws: dict[str, PyTree], states: list[Any], moments: Moments | None, stored: bool
) -> tuple[dict[str, PyTree], list[Any], Moments | None]:
    """Draws, final states and moments of all chains in every process; draws on disk are those of all already."""
    if not stored:
        draws = gather_chains(parts, draws)
    stacked = gather_chains(parts, jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *states))
    chains = max(part.chains.stop for part in parts)
    states = [jax.tree.map(lambda x, c=chain: jnp.asarray(x[c]), stacked) for chain in range(chains)]
    if moments is not None:
        mean, squares = gather_chains(parts, (moments.mean, moments.squares))
        moments = Moments(moments.weight, *jax.tree.map(jnp.asarray, (mean, squares)))
    return draws, states, moments
