"""Measured figures of the documentation are those of a committed record in docs/results/measurements.

A record has figures, and sentences of pages with `[[figure|format]]` in their place. What looks like a measurement and
is in no record is an error: `NOT_MEASURED` says why if it is none.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "results" / "measurements"
RECORDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json")) if path.stem != "printed"}
PRINTED = json.loads((FOLDER / "printed.json").read_text())["pages"]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs/results/README.md",
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
]
PLACE = re.compile(r"\[\[([^|\]]+)\|([^\]]+)\]\]")

TELLS = re.compile(
    r"\bmeasured\b|\btook\b|speed-?up|\d\s?(?:µs|ms|s|seconds?|minutes?|min|h|hours?|kB|MB|GB|CPU seconds)\b"
    r"|\ba (?:minute|few seconds|few minutes)|\d times\b|\bR-hat (?:above|of) \d|\bhas \d[\d.]* %|\bsample was\b"
)
"""What a measurement is recognised by, in a sentence or a row of a table with a digit."""

NOT_MEASURED: dict[str, dict[str, str]] = {
    "docs/after_the_run.md": {"every few seconds": "how often a store is updated, a setting"},
    "docs/benchmarks.md": {"measures BlackJAX": "written from the record of `make benchmark`"},
    "docs/diagnosing.md": {"R-hat above 1.05": "the limit of a finding"},
    "docs/distributed.md": {
        "this was not measured": "no measurement",
        "18 November 2026, jax 0.10.2, two CPU devices": "the settings of the record",
        "d/D numbers are 22.2 MB": "4 bytes a number",
        "are the activations of the second layer": "4 bytes a number",
        "A row of G has 44 MB": "4 bytes a number",
        "A plan for d = 10⁸": "4 bytes a number, not run",
        "| `sghmc` | (2 + 9)": "the plan",
        "| (13 + 9)": "the plan",
        "| (49 + 9)": "the plan",
        "20 µs for a message": "the plan",
        "20 GB for this low-rank form": "the plan",
        "30 s, `initialize(heartbeat=…)`": "a setting",
    },
    "docs/results/README.md": {
        "24 GB": "the machine",
        "31ca3a2": "commits",
        "were run at b5a2bb0": "commits",
        "From the seconds per gradient of the records": "an estimate, from the records",
        "2.7 times as long": "an estimate: tasks counted",
    },
    "docs/mathematics.md": {"Above 2,000 parameters": "what the code does"},
    "docs/neural.md": {
        "saves a few seconds": "no figure",
        "about a minute": "commit 353fde9; rounded, of one machine",
        "up to 2,047 rows": "a setting",
    },
    "docs/resuming.md": {"since the last checkpoint": "what is written", '"10 min"': "an example"},
    "docs/warmup.md": {"a few seconds": "no figure", "4.6%": "printed"},
    "docs/results.md": {"takes hours": "no figure"},
}
"""Words of a sentence, by page, and why it needs no record."""

UNRECORDED = {"docs/distributed.md": ("## What two processes cost", "## Parameters over devices")}
"""A section, from its heading to the next, whose figures a command printed and no record has yet."""


def words(text):
    return " ".join(text.split())


def value_of(figure):
    """A figure, or what a study's record has at a path."""
    if not isinstance(figure, dict):
        return figure
    found = json.loads((ROOT / "docs" / "results" / figure["record"] / "metrics.json").read_text())
    for key in figure["path"]:
        found = found[key]
    return found


def shown_as(value, style):
    return f"{value / 60:.0f}" if style == "minutes" else format(value, style).replace("-", "−")


def sentence_of(record, text):
    return PLACE.sub(lambda place: shown_as(value_of(record["figures"][place[1]]), place[2]), text)


@pytest.mark.parametrize("name", RECORDS)
def test_pages_show_the_figures_of_the_record(name):
    record = RECORDS[name]
    assert all(record[key] for key in ("what", "date", "command", "source", "machine")), name
    for shown in record["shown"]:
        page = words((ROOT / shown["page"]).read_text())
        assert page.count(words(sentence_of(record, shown["text"]))) == 1, sentence_of(record, shown["text"])
    used = {place[1] for shown in record["shown"] for place in PLACE.finditer(shown["text"])}
    assert used == set(record["figures"])


def sentences(text):
    """Sentences of prose, and rows of tables, without blocks of code and formulae."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\\\(.*?\\\)|\\\[.*?\\\]", "…", text, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=\s*[-|#*] ?)", text):
        part = words(block)
        yield from [part] if part.startswith("|") else re.split(r"(?<=\.)\s+(?=\S)", part)


def measurements_without_record(page, text):
    name = page.relative_to(ROOT).as_posix()
    if name in UNRECORDED:
        start, end = (text.index(heading) for heading in UNRECORDED[name])
        text = text[:start] + text[end:]
    recorded = [
        re.sub(r"\\\(.*?\\\)", "…", words(sentence_of(record, shown["text"])))
        for record in RECORDS.values()
        for shown in record["shown"]
        if shown["page"] == name
    ]
    known = [words(known) for known in NOT_MEASURED.get(name, {})]
    return [
        sentence
        for sentence in sentences(text)
        if TELLS.search(sentence)
        and re.search(r"\d", sentence)
        and not any(part in sentence or sentence in part for part in recorded)
        and not any(part in sentence for part in known)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_looks_measured_is_in_a_record(page):
    assert measurements_without_record(page, page.read_text()) == []


def test_a_new_figure_is_noticed():
    page = ROOT / "docs" / "choosing.md"
    text = page.read_text()
    assert measurements_without_record(page, text + "\n\nA step took 12 µs.\n") == ["A step took 12 µs."]
    assert measurements_without_record(page, text + "\n\nThat is 3 times faster here.\n")


def test_blocks_of_text_are_what_was_printed():
    """`python benchmarks/printed.py` runs the pages and writes both."""
    shown = {}
    for page in PAGES:
        blocks = re.findall(r"^```text\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        if blocks:
            shown[page.relative_to(ROOT).as_posix()] = [block.splitlines() for block in blocks]
    assert shown == {page: made["blocks"] for page, made in PRINTED.items()}
    assert all({"date", "versions", "environment"} <= set(made) for made in PRINTED.values())
