"""The UCI study: its data, its plan, and its report, made of rows invented for it."""

import json
import math

import numpy as np
import pytest

from ridgewalk.studies import uci as study
from ridgewalk.studies.framework.runner import run_studies
from ridgewalk.studies.framework.study import Number, Preset, Study
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
    assert len(names) == len(set(names)) == 20 * (4 * 8 + 2 * 7) + 3 * 7 + 2 * 3
    assert "concrete-19-gp" in names
    assert "power-0-gp" not in names
    assert {name for name in names if "nuts" in name} == {
        f"{s}-{n}-nuts" for s in ("energy", "yacht") for n in range(3)
    }
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
    first, unseen, published, behind = outcome.report.sections[0].tables
    assert unseen.rows[0][1:3] == ("0", Number(None, note="–")), "both splits were looked at"
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


def test_splits_on_which_the_noise_was_chosen_do_not_count(tmp_path):
    settings = study.Settings(sets=("yacht",), splits=4, methods=("sample", "modes"))
    values = {"sample": (9.0, 9.0, 0.5, 0.3), "modes": (0.0, 0.0, 0.1, 0.0)}
    rows = {
        f"{split}-{method}": UciRow("yacht", split, method, value, 1.0, 0.9, 7.0)
        for method, found in values.items()
        for split, value in enumerate(found)
    }
    unseen = study.assemble(settings, rows, tmp_path).report.sections[0].tables[1]
    name, splits, cell = unseen.rows[0]
    assert (name, splits, cell.mark) == ("yacht", "2", "better")
    assert cell.value == pytest.approx(0.35)


def stored_set(folder):
    """kin8nm of 60 rows in the format of the other sets."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    test = np.zeros((20, 60), bool)
    for split in range(20):
        test[split, rng.permutation(60)[:6]] = True
    content = {"x": x, "y": np.sin(x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=60), "n": 60}
    np.savez(folder / "kin8nm.npz", **content, test=np.packbits(test, axis=1))


def test_a_set_of_ones_own_is_run_and_resumed(monkeypatch, tmp_path):
    """Split, record and resume, with the set that is not shipped and the methods that need no sampling."""
    (tmp_path / "sets").mkdir()
    stored_set(tmp_path / "sets")
    monkeypatch.setenv(study.ELSEWHERE, str(tmp_path / "sets"))
    settings = study.Settings(sets=("kin8nm",), splits=1, methods=("dropout", "boosting"), dropout_steps=300)
    made = Study("uci", "", {Preset.quick: settings}, "everything.", study.plan, study.assemble)
    run_studies([made], Preset.quick, tmp_path / "out", workers=1)
    rows = json.loads((tmp_path / "out" / "uci" / "metrics.json").read_text())["numbers"]["rows"]
    assert [row["method"] for row in rows] == ["dropout", "boosting"]
    assert rows[0]["rmse"] < 0.9 * np.std(study.read_split("kin8nm", 0).y)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.json")}
    monkeypatch.setattr(study, "measure", None)
    run_studies([made], Preset.quick, tmp_path / "out", workers=1)
    assert before == {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.json")}


@pytest.mark.slow
def test_dropout_of_a_straight_line(monkeypatch):
    """Noise 0.3 of a line: the log likelihood comes near that of the truth, and intervals cover."""
    monkeypatch.setattr(study, "DROPOUT_PASSES", 100)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 2))
    y = x @ np.array([1.0, -0.5]) + 0.3 * rng.normal(size=300)
    rows = study.Split(x[:200], y[:200], x[200:], y[200:])
    found = study._dropout(rows, 0, study.Settings(dropout_steps=1_000))
    truth = -0.5 - np.log(0.3) - 0.5 * np.log(2 * np.pi)
    assert truth - 0.4 < found.log_density.mean() < truth + 0.15
    assert 0.8 < np.mean((found.lower < rows.test_y) & (rows.test_y < found.upper)) <= 1


@pytest.mark.slow
def test_all_eight_sets(monkeypatch, tmp_path):
    """Every set goes through split, fit and record; an interrupted study runs what is missing only."""
    monkeypatch.setenv(study.ELSEWHERE, str(tmp_path))
    stored_set(tmp_path)
    settings = study.Settings(splits=1, methods=("modes",), optimiser_steps=20)
    made = Study("uci", "", {Preset.quick: settings}, "everything.", study.plan, study.assemble)
    assert [task.settings["data"] for task in study.plan(settings)] == list(study.FILES)
    real, runs = study.measure, []

    def interrupted(name, *others):
        runs.append(name)
        if name == "power" and len(runs) < 6:
            raise KeyboardInterrupt
        return real(name, *others)

    monkeypatch.setattr(study, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_studies([made], Preset.quick, tmp_path / "out", workers=1)
    run_studies([made], Preset.quick, tmp_path / "out", workers=1)
    assert runs == ["concrete", "energy", "kin8nm", "naval", "power", "power", "protein", "wine", "yacht"]
    rows = json.loads((tmp_path / "out" / "uci" / "metrics.json").read_text())["numbers"]["rows"]
    assert all(math.isfinite(row["log_likelihood"]) for row in rows)


@pytest.mark.slow
def test_nuts_samples_the_same_posterior():
    """On a line of few rows both reach the truth's log likelihood."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 2))
    y = x @ np.array([1.0, -0.5]) + 0.3 * rng.normal(size=120)
    rows = study.Split(x[:60], y[:60], x[60:], y[60:])
    nuts = study._nuts(rows, 0, study.Settings(nuts_draws=60))
    ours = study._network(rows, 0, study.Settings(steps=6_000))
    assert nuts.log_density.mean() == pytest.approx(ours.log_density.mean(), abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["modes", "laplace", "gp", "boosting", "dropout"])
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
