"""CPU seconds and compilations of a default fit in a fresh process, for two source trees side by side.

    python benchmarks/compile.py OLD_TREE NEW_TREE [--repeats 3]

A tree is a checkout with a `src` folder. Each measurement is a process of its own without a persistent compilation
cache. Three fits follow each other: the first compiles, the second has other numbers of rows, the third the first's.
Prints the least of the repeats, which alternate between the trees, and the ratio of the first fits.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROWS = (100, 130, 100)

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
for rows in json.loads(sys.argv[1]):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, 3))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.05 * rng.normal(size=rows)
    made.clear()
    start = time.process_time()
    model = rw.NeuralRegressor().fit(x, y)
    model.predict(x[:7], return_std=True)
    found.append({"rows": rows, "seconds": time.process_time() - start, "compilations": len(made)})
print(json.dumps(found))
"""


def measure(tree: Path) -> list[dict[str, Any]]:
    """CPU seconds and compilations of the fits of one process."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(tree / "src"), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", CHILD, json.dumps(ROWS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure both trees in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, list[list[dict[str, Any]]]] = {"old": [], "new": []}
    for _ in range(given.repeats):
        for name, tree in (("old", given.old), ("new", given.new)):
            found[name].append(measure(tree.resolve()))
    best = {}
    for name, runs in found.items():
        best[name] = [min(run[i]["seconds"] for run in runs) for i in range(len(ROWS))]
        counts = [runs[0][i]["compilations"] for i in range(len(ROWS))]
        for rows, seconds, count in zip(ROWS, best[name], counts, strict=True):
            print(f"{name}: {rows} rows, {seconds:6.2f} CPU seconds, {count} compilations")
    print(f"cold fit: {best['new'][0] / best['old'][0]:.2f} of the old tree's CPU time")


if __name__ == "__main__":
    main()
