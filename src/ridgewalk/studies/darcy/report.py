"""The report of a Darcy study: errors, comparison with the paper and SGLD, calibration, cost, and what was compared."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from ridgewalk._validation import requires_extra
from ridgewalk.darcy.grid import Array, Grid, cell_velocity
from ridgewalk.studies.darcy.methods import (
    ADAM_RATES,
    BASE_GROWTH,
    FRICTION,
    PAIR_EVERY,
    TAPERED_FROM,
    TAPERED_TO,
    random_step_sizes_of,
    step_sizes_of,
)
from ridgewalk.studies.darcy.problem import (
    ADAM,
    BEST,
    CURVATURE_EXAMPLES,
    DIAGONAL,
    LEAST,
    LIMITED,
    LOW_RANK,
    MEMORIES,
    METHOD_NAMES,
    OURS,
    PRINTED,
    PSGLD,
    RANDOM_METHOD_NAMES,
    SCALE_GRADIENTS,
    SGLD,
    Kind,
    MultiscaleRow,
    RandomPart,
    RandomRow,
    RandomStartRow,
    RunRow,
    Settings,
    StartRow,
    TuningRow,
)
from ridgewalk.studies.framework.comparison import mean_and_se
from ridgewalk.studies.framework.study import (
    Cell,
    Mark,
    Number,
    Picture,
    Report,
    Section,
    Table,
    mark_against,
    versus_paper,
)

with requires_extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import FuncFormatter

STYLE = ".3f"
HESSIAN_PRODUCT_COST = 2.5
"""The cost of a Hessian-vector product in gradients of as many samples."""
TITLES = {"source": "Darcy flow: varying sources", "permeability": "Darcy flow: varying permeabilities"}
FIELDS_FIGURE = "fields.png"
RANDOM_FIGURE = "random-weights.png"
WANTED_RATIO: dict[Kind, float] = {"source": 0.25, "permeability": 0.5}
"""The ratio to SGLD's error, from random weights, that was asked for beforehand."""
NAMES_IN_PAPER = {SGLD: "SGLD"} | {form.format(m): f"M={m}" for form in (PRINTED, OURS) for m in MEMORIES}

Errors = dict[str, dict[float, tuple[float, float]]]
"""Mean and standard error over seeds, by method and sparsity."""
T = TypeVar("T")


class Results(NamedTuple):
    """The rows of a study by type."""

    multiscale: MultiscaleRow
    starts: list[StartRow]
    tuning: list[TuningRow]
    runs: list[RunRow]
    random: list[RandomRow]
    """All runs from random weights, those at step sizes that were not chosen included."""
    random_starts: list[RandomStartRow]

    @classmethod
    def of(cls, rows: Iterable[object]) -> "Results":
        """Sort rows by type."""
        found = list(rows)

        def of_type(kind: type[T]) -> list[T]:
            return [row for row in found if isinstance(row, kind)]

        first = of_type(MultiscaleRow)[0]
        lists = of_type(StartRow), of_type(TuningRow), of_type(RunRow), of_type(RandomRow), of_type(RandomStartRow)
        return cls(first, *lists)

    def chosen_random(self) -> list[RandomRow]:
        """The runs from random weights, of several step sizes in a cell the one of lowest held-out error."""
        best: dict[tuple[str, float, int], RandomRow] = {}
        for row in self.random:
            cell = row.method, row.sparsity, row.seed
            known = best.get(cell)
            if known is None or known.diverged or (not row.diverged and row.held_error < known.held_error):
                best[cell] = row
        return list(best.values())

    def runs_for(self, mirror: bool) -> list[RunRow]:
        """The runs with or without the symmetry."""
        return [row for row in self.runs if row.mirror == mirror]

    def start_error(self, mirror: bool) -> tuple[float, float]:
        """Mean and standard error of the starts' errors."""
        return mean_and_se(np.array([row.error for row in self.starts if row.mirror == mirror]))

    def shown_fields(self, mirror: bool) -> dict[str, dict[str, list[float]]]:
        """Predicted fields by method."""
        return {row.method: row.fields for row in self.runs_for(mirror) if row.fields is not None}


