"""The page: self-contained, with the numbers of metrics.json, and as a browser shows it."""

import json
import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser

import pytest
from tests.studies.framework.toy import toy_study
from typer.testing import CliRunner

from ridgewalk.cli import app
from ridgewalk.studies.framework.page import write_page
from ridgewalk.studies.framework.runner import run_studies
from ridgewalk.studies.framework.study import Preset

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Committed records: a full-scale one of another study, and a reduced one of the toy."""
    out = tmp_path_factory.mktemp("records")
    run_studies([toy_study([], name="another")], Preset.paper, out, workers=1)
    run_studies([toy_study([])], Preset.quick, out / "quick", workers=1)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory, records):
    out = tmp_path_factory.mktemp("results")
    run_studies([toy_study([])], Preset.quick, out, workers=1)
    write_page(out, records)
    return out


class Page(HTMLParser):
    """Collects what the tests ask about, and checks that tags close in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.numbers, self.addresses, self.text, self.ids = [], [], [], [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        if tag == "img":
            self.images.append(given)
        if tag == "data":
            self.numbers.append(float(given["value"]))
        self.ids += [given["id"]] if "id" in given else []
        self.addresses += [given[key] for key in ("src", "href", "action") if key in given]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text += data + " "


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "index.html").read_text())


def test_the_page_stands_alone(folder, page):
    text = (folder / "index.html").read_text()
    assert page.open == []
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert "http://" not in text
    assert "https://" not in text
    assert text.count("<script") == 1
    assert "url(" not in text
    assert len(page.images) == 2
    assert all(image["src"].startswith("data:image/") and image["alt"] for image in page.images)
    links = [address[1:] for address in page.addresses if address.startswith("#")]
    assert links == ["main", "claims", "record", "record-another", "here", "here-toy", "environment"]
    assert set(links) <= set(page.ids)


def test_tables_carry_the_numbers_of_the_metrics(folder, records, page):
    for path in (folder / "toy", records / "another"):
        metrics = json.loads((path / "metrics.json").read_text())
        for value in metrics["numbers"]["values"]:
            assert value in page.numbers
        for section in metrics["report"]["sections"]:
            for table in section["tables"]:
                for cell in (cell for row in table["rows"] for cell in row if isinstance(cell, dict)):
                    kept = [cell[key] for key in ("value", "se", "paper") if cell[key] is not None]
                    assert set(kept) <= set(page.numbers)
    assert json.loads((folder / "toy" / "metrics.json").read_text())["seconds"] in page.numbers


def test_words_say_what_colours_would(page):
    assert {"✓ better", "✗ worse"} <= set(re.findall(r"[✓=✗] \w+", page.text))
    assert "1 ✓ better, 0 = equal, 3 ✗ worse, of 4 values that the paper reports" in page.text
    assert "better than the paper in 1 of its 4 values, equal in 0, worse in 3" in page.text
    for said in ("all diverged", "size <2>", "Made of <tasks>.", "Cost", "Reduced: fewer sizes.", "Full scale."):
        assert said in page.text, said
    assert "float64" in page.text
    assert "ridgewalk reproduce toy --preset quick" in page.text


def test_a_reduced_run_is_compared_with_its_record_and_not_with_the_paper(folder, records, page):
    assert "the run (1 study) agrees with the recorded results of the same settings: 3 of 3 numbers" in page.text
    reduced = json.loads((folder / "toy" / "metrics.json").read_text())
    cells = [c for row in table(reduced)["rows"] for c in row if isinstance(c, dict)]
    assert all(cell["paper"] is None and cell["mark"] is None for cell in cells)
    full = json.loads((records / "another" / "metrics.json").read_text())
    assert any(cell["paper"] for row in table(full)["rows"] for cell in row if isinstance(cell, dict))


def test_a_run_that_differs_from_its_record_says_so(folder, records, tmp_path):
    shutil.copytree(records, tmp_path / "records")
    path = tmp_path / "records" / "quick" / "toy" / "metrics.json"
    content = json.loads(path.read_text())
    for row in table(content)["rows"][:2]:
        row[1]["value"] += 1.0
    path.write_text(json.dumps(content))
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    text = Page(write_page(run, tmp_path / "records").read_text()).text
    assert "differs from the recorded results of the same settings: 1 of 3 numbers" in text
    assert "Numbers outside the noise (2)" in text
    content["settings"]["factor"] = 5.0
    path.write_text(json.dumps(content))
    text = Page(write_page(run, tmp_path / "records").read_text()).text
    assert "no record of these settings" in text


def test_the_command_writes_the_page_and_says_what_is_missing(folder, tmp_path):
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    nothing = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert nothing.exit_code == 2
    assert "ridgewalk reproduce" in nothing.output
    run_studies([toy_study([])], Preset.quick, tmp_path, workers=1)
    (tmp_path / "toy" / "line.png").unlink()
    assert "the figure is missing" in CliRunner().invoke(app, ["report", str(tmp_path)]).output
    (tmp_path / "toy" / "metrics.json").write_text('{"study": "toy"}')
    assert "not a record of a study" in CliRunner().invoke(app, ["report", str(tmp_path)]).output


