"""Regressions of the UCI repository, the literature's splits: `NeuralRegressor` against its modes and other methods."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgewalk._validation import requires_extra
from ridgewalk.studies.framework.comparison import mean_and_se
from ridgewalk.studies.framework.study import Number, Outcome, Preset, Report, Section, Study, Table, Task
from ridgewalk.studies.framework.tasks import row_fields

Array = NDArray[np.float64]

FILES = {
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}
"""The sets, and their files."""

ELSEWHERE = "RIDGEWALK_UCI"
"""Environment variable: a folder with further sets, such as kin8nm.npz."""

MOST_GP_ROWS = 2_000

PUBLISHED: dict[str, tuple[str, ...]] = {
    "concrete": ("−3.16±.02", "−3.04±.02", "−2.93±.02", "−2.82±.02", "−3.06±.18", "−3.04"),
    "energy": ("−2.04±.02", "−1.99±.02", "−1.21±.01", "−1.48±.00", "−1.38±.22", "−0.60"),
    "kin8nm": (".90±.01", ".95±.01", "1.14±.01", "1.10±.00", "1.20±.02", ".49"),
    "naval": ("3.73±.01", "3.80±.01", "4.45±.00", "4.32±.00", "5.63±.05", "5.34"),
    "power": ("−2.84±.01", "−2.80±.01", "−2.80±.01", "−2.67±.01", "−2.79±.04", "−2.79"),
    "protein": ("−2.97±.00", "−2.89±.00", "−2.87±.00", "−2.70±.00", "−2.83±.02", "−2.81"),
    "wine": ("−.97±.01", "−.93±.01", "−.93±.01", "−.90±.01", "−.94±.12", "−.91"),
    "yacht": ("−1.63±.02", "−1.55±.03", "−1.25±.01", "−1.37±.02", "−1.18±.21", "−.20"),
}
"""Test log likelihoods on these splits (NGBoost: splits of its own)."""

SOURCES = ("PBP", "MC dropout", "MC dropout, grid", "MC dropout, 2 layers", "deep ensembles", "NGBoost")


@dataclass(frozen=True)
class Settings:
    """Official splits, counted from 0; every method gets the seed of the split."""

    sets: tuple[str, ...] = tuple(FILES)
    splits: int = 20
    protein_splits: int = 3
    methods: tuple[str, ...] = ("sample", "modes", "ensemble", "laplace", "gp", "boosting")
    steps: int | None = None
    """The most steps of sampling; None for the default of `NeuralRegressor`."""
    burn_in: int | None = None
    optimiser_steps: int | None = None


class UciRow(NamedTuple):
    """One method on one split, in the units of the targets."""

    data: str
    split: int
    method: str
    log_likelihood: float
    rmse: float
    coverage: float
    """Of the raw intervals of level 0.9 on the test rows."""
    seconds: float
    """CPU seconds of fit and predictions, compilation included."""
    r_hat: float | None = None
    steps: int | None = None


class Split(NamedTuple):
    """Rows to learn from and to test on."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array


def set_path(name: str) -> Path | None:
    """The file of a set; None where it is neither part of the library nor in the folder of `RIDGEWALK_UCI`."""
    folders = [Path(str(files("ridgewalk.studies"))) / "data" / "uci"]
    if os.environ.get(ELSEWHERE):
        folders.append(Path(os.environ[ELSEWHERE]))
    found = [folder / f"{FILES[name]}.npz" for folder in folders]
    return next((path for path in found if path.is_file()), None)


def read_split(name: str, split: int) -> Split:
    """The rows of an official split."""
    path = set_path(name)
    if path is None:
        raise ValueError(f"uci: there is no {FILES[name]}.npz; put it into a folder and name that in {ELSEWHERE}")
    with np.load(path) as stored:
        x, y, count = stored["x"].astype(float), stored["y"].astype(float), int(stored["n"])
        test = np.unpackbits(stored["test"], axis=1, count=count).astype(bool)
    if not 0 <= split < len(test):
        raise ValueError(f"split: {split}; {name} has {len(test)}, counted from 0")
    out = test[split]
    return Split(x[~out], y[~out], x[out], y[out])


class Predicted(NamedTuple):
    """What a method says of the test rows."""

    log_density: Array
    mean: Array
    lower: Array
    upper: Array
    r_hat: float | None = None
    steps: int | None = None


