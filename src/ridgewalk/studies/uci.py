"""Regressions of the UCI repository, the literature's splits: `NeuralRegressor` against its modes and other methods."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from ridgewalk._validation import requires_extra
from ridgewalk.studies.framework.comparison import mean_and_se
from ridgewalk.studies.framework.study import (
    Cell,
    Number,
    Outcome,
    Preset,
    Report,
    Section,
    Study,
    Table,
    Task,
    mark_against,
)
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

LARGE_ENSEMBLE = 36
"""Members whose fits have as many gradients as four chains with their modes and a first round of 12,000 steps."""

DROPOUT_RATES = (0.005, 0.01, 0.05, 0.1)
DROPOUT_UNITS, DROPOUT_STEPS, DROPOUT_BATCH, DROPOUT_PASSES = 50, 10_000, 128, 500
DROPOUT_LEARNING_RATE, DROPOUT_LENGTH = 1e-2, 1e-2
"""The largest learning rate, and the prior length scale of Gal and Ghahramani."""

SEEN = {"concrete": (0, 1), "energy": (0, 1), "wine": (0, 1), "yacht": (0, 1)}
"""Splits whose test rows were looked at when the default noise (Student's t) was chosen."""

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
    methods: tuple[str, ...] = (
        "sample",
        "modes",
        "ensemble",
        "large",
        "laplace",
        "dropout",
        "gp",
        "boosting",
        "nuts",
    )
    nuts_sets: tuple[str, ...] = ("energy", "yacht")
    nuts_splits: int = 3
    nuts_draws: int = 500
    """Draws of each of four chains, after as many steps of warm-up."""
    dropout_steps: int = DROPOUT_STEPS
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
    x, y, test = _read(path)
    if not 0 <= split < len(test):
        raise ValueError(f"split: {split}; {name} has {len(test)}, counted from 0")
    out = test[split]
    return Split(x[~out], y[~out], x[out], y[out])


@cache
def _read(path: Path) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Inputs, targets, and which rows are for testing in each split."""
    with np.load(path) as stored:
        x, y, count = stored["x"].astype(float), stored["y"].astype(float), int(stored["n"])
        return x, y, np.unpackbits(stored["test"], axis=1, count=count).astype(bool)


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


def _gaussian(rows: Split, mean: Array, std: Array) -> Predicted:
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
    return _gaussian(rows, *model.predict(scaler.transform(rows.test_x), return_std=True))


def _boosting(rows: Split, split: int) -> Predicted:
    """Gradient boosting of trees; the noise is the root mean square of out-of-fold residuals."""
    with requires_extra("neural"):
        from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415
        from sklearn.model_selection import cross_val_predict  # noqa: PLC0415

    model = HistGradientBoostingRegressor(max_iter=500, learning_rate=0.05, random_state=split)
    residuals = rows.y - cross_val_predict(model, rows.x, rows.y, cv=5)
    mean = model.fit(rows.x, rows.y).predict(rows.test_x)
    return _gaussian(rows, mean, np.full(len(mean), np.sqrt(np.mean(residuals**2))))


class _Standardised(NamedTuple):
    """A split in units of the learnt rows' standard deviations, float32."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    centre: float
    scale: float

    def predicted(self, rows: Split, mixture: Any, **known: Any) -> Predicted:
        """A mixture of standardised predictions, in the units of the targets."""
        wanted = ((rows.test_y - self.centre) / self.scale)[:, None]
        lower, upper = (self.centre + self.scale * mixture.quantile(level)[:, 0] for level in (0.05, 0.95))
        mean = self.centre + self.scale * mixture.predictive().mean[:, 0]
        return Predicted(mixture.log_density(wanted) - np.log(self.scale), mean, lower, upper, **known)


def _standardised(rows: Split) -> _Standardised:
    from ridgewalk.neural.posterior import fit_inputs, fit_outputs  # noqa: PLC0415 - needs the extra "neural"

    inputs, outputs = fit_inputs(rows.x), fit_outputs(rows.y[:, None], "each")
    x, test_x = (inputs.forward(part).astype(np.float32) for part in (rows.x, rows.test_x))
    y = outputs.forward(rows.y[:, None]).astype(np.float32)
    return _Standardised(x, y, test_x, float(outputs.centre[0]), float(outputs.scale[0]))


@partial(jax.jit, static_argnames="steps")
def _dropout_fit(key: jax.Array, x: jax.Array, y: jax.Array, rate: jax.Array, *, steps: int) -> Any:
    """Weights of one hidden layer of rectified units, learnt with dropout of its inputs and outputs."""
    first, second, order = jax.random.split(key, 3)
    features, units = x.shape[1], DROPOUT_UNITS
    start = {
        "w": jax.random.normal(first, (features, units)) * jnp.sqrt(2 / features),
        "b": jnp.zeros(units),
        "v": jax.random.normal(second, (units, 1)) * jnp.sqrt(1 / units),
        "c": jnp.zeros(1),
    }
    optimiser = optax.adam(optax.cosine_decay_schedule(DROPOUT_LEARNING_RATE, steps))
    decay = DROPOUT_LENGTH**2 * (1 - rate) / (2 * x.shape[0])

    def loss(weights: Any, key: jax.Array) -> jax.Array:
        rows, masks = jax.random.split(key)
        chosen = jax.random.randint(rows, (DROPOUT_BATCH,), 0, x.shape[0])
        error = _dropout_pass(masks, weights, x[chosen], rate) - y[chosen]
        return jnp.mean(error**2) + decay * sum(jnp.sum(leaf**2) for leaf in weights.values())

    def step(k: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        weights, state = carry
        updates, state = optimiser.update(jax.grad(loss)(weights, jax.random.fold_in(order, k)), state)
        return optax.apply_updates(weights, updates), state

    return jax.lax.fori_loop(0, steps, step, (start, optimiser.init(start)))[0]


def _dropout_pass(key: jax.Array, weights: Any, x: jax.Array, rate: jax.Array) -> jax.Array:
    first, second = jax.random.split(key)
    x = x * jax.random.bernoulli(first, 1 - rate, x.shape) / (1 - rate)
    hidden = jax.nn.relu(x @ weights["w"] + weights["b"][None])
    hidden = hidden * jax.random.bernoulli(second, 1 - rate, hidden.shape) / (1 - rate)
    return hidden @ weights["v"] + weights["c"][None]


@jax.jit
def _dropout_passes(key: jax.Array, weights: Any, x: jax.Array, rate: jax.Array) -> jax.Array:
    """Predictions (pass, example, 1), each with masks of its own."""
    return jax.lax.map(lambda k: _dropout_pass(k, weights, x, rate), jax.random.split(key, DROPOUT_PASSES))


def _dropout(rows: Split, split: int, settings: Settings) -> Predicted:
    """MC dropout (Gal and Ghahramani 2016); rate and noise of largest log likelihood on a fifth of the learnt rows."""
    from ridgewalk.neural.predictive import Mixture  # noqa: PLC0415 - needs the extra "neural"

    known = _standardised(rows)
    fit, test = jax.random.split(jax.random.key(split))
    checked = np.random.default_rng(split).permutation(len(known.x)) < len(known.x) // 5
    levels = np.geomspace(0.01, 1.0, 41)

    def mixture(weights: Any, x: np.ndarray, rate: float, noise: float) -> Mixture:
        location = np.asarray(_dropout_passes(test, weights, jnp.asarray(x), jnp.float32(rate)), float)
        return Mixture(location, np.full(location.shape, noise), np.full(len(location), np.inf))

    def learn(chosen: np.ndarray, rate: float) -> Any:
        parts = jnp.asarray(known.x[chosen]), jnp.asarray(known.y[chosen])
        return _dropout_fit(fit, *parts, jnp.float32(rate), steps=settings.dropout_steps)

    best, rate, noise = -np.inf, DROPOUT_RATES[0], 1.0
    for tried in DROPOUT_RATES:
        found = mixture(learn(~checked, tried), known.x[checked], tried, 1.0)
        for level in levels:
            density = found._replace(scale=np.full(found.location.shape, level)).log_density(known.y[checked]).mean()
            if density > best:
                best, rate, noise = float(density), tried, float(level)
    everything = learn(np.ones(len(known.x), bool), rate)
    return known.predicted(rows, mixture(everything, known.test_x, rate, noise))


def _nuts(rows: Split, split: int, settings: Settings) -> Predicted:
    """NumPyro's NUTS on the posterior of `NeuralRegressor()`, four chains from random weights."""
    with requires_extra("numpyro"):
        from numpyro.infer import MCMC, NUTS  # noqa: PLC0415

    from ridgewalk.neural import DEFAULT_NETWORK, DEFAULT_PRIOR  # noqa: PLC0415 - needs the extra "neural"
    from ridgewalk.neural.estimator import network_of  # noqa: PLC0415
    from ridgewalk.neural.likelihoods import Noisy  # noqa: PLC0415
    from ridgewalk.neural.posterior import PosteriorSpec, build  # noqa: PLC0415
    from ridgewalk.neural.predictive import mixing, predict_mixture, predictions_of_draws, probe_rows  # noqa: PLC0415

    known, chains = _standardised(rows), 4
    spec = PosteriorSpec(
        network=network_of(DEFAULT_NETWORK),
        input_shape=known.x.shape[1:],
        likelihood=Noisy(1, "each", True),
        prior=DEFAULT_PRIOR,
        learnt_scales=True,
        dtype="float32",
    )
    posterior = build(spec)
    data = jnp.asarray(known.x), jnp.asarray(known.y), jnp.ones(len(known.x), jnp.float32)

    def potential(position: Any) -> jax.Array:
        return -posterior.log_prior(position) - jnp.sum(posterior.log_likelihood(position, data))

    begin, run = jax.random.split(jax.random.key(split))
    starts = [posterior.start(key) for key in jax.random.split(begin, chains)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *starts)
    mcmc = MCMC(
        NUTS(potential_fn=potential),
        num_warmup=settings.nuts_draws,
        num_samples=settings.nuts_draws,
        num_chains=chains,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(run, init_params=stacked, extra_fields=("num_steps",))
    gradients = int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    positions = jax.tree.map(lambda leaf: leaf[:: max(1, leaf.shape[0] // 400)], mcmc.get_samples())
    draws = jax.tree.map(np.asarray, jax.lax.map(posterior.parameters, positions))
    values = predictions_of_draws(spec, draws, known.x[probe_rows(len(known.x))])
    mixed = mixing(values.reshape(chains, -1, *values.shape[1:]))
    ratio = float(mixed.r_hat) if np.isfinite(mixed.r_hat) else None
    return known.predicted(rows, predict_mixture(spec, draws, known.test_x), r_hat=ratio, steps=gradients // chains)


METHODS: dict[str, Callable[[Split, int, Settings], Predicted]] = {
    "sample": _network,
    "modes": lambda rows, split, settings: _network(rows, split, settings, method="ensemble"),
    "ensemble": lambda rows, split, settings: _network(
        rows, split, settings, method="ensemble", chains=5, likelihood="gaussian"
    ),
    "large": lambda rows, split, settings: _network(
        rows, split, settings, method="ensemble", chains=LARGE_ENSEMBLE, likelihood="gaussian"
    ),
    "laplace": lambda rows, split, settings: _network(rows, split, settings, method="laplace", likelihood="gaussian"),
    "gp": lambda rows, split, settings: _gaussian_process(rows, split),
    "boosting": lambda rows, split, settings: _boosting(rows, split),
    "dropout": _dropout,
    "nuts": _nuts,
}

TITLES = {
    "sample": "NeuralRegressor()",
    "modes": "its own modes",
    "ensemble": "ensemble of 5",
    "large": f"ensemble of {LARGE_ENSEMBLE}",
    "laplace": "full Laplace",
    "dropout": "MC dropout",
    "gp": "Gaussian process",
    "boosting": "gradient boosting",
    "nuts": "NUTS",
}


def measure(name: str, split: int, method: str, settings: Settings) -> UciRow:
    """One method on one split."""
    rows = read_split(name, split)
    began = time.process_time()
    found = METHODS[method](rows, split, settings)
    seconds = time.process_time() - began
    inside = (found.lower <= rows.test_y) & (rows.test_y <= found.upper)
    error = float(np.sqrt(np.mean((found.mean - rows.test_y) ** 2)))
    density = float(found.log_density.mean())
    return UciRow(name, split, method, density, error, float(inside.mean()), seconds, found.r_hat, found.steps)


def splits_of(name: str, settings: Settings) -> range:
    """The splits of a set that are run."""
    return range(min(settings.splits, settings.protein_splits) if name == "protein" else settings.splits)


NETWORK_SETTINGS = ("steps", "burn_in", "optimiser_steps")
RELEVANT: dict[str, tuple[str, ...]] = {
    "gp": (),
    "boosting": (),
    "dropout": ("dropout_steps",),
    "nuts": ("nuts_draws",),
}
"""The settings that the other methods depend on."""


def _is_run(name: str, rows: int, split: int, method: str, settings: Settings) -> bool:
    """Whether a method is run on a split: the process on small sets only, NUTS on few splits of two."""
    if method == "nuts":
        return name in settings.nuts_sets and split < settings.nuts_splits
    return method != "gp" or rows <= MOST_GP_ROWS


def plan(settings: Settings) -> list[Task]:
    """One task per set, split and method; sets that are not there are left out, as is the process on large ones."""
    tasks = []
    for name in settings.sets:
        if set_path(name) is None:
            continue
        rows = len(read_split(name, 0).y)
        for split in splits_of(name, settings):
            for method in settings.methods:
                if not _is_run(name, rows, split, method, settings):
                    continue
                known: dict[str, Any] = {"data": name, "split": split, "method": method}
                known |= {field: getattr(settings, field) for field in RELEVANT.get(method, NETWORK_SETTINGS)}

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
    others = [method for method in methods if method != "sample"]
    differences: list[tuple[Cell, ...]] = []
    for name in sets:
        own = [row for row in of(name, "sample") if row.split not in SEEN.get(name, ())]
        cells = [_difference(_paired(own, of(name, method))) for method in others]
        differences.append((name, str(len(own)), *cells))
    unseen = Table(
        "NeuralRegressor() minus the others, mean test log likelihood, splits that were not looked at before",
        ("set", "splits", *(TITLES[method] for method in others)),
        tuple(differences),
        "Paired over splits, ± one standard error; “equal” means within one. The default noise, Student's t, was "
        "chosen by the test rows of splits 0 and 1 of "
        f"{', '.join(SEEN)}: these splits are in the tables above and below, and not in this one.",
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
        "CPU seconds of fit and predictions, with compilation where a task was the first of its process. The ensemble "
        f"of {LARGE_ENSEMBLE} has as many gradients as the shortest fit of NeuralRegressor(): four modes of 1,500 "
        "steps and four chains of 12,000.",
    )
    text = (
        "`NeuralRegressor()` with its defaults, one hidden layer of 50 units, on the splits of Hernández-Lobato and "
        "Adams (2015). Its modes are the maximum-a-posteriori fits that its four chains start from. Ensemble and "
        "Laplace's approximation (of four modes) have Gaussian noise, as usual. MC dropout has the same hidden layer "
        "with rectified units; its rate and noise are chosen on a fifth of the learnt rows. NUTS samples the posterior "
        "of NeuralRegressor() from random weights, on few splits of small sets. Data: UCI Machine Learning Repository, "
        "CC BY 4.0.",
    )
    return Report("UCI regressions", text, (Section("Results", tables=(first, unseen, published, behind)),))


def _difference(values: Sequence[float]) -> Number:
    """A mean difference, marked by its standard error where there are several values."""
    number = _number(values, ".3f")
    if number.value is None or number.se is None:
        return number
    return replace(number, mark=mark_against(number.value, 0.0, error=number.se, lower_is_better=False))


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
    "one split of two sets, chains of 3,000 steps, and their modes and Laplace's approximation only.",
    plan,
    assemble,
)