SCRIPT = "<script>alert(1)</script>"


def table(content):
    return content["report"]["sections"][0]["tables"][0]


def cell(content):
    return next(cell for row in table(content)["rows"] for cell in row if isinstance(cell, dict))


def pictured(content):
    return next(part for section in content["report"]["sections"] for part in section["pictures"])


@pytest.mark.parametrize(
    "change",
    [
        lambda content: pictured(content).update(file="../../etc/passwd"),
        lambda content: pictured(content).update(file="/etc/passwd"),
        lambda content: pictured(content).update(file="outside.png"),
        lambda content: pictured(content).update(file="metrics.json"),
        lambda content: pictured(content).update(file=".."),
        lambda content: pictured(content).update(alt=3),
        lambda content: cell(content).update(value=SCRIPT),
        lambda content: cell(content).update(value=True),
        lambda content: cell(content).update(value=[1]),
        lambda content: cell(content).update(paper=SCRIPT),
        lambda content: cell(content).update(se={"a": 1}),
        lambda content: cell(content).update(style="1000000000d"),
        lambda content: cell(content).update(style=3),
        lambda content: cell(content).update(mark=SCRIPT),
        lambda content: cell(content).update(note=3),
        lambda content: table(content).update(columns=3),
        lambda content: table(content)["rows"][0].append("x"),
        lambda content: content.update(study=3),
        lambda content: content.update(seconds=SCRIPT),
        lambda content: content.update(seconds=10**400),
        lambda content: content.update(versions={"jax": 3}),
        lambda content: content.update(settings=[1]),
        lambda content: content.update(report=[]),
        lambda content: content["report"].update(sections={"a": 1}),
    ],
)
def test_metrics_that_no_study_writes_are_refused(tmp_path, change):
    run_studies([toy_study([])], Preset.quick, tmp_path, workers=1)
    (tmp_path / "secret.png").write_bytes((tmp_path / "toy" / "line.png").read_bytes())
    (tmp_path / "toy" / "outside.png").symlink_to(tmp_path / "secret.png")
    path = tmp_path / "toy" / "metrics.json"
    content = json.loads(path.read_text())
    before = (tmp_path / "index.html").read_text()
    change(content)
    path.write_text(json.dumps(content))
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert str(tmp_path / "toy") in done.output.replace("\n", "")
    assert (tmp_path / "index.html").read_text() == before


def test_text_of_the_metrics_is_escaped(tmp_path, records):
    run_studies([toy_study([])], Preset.quick, tmp_path, workers=1)
    path = tmp_path / "toy" / "metrics.json"
    content = json.loads(path.read_text())

    def everywhere(value):
        if isinstance(value, str):
            return value + "\"'>" + SCRIPT
        if isinstance(value, list):
            return [everywhere(item) for item in value]
        if isinstance(value, dict):
            kept = ("style", "mark", "file")
            return {key: item if key in kept else everywhere(item) for key, item in value.items()}
        return value

    path.write_text(json.dumps(everywhere(content)))
    text = write_page(tmp_path, records).read_text()
    assert escape(SCRIPT) in text
    assert text.count("<script") == 1
    assert Page(text).open == []


def test_a_page_without_end_of_nesting_is_refused(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "metrics.json").write_text("[" * 100_000)
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert "nested too deeply" in done.output.replace("\n", " ")


PROBE = """<!DOCTYPE html><title>probe</title><body>{frames}<script>
addEventListener("load", () => {{
  const seen = [...document.querySelectorAll("iframe")].map(frame => {{
    const page = frame.contentDocument, images = [...page.images];
    page.querySelectorAll("details").forEach(part => {{ part.open = true; }});
    return {{ images: images.length, loaded: images.filter(i => i.complete && i.naturalWidth > 0).length,
      tables: page.querySelectorAll("table").length, wide: page.documentElement.scrollWidth - frame.clientWidth }};
  }});
  document.body.replaceChildren(Object.assign(document.createElement("pre"), {{ textContent: JSON.stringify(seen) }}));
}});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; on Debian `apt-get install chromium` brings one")
def test_a_browser_loads_every_image_without_complaint_and_nothing_is_wider_than_a_phone(folder, records, tmp_path):
    text = escape(write_page(folder, records).read_text())
    frames = "".join(
        f'<iframe style="border:0;width:{width}px;height:800px" srcdoc="{text}"></iframe>' for width in (390, 1200)
    )
    (tmp_path / "probe.html").write_text(PROBE.format(frames=frames))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0"]
    flags += [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1300,900",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ]
    done = subprocess.run(
        [CHROMIUM, *flags, (tmp_path / "probe.html").as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    seen = json.loads(re.search(r"<pre>(.*?)</pre>", done.stdout).group(1))
    for frame in seen:
        assert frame["images"] == frame["loaded"] == 2
        assert frame["tables"] == 9
        assert frame["wide"] <= 0
