"""The UCI study: its data, its plan, and its report, made of rows invented for it."""

import math

import numpy as np
import pytest

from ridgewalk.studies import uci as study
from ridgewalk.studies.framework.study import Preset
from ridgewalk.studies.uci import PUBLISHED, SOURCES, UciRow

SIZES = {"concrete": 1030, "energy": 768, "naval": 11934, "power": 9568, "protein": 45730, "wine": 1599, "yacht": 308}


@pytest.mark.parametrize("name", SIZES)
def test_official_splits(name):
    """A tenth of the rows is for testing, and of protein's splits there are five."""
    rows = study.read_split(name, 0)
    assert len(rows.y) + len(rows.test_y) == SIZES[name]
    assert len(rows.test_y) == pytest.approx(0.1 * SIZES[name], abs=1)
    other = study.read_split(name, 4)
    assert not np.array_equal(rows.test_y, other.test_y)
    with pytest.raises(ValueError, match=f"split: {5 if name == 'protein' else 20}"):
        study.read_split(name, 5 if name == "protein" else 20)


def test_a_set_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.delenv(study.ELSEWHERE, raising=False)
    with pytest.raises(ValueError, match=r"no kin8nm\.npz; put it into a folder"):
        study.read_split("kin8nm", 0)
    monkeypatch.setenv(study.ELSEWHERE, str(tmp_path))
    assert study.set_path("kin8nm") is None
    (tmp_path / "kin8nm.npz").write_bytes(b"")
    assert study.set_path("kin8nm") == tmp_path / "kin8nm.npz"


def test_the_plan(monkeypatch):
    monkeypatch.delenv(study.ELSEWHERE, raising=False)
    names = [task.name for task in study.plan(study.STUDY.presets[Preset.paper])]
    assert len(names) == len(set(names)) == 20 * (3 * 6 + 6 + 2 * 5) + 3 * 5
    assert "concrete-19-gp" in names
    assert "power-0-gp" not in names
    quick = study.plan(study.STUDY.presets[Preset.quick])
    assert len(quick) == 6
    assert "steps" in quick[0].settings


def test_the_report(tmp_path):
    settings = study.Settings(sets=("concrete", "yacht"), splits=2, methods=("sample", "modes"))
    rows = {
        f"{split}-{method}": UciRow("concrete", split, method, value + split, 4.0, 0.9, 7.0, r_hat)
        for method, value, r_hat in (("sample", -2.9, 1.05), ("modes", -3.1, None))
        for split in (0, 1)
    }
    outcome = study.assemble(settings, rows, tmp_path)
    first, published, behind = outcome.report.sections[0].tables
    assert [row[0] for row in first.rows] == ["concrete"]
    line = first.rows[0]
    assert line[2].value == pytest.approx(-2.4)
    assert line[-1].value == pytest.approx(0.2), "paired difference"
    assert line[-1].se == pytest.approx(0.0, abs=1e-9)
    assert published.rows[0][4] == "−2.82±.02"
    assert behind.rows[0][4].value == pytest.approx(1.05)
    assert behind.rows[1][4].value is None
    assert len(outcome.numbers["rows"]) == 4
    assert all(len(row) == len(SOURCES) for row in PUBLISHED.values())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["modes", "laplace", "gp", "boosting"])
def test_methods_on_yacht(method):
    settings = study.Settings(optimiser_steps=300)
    row = study.measure("yacht", 0, method, settings)
    assert math.isfinite(row.log_likelihood)
    assert row.rmse < 2.0
    assert 0.6 < row.coverage <= 1.0


@pytest.mark.slow
def test_sampling_beats_its_modes_on_yacht():
    """The claim of the study on one split: draws are better than the modes they started from."""
    settings = study.Settings()
    sampled, modes = (study.measure("yacht", 0, method, settings) for method in ("sample", "modes"))
    assert sampled.log_likelihood > modes.log_likelihood + 0.05
    assert sampled.log_likelihood > -0.2
    assert sampled.r_hat < 1.2
