"""Handwritten digits with a small convolutional network: `NeuralClassifier` against the ensemble and the single fit."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ridgewalk._validation import requires_extra
from ridgewalk.neural.assessment import ClassAssessment, assess_classes, draw_class_reliability
from ridgewalk.neural.conformal import powered
from ridgewalk.studies.framework.comparison import mean_and_se
from ridgewalk.studies.framework.study import Number, Outcome, Picture, Preset, Report, Section, Study, Table, Task
from ridgewalk.studies.framework.tasks import row_fields

TITLES = {"sample": "NeuralClassifier", "ensemble": "ensemble of its 4 modes", "single": "single fit"}


@dataclass(frozen=True)
class Settings:
    """Random splits, a quarter of the 1,797 images for testing; every method has the seed of the split."""

    splits: int = 5
    network: str = "conv:4x8"
    rows: int | None = None
    """Rows to learn from; None for all."""
    steps: int | None = None
    burn_in: int | None = None
    optimiser_steps: int | None = None


class DigitsRow(NamedTuple):
    """One method on one split."""

    split: int
    method: str
    accuracy: float
    nll: float
    ece: float
    seconds: float
    confidence: list[float]
    right: list[float]
    counts: list[int]
    """The reliability curve: bins of confidence."""
    r_hat: float | None = None
    temperature: float = 1.0
    """Of the recalibrated probabilities; 1 where they are not."""
    raw_nll: float | None = None
    """Before recalibration, where there was one; as `raw_ece`."""
    raw_ece: float | None = None


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    with requires_extra("neural"):
        from sklearn.datasets import load_digits  # noqa: PLC0415

    found = load_digits()
    return found.images, found.target


def measure(split: int, method: str, settings: Settings) -> DigitsRow:
    """One method on one split."""
    with requires_extra("neural"):
        from sklearn.model_selection import train_test_split  # noqa: PLC0415

    from ridgewalk.neural.classifier import NeuralClassifier  # noqa: PLC0415 - needs the extra "neural"

    images, labels = _digits()
    x, test_x, y, test_y = train_test_split(images, labels, random_state=split, stratify=labels)
    began = time.process_time()
    model = NeuralClassifier(
        settings.network,
        method="sample" if method == "sample" else "ensemble",
        chains=1 if method == "single" else 4,
        steps=settings.steps,
        burn_in=settings.burn_in,
        optimiser_steps=settings.optimiser_steps,
        random_state=split,
    )
    model.fit(x[: settings.rows], y[: settings.rows])
    chances, codes = model.predict_proba(test_x), model.codes(test_y)
    found = assess_classes(chances, codes)
    seconds = time.process_time() - began
    curve = found.confidence.tolist(), found.right.tolist(), found.counts.tolist()
    ratio = model.report_.r_hat
    known = float(ratio) if np.isfinite(ratio) else None
    row = DigitsRow(split, method, found.accuracy, found.nll, found.ece, seconds, *curve, known)
    scale = model.report_.scale
    if scale == 1:
        return row
    raw = assess_classes(powered(chances, 1 / scale), codes)
    return row._replace(temperature=scale, raw_nll=raw.nll, raw_ece=raw.ece)


def plan(settings: Settings) -> list[Task]:
    """One task per split and method."""
    tasks = []
    for split in range(settings.splits):
        for method in TITLES:
            known: dict[str, Any] = {"split": split, "method": method, "network": settings.network}
            known |= {"rows": settings.rows, "optimiser_steps": settings.optimiser_steps}
            if method == "sample":
                known |= {"steps": settings.steps, "burn_in": settings.burn_in}

            def run(_: Path, split: int = split, method: str = method) -> DigitsRow:
                return measure(split, method, settings)

            cost = 60.0 if method == "sample" else 10.0
            tasks.append(Task(f"{method}-{split}", known, run, DigitsRow, cost=cost, group="digits"))
    return tasks


def _number(values: Sequence[float], style: str) -> Number:
    mean, se = mean_and_se(np.array(values, float))
    return Number(mean, se if len(values) > 1 else None, style)


def _pooled(rows: Sequence[DigitsRow]) -> ClassAssessment:
    """The reliability curve over all splits."""
    sure, right, counts = (np.concatenate([getattr(row, name) for row in rows]) for name in DigitsRow._fields[6:9])
    bins = np.minimum((sure * 15).astype(int), 14)
    total = np.bincount(bins, counts, 15)
    used = total > 0
    confidence = np.bincount(bins, counts * sure, 15)[used] / total[used]
    share = np.bincount(bins, counts * right, 15)[used] / total[used]
    ece = float(np.sum(total[used] * np.abs(share - confidence)) / total.sum())
    accuracy, nll = (float(np.mean([getattr(row, name) for row in rows])) for name in ("accuracy", "nll"))
    return ClassAssessment(
        int(total.sum()), accuracy, nll, float("nan"), ece, confidence, share, total[used].astype(float)
    )


def build_report(settings: Settings, rows: Sequence[DigitsRow]) -> Report:
    """The table and the reliability diagram."""
    lines = []
    for method, title in TITLES.items():
        found = [row for row in rows if row.method == method]
        ratios = [row.r_hat for row in found if row.r_hat is not None]
        lines.append(
            (
                title,
                _number([row.accuracy for row in found], ".4f"),
                _number([row.nll for row in found], ".4f"),
                _number([row.ece for row in found], ".4f"),
                _number([row.nll if row.raw_nll is None else row.raw_nll for row in found], ".4f"),
                _number([row.ece if row.raw_ece is None else row.raw_ece for row in found], ".4f"),
                _number([row.temperature for row in found], ".2f"),
                _number(ratios, ".2f") if ratios else Number(None, note="–"),
                _number([row.seconds for row in found], ".0f"),
            )
        )
    plural = "split" if settings.splits == 1 else "splits"
    table = Table(
        f"{settings.splits} random {plural}, network {settings.network}",
        ("method", "accuracy", "NLL", "ECE", "raw NLL", "raw ECE", "temperature", "R-hat", "CPU s"),
        tuple(lines),
        "± one standard error over splits. NLL: mean negative log probability of the label. ECE: expected calibration "
        "error, 15 bins of confidence. Raw: before recalibration, which raises the sampled network's probabilities to "
        "a power (1 / temperature) where leave-one-out estimates call for it and the chains have mixed; the ensemble "
        "has none. Ensemble and sampled network start from the same four fits.",
    )
    picture = Picture(
        "reliability.png",
        "Share of right predictions against confidence, all splits.",
        "Reliability diagram of the three methods; the diagonal is perfect calibration.",
    )
    text = ("scikit-learn's 8×8 images of handwritten digits, with a small convolutional network.",)
    return Report("Handwritten digits", text, (Section("Results", tables=(table,), pictures=(picture,)),))


def assemble(settings: Settings, rows: Mapping[str, DigitsRow], folder: Path) -> Outcome:
    """Build the table and draw the diagram."""
    found = list(rows.values())
    curves = {title: _pooled([row for row in found if row.method == method]) for method, title in TITLES.items()}
    draw_class_reliability(curves).savefig(folder / "reliability.png", dpi=150)
    without = ("confidence", "right", "counts")
    return Outcome(build_report(settings, found), {"rows": [row_fields(row, without) for row in found]})


STUDY = Study(
    "digits",
    f"{__name__}:STUDY",
    {
        Preset.quick: Settings(splits=1, network="conv:4", rows=400, steps=1_200, burn_in=500, optimiser_steps=300),
        Preset.paper: Settings(),
    },
    "one split, 400 images to learn from, one convolution, and chains of 1,200 steps.",
    plan,
    assemble,
)
