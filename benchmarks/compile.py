"""CPU seconds and compilations of a fit in a fresh process, for two source trees side by side.

    python benchmarks/compile.py OLD_TREE NEW_TREE [--repeats 3]

A tree is a checkout with a `src` folder. Each measurement is a process of its own without a persistent compilation
cache. Three fits follow each other: the first compiles, the second has other numbers of rows, the third the first's.
Two sets of settings are fitted: those that `SurrogateRegressor()` had by default (64 x 64 silu units, a cold posterior,
3,000 steps of Adam and 600 of HASGLD-SA, batches of 32, 20 % of the rows held out), with which both trees do the same
work; and the defaults of each tree, which since `NeuralRegressor` are more work: four chains of up to 96,000 steps at
temperature 1. Prints the least of the repeats, which alternate between the trees, and the ratio of the first fits.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROWS = (100, 130, 100)

SETTINGS = {"same": "the settings of the former default on both trees", "default": "the default of each tree"}

CHILD = """
import json, sys, time

sys.modules["arviz_plots"] = None  # ArviZ 0.x, of old trees, imports it whatever its version
import jax
import numpy as np
import ridgewalk as rw

made = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration, **_: made.append(duration) if event.endswith("backend_compile_duration") else None
)
found = []
former = hasattr(rw, "SurrogateRegressor")
estimator = rw.SurrogateRegressor if former else rw.NeuralRegressor  # imports are not a part of the fit
for rows in json.loads(sys.argv[1]):
    given = {}
    if sys.argv[2] == "same" and not former:
        weights = 4 * 64 + 65 * 64 + 65
        given = dict(
            network="mlp:64x64:silu", sampler="hasgld_sa", likelihood="gaussian", data_weight=weights / (0.8 * rows),
            optimiser_steps=3000, learning_rate=5e-3, steps=600, burn_in=200, draws=40, batch_size=32, holdout=0.2,
            recalibration="conformal",
        )
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, 3))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.05 * rng.normal(size=rows)
    made.clear()
    start = time.process_time()
    model = estimator(**given).fit(x, y)
    model.predict(x[:7], return_std=True)
    spent = time.process_time() - start
    found.append({"rows": rows, "seconds": spent, "compilations": len(made), "compiling": sum(made)})
print(json.dumps(found))
"""


def measure(tree: Path, settings: str) -> list[dict[str, Any]]:
    """CPU seconds and compilations of the fits of one process."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(tree / "src"), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", CHILD, json.dumps(ROWS), settings]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def compare(trees: dict[str, Path], settings: str, repeats: int) -> None:
    """Measure the trees in turn and print the least of the times."""
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in trees}
    for _ in range(repeats):
        for name, tree in trees.items():
            found[name].append(measure(tree.resolve(), settings))
    print(SETTINGS[settings])
    best = {}
    for name, runs in found.items():
        best[name] = [min(run[i]["seconds"] for run in runs) for i in range(len(ROWS))]
        for i, rows in enumerate(ROWS):
            print(
                f"  {name}: {rows} rows, {best[name][i]:6.2f} CPU seconds, {runs[0][i]['compilations']} compilations "
                f"of {min(run[i]['compiling'] for run in runs):.2f} s"
            )
    print(f"  cold fit: {best['new'][0] / best['old'][0]:.2f} of the old tree's CPU time", flush=True)


def main() -> None:
    """Measure both trees in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--settings", choices=SETTINGS, action="append", help="one set of settings instead of both")
    given = parser.parse_args()
    for settings in given.settings or SETTINGS:
        compare({"old": given.old, "new": given.new}, settings, given.repeats)


if __name__ == "__main__":
    main()
