"""Every code block of the README is run, and its results are those of the committed records."""

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from ridgewalk.studies.darcy.problem import PAPER
from ridgewalk.studies.framework.claims import missing
from ridgewalk.studies.framework.study import NAMES, read_records

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [
    line.split("#")[0].strip()
    for language, text in BLOCKS
    if language == "sh"
    for line in text.splitlines()
    if line.strip()
]


def test_there_is_something_to_run():
    assert len(PYTHON) >= 2
    assert {"make reproduce", "make test"} <= set(COMMANDS)


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_block(number, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(PYTHON[number])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_ten_lines_are_ten():
    assert len(PYTHON[0].strip().splitlines()) == 10
    assert len(README.splitlines()) <= 150


def numbers_of(study: str) -> Any:
    return json.loads((ROOT / "docs" / "results" / study / "metrics.json").read_text())["numbers"]


def expected_results() -> list[str]:
    """The rows of the results table, from the full-scale records."""
    gaussian = numbers_of("gaussian")["faster_at_no_more_error"]
    logistic = {name: row["covariance_error"] for name, row in numbers_of("logistic")["best"].items()}
    outliers, regression = numbers_of("outliers"), numbers_of("regression")
    last = {name: row["mse"][-1] for name, row in regression["best"].items()}
    condition = mean(row["condition"] for row in outliers["table"] if row["steps"] == 3000)
    rows = [
        f"| the paper's 2D Gaussian | autocorrelation time, at no larger covariance error than SGLD | "
        f"{gaussian['sgld_time']:.0f} | {gaussian['hasgld_time']:.0f} | |",
        f"| 50-d logistic regression, cond(H) = 1.4e5 | covariance error | {logistic['SGLD']:.2f} | "
        f"{logistic['HASGLD-SA']:.2f} | {logistic['true covariance']:.2f} |",
        f"| | the same with control variates | {logistic['SGLD, control variates']:.2f} | "
        f"{logistic['HASGLD-SA, control variates']:.2f} | {logistic['true covariance, control variates']:.2f} |",
        f"| 1,000-d, 20 outliers to 10⁴, low-rank form | cond(G H) after 3,000 steps | "
        f"{outliers['hessian_condition']:,.0f} | {condition:.1f} | 4 |",
        f"| the paper's regression, n = 100, p = 200 | mean squared test error (SGLD-SA: {last['SGLD-SA']:.2f}) | "
        f"{last['SGLD']:.2f} | {last['HASGLD-SA']:.2f} | {regression['truth']['mse']:.2f} |",
    ]
    tall = numbers_of("tall")
    nuts, ours = (tall["logistic"]["seconds"][f"{name}, 500000"] for name in ("NUTS", "ridgewalk"))
    laplace = tall["rows"]["posterior-logistic-500000"]["laplace_seconds"]
    rows.append(
        f"| 50-d logistic regression, 500,000 rows | CPU seconds to a covariance error of 0.2 (NUTS: {nuts:,.0f}) | | "
        f"{ours:.1f} | {laplace:.1f} (Laplace) |"
    )
    for study, what, mirror in (("source", "sources", False), ("permeability", "permeabilities", True)):
        for sparsity in (0.0, 0.5, 0.7):
            cells = [
                mean(
                    run["error"]
                    for run in numbers_of(study)["runs"]
                    if (run["method"], run["sparsity"], run["mirror"]) == (method, sparsity, mirror)
                )
                for method in ("SGLD", "HASGLD-SA, M=2")
            ]
            paper = PAPER[study].get(sparsity, {}).get("M=2")
            shown = "" if paper is None else f"{paper:.2f} (paper)"
            where = "" if sparsity else f"Darcy flow with varying {what}, a network"
            pruned = f"{100 * sparsity:.0f} % of its weights pruned" if sparsity else "mean relative error in %"
            rows.append(f"| {where} | {pruned} | {cells[0]:.2f} | {cells[1]:.2f} | {shown} |".replace("|  |", "| |"))
    return rows


def test_results_are_those_of_the_records():
    after = README.split("## Results")[1].split("## How")[0]
    shown = [line for line in after.splitlines() if line.startswith("| ") and not line.startswith("| posterior")]
    assert shown == expected_results()


def test_what_is_not_recorded_is_said():
    records = read_records(ROOT / "docs" / "results", NAMES)
    lacking = {one.command.split()[2] for one in missing(records, benchmark=True)}
    said = re.search(r"^Not recorded at full scale yet:(.*?)\n\n", README, flags=re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", said[1]) if said else []) == lacking


def test_make_targets_exist():
    """`make test` runs this suite and `make reproduce` the studies, which have tests of their own."""
    for command in COMMANDS:
        if command.startswith("make "):
            done = subprocess.run(
                [*command.split(), "--dry-run"], capture_output=True, text=True, cwd=ROOT, check=False
            )
            assert done.returncode == 0, done.stderr
            assert ("ridgewalk reproduce all" in done.stdout) == (command == "make reproduce")


def test_pictures_exist():
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).stat().st_size > 10_000
