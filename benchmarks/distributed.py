"""The cost of a step over two processes or devices, and the prediction for many hosts; tables in Markdown.

    python benchmarks/distributed.py [data | parameters] [--quick] [--models 0 1 …]

*data*: rows over two processes, each held to one core. Models of d = 50, 10⁴ and 10⁶ parameters, and three with
heavier gradients, the last of which is meant to be faster in two processes than in one (`--models`: only these rows of
the table). One process and two are measured in turn, several times, so that both see a machine that is as busy; times
and speed-ups are medians, and the processes are fresh ones every time. The sum of a gradient over two processes is
measured alone, too. The prediction adds what is measured in one process to the sum of a gradient in a network that is
stated (`predicted`).

*parameters*: a network of 10⁷ parameters that is sharded over two devices, of one process and of two, with the memory
of the compiled loop on a device and what a step sends.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import ridgewalk
from ridgewalk.distributed.launch import PROCESS

HOSTS = (8, 64)
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
    Model("logistic regression", 50, 4096, 256, 0, 500),
    Model("logistic regression", 10_000, 2048, 256, 0, 50),
    Model("logistic regression", 1_000_000, 256, 64, 0, 10),
    Model("network, 3 hidden layers of 100", 30_100, 8192, 2048, 3, 40),
    Model("network, 3 hidden layers of 300", 270_300, 8192, 4096, 3, 8),
    Model("network, 3 hidden layers of 500", 750_500, 16_384, 8192, 3, 5),
)
SAMPLERS = ("sgld", "sghmc", "low_rank", "snapshot_lbfgs")


def one_core() -> None:
    """Hold this process to one core, another one than the other process; before JAX makes its threads."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ.get(PROCESS, "0")) % len(cores)]})


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def tell(**found: Any) -> None:
    """Written by process 0."""
    import jax

    if jax.process_index() == 0:
        print("FOUND", json.dumps(found), flush=True)


# Children