def error_figure(mirror: bool) -> str:
    """File name of the figure of errors."""
    return "errors-mirror.png" if mirror else "errors.png"


def errors_of(runs: Sequence[RunRow | RandomRow], what: str = "error") -> Errors:
    """A measurement by method and sparsity, over the seeds that did not diverge."""
    found: Errors = {}
    for name in dict.fromkeys((*METHOD_NAMES, *RANDOM_METHOD_NAMES)):
        for sparsity in sorted({row.sparsity for row in runs}):
            chosen = (row for row in runs if row.method == name and row.sparsity == sparsity and not row.diverged)
            values = [getattr(row, what) for row in chosen]
            if values:
                found.setdefault(name, {})[sparsity] = mean_and_se(np.array(values))
    return found


def _pruned(sparsity: float) -> str:
    return "no pruning" if sparsity == 0 else f"{100 * sparsity:.0f} % pruned"


def error_table(settings: Settings, mirror: bool, results: Results, caption: str) -> Table:
    """Every method at every sparsity with the paper's numbers; the error of the common start comes first."""
    errors, paper = errors_of(results.runs_for(mirror)), settings.paper
    methods, multiscale = settings.methods_for(mirror), results.multiscale
    start, start_se = results.start_error(mirror)
    lines: list[tuple[Cell, ...]] = []
    for sparsity in settings.sparsities_for(mirror):
        cells: list[Cell] = []
        for name in methods:
            if sparsity not in errors.get(name, {}):
                cells.append(Number(None, note="diverged"))
                continue
            mean, error = errors[name][sparsity]
            se = error if settings.seeds > 1 else None
            printed = paper.get(sparsity, {}).get(NAMES_IN_PAPER.get(name, ""))
            alone = Number(mean, se, STYLE)
            cells.append(alone if printed is None else versus_paper(mean, printed, se=se, style=STYLE))
        first = Number(start, start_se if settings.seeds > 1 else None, STYLE)
        lines.append((_pruned(sparsity), first, *cells, Number(multiscale.errors[0], style=".2f")))
    note = (
        "Mean of ‖prediction − truth‖ / ‖truth‖ over the test samples, in per cent; the prediction is the posterior "
        "mean (Adam: its last weights). The start is not pruned: compare the methods by how much they improve on it, "
        "or by how much of it they retain under pruning. The multiscale solver "
        f"({multiscale.blocks}×{multiscale.blocks} blocks, one function per edge; the first "
        f"{settings.multiscale_samples} test samples) needs no training samples; with {multiscale.functions[-1]} "
        f"functions its error is {multiscale.errors[-1]:.2f} %. Means are over the seeds that did not diverge."
    )
    return Table(caption, ("", "start", *methods, "multiscale solver"), tuple(lines), note)


def _by_seed(runs: Sequence[RunRow | RandomRow], name: str, sparsity: float) -> dict[int, float]:
    """The error of every seed that did not diverge."""
    chosen = (row for row in runs if row.method == name and row.sparsity == sparsity)
    return {row.seed: row.error for row in chosen if not row.diverged}


def ratio_to_sgld(runs: Sequence[RunRow | RandomRow], sparsity: float) -> Number:
    """Ratio of errors over the seeds that both completed; marked by paired differences, since starts are shared."""
    ours, theirs = (_by_seed(runs, name, sparsity) for name in (BEST, SGLD))
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return Number(None, note="diverged")
    a, b = (np.array([errors[seed] for seed in common]) for errors in (ours, theirs))
    mean, se = mean_and_se(a - b)
    mark = mark_against(mean, 0.0, error=2 * se) if len(common) > 1 else None
    return Number(float(a.mean() / b.mean()), style=STYLE, mark=mark)


