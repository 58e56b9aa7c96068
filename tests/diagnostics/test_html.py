"""What a notebook shows of a result: the summary and the findings, escaped, in the colours of the page."""

import dataclasses
import re
from html.parser import HTMLParser

import jax.numpy as jnp
import numpy as np
import pytest
from tests.sampling.problems import run

import ridgewalk as rw
from ridgewalk.diagnostics import check, summary
from ridgewalk.diagnostics.summary import SummaryTable


class Balanced(HTMLParser):
    """Text of a page whose tags are all closed, in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.text = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def shown(result):
    page = result._repr_html_()
    assert not re.search(r"https?:|<script|<link|<img|#[0-9a-fA-F]{3,6}|rgb", page), "no colours, nothing fetched"
    return " | ".join(Balanced(page).text)


def test_a_result_shows_summary_and_findings():
    result = run(chains=2, steps=40)
    text = shown(result)
    for part in ("Result(2 chains x 40 draws of 3 parameters)", "finished after 40 steps", "position[2]", "ess_bulk"):
        assert part in text
    assert "low_ess" in text
    assert "checked: outcome and mixing" in text
    assert f"{result.summary()['mean'][1]:.4g}" in text


def test_the_findings_are_those_of_the_last_check(monkeypatch):
    result = run(chains=2, steps=40)
    assert result.last_check is None
    report = result.check()
    assert result.last_check is report
    monkeypatch.setattr(check, "check_draws", None)  # not called
    text = shown(result)
    assert "checked: check()" in text
    assert all(finding.name in text for finding in report)
    healthy = dataclasses.replace(result)
    healthy.__dict__["_report"] = rw.CheckReport(())
    assert "no problems found" in shown(healthy)


def test_no_gradient_is_computed(monkeypatch):
    result = run(chains=2, steps=40)
    monkeypatch.setattr(check, "measure", None)
    shown(result)


def test_names_and_messages_are_escaped():
    start = {"<b>&": jnp.zeros(2)}
    target = rw.Density(lambda p: -0.5 * jnp.sum(p["<b>&"] ** 2))
    result = run(target=target, start=start, batch_size=None, steps=40, step_size=0.1)
    assert "<b>&[0]" in shown(result)
    assert "&lt;b&gt;&amp;[0]" in result._repr_html_()
    result.__dict__["_report"] = rw.CheckReport((rw.Finding("a<i>", "b<i>", "c<i>"),))
    assert "a<i>" in shown(result)
    assert "<i>" not in result._repr_html_()


def test_many_rows_are_cut():
    table = SummaryTable(tuple(f"w[{i}]" for i in range(70)), {"mean": np.arange(70.0)})
    text = Balanced(table._repr_html_()).text
    assert "(50 rows not shown)" in text
    assert "w[9]" in text
    assert "w[10]" not in text
    assert "w[60]" in text
    assert repr(table).count("\n") == 61
    assert "(10 rows not shown)" in repr(table)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"steps": 3}, "3 draws of each chain are too few"),
        pytest.param({"keep": "moments", "chains": 2}, "from running moments", marks=pytest.mark.slow),
        pytest.param({"collect": jnp.sum, "keep": "moments"}, "Result(", marks=pytest.mark.slow),
    ],
)
def test_other_runs(options, part):
    assert part in shown(run(**options))


def test_long_runs_are_not_summarised(monkeypatch):
    monkeypatch.setattr(summary, "QUICK_NUMBERS", 100)
    assert "many draws" in shown(run(steps=60))


def test_opened_results(tmp_path):
    run(chains=2, steps=60, store=tmp_path / "s")
    assert "position[0]" in shown(rw.open_result(tmp_path / "s"))
