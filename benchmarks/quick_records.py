"""Make the records of the quick preset in docs/results/quick: a run as users have it, and repeats that round otherwise.

    python benchmarks/quick_records.py [STUDY …] [--work FOLDER]

The repeats are compiled with other options of XLA. Rounding differs as it does between machines, chains amplify it, and
the spread of the numbers is the noise with which a user's run is compared. About 20 minutes on two cores; a second call
continues an interrupted one.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ridgewalk.studies.framework.claims import write_repeats
from ridgewalk.studies.framework.study import NAMES, read_records

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[[], *NAMES], default=list(NAMES))
    parser.add_argument("--work", type=Path, default=Path("results") / "quick_records")
    given = parser.parse_args()
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