def comparison_table(settings: Settings, mirror: bool, results: Results) -> Table:
    """HASGLD-SA with M = 2, chosen beforehand: the paper's best number, SGLD, and the start."""
    runs, paper = results.runs_for(mirror), settings.paper
    errors, start = errors_of(runs).get(BEST, {}), results.start_error(mirror)[0]
    lines: list[tuple[Cell, ...]] = []
    for sparsity in settings.sparsities_for(mirror):
        if sparsity not in errors:
            lines.append((_pruned(sparsity), Number(None, note="diverged"), "–", "–"))
            continue
        mean, error = errors[sparsity]
        se = error if settings.seeds > 1 else None
        aim = paper.get(sparsity, {}).get("M=2")
        shown = Number(mean, se, STYLE) if aim is None else versus_paper(mean, aim, se=se, style=STYLE)
        lines.append((_pruned(sparsity), shown, ratio_to_sgld(runs, sparsity), Number(mean / start, style=STYLE)))
    return Table(
        f"{BEST}: {'the paper’s best number' if paper else 'error'}, and ratios to SGLD and to the start",
        ("", "error (%)", "ratio to SGLD", "ratio to the start"),
        tuple(lines),
        "Ratios below 1 are better. The ratio to SGLD is marked by paired differences over the seeds, because both "
        "start at the same weights; “equal” means within two standard errors (one seed: no mark).",
    )


def coverage_table(settings: Settings, runs: Sequence[RunRow]) -> Table:
    """Coverage and width of 90 % intervals on test samples."""
    before, after, widths = (errors_of(runs, what) for what in ("coverage_before", "coverage", "width"))
    lines: list[tuple[Cell, ...]] = []
    for name in settings.methods:
        for sparsity in (s for s in settings.sparsities if s in after.get(name, {})):
            covered = after[name][sparsity][0]
            mark: Mark = "equal" if 0.85 <= covered <= 0.95 else "worse"
            cells = Number(before[name][sparsity][0], style=STYLE), Number(covered, style=STYLE, mark=mark)
            lines.append((f"{name}, {_pruned(sparsity)}", *cells, Number(widths[name][sparsity][0], style=STYLE)))
    return Table(
        "90 % intervals on the test samples",
        ("", "coverage before", "coverage after", "width after"),
        tuple(lines),
        "Before and after recalibration with conformal quantiles of the held-out training samples; “equal” means "
        "between 85 and 95 %. Widths are in units of the fluxes' common standard deviation. Before recalibration, the "
        "intervals of a method without posterior draws reflect the likelihood's noise alone.",
    )


def cost_table(settings: Settings, runs: Sequence[RunRow]) -> Table:
    """Seconds and gradients of a run."""
    seconds = errors_of(runs, "seconds")
    step_sizes = {row.method: row.relative_step_size for row in runs}
    also = " and of SGHMC" if DIAGONAL in settings.methods else ""
    lines: list[tuple[Cell, ...]] = []
    for name in (name for name in METHOD_NAMES if name in seconds):
        mean = float(np.mean([value for value, _ in seconds[name].values()]))
        gradients = (Number(n, style=",.0f") for n in (settings.optimiser_steps, settings.chain_gradients))
        lines.append((name, f"{step_sizes[name]:g}", *gradients, Number(mean, style=".0f")))
    return Table(
        "Cost of a run",
        ("", "step size", "gradients of the optimiser", "gradients of the chain", "seconds of the chain"),
        tuple(lines),
        f"The batch size is {settings.batch_size}. Step sizes: SGLD's is relative to the stability limit; those of "
        f"HASGLD-SA (except as printed){also} are relative to 1 / λ_max in the rescaled coordinates, the initial "
        "scale of G; those of pSGLD and as printed are absolute; Adam's is its initial learning rate. Seconds include "
        "compilation, but not the scales and curvatures measured at the start.",
    )


def tuning_table(rows: Sequence[TuningRow]) -> Table | None:
    """Held-out errors at the step sizes tried; None if step sizes were not tuned."""
    lines: list[tuple[Cell, ...]] = []
    for row in rows:
        cells = [
            Number(error, style=STYLE, note=f"at {size:g}" if error is not None else f"diverged at {size:g}")
            for size, error in zip(step_sizes_of(row.method), row.errors, strict=True)
        ]
        lines.append((row.method, *cells))
    if not lines:
        return None
    columns = ("", *(f"step size {i + 1}" for i in range(len(ADAM_RATES))))
    note = "In decreasing order; where the largest is the best, a larger one might be better still."
    return Table("Held-out error (%) at the step sizes tried", columns, tuple(lines), note)


