"""`ridgewalk fit` that a test kills: `python kill_fit.py KILL ARGUMENT…`, KILL a number of disk events or 0."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sampling"))

from kill_child import die_at

from ridgewalk.cli import app

if __name__ == "__main__":
    if int(sys.argv[1]):
        die_at(int(sys.argv[1]))
    print("ready", flush=True)
    app(["fit", *sys.argv[2:]])
