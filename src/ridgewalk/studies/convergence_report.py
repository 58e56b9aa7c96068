"""The convergence study in words and tables."""

from typing import Any

from ridgewalk.studies.schema import Cell, Number, Picture, Report, Section, Table

Row = dict[str, Any]


def _slopes(operator: dict[str, Any]) -> Table:
    rows = tuple(
        (
            f"{curve['alpha']:g}",
            Number(curve["slope"], curve["slope_se"], ".2f"),
            Number(curve["predicted_slope"], style=".2f"),
            Number(curve["mean_square"][-1], curve["mean_square_se"][-1], ".2g"),
        )
        for curve in operator["curves"]
    )
    return Table(
        "Slope of E‖G_k − G_*‖² over the last decade of k",
        ("α", "measured", "that of ω_k", "E‖G_k − G_*‖² / d at the end"),
        rows,
        "± one standard error (jackknife over chains). The theorem bounds the error by a multiple of ω_k.",
    )


def _biases(caption: str, first: str, rows: list[Row], predicted: bool) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for row in rows:
        gone = Number(None, note="diverged")
        bias = gone if row["diverged"] else Number(row["bias"], row["bias_se"], ".3f")
        distance = gone if row["diverged"] else Number(row["distance"], style=".2g")
        line: tuple[Cell, ...] = (f"{row['x']:g}", bias)
        lines.append((*line, Number(row["predicted"], style=".3f"), distance) if predicted else (*line, distance))
    columns = (first, "bias", "predicted for G = Σ", "‖E G − Σ‖") if predicted else (first, "bias", "‖E G − Σ‖")
    return Table(caption, columns, tuple(lines))


def tell(settings: dict[str, Any], operator: dict[str, Any], biases: dict[str, list[Row]]) -> Report:
    """The report of the study."""
    alphas = ", ".join(f"{alpha:g}" for alpha in settings["alphas"])
    rate = Section(
        "How fast the preconditioner settles",
        (
            f"HASGLD-SA (dense form, M = {settings['memory']}) on a linear regression with 4 weights, 1,000 "
            f"examples and batches of {settings['operator_batch']}; ω_k = 5 (k + 10)^−α for α = {alphas}; k counts "
            f"averages of G, one every {settings['memory']} steps. G_* is the fixed point of the recursion, "
            f"estimated from all chains; noisy curvature puts it {operator['fixed_point_distance']:.1%} away from "
            "the exact covariance Σ. With exact gradients of a Gaussian there is no noise to average out, G_* = Σ, "
            "and G converges faster than ω_k.",
        ),
        (_slopes(operator),),
        (
            Picture(
                "operator.png",
                "Mean square distance of G_k from its fixed point, with ω_k (dashed) beside it. Bars: two standard "
                "errors.",
                "Three falling curves on logarithmic axes, one for each α, each running along its dashed line ω_k "
                "over the last decade of k; the slopes are in the table.",
            ),
        ),
    )
    by_base = [
        (label, [row for row in biases["memory"] if row["base"] == base])
        for base, label in (("scaled_identity", "base γ⁻¹I"), ("running", "base G itself"))
    ]
    falls = Section(
        "The controllable bias falls",
        (
            "Step size and batch size: φ = (θ − μ)ᵀ H (θ − μ) / d has posterior mean 1, so what chains find above 1 "
            "is bias. Dashed: what Langevin steps with G = Σ should show, (1 + ε v/2) / (1 − ε/2) − 1, v being the "
            "whitened variance of the minibatch gradient.",
            f"Memory: chains of {settings['memory_steps']:,} steps on a {settings['memory_dimension']}-d Gaussian of "
            f"condition number {settings['memory_condition']:,.0f} start {settings['away']:g} standard deviations "
            "off. What is left of the start in their mean is the bias; a G nearer to Σ forgets faster, until only "
            "the time of learning it is left.",
        ),
        (
            _biases("Bias of the variance against step size (exact gradients)", "step size", biases["step_size"], True),
            _biases(
                f"Bias of the variance against batch size (step size {settings['batch_step_size']:g})",
                "batch size",
                biases["batch_size"],
                True,
            ),
            *(_biases(f"Bias of the mean against memory, {label}", "M", rows, False) for label, rows in by_base),
        ),
        (
            Picture(
                "biases.png",
                "The bias of a posterior average. Bars: two standard errors over chains.",
                "Three plots on logarithmic axes: the bias falls with the step size, with growing batch size, each "
                "along its dashed prediction, and with the memory; the numbers are in the tables.",
            ),
        ),
    )
    text = (
        "The paper proves that G_k converges to its fixed point at the rate ω_k, and that posterior averages have a "
        "bias which the step size, the batch size n and the memory M control. Here both are measured where exact "
        "answers are known.",
    )
    return Report("The theory, checked", text, (rate, falls))