def random_table(settings: Settings, part: RandomPart, results: Results) -> Table:
    """Every method at every sparsity from random weights."""
    runs = results.chosen_random()
    errors = errors_of(runs)
    lines: list[tuple[Cell, ...]] = []
    for sparsity in part.sparsities:
        cells: list[Cell] = []
        for name in part.methods:
            lost = sum(row.diverged for row in runs if row.method == name and row.sparsity == sparsity)
            if sparsity not in errors.get(name, {}):
                cells.append(Number(None, note="diverged"))
                continue
            mean, error = errors[name][sparsity]
            se, printed = error if part.seeds > 1 else None, settings.paper.get(sparsity, {})
            value = printed.get(NAMES_IN_PAPER.get(name, ""))
            number = Number(mean, se, STYLE) if value is None else versus_paper(mean, value, se=se, style=STYLE)
            cells.append(replace(number, note=f"{lost} diverged") if lost else number)
        lines.append((_pruned(sparsity), *cells, _wanted_ratio(settings, runs, sparsity)))
    seeds = "1 seed" if part.seeds == 1 else f"{part.seeds} seeds"
    return Table(
        f"From random weights: mean relative error (%) after {part.gradients:,} gradients, {seeds}",
        ("", *part.methods, f"{BEST} / SGLD"),
        tuple(lines),
        "The prediction is the mean over the draws of the last fifth of the run (Adam: its last weights). The ratio "
        f"is marked better if it is at most {WANTED_RATIO[settings.kind]:g}, which was asked for beforehand. Means "
        "are over the seeds that did not diverge.",
    )


def _wanted_ratio(settings: Settings, runs: Sequence[RandomRow], sparsity: float) -> Number:
    ratio = ratio_to_sgld(runs, sparsity)
    if ratio.value is None:
        return ratio
    return replace(ratio, mark="better" if ratio.value <= WANTED_RATIO[settings.kind] else "worse")


def random_tuning_table(settings: Settings, part: RandomPart, results: Results) -> Table | None:
    """Held-out errors at the step sizes tried from random weights; None if step sizes were not tried."""
    if not part.tuned:
        return None
    at = part.tuned_at(settings.tuning_sparsity)
    cell = [row for row in results.random if row.seed == 0 and row.sparsity == at and not row.diverged]
    lines: list[tuple[Cell, ...]] = []
    for name in part.methods:
        cells = []
        for size in random_step_sizes_of(name):
            tried = [row for row in cell if row.method == name and row.relative_step_size == size]
            note = f"at {size:g}" if tried else f"diverged at {size:g}"
            cells.append(Number(tried[0].held_error if tried else None, style=STYLE, note=note))
        lines.append((name, *cells))
    columns = ("", *(f"step size {i + 1}" for i in range(len(ADAM_RATES))))
    note = f"In decreasing order, at the first seed, {_pruned(at)}; other runs have the step size of lowest error here."
    return Table("From random weights: held-out error (%) at the step sizes tried", columns, tuple(lines), note)


def _random_section(settings: Settings, part: RandomPart, results: Results) -> Section:
    tuning = random_tuning_table(settings, part, results)
    widths = " and ".join(map(str, part.mlp_widths))
    network = f"The network is a multilayer perceptron with hidden layers of {widths} units. " if widths else ""
    hours = sum(row.seconds for row in results.random) / 3600
    text = (
        "Here no optimiser comes first: every run of a seed starts at the same random weights"
        f"{'' if widths else ', those from which Adam starts above'}, and each method has {part.gradients:,} "
        "gradients in all, including those for curvature pairs, Hessian products (two each) and scales, which are "
        "measured at the random weights. λ_max there is "
        f"{results.random_starts[0].curvature:.2g} in the weights' own units and "
        f"{results.random_starts[0].rescaled_curvature:.2g} in the rescaled ones. Step sizes of all methods are "
        f"constant in the first {100 * TAPERED_FROM:.0f} % of a run and fall along a cosine to "
        f"{100 * TAPERED_TO:g} % of that in the rest; weights are pruned in the first two fifths. pSGLD learns its "
        f"second moment as it goes. {network}"
        f"All runs of this part took {hours:.1f} hours of CPU time.",
    )
    picture = Picture(
        RANDOM_FIGURE,
        "From random weights: test error against gradients, mean over seeds. At each point the prediction is the mean "
        "over the last fifth of the draws so far. Cross: Adam at its end; dashed: the paper's best.",
        "Curves of the error of every method against the number of gradients, one panel for each sparsity.",
    )
    tables = random_table(settings, part, results), *([tuning] if tuning else [])
    return Section("From random weights", text, tables, (picture,))


