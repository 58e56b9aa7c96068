"""Compare the draws of two source trees bit for bit: every sampler, preconditioner, estimator, prior and data source.

    python benchmarks/compare_draws.py OLD_TREE NEW_TREE [--only PATTERN] [--precision 32|64]

A tree is a checkout with a `src` folder. Each tree runs in processes of its own, in single and in double precision,
with fixed keys. OLD_TREE may also be a `.npz` file that `--record FILE` wrote in an earlier run of the new tree, on the
same machine, with the same XLA flags and number of threads: rounding depends on them.
Prints one line per case and exits with status 1 on any difference.
"""

import argparse
import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RENAMED = {"SnapshotLBFGS": "Limited", "NoseHoover": "Thermostat", "InverseMetric": "Metric"}
"""Public names now, and what they were called before."""

STEPS = 240


class Case(NamedTuple):
    """A sampler on a target, with the arguments of `sample`."""

    sampler: Any
    target: Any
    position: Any
    arguments: dict[str, Any]


def public(package: Any, name: str) -> Any:
    """A public name, by its present or its former spelling."""
    found = getattr(package, name, None)
    return found if found is not None else getattr(package, RENAMED[name])


def cases(rw: Any, folder: Path, dtype: str) -> Iterator[tuple[str, Callable[[], Case]]]:  # noqa: PLR0915 (a list)
    """Names, and functions that build the cases."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    size, inputs, outputs = 300, 3, 2
    x = rng.normal(size=(size, inputs)).astype(dtype)
    weights = rng.normal(size=(inputs, outputs)) * np.array([[1.0], [3.0], [0.3]])
    y = (np.tanh(x @ weights) + 0.3 * rng.normal(size=(size, outputs))).astype(dtype)
    start = {"w": jnp.asarray(0.3 * weights, dtype), "b": jnp.zeros(outputs, dtype)}
    flat = inputs * outputs + outputs

    def residual(position: Any, batch: Any) -> Any:
        return batch[1] - jnp.tanh(batch[0] @ position["w"] + position["b"])

    def log_likelihood(position: Any, batch: Any) -> Any:
        return -0.5 * jnp.sum((residual(position, batch) / 0.3) ** 2, axis=1)

    plain = rw.gaussian_prior(2.0)
    posterior = rw.Posterior(plain, log_likelihood, (jnp.asarray(x), jnp.asarray(y)))
    precision = jnp.asarray(np.diag([1.0, 10.0, 100.0]) + 0.5, dtype)
    density = rw.Density(lambda p: -0.5 * p @ precision @ p)
    covariance = np.diag(np.linspace(0.1, 1.0, flat)) + 0.05
    scale = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.25).at[0].set(2.0), start)
    decay = rw.PowerDecay(2.0, 5.0, 0.8)
    snapshot = public(rw, "SnapshotLBFGS")
    inverse_metric = public(rw, "InverseMetric")
    snapshot_form = "snapshot_lbfgs" if "snapshot_lbfgs" in str(inspect.signature(rw.hasgld_sa)) else "limited"

    def metric(position: Any) -> Any:
        return jax.tree.map(lambda leaf: 1 / (1 + leaf**2), position)

    def matrix_metric(position: Any) -> Any:
        v = jnp.concatenate([position["b"], position["w"].reshape(-1)])
        return jnp.eye(flat, dtype=dtype) + 0.1 * jnp.outer(jnp.tanh(v), jnp.tanh(v))

    samplers: dict[str, Callable[[], Any]] = {
        "sgld": rw.sgld,
        "sgld two_point": lambda: rw.sgld(noise="two_point"),
        "sgld cold": lambda: rw.sgld(temperature=0.25),
        "psgld": rw.psgld,
        "psgld correction": lambda: rw.psgld(curvature_correction=True, decay=0.9),
        "psgld second_moment": lambda: rw.psgld(second_moment=jax.tree.map(jnp.ones_like, start)),
        "sgrld pytree": lambda: rw.sgrld(metric),
        "sgrld matrix": lambda: rw.sgrld(matrix_metric),
        "hamcmc": rw.hamcmc,
        "hamcmc 5 two_point": lambda: rw.hamcmc(memory=5, noise="two_point", temperature=0.5),
        "hasgld_sa auto": lambda: rw.hasgld_sa(adaptation=decay),
        "hasgld_sa dense": lambda: rw.hasgld_sa(form="dense", memory=3, curvature_every=2),
        "hasgld_sa dense two_point": lambda: rw.hasgld_sa(form="dense", noise="two_point", first_curvature=500.0),
        "hasgld_sa dense scaled_identity": lambda: rw.hasgld_sa(form="dense", base="scaled_identity", memory=4),
        "hasgld_sa low_rank": lambda: rw.hasgld_sa(form="low_rank", rank=2, adaptation=decay),
        "hasgld_sa limited": lambda: rw.hasgld_sa(form=snapshot_form, memory=3, snapshots=3),
        "hasgld_sa as_printed": lambda: rw.hasgld_sa(form="as_printed", memory=2),
        "sghmc": rw.sghmc,
        "sghmc noise two_point": lambda: rw.sghmc(friction=0.3, gradient_noise=0.05, noise="two_point"),
        "sghmc fixed": lambda: rw.sghmc(preconditioner=rw.fixed(covariance)),
        "sghmc diagonal": lambda: rw.sghmc(preconditioner=rw.fixed(np.linspace(0.1, 1, flat))),
        "sghmc lbfgs": lambda: rw.sghmc(preconditioner=rw.LBFGS(curvature_every=3)),
        "sghmc limited bounded": lambda: rw.sghmc(preconditioner=snapshot(base_growth=5.0, memory=2)),
        "sghmc rescaled identity": lambda: rw.sghmc(preconditioner=rw.rescaled(rw.Identity(), scale)),
        "sghmc rmsprop": lambda: rw.sghmc(preconditioner=rw.RMSProp()),
        "sgnht": rw.sgnht,
        "sgnht dense": lambda: rw.sgnht(preconditioner=rw.Dense(growth=2.0), diffusion=0.2),
        "sgnht rescaled low_rank": lambda: rw.sgnht(preconditioner=rw.rescaled(rw.LowRank(rank=2), scale)),
        "langevin rescaled limited": lambda: rw.Sampler(rw.Langevin(), rw.rescaled(snapshot(), scale)),
        "langevin rescaled metric": lambda: rw.Sampler(
            rw.Langevin(),
            rw.rescaled(inverse_metric(lambda p: 1 / (1 + p["w"].sum() ** 2) * jnp.ones(flat, dtype)), scale),
        ),
        "langevin rescaled psgld": lambda: rw.Sampler(rw.Langevin(), rw.rescaled(rw.RMSProp(0.9), scale)),
    }

    def case(
        sampler: Callable[[], Any],
        target: Callable[[], Any] = lambda: posterior,
        position: Any = start,
        pruning: dict[str, Any] | None = None,
        **given: Any,
    ) -> Case:
        built = sampler() if pruning is None else rw.pruned(sampler(), 0.34, **pruning)
        return Case(built, target(), position, {"step_size": 1e-4, "batch_size": 20, **given})

    for name, sampler in samplers.items():
        yield name, partial(case, sampler, chains=2, thin=2)

    pruned = ["sgld", "psgld", "sgrld pytree", "sgrld matrix", "hamcmc", "sghmc fixed", "sghmc lbfgs", "sgnht dense"]
    pruned += ["hasgld_sa dense", "hasgld_sa dense scaled_identity", "hasgld_sa low_rank", "hasgld_sa limited"]
    pruned += ["hasgld_sa as_printed", "langevin rescaled limited", "sgnht"]
    for i, name in enumerate(pruned):
        pruning = {"scope": ("global", "layer")[i % 2], "schedule": ("cubic", "linear")[i // 2 % 2]}
        pruning |= {"stop": 150, "start": 40, "every": 20}  # type: ignore[dict-item]
        yield f"pruned {name}", partial(case, samplers[name], pruning=pruning, chains=2)

    def on_disk(name: str, values: np.ndarray) -> np.memmap:
        file = folder / f"{name}.dat"
        saved = np.memmap(file, values.dtype, "w+", shape=values.shape)
        saved[:] = values
        saved.flush()
        return np.memmap(file, values.dtype, "r", shape=values.shape)

    host = rw.Posterior(plain, log_likelihood, (on_disk("x", x), on_disk("y", y)))
    listed = [(x[i : i + 30], y[i : i + 30]) for i in range(0, size, 30)]
    streamed = rw.Posterior(plain, log_likelihood, rw.Batches(listed, size))
    estimators: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
        "full data": (lambda: posterior, {"batch_size": None}),
        "epochs": (lambda: posterior, {"replacement": False}),
        "control_variates": (lambda: rw.control_variates(posterior, start), {}),
        "svrg": (lambda: rw.svrg(posterior, 15), {"replacement": False}),
        "memmap": (lambda: host, {}),
        "memmap epochs": (lambda: host, {"replacement": False}),
        "memmap control_variates": (lambda: rw.control_variates(host, start), {}),
        "Batches": (lambda: streamed, {"batch_size": None}),
        "one chain, schedule": (lambda: posterior, {"chains": 1, "step_size": lambda k: 1e-4 / (1 + k / 100) ** 0.5}),
        "sequential": (lambda: posterior, {"chain_method": "sequential"}),
        "moments": (lambda: posterior, {"keep": "moments"}),
        "collect": (lambda: posterior, {"keep": "draws", "collect": lambda p: jnp.sum(p["w"] ** 2)}),
    }
    for name, (target, given) in estimators.items():
        for form in ("sgld", "hasgld_sa dense"):
            arguments = {"chains": 3, "thin": 3, "burn_in": 30, **given}
            yield f"{name}: {form}", partial(case, samplers[form], target, **arguments)

    shared = rw.shared_noise(residual)
    adaptive = rw.spike_and_slab(delay=10, spike_scale=0.2)
    averaged = rw.spike_and_slab(penalty="averaged", b=2.0)
    by_leaf = rw.prior_by_leaf({"b": rw.gaussian_prior(3.0)}, otherwise=adaptive)
    plain_by_leaf = rw.prior_by_leaf({"b": rw.laplace_prior(1.0)}, otherwise=rw.student_t_prior(4.0, 1.0))
    priors = {
        "laplace": (rw.laplace_prior(0.5), log_likelihood),
        "student_t": (rw.student_t_prior(3.0, 1.0), log_likelihood),
        "by_leaf": (plain_by_leaf, log_likelihood),
        "spike_and_slab": (adaptive, log_likelihood),
        "spike_and_slab shared": (adaptive, shared),
        "spike_and_slab averaged": (averaged, log_likelihood),
        "adaptive by_leaf": (by_leaf, log_likelihood),
        "adaptive by_leaf shared": (by_leaf, shared),
    }
    for name, parts in priors.items():
        yield f"prior {name}", partial(case, rw.hasgld_sa, partial(rw.Posterior, *parts, posterior.data), chains=2)
    learnt = rw.Posterior(adaptive, shared, posterior.data)
    grouped = rw.Posterior(by_leaf, shared, posterior.data)
    yield "prior pruned", partial(case, rw.sgld, lambda: grouped, pruning={"stop": 100})
    yield "prior control_variates", partial(case, rw.sgld, lambda: rw.control_variates(learnt, start))
    yield "prior svrg", partial(case, rw.psgld, lambda: rw.svrg(learnt, 20))

    alone: dict[str, Any] = {"batch_size": None, "chains": 1, "thin": 4, "step_size": 1e-3}
    for name in ("sgld", "hasgld_sa auto", "hamcmc", "sghmc", "sgnht", "psgld"):
        yield f"density: {name}", partial(case, samplers[name], lambda: density, jnp.ones(3, dtype), **alone)
    wide = rw.Density(lambda p: -0.5 * jnp.sum(p**2 * jnp.arange(1, 2101, dtype=dtype) / 100))
    yield "2,100 parameters: auto", partial(case, rw.hasgld_sa, lambda: wide, jnp.ones(2100, dtype), **alone)
    long = rw.Density(lambda p: -0.5 * jnp.sum(p**2) - jnp.sum(jnp.cos(p[:100])))
    for form in ("low_rank", "limited"):
        chosen = snapshot_form if form == "limited" else form
        recipe = partial(rw.hasgld_sa, form=chosen, rank=4, memory=3)
        yield f"20,000 parameters: {form}", partial(case, recipe, lambda: long, jnp.ones(20_000, dtype), **alone)

    def scaled() -> Any:
        found = rw.gradient_scale(jax.random.key(5), posterior, start, batch_size=20, least=0.01)
        return rw.sghmc(preconditioner=rw.rescaled(snapshot(), found))

    yield "gradient_scale", partial(case, scaled)


def outcome(rw: Any, case: Case) -> dict[str, np.ndarray]:
    """Draws, statistics, final positions, and G of the last states applied to a vector."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(11)
    result = rw.sample(key, case.sampler, case.target, case.position, steps=STEPS, progress=False, **case.arguments)
    states = result.final_states
    found = {
        "draws": result.positions,
        "final": [state.position for state in states],
        "prior": [state.prior for state in states],
        "mask": [state.mask for state in states],
        "moments": result.moments,
        "collected": result.collected,
        "info": {name: getattr(result.info, name) for name in ("potential", "gradient_norm", "temperature", "damping")},
        "product": [
            state.preconditioner.multiply(jnp.linspace(0.5, 1, sum(x.size for x in jax.tree.leaves(state.position))))
            for state in states
        ],
    }
    return {
        f"{part}/{i}": np.asarray(leaf) for part, tree in found.items() for i, leaf in enumerate(jax.tree.leaves(tree))
    }


