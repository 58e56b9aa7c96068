"""The claims of the committed records: their numbers are in the records, and a record that is missing is left out."""

import json
import re
import shutil
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest

from ridgewalk.studies.framework.charts import Bar, Field, bar_chart, field_figure
from ridgewalk.studies.framework.claims import CLAIMS, HEADINGS, RANDOM, claims, missing, records_folder
from ridgewalk.studies.framework.page import write_page
from ridgewalk.studies.framework.study import NAMES, Record, Report, read_records


@pytest.fixture(scope="module")
def found():
    return claims(read_records(records_folder(), NAMES))


def test_every_claim_has_a_number_a_sentence_and_a_figure(found):
    assert {"gaussian", "permeability"} <= {claim.study for claim in found} <= set(CLAIMS)
    for claim in found:
        assert claim.number.value is not None
        assert claim.sentence.endswith(".")
        assert "<figure" in claim.figure


def test_the_gaussian_claim_is_the_recorded_ratio_and_both_chains_are_drawn(found):
    claim = next(claim for claim in found if claim.study == "gaussian")
    recorded = json.loads((records_folder() / "gaussian" / "metrics.json").read_text())["numbers"]
    known = recorded["faster_at_no_more_error"]
    assert claim.number.value == known["sgld_time"] / known["hasgld_time"]
    assert f"{known['sgld_time']:.0f}" in claim.sentence
    assert claim.figure.count("<polyline") == 2


def test_records_without_the_data_of_a_figure_make_no_claim(found, tmp_path):
    (record,) = [record for record in read_records(records_folder(), NAMES) if record.name == "gaussian"]
    assert claims([record._replace(folder=tmp_path)]) == []
    assert claims([]) == []


def test_what_has_no_record_is_named_with_the_command_that_makes_one(found, tmp_path):
    """On the page of the committed records: claims, parts that are newer than their record, and other libraries."""
    assert set(HEADINGS) == set(CLAIMS)
    records = read_records(records_folder(), NAMES)
    lacking = missing(records, benchmark=False)
    assert {one.what for one in lacking} >= set(HEADINGS.values()) - {claim.heading for claim in found}
    assert not {one.what for one in lacking} & {claim.heading for claim in found}
    old = [record.name for record in records if record.name in RANDOM and not record.settings.get("random")]
    commands = [one.command for one in lacking if "random weights" in one.what]
    assert commands == [f"ridgewalk reproduce {name} --preset paper" for name in old]
    assert lacking[-1].command == "make benchmark"
    assert missing(records, benchmark=True) == lacking[:-1]
    known = [record._replace(settings={**record.settings, "random": {"gradients": 1}}) for record in records]
    assert [one for one in missing(known, benchmark=True) if "random weights" in one.what] == []

    shutil.copytree(records_folder(), tmp_path / "records")
    page = write_page(tmp_path / "records", tmp_path / "records").read_text()
    shown = missing(records, benchmark=(records_folder() / "benchmarks").exists())
    for one in shown:
        assert f"{escape(one.what)}: <code>{one.command}</code>" in page


def test_the_verdict_says_what_the_common_start_has_already(tmp_path):
    """The records of source and permeability: the paper's errors above those of the start, in the same row."""
    shutil.copytree(records_folder(), tmp_path / "records")
    page = write_page(tmp_path / "records", tmp_path / "records").read_text()
    better = values = 0
    for study in ("source", "permeability"):
        for section in json.loads((records_folder() / study / "metrics.json").read_text())["report"]["sections"]:
            for table in (table for table in section["tables"] if "start" in table["columns"]):
                for row in table["rows"]:
                    start = row[table["columns"].index("start")]["value"]
                    paper = [c["paper"] for c in row if isinstance(c, dict) and c["paper"] is not None]
                    better, values = better + sum(start < value for value in paper), values + len(paper)
    assert values == 38
    assert f"start from are better in {better} of {values} before any draw." in page
    assert re.search(r'<th scope="col" role="columnheader">start</th><th[^>]*>SGLD</th>', page)


def made_up(folder, name, settings, numbers):
    (folder / "metrics.json").write_text(json.dumps({"numbers": numbers}))
    return Record(name, folder, Report("t", (), ()), "paper", "c", "", 1.0, settings, {}, {})


def test_tall_data_are_compared_at_the_most_rows_that_both_know(tmp_path):
    seconds = {
        "ridgewalk, 1000": 1.0,
        "NUTS, 1000": 2.0,
        "ridgewalk, 9000": 3.0,
        "NUTS, 9000": 60.0,
        "HMCECS, 9000": None,
    }
    known = {"growth_of_a_step": 1.1, "growth_of_a_run": 2.0, "seconds": seconds, "extrapolated": ["NUTS, 9000"]}
    (claim,) = claims([made_up(tmp_path, "tall", {"kinds": ["logistic"], "target_error": 0.1}, {"logistic": known})])
    assert claim.number.value == 20.0
    assert "9,000 rows" in claim.sentence
    assert "NUTS (extrapolated)" in claim.figure
    assert "HMCECS" not in claim.figure


def test_networks_are_compared_with_their_modes_on_common_splits(tmp_path):
    def row(data, split, method, value):
        return {"data": data, "split": split, "method": method, "log_likelihood": value}

    rows = [row("a", 0, "sample", -1.0), row("a", 0, "modes", -1.5), row("a", 1, "sample", -9.0)]
    rows += [row("b", 0, "sample", -2.0), row("b", 0, "modes", -1.9), row("b", 0, "gp", -1.0)]
    (claim,) = claims([made_up(tmp_path, "uci", {}, {"rows": rows})])
    assert claim.number.value == 1
    assert "of 2 UCI data sets" in claim.unit
    assert "+0.50" in claim.figure
    assert "-0.10" in claim.figure


def field():
    truth = np.arange(12.0).reshape(3, 4)
    return Field(truth, truth + 0.5, truth - [[0.0], [0.0], [-0.9]], truth + 1.0)


def test_the_field_is_read_from_its_data_and_drawn_with_the_first_row_below():
    assert field().inside == pytest.approx(2 / 3)
    text = field_figure(field(), "flux <x>", "90 %")
    assert "flux &lt;x&gt;" in text
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', text)[1])
    assert np.allclose(np.array(data["truth"]) * data["unit"], field().truth.ravel(), atol=2 * data["unit"])
    assert "Row 2, column 3: predicted 6.5, 90 % interval 6 to 7, true 6 (inside)." in text


def test_bars_are_proportional_and_logarithmic_over_decades():
    def widths(*values):
        bars = [Bar(f"b{value}", value, f"{value:g}") for value in values]
        return [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)"', bar_chart(bars, "draws"))]

    assert widths(1.0, 2.0, 4.0) == [80.0, 160.0, 320.0]
    short, middle, long = widths(1.0, 10.0, 100.0)
    assert long == 320.0
    assert middle - short == pytest.approx(long - middle, abs=0.2)
    HTMLParser().feed(bar_chart([Bar("<b>", 1.0, "1", ours=True)], "a & b"))
    assert "&lt;b&gt;" in bar_chart([Bar("<b>", 1.0, "1")], "axis")