def build_report(settings: Settings, results: Results) -> Report:
    """Build the report. Calibration, fields and cost are those of the first of `settings.mirrors`."""
    mirror = settings.mirrors[0]
    runs = results.runs_for(mirror)
    tuning = tuning_table([row for row in results.tuning if row.mirror == mirror])
    sections = [_errors_section(settings, which, results) for which in settings.mirrors]
    if settings.random is not None:
        sections.append(_random_section(settings, settings.random, results))
    sections.append(Section("Calibration", (), (coverage_table(settings, runs),), _fields(settings, results)))
    sections.append(Section("Cost and step sizes", (), (cost_table(settings, runs), *([tuning] if tuning else []))))
    methods = (_budget(settings), _tuning(settings), _methods(settings), _posterior(settings))
    sections.append(Section("Experimental setup", methods))
    return Report(TITLES[settings.kind], (_introduction(settings, results.starts[0]),), tuple(sections))


def _errors_section(settings: Settings, mirror: bool, results: Results) -> Section:
    symmetry = ""
    if len(settings.mirrors) > 1:
        symmetry = "with the mirror symmetry" if mirror else "without the mirror symmetry"
    seeds = "1 seed" if settings.seeds == 1 else f"{settings.seeds} seeds"
    caption = f"Mean relative error (%), {seeds}" + (f", {symmetry}" if symmetry else "")
    alt = "Bars: the error of every method at every sparsity" + (
        "; dashed: the paper's best." if settings.paper else "."
    )
    tables = error_table(settings, mirror, results, caption), comparison_table(settings, mirror, results)
    left_out = [name for name in settings.methods if name not in settings.methods_for(mirror)]
    left_out += [_pruned(s) for s in settings.sparsities if s not in settings.sparsities_for(mirror)]
    text = (f"Not run here, to save time: {'; '.join(left_out)}.",) if left_out else ()
    return Section(f"Errors {symmetry}".strip(), text, tables, (Picture(error_figure(mirror), caption, alt),))


def _introduction(settings: Settings, start: StartRow) -> str:
    inputs = "three-spot sources" if settings.kind == "source" else "random permeabilities"
    return (
        f"A network learns the map from {inputs} to the fluxes through all edges of a {settings.size}×{settings.size} "
        f"grid, from {settings.train - settings.held:,} samples ({settings.held} more are held out), and is tested on "
        f"{settings.samples - settings.train}. Permeability: {start.data_label}. The network has {start.weights:,} "
        "weights."
    )


def _fields(settings: Settings, results: Results) -> tuple[Picture, ...]:
    shown: Mapping[str, Mapping[str, list[float]]] = results.shown_fields(settings.mirrors[0])
    if not shown:
        return ()
    noise = max(max(fields["noise"]) for fields in shown.values())
    caption = (
        f"The test sample farthest from the training mean, {_pruned(settings.tuning_sparsity)}: true and predicted "
        "velocity along x, the error, and the standard deviation of the draws, without the likelihood's noise "
        f"({noise:.2g}) and the recalibration."
    )
    return (Picture(FIELDS_FIGURE, caption, f"Fields of {', then '.join(shown)}."),)


def _rescaled_methods(settings: Settings) -> str:
    return "HASGLD-SA and SGHMC" if DIAGONAL in settings.methods else "HASGLD-SA"