def _network(rows: Split, split: int, settings: Settings, **options: Any) -> Predicted:
    from ridgewalk.neural.regressor import NeuralRegressor  # noqa: PLC0415 - needs the extra "neural"

    model = NeuralRegressor(
        random_state=split,
        steps=settings.steps,
        burn_in=settings.burn_in,
        optimiser_steps=settings.optimiser_steps,
        recalibration="none",
        **options,
    )
    model.fit(rows.x, rows.y)
    report = model.report_
    lower, upper = model.predict_interval(rows.test_x, 0.9)
    sampled = model.method == "sample"
    return Predicted(
        model.log_density(rows.test_x, rows.test_y),
        model.predict(rows.test_x),
        lower,
        upper,
        float(report.r_hat) if sampled and np.isfinite(report.r_hat) else None,
        report.phases[-1].steps if sampled else None,
    )


def gaussian_prediction(rows: Split, mean: Array, std: Array) -> Predicted:
    """The predictions of a Gaussian."""
    density = -0.5 * ((rows.test_y - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return Predicted(density, mean, mean - 1.6449 * std, mean + 1.6449 * std)


def _gaussian_process(rows: Split, split: int) -> Predicted:
    """A Gaussian process with a length for each input and learnt noise, its parameters at the marginal mode."""
    with requires_extra("neural"):
        from sklearn.gaussian_process import GaussianProcessRegressor  # noqa: PLC0415
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel  # noqa: PLC0415
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    scaler = StandardScaler().fit(rows.x)
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(np.full(rows.x.shape[1], 2.0), (1e-2, 1e3)) + WhiteKernel(
        0.1, (1e-6, 1e1)
    )
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=split)
    model.fit(scaler.transform(rows.x), rows.y)
    return gaussian_prediction(rows, *model.predict(scaler.transform(rows.test_x), return_std=True))


def _boosting(rows: Split, split: int) -> Predicted:
    """Gradient boosting of trees; the noise is the root mean square of out-of-fold residuals."""
    with requires_extra("neural"):
        from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415
        from sklearn.model_selection import cross_val_predict  # noqa: PLC0415

    model = HistGradientBoostingRegressor(max_iter=500, learning_rate=0.05, random_state=split)
    residuals = rows.y - cross_val_predict(model, rows.x, rows.y, cv=5)
    mean = model.fit(rows.x, rows.y).predict(rows.test_x)
    return gaussian_prediction(rows, mean, np.full(len(mean), np.sqrt(np.mean(residuals**2))))


METHODS: dict[str, Callable[[Split, int, Settings], Predicted]] = {
    "sample": _network,
    "modes": lambda rows, split, settings: _network(rows, split, settings, method="ensemble"),
    "ensemble": lambda rows, split, settings: _network(
        rows, split, settings, method="ensemble", chains=5, likelihood="gaussian"
    ),
    "laplace": lambda rows, split, settings: _network(rows, split, settings, method="laplace", likelihood="gaussian"),
    "gp": lambda rows, split, settings: _gaussian_process(rows, split),
    "boosting": lambda rows, split, settings: _boosting(rows, split),
}

TITLES = {
    "sample": "NeuralRegressor()",
    "modes": "its own modes",
    "ensemble": "ensemble of 5",
    "laplace": "full Laplace",
    "gp": "Gaussian process",
    "boosting": "gradient boosting",
}


def measure(name: str, split: int, method: str, settings: Settings) -> UciRow:
    """One method on one split."""
    rows = read_split(name, split)
    began = time.process_time()
    found = METHODS[method](rows, split, settings)
    return score(name, split, method, rows, found, time.process_time() - began)


def score(name: str, split: int, method: str, rows: Split, found: Predicted, seconds: float) -> UciRow:
    """How good predictions of the test rows are."""
    inside = (found.lower <= rows.test_y) & (rows.test_y <= found.upper)
    error = float(np.sqrt(np.mean((found.mean - rows.test_y) ** 2)))
    density = float(found.log_density.mean())
    return UciRow(name, split, method, density, error, float(inside.mean()), seconds, found.r_hat, found.steps)


def splits_of(name: str, settings: Settings) -> range:
    """The splits of a set that are run."""
    return range(min(settings.splits, settings.protein_splits) if name == "protein" else settings.splits)


def plan(settings: Settings) -> list[Task]:
    """One task per set, split and method; sets that are not there are left out, as is the process on large ones."""
    tasks = []
    for name in settings.sets:
        if set_path(name) is None:
            continue
        rows = len(read_split(name, 0).y)
        for split in splits_of(name, settings):
            for method in settings.methods:
                if method == "gp" and rows > MOST_GP_ROWS:
                    continue
                known: dict[str, Any] = {"data": name, "split": split, "method": method}
                if method not in ("gp", "boosting"):
                    known |= {"steps": settings.steps, "burn_in": settings.burn_in}
                    known |= {"optimiser_steps": settings.optimiser_steps}

                def run(_: Path, name: str = name, split: int = split, method: str = method) -> UciRow:
                    return measure(name, split, method, settings)

                tasks.append(
                    Task(f"{name}-{split}-{method}", known, run, UciRow, cost=10 + rows / 100, group=f"{name}-{method}")
                )
    return tasks


def _number(values: Sequence[float | None], style: str) -> Number:
    finite = np.array([value for value in values if value is not None], float)
    if not len(finite):
        return Number(None, note="–")
    mean, se = mean_and_se(finite)
    return Number(mean, se if len(finite) > 1 else None, style)


def build_report(settings: Settings, rows: Sequence[UciRow]) -> Report:
    """Tables of log likelihoods, and of what stands behind them."""
    sets = [name for name in settings.sets if any(row.data == name for row in rows)]

    def of(name: str, method: str) -> list[UciRow]:
        return sorted((row for row in rows if row.data == name and row.method == method), key=lambda row: row.split)

    methods = [method for method in settings.methods if any(row.method == method for row in rows)]
    likelihoods, details = [], []
    for name in sets:
        line: list[Any] = [name, str(len(of(name, methods[0])))]
        line += [_number([row.log_likelihood for row in of(name, method)], ".3f") for method in methods]
        line.append(_number(_paired(of(name, "sample"), of(name, "modes")), ".3f"))
        likelihoods.append(tuple(line))
        for method in methods:
            found = of(name, method)
            if found:
                details.append(
                    (
                        name,
                        TITLES[method],
                        _number([row.rmse for row in found], ".3g"),
                        _number([row.coverage for row in found], ".3f"),
                        _number([row.r_hat for row in found], ".2f"),
                        _number([row.seconds for row in found], ".0f"),
                    )
                )
    first = Table(
        "Mean test log likelihood, higher is better",
        ("set", "splits", *(TITLES[method] for method in methods), "draws − modes"),
        tuple(likelihoods),
        "± one standard error over splits; the last column is paired. Raw predictive distributions, not recalibrated.",
    )
    published = Table(
        "Published test log likelihoods",
        ("set", *SOURCES),
        tuple((name, *PUBLISHED[name]) for name in sets),
        "PBP: Hernández-Lobato and Adams 2015. MC dropout: Gal and Ghahramani 2016, and their later grid search and "
        "network of two hidden layers. Deep ensembles: Lakshminarayanan et al. 2017. NGBoost: Duan et al. 2020.",
    )
    behind = Table(
        "Root mean square error, coverage of raw intervals of level 0.9, R-hat of predictions, and CPU seconds",
        ("set", "method", "RMSE", "coverage", "R-hat", "CPU s"),
        tuple(details),
        "CPU seconds of fit and predictions, with compilation where a task was the first of its process.",
    )
    text = (
        "`NeuralRegressor()` with its defaults, one hidden layer of 50 units, on the splits of Hernández-Lobato and "
        "Adams (2015). Its modes are the maximum-a-posteriori fits that its four chains start from. Ensemble and "
        "Laplace's approximation (of four modes) have Gaussian noise, as usual. Data: UCI Machine Learning Repository, "
        "CC BY 4.0.",
    )
    return Report("UCI regressions", text, (Section("Results", tables=(first, published, behind)),))


def _paired(first: Sequence[UciRow], second: Sequence[UciRow]) -> list[float]:
    """Differences of the log likelihoods on the splits that both have."""
    other = {row.split: row.log_likelihood for row in second}
    return [row.log_likelihood - other[row.split] for row in first if row.split in other]


def assemble(settings: Settings, rows: Mapping[str, UciRow], folder: Path) -> Outcome:
    """Build the tables."""
    found = list(rows.values())
    return Outcome(build_report(settings, found), {"rows": [row_fields(row) for row in found]})


STUDY = Study(
    "uci",
    f"{__name__}:STUDY",
    {
        Preset.quick: Settings(
            sets=("energy", "yacht"),
            splits=1,
            methods=("sample", "modes", "laplace"),
            steps=3_000,
            burn_in=1_000,
            optimiser_steps=500,
        ),
        Preset.paper: Settings(),
    },
    "one split of two sets, chains of 3,000 steps, and without ensemble, Gaussian process and boosting.",
    plan,
    assemble,
)
