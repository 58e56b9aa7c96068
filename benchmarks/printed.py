"""Runs the pages of the documentation that show what was printed, and records it: no digit is typed by hand.

    python benchmarks/printed.py [PAGE …]

Every page is a session in a process of its own. The blocks of text are replaced by what was printed, which must be
equal but for the digits; docs/results/measurements/printed.json has the same lines with versions and machine.
`tests/test_recorded_figures.py` compares both.
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "results" / "measurements" / "printed.json"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def without_numbers(text: str) -> str:
    """Text that another run prints too."""
    return re.sub(r"\d[\d.,]*(?:e[-+]?\d+)?", "#", text)


def session(page: Path) -> list[list[str]]:
    """The lines that were printed for each block of text, in order."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed, blocks = "", []
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, page, "exec"), names)
            printed += out.getvalue()
        elif language == "text":
            known = {without_numbers(line): line for line in printed.splitlines()}
            lost = [line for line in text.splitlines() if without_numbers(line) not in known]
            if lost:
                raise SystemExit(f"{page}: not printed: {lost}\n\nprinted:\n{printed}")
            blocks.append([known[without_numbers(line)] for line in text.splitlines()])
    return blocks


def with_blocks(text: str, blocks: list[list[str]]) -> str:
    """A page with other blocks of text."""
    following = iter(blocks)

    def block(found: re.Match[str]) -> str:
        return (
            "```text\n" + "".join(f"{line}\n" for line in next(following)) + "```" if found[1] == "text" else found[0]
        )

    return BLOCK.sub(block, text)


def main() -> None:
    """Run the pages that are named, or all that have a block of text."""
    if sys.argv[1:2] == ["--session"]:
        print(json.dumps(session(Path(sys.argv[2]))))
        return
    with_text = [page for page in sorted((ROOT / "docs").glob("*.md")) if "```text" in page.read_text(encoding="utf-8")]
    pages = [ROOT / name for name in sys.argv[1:]] or with_text
    from ridgewalk.studies.framework.runner import environment, versions

    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"pages": {}}
    record |= {"what": "what the pages of the documentation print", "command": "python benchmarks/printed.py"}
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--session", str(page)]
            environ = {**os.environ, "MPLBACKEND": "agg"}
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, env=environ)
        if done.returncode:
            raise SystemExit(f"{page}: {done.stderr[-2000:]}")
        blocks = json.loads(done.stdout.splitlines()[-1])
        page.write_text(with_blocks(page.read_text(encoding="utf-8"), blocks), encoding="utf-8")
        now = datetime.now(UTC).date().isoformat()
        made = {"date": now, "versions": versions(), "environment": environment(), "blocks": blocks}
        record["pages"][page.relative_to(ROOT).as_posix()] = made
        record["pages"] = dict(sorted(record["pages"].items()))
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(page.name, "recorded", flush=True)


if __name__ == "__main__":
    main()