def _budget(settings: Settings) -> str:
    product = HESSIAN_PRODUCT_COST * CURVATURE_EXAMPLES / settings.batch_size
    return (
        f"Every run of a seed starts at the same weights: {settings.optimiser_steps:,} steps of Adam on the "
        f"posterior's potential. Then each method has a budget of {settings.chain_gradients:,} gradients of batches of "
        f"{settings.batch_size}, including those for curvature pairs and scales. Not included, once per seed: twelve "
        f"Hessian-vector products on {CURVATURE_EXAMPLES} samples that estimate λ_max in the original coordinates, for "
        f"SGLD, and twelve in the rescaled coordinates, for {_rescaled_methods(settings)} (together worth about "
        f"{12 * product:.0f} gradients each). Weights are pruned in the first two fifths of the chain; draws are kept "
        f"from its last two fifths. {ADAM} continues with Adam instead of a sampler, with the same pruning and a "
        "learning rate that decays to zero."
    )


def _tuning(settings: Settings) -> str:
    if not settings.tuned:
        return "Step sizes were fixed beforehand, close to those that the full study of sources chose; none is tuned."
    return (
        f"Step sizes: the best of four for every method, by the error on {settings.held} held-out training samples "
        f"after half a run at {100 * settings.tuning_sparsity:.0f} % pruned; the same samples recalibrate the "
        f"intervals. The grids of SGLD, pSGLD and {_rescaled_methods(settings)} were shifted after first runs of one "
        f"seed; friction, base growth and the interval between pairs were set by hand. {BEST} is compared with the "
        "paper's best number, regardless of the results of the others."
    )


def _methods(settings: Settings) -> str:
    texts = [
        f"HASGLD-SA is the limited-memory form with M pairs, one every {PAIR_EVERY} steps, over a diagonal base (the "
        f"inverse square root of the mean squared gradient, from {SCALE_GRADIENTS} batches at the start, in units of "
        f"the data's curvature, plus the prior's, and at least {100 * LEAST:g} % of its 99 % quantile) that may grow "
        f"by a factor of {BASE_GROWTH:g}, with momentum (friction {FRICTION:g})."
    ]
    if PSGLD in settings.methods:
        texts.append("pSGLD's second moment is initialised with the same diagonal.")
    if DIAGONAL in settings.methods:
        texts.append(f"“{DIAGONAL}” is the same without pairs, at its own best step size.")
    if any(PRINTED.format(memory) in settings.methods for memory in MEMORIES):
        texts.append(
            "“As printed” is the paper's Algorithm 2, which does not sample the posterior; the pairs that it computes "
            "anew when weights are pruned are not counted."
        )
    return " ".join(texts)


def _posterior(settings: Settings) -> str:
    return (
        f"Likelihood: Gaussian, σ = {100 * settings.relative_noise:g} % of a flux's root mean square; prior: weights "
        f"N(0, {settings.prior_scale:g}²). All samplers inject noise of temperature {settings.temperature:g}. The "
        f"stationary distribution is not the posterior to the power {1 / settings.temperature:,.0f}: in directions "
        "determined by the data, minibatch gradient noise exceeds the injected noise. The coverage before "
        "recalibration shows how well the draws represent the uncertainty."
    )


STYLES = {
    SGLD: ("tab:orange", ""),
    PSGLD: ("tab:brown", "//"),
    PRINTED.format(1): ("0.75", ".."),
    PRINTED.format(2): ("0.6", "xx"),
    DIAGONAL: ("tab:purple", "++"),
    OURS.format(1): ("lightskyblue", ""),
    BEST: ("tab:blue", ""),
    LIMITED: ("tab:cyan", ""),
    LOW_RANK: ("tab:red", ""),
    ADAM: ("tab:green", "\\\\"),
}
"""Colour and hatching of every method."""