def data_child(model: Model, repetitions: int) -> None:
    """The seconds of a step; in one process, also with half a batch."""
    import ridgewalk as rw

    one_core()
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

    def loop_seconds(steps: int, batch_size: int) -> tuple[float, int]:
        """The time of a run after its first quarter, where calls of the device are compiled and short; its steps."""
        seen: list[tuple[float, int]] = []
        rw.sample(
            jax.random.key(0), rw.sgld(), target, start, steps=steps, step_size=1e-6, batch_size=batch_size,
            thin=steps, progress=False, callback=lambda progress: seen.append((progress.seconds, progress.step)),
        )  # fmt: skip
        first = next(one for one in seen if one[1] >= steps // 4)
        return seen[-1][0] - first[0], seen[-1][1] - first[1]

    def step_seconds(batch_size: int) -> float:
        loop_seconds(model.steps, batch_size)  # compiles
        found = [loop_seconds(4 * model.steps, batch_size) for _ in range(repetitions)]
        return median([seconds / steps for seconds, steps in found])

    sizes = [model.batch_size, model.batch_size // 2] if jax.process_count() == 1 else [model.batch_size]
    tell(seconds=[step_seconds(size) for size in sizes])


def sums_child(sizes: list[int], repetitions: int) -> None:
    """The seconds of a sum of vectors over the devices of all processes, within a loop."""
    import ridgewalk as rw

    one_core()
    rw.distributed.initialize()
    import jax
    import numpy as np

    from ridgewalk.distributed.shards import replicate, vector_over_shards

    data = rw.distributed.shard(np.zeros((jax.device_count(), 1), "float32"))
    found = {}
    for size in sizes:
        count = max(20, min(300, 20_000_000 // size))

        def loop(data: Any, vector: Any, length: int) -> Any:
            def body(_: Any, v: Any) -> Any:
                return 0.5 * vector_over_shards(data, lambda v, rows: v + rows[0], v, data.arrays)

            return jax.lax.fori_loop(0, length, body, vector)

        compiled = jax.jit(loop, static_argnums=2)
        start = replicate(np.ones(size, "float32"), data.mesh)
        times = []
        for _ in range(repetitions + 1):
            begun = time.perf_counter()
            compiled(data, start, count).block_until_ready()
            times.append((time.perf_counter() - begun) / count)
        found[str(size)] = median(times[1:])
    tell(seconds=found)


def parameters_child(sampler: str, width: int, steps: int) -> None:
    """Seconds of a step, bytes on a device, and bytes that a step sends."""
    import ridgewalk as rw

    one_core()
    rw.distributed.initialize()
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    inputs, hidden, last = width * 2 // 3, width, width * 4 // 9
    mesh = jax.make_mesh((jax.device_count(),), ("devices",))
    rng = np.random.default_rng(0)

    def placed(shape: tuple[int, ...], *spec: Any) -> Any:
        place = NamedSharding(mesh, PartitionSpec(*spec))
        value = (rng.normal(size=shape) / np.sqrt(shape[0])).astype("float32")
        return jax.make_array_from_callback(shape, place, lambda index: value[index])

    start = {
        "in": placed((inputs, hidden), None, "devices"),
        "between": placed((hidden, last), "devices", None),
        "out": placed((last,)),
    }
    dimension = sum(leaf.size for leaf in start.values())
    data = {
        "x": rng.normal(size=(256, inputs)).astype("float32"),
        "y": rng.normal(size=256).astype("float32"),
    }

    def log_likelihood(w: Any, batch: Any) -> Any:
        h = jnp.tanh(jnp.tanh(batch["x"] @ w["in"]) @ w["between"])
        return -0.5 * (batch["y"] - h @ w["out"]) ** 2

    target = rw.Posterior(rw.gaussian_prior(1.0), log_likelihood, data)
    samplers = {
        "sgld": rw.sgld(),
        "sghmc": rw.sghmc(friction=0.1),
        "low_rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=6, spare=2, first_curvature=300.0)),
        "snapshot_lbfgs": rw.Sampler(rw.Langevin(), rw.SnapshotLBFGS(memory=2, first_curvature=300.0)),
    }
    called = []
    result = rw.sample(
        jax.random.key(0), samplers[sampler], target, start, steps=steps, step_size=1e-5, batch_size=32,
        burn_in=steps - 1, keep="moments", progress=False, callback=lambda p: called.append((p.seconds, p.step)),
    )  # fmt: skip
    last_call, first_call = called[-1], called[1]  # the first call compiles
    leaves = jax.tree.leaves(result.final_states[0].position)
    rest = sum(np.asarray(x).nbytes for x in jax.tree.leaves(result.final_states[0]._replace(position=None)))
    own = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards[:1])
    tell(
        dimension=dimension,
        seconds=(last_call[0] - first_call[0]) / (last_call[1] - first_call[1]),
        position_bytes=own,
        other_bytes=rest / jax.device_count(),
        status=str(result.status[0]),
    )


# Parent


def measure(kind: str, settings: list[Any], processes: int, flags: str = "") -> dict[str, Any]:
    """What process 0 of so many told."""
    arguments = [__file__, "--child", json.dumps([kind, *settings])]
    environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
    with tempfile.TemporaryFile("w+") as output:
        code = (
            f"import sys; from ridgewalk.distributed.launch import launch; sys.exit(launch({arguments!r}, {processes}))"
        )
        subprocess.run(
            [sys.executable, "-c", code], stdout=output, check=True, cwd=Path(__file__).parent, env=environment
        )
        output.seek(0)
        (line,) = [line for line in output if "FOUND" in line]
    told: dict[str, Any] = json.loads(line.split("FOUND ")[1])
    return told


def predicted(whole: float, half: float, parameters: int, hosts: int) -> float:
    """Seconds of a step on so many hosts, which share the rows of a batch.

    t(n) = a + b n is the step of one process; a, the update of the replicated state, is not shared. The sum of d + 1
    numbers over H hosts is as in `distributed.shards`: where H (d + 1) ≤ 2¹⁶, all are gathered; else slices are sent,
    added, and gathered. Rings, as Gloo has them, take H − 1 messages for each.
    """
    from ridgewalk.distributed.shards import GATHERED_NUMBERS

    shared = 2 * (whole - half)
    numbers, rounds = parameters + 1, hosts - 1
    messages, sent = 2 * rounds, 2 * rounds / hosts * numbers
    if numbers * hosts <= GATHERED_NUMBERS:
        messages, sent = rounds, rounds * numbers
    return max(whole - shared, 0.0) + shared / hosts + messages * LATENCY + 4 * sent / BANDWIDTH


def machine() -> str:
    """Versions and the machine, as a line above every table."""
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    versions = f"ridgewalk {ridgewalk.__version__}, jax {metadata.version('jax')}"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{time.strftime('%d %B %Y')}, {versions}, Python {python}, {len(names)} cores of {names[0]}, float32"


def table(titles: list[str], rows: list[list[str]]) -> None:
    for cells in (titles, ["---", *["--:"] * (len(titles) - 1)], *rows):
        print("| " + " | ".join(cells) + " |")
    print(flush=True)


def cpu_ticks() -> list[int]:
    """Time of all cores since the machine started, by what it was spent on."""
    return [int(number) for number in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]


def taken_since(before: list[int]) -> float:
    """The part of the time of all cores that the host gave to other machines."""
    spent = [after - then for after, then in zip(cpu_ticks(), before, strict=True)]
    return spent[7] / max(sum(spent[:8]), 1)


def measure_data(quick: bool, chosen: list[int] | None = None) -> None:
    models = [MODELS[i] for i in chosen] if chosen else list(MODELS)
    if quick:
        models = [model._replace(steps=20) for model in (MODELS[0], MODELS[-2])]
    rounds, repetitions, before = (1, 1, cpu_ticks()) if quick else (3, 2, cpu_ticks())
    print(machine())
    print(f"network of the prediction: {LATENCY * 1e6:.0f} µs a message, {BANDWIDTH * 8 / 1e9:.0f} Gbit/s\n")
    sums = measure("sums", [[model.parameters + 1 for model in models], 3], 2)["seconds"]
    rows = []
    for model in models:
        found = []
        for _ in range(rounds):
            begun = cpu_ticks()
            once = [measure("data", [list(model), repetitions], processes)["seconds"] for processes in (1, 2)]
            found.append([*once[0], *once[1]])
            taken = f"{taken_since(begun):.0%} taken by the host"
            print("measured", model.name, model.parameters, found[-1], taken, file=sys.stderr, flush=True)
        whole, half, two = (median(list(times)) for times in zip(*found, strict=True))
        speed_ups = sorted(first / second for first, _, second in found)
        own = sums[str(model.parameters + 1)]
        many = [predicted(whole, half, model.parameters, hosts) for hosts in HOSTS]
        times = [f"{1e6 * t:,.0f}" for t in (whole, half, own, half + own, two, *many)]
        what = [model.name, f"{model.parameters:,}", str(model.batch_size)]
        speed_up = f"{median(speed_ups):.2f} ({speed_ups[0]:.2f} to {speed_ups[-1]:.2f})"
        rows.append([*what, *times[:5], speed_up, *times[5:]])
    table(
        ["model", "d", "n", "1 process", "1 process, n/2", "sum alone", "expected, 2", "2 processes", "speed-up"]
        + [f"predicted, {hosts} hosts" for hosts in HOSTS],
        rows,
    )
    print(f"{taken_since(before):.0%} of the cores' time went to other machines of the host.\n", flush=True)


def sent_bytes(folder: Path) -> dict[str, int]:
    """Bytes of the collective operations of the compiled loop, by kind; operations of branches included."""
    widths = {"f32": 4, "f64": 8, "s32": 4, "u32": 4, "pred": 1}
    found: dict[str, int] = {}
    pattern = re.compile(
        r"= (?P<shapes>[^=]*?) (?P<kind>all-reduce|all-gather|all-to-all|collective-permute)(-start)?\("
    )
    for program in folder.glob("*run_steps*after_optimizations.txt"):
        for line in program.read_text().splitlines():
            match = pattern.search(line)
            if match:
                for kind, size in re.findall(r"([a-z]\w*)\[([\d,]*)\]", match["shapes"]):
                    count = 1
                    for number in size.split(","):
                        count *= int(number or 1)
                    found[match["kind"]] = found.get(match["kind"], 0) + widths.get(kind, 4) * count
    return found


def loop_bytes(folder: Path) -> int:
    """The memory that the compiled loop takes on a device, its arguments included, as XLA reports it."""
    reports = [report.read_text() for report in folder.glob("*run_steps*memory-usage-report.txt")]
    return max(int(size) for report in reports for size in re.findall(r"Total bytes: (\d+)", report))


def measure_parameters(quick: bool) -> None:
    width, steps = (60, 8) if quick else (3162, 24)
    print(machine() + "\n")
    rows = []
    for sampler in SAMPLERS[2:] if quick else SAMPLERS:
        times = []
        for processes in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                flags = f"--xla_force_host_platform_device_count={2 // processes}"
                dump = f" --xla_dump_to={folder} --xla_dump_hlo_module_re=.*run_steps.*" if processes == 1 else ""
                found = measure("parameters", [sampler, width, steps], processes, flags + dump)
                times.append(found["seconds"])
                if processes == 1:
                    sent, loop = sent_bytes(Path(folder)), loop_bytes(Path(folder))
        each, share = found["position_bytes"] + found["other_bytes"], 4 * found["dimension"] / 2
        memory = [f"{size / 1e6:,.0f} MB, {size / share:.1f} d/D" for size in (each, loop)]
        rows.append(
            [f"`{sampler}`", *memory, f"{sum(sent.values()) / 1e6:.2f} MB", *(f"{1e3 * t:,.0f}" for t in times)]
        )
        print("measured", sampler, found["dimension"], found["status"], sent, file=sys.stderr, flush=True)
    titles = ["sampler", "state", "state, moments and work space of the loop", "collectives of the loop"]
    table([*titles, "ms a step, 1 process", "ms a step, 2 processes"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", nargs="?", choices=("data", "parameters"), help="default: both")
    parser.add_argument("--quick", action="store_true", help="small sizes, few steps: to see that it runs")
    parser.add_argument("--models", type=int, nargs="+", help=f"data: rows of the table, from 0 to {len(MODELS) - 1}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        kind, *settings = json.loads(asked.child)
        if kind == "data":
            data_child(Model(*settings[0]), settings[1])
        elif kind == "sums":
            sums_child(*settings)
        else:
            parameters_child(*settings)
        return
    if asked.section in (None, "data"):
        measure_data(asked.quick, asked.models)
    if asked.section in (None, "parameters"):
        measure_parameters(asked.quick)


if __name__ == "__main__":
    main()
