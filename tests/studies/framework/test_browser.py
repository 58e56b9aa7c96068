"""The page in Chromium: no network, no messages, keyboard, axe, first screen, print; at two widths, light and dark.

Needs Chromium, node and npm, which installs puppeteer-core and axe-core into a temporary folder. To look at the page:
`pytest -m slow tests/studies/framework/test_browser.py --basetemp=/tmp/page` leaves screenshots in /tmp/page.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ridgewalk.studies.framework.claims import REDUCED, records_folder
from ridgewalk.studies.framework.page import write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = [name for name, found in (("Chromium", CHROMIUM), ("npm", shutil.which("npm"))) if found is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"no {' and no '.join(MISSING)} here; apt-get install chromium npm"),
]

LARGEST = 1_500_000
"""Bytes of the page."""


def run_of_the_quick_record(out: Path) -> Path:
    """A folder as `make reproduce` leaves it, from the committed record of the quick preset and full-scale figures."""
    records = records_folder()
    assert records is not None
    shutil.copytree(records / REDUCED, out)
    for record in out.glob("*/metrics.json"):
        for section in json.loads(record.read_text())["report"]["sections"]:
            for picture in section["pictures"]:
                shutil.copy(records / record.parent.name / picture["file"], record.parent)
    return out


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    page = write_page(run_of_the_quick_record(folder / "results"))
    assert page.stat().st_size < LARGEST
    (folder / "package.json").write_text("{}")
    command = ["npm", "install", "--no-audit", "--no-fund", "axe-core@4", "puppeteer-core@24"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm installs nothing here: {done.stderr[-300:]}")
    script = Path(__file__).with_name("browser.mjs")
    command = ["node", str(script), str(CHROMIUM), str(page), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def screens(seen):
    found = [screen for screen in seen if "width" in screen]
    assert [(screen["width"], screen["scheme"]) for screen in found] == [
        (width, scheme) for width in (1200, 390) for scheme in ("light", "dark")
    ]
    return found


def test_nothing_is_loaded_and_nothing_is_said(seen):
    assert [screen["messages"] for screen in seen] == [[]] * 5
    assert [screen["requests"] for screen in seen] == [[]] * 5


def test_axe_finds_no_violations(screens):
    assert {(screen["width"], screen["scheme"]): screen["violations"] for screen in screens} == {
        (screen["width"], screen["scheme"]): [] for screen in screens
    }


def test_the_first_screen_has_a_verdict_and_a_picture(screens):
    for screen in screens:
        assert screen["verdict"] == 1, screen
        assert screen["figure"] >= 0.6, screen
        assert screen["wide"] <= 0, screen
        assert re.search(r"better than the paper in \d+ of its \d+ values", screen["words"]), screen["words"]
        assert "agrees with the recorded results" in screen["words"]


def test_the_keyboard_reaches_and_moves_everything(screens):
    for screen in screens:
        keys = screen["keys"]
        assert keys["first"]["text"] == "Skip to the content"
        assert keys["skipped"] == "#main"
        assert keys["slider"]
        assert keys["field"]
        assert keys["unfolded"]
        assert keys["folded"]
        assert keys["stops"] > 20
        assert keys["unmarked"] == []


def test_print_unfolds_everything(seen):
    (printed,) = [screen["print"] for screen in seen if "print" in screen]
    assert printed["folded"] == 0
    assert printed["controls"] == 0
    assert printed["wide"] <= 0