def by_hand(rw: Any, case: Case) -> dict[str, np.ndarray]:
    """The same sampler stepped without the runner."""
    import jax

    with_position = "position" in inspect.signature(rw.build_kernel).parameters
    extra = (case.position,) if with_position else ()
    kernel = rw.build_kernel(case.sampler, case.target, *extra)
    state, data = kernel.init(case.position), case.target.data
    step = jax.jit(kernel.step)
    for key in jax.random.split(jax.random.key(3), 40):
        state, info = step(key, state, jax.tree.map(lambda leaf: leaf[:20], data), 1e-4)
    return {f"{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves((state.position, tuple(info))))}


def record(path: Path, only: str) -> None:
    """Run all cases with the `ridgewalk` that is importable, and save what came out."""
    import jax

    import ridgewalk as rw

    dtype = "float64" if jax.config.read("jax_enable_x64") else "float32"
    saved: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, build in cases(rw, Path(folder), dtype):
            if not re.search(only, name):
                continue
            case = build()
            try:
                found = outcome(rw, case)
            except ValueError as error:  # a combination that the library rejects must be rejected by both
                found = {"rejected": np.array([str(error).split(":")[0]])}
            saved |= {f"{dtype} {name}|{part}": value for part, value in found.items()}
            if name.startswith("hasgld_sa") and not name.endswith("two_point"):
                saved |= {f"{dtype} by hand: {name}|{part}": value for part, value in by_hand(rw, case).items()}
            print(f"{dtype} {name}", file=sys.stderr, flush=True)
    np.savez(path, **saved)  # type: ignore[arg-type]


def draws_of(tree: Path, only: str, precisions: list[str]) -> dict[str, np.ndarray]:
    """What the cases give under a source tree, or what a file says that they gave."""
    if tree.suffix == ".npz":
        with np.load(tree) as file:
            case_of = {name: name.partition(" ")[2].removeprefix("by hand: ").partition("|")[0] for name in file.files}
            wanted = [name for name, case in case_of.items() if re.search(only, case)]
            return {name: file[name] for name in wanted if name[len("float") :].startswith(tuple(precisions))}
    found: dict[str, np.ndarray] = {}
    for bits in precisions:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "draws.npz"
            environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src"), "JAX_ENABLE_X64": str(bits == "64")}
            command = [sys.executable, __file__, "--worker", str(path), "--only", only]
            subprocess.run(command, env=environment, check=True)
            with np.load(path) as file:
                found |= {name: file[name] for name in file.files}
    return found


def compare(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> int:
    """Print a line per case; the number of cases that differ."""
    names = list(dict.fromkeys(name.split("|")[0] for name in [*old, *new]))
    bad = 0
    for name in names:
        parts = [key for key in dict.fromkeys([*old, *new]) if key.split("|")[0] == name]
        different = [
            key.split("|")[1]
            for key in parts
            if key not in old
            or key not in new
            or old[key].dtype != new[key].dtype
            or old[key].shape != new[key].shape
            or old[key].tobytes() != new[key].tobytes()
        ]
        bad += bool(different)
        print(f"{'DIFFERS' if different else 'equal  '} {name}{': ' + ', '.join(different) if different else ''}")
    print(f"{len(names) - bad} of {len(names)} cases bit-identical")
    return bad


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE")
    parser.add_argument("--only", default="", help="regular expression that the names of cases must match")
    parser.add_argument("--precision", choices=["32", "64"], help="one precision instead of both")
    parser.add_argument("--record", type=Path, help="save the draws of the new tree to this .npz file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        record(given.worker, given.only)
        return
    precisions = [given.precision] if given.precision else ["32", "64"]
    results = [draws_of(tree, given.only, precisions) for tree in given.trees]
    if given.record is not None:
        np.savez(given.record, **results[-1])  # type: ignore[arg-type]
    if len(results) == 2:
        sys.exit(1 if compare(*results) else 0)


if __name__ == "__main__":
    main()