def plot_error_bars(
    errors: Mapping[str, Mapping[float, tuple[float, float]]], paper: Mapping[float, Mapping[str, float]]
) -> Figure:
    """Mean relative error of every method (mean and standard error over seeds) at every sparsity, on a log scale."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    sparsities = sorted({sparsity for row in errors.values() for sparsity in row})
    wide = 0.8 / len(errors)
    for number, (name, row) in enumerate(errors.items()):
        places = [i + (number - (len(errors) - 1) / 2) * wide for i, s in enumerate(sparsities) if s in row]
        values = [row[s] for s in sparsities if s in row]
        axes.bar(
            places,
            [mean for mean, _ in values],
            wide,
            yerr=[error for _, error in values],
            label=name,
            color=STYLES[name][0],
            hatch=STYLES[name][1],
            edgecolor="white",
            error_kw={"elinewidth": 1},
        )
    for index, sparsity in enumerate(sparsities):
        if sparsity in paper:
            best = min(paper[sparsity].values())
            axes.plot([index - 0.45, index + 0.45], [best, best], "k--", lw=1.2, label="" if index else "paper's best")
    axes.set_yscale("log")
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks(range(len(sparsities)), ["no pruning" if s == 0 else f"{100 * s:.0f} % pruned" for s in sparsities])
    axes.set_ylabel("mean relative error on test samples (%)")
    figure.legend(loc="outside upper center", fontsize=8, ncols=5, frameon=False)
    return figure


def plot_random_curves(runs: Sequence[RandomRow], paper: Mapping[float, Mapping[str, float]]) -> Figure:
    """Error against gradients, mean over the seeds that did not diverge; one panel for each sparsity."""
    sparsities = sorted({row.sparsity for row in runs})
    figure = Figure(figsize=(max(5.0, 3.4 * len(sparsities)), 3.8), layout="constrained")
    panels = figure.subplots(1, len(sparsities), squeeze=False, sharey=True)[0]
    for axes, sparsity in zip(panels, sparsities, strict=True):
        for name in RANDOM_METHOD_NAMES:
            chosen = [row for row in runs if row.method == name and row.sparsity == sparsity and not row.diverged]
            if not chosen:
                continue
            gradients, errors = chosen[0].gradients or [], np.array([row.errors for row in chosen])
            colour = STYLES[name][0]
            if name == ADAM:
                axes.plot(gradients, errors.mean(0), "x", color=colour, label=name)
                continue
            axes.plot(gradients, errors.mean(0), color=colour, label=name, lw=2.2 if name == BEST else 1.4)
            axes.fill_between(gradients, errors.min(0), errors.max(0), color=colour, alpha=0.15, lw=0)
        if sparsity in paper:
            axes.axhline(min(paper[sparsity].values()), color="k", ls="--", lw=1)
        axes.set_yscale("log")
        axes.set_title(_pruned(sparsity), fontsize=10)
        axes.set_xlabel("gradients")
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("mean relative error on test samples (%)")
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", fontsize=8, ncols=4, frameon=False)
    return figure


def plot_fields(grid: Grid, predicted: Mapping[str, Mapping[str, list[float]]]) -> Figure:
    """Velocity along x: the truth, then for every method its prediction, error and standard deviation per cell."""
    # Constrained layout ignores the tick labels of the colour bars: leave a margin for them on the right.
    figure = Figure(figsize=(12, 2.9 * len(predicted)), layout=ConstrainedLayoutEngine(rect=(0, 0, 0.96, 1)))
    rows = figure.subplots(len(predicted), 4, squeeze=False)

    def velocity(name: str, what: str) -> Array:
        return cell_velocity(grid, np.asarray(predicted[name][what]))[0]

    true = velocity(next(iter(predicted)), "truth")
    shared = Normalize(float(true.min()), float(true.max()))
    means = {name: velocity(name, "mean") for name in predicted}
    stds = {name: velocity(name, "std") for name in predicted}
    errors = Normalize(0, max(float(np.abs(mean - true).max()) for mean in means.values()))
    deviations = Normalize(0, max(float(std.max()) for std in stds.values()))
    for line, name in zip(rows, predicted, strict=True):
        _show(figure, line[0], true, "true $u_x$", "viridis", shared)
        _show(figure, line[1], means[name], f"{name}:\npredicted $u_x$", "viridis", shared)
        _show(figure, line[2], np.abs(means[name] - true), "absolute error", "magma", errors)
        _show(figure, line[3], stds[name], "standard deviation\nof the draws", "magma", deviations)
    return figure


def _show(figure: Figure, axes: Axes, values: Array, title: str, colours: str, norm: Normalize) -> None:
    image = axes.imshow(values, origin="lower", extent=(0, 1, 0, 1), cmap=colours, norm=norm, interpolation="nearest")
    axes.set_title(title, fontsize=10)
    axes.set_xticks([0, 1])
    axes.set_yticks([0, 1])
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.formatter.set_powerlimits((-2, 3))  # type: ignore[attr-defined]
    bar.update_ticks()
