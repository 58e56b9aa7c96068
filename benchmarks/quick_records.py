"""Make the records of the quick preset in docs/results/quick: a run as users have it, and repeats of it.

    python benchmarks/quick_records.py [STUDY …] [--work FOLDER]
    python benchmarks/quick_records.py --seeds [source] [permeability] [--work FOLDER]

The repeats are compiled with other options of XLA. Rounding differs as it does between machines, chains amplify it, and
the spread of the numbers is the noise with which a user's run is compared. The Darcy studies have one seed, and their
training amplifies rounding until runs differ as much as those of other seeds: with --seeds their record is kept, and
their repeats are other seeds, whose spread is what a standard error over seeds would be. About 20 minutes on two cores;
four minutes of a core for each seed. A second call continues an interrupted one.
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ridgewalk.studies.darcy.report import Results, build_report
from ridgewalk.studies.framework.claims import write_repeats
from ridgewalk.studies.framework.study import NAMES, Preset, Report, load_study, read_records
from ridgewalk.studies.framework.tasks import TaskCache

RECORDS = Path(__file__).resolve().parents[1] / "docs" / "results" / "quick"
OPTIONS = (
    "",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1",
)
"""Of XLA; the first run is the record."""


def run(names: list[str], out: Path, options: str) -> None:
    """One run of the quick preset in a process of its own."""
    code = "from ridgewalk.cli import main; main()"
    command = [sys.executable, "-c", code, "reproduce", *names, "--preset", "quick", "--out", str(out), "--no-open"]
    flags = f"{os.environ.get('XLA_FLAGS', '')} {options}".strip()
    subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags}, check=True)


SEEDED = ("source", "permeability")
SEEDS = 5
"""Of which the first is the record's."""


def other_seeds(name: str, work: Path) -> Iterator[Report]:
    """The reports that the study would have had with each other seed."""
    study = load_study(name)
    one = study.presets[Preset.quick]
    cache = TaskCache(work / name / "tasks")
    tasks = study.plan(dataclasses.replace(one, seeds=SEEDS))
    for seed in range(1, SEEDS):
        rows = []
        for task in tasks:
            if "seed" not in task.name or task.name.endswith(f"-seed{seed}"):
                found = cache.read(task) or cache.run(task)
                rows.append(found.row._replace(seed=0) if "seed" in task.name else found.row)  # type: ignore[attr-defined]
                print(f"{name}, {task.name}: {found.seconds:.0f} s", flush=True)
        yield build_report(one, Results.of(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[[], *NAMES], default=list(NAMES))
    parser.add_argument("--work", type=Path, default=Path("results") / "quick_records")
    parser.add_argument("--seeds", action="store_true", help="repeats with other seeds, for the Darcy studies")
    given = parser.parse_args()
    if given.seeds:
        for name in SEEDED if given.studies == list(NAMES) else given.studies:
            write_repeats(RECORDS / name, list(other_seeds(name, given.work / "seeds")))
        return
    folders = [given.work / str(number) for number in range(len(OPTIONS))]
    for folder, options in zip(folders, OPTIONS, strict=True):
        run(given.studies, folder, options)
    runs = [{record.name: record for record in read_records(folder)} for folder in folders]
    for name in given.studies:
        out = RECORDS / name
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(folders[0] / name / "metrics.json", out / "metrics.json")
        write_repeats(out, [repeat[name].report for repeat in runs[1:]])
        print(f"{name}: {out}")


if __name__ == "__main__":
    main()
