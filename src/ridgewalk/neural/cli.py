"""`ridgewalk fit`, `predict` and `evaluate`: Bayesian neural networks on the user's own arrays."""

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ridgewalk._cli_errors import errors_as_messages
from ridgewalk._validation import requires_extra
from ridgewalk.neural import (
    DEFAULT_LIKELIHOOD,
    DEFAULT_NETWORK,
    DEFAULT_PRIOR,
    LikelihoodName,
    MethodName,
    NoiseKind,
    OutputScaling,
    RecalibrationName,
    SamplerName,
)

with requires_extra("cli"):
    import typer

if TYPE_CHECKING:
    from ridgewalk.neural.classifier import NeuralClassifier
    from ridgewalk.neural.regressor import NeuralRegressor

DEFAULT_BATCH_SIZE = 32

TaskName = Literal["regression", "classification"]

Data = Annotated[Path, typer.Option(help="File with the arrays: .npz, .zarr or .nc.")]
Inputs = Annotated[str, typer.Option(help="Name of the input array, (example, …).")]
Targets = Annotated[str, typer.Option(help="Name of the target array, (example, …).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
Model = Annotated[Path, typer.Argument(help="A folder written by `ridgewalk fit`.")]


def fit(
    *,
    data: Data,
    inputs: Inputs = "X",
    targets: Targets = "Y",
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")],
    task: Annotated[TaskName, typer.Option(help="Real targets, or labels (whole numbers or strings).")] = "regression",
    network: Annotated[
        str,
        typer.Option(
            help="Architecture: mlp, mlp:64x64, mlp:64x64:relu; conv or conv:8x16 for images; source or permeability "
            "for 2-D fields."
        ),
    ] = DEFAULT_NETWORK,
    method: Annotated[MethodName, typer.Option(help="Sampling, or an approximation of the posterior.")] = "sample",
    sampler: Annotated[SamplerName, typer.Option(help="The sampler.")] = "auto",
    likelihood: Annotated[LikelihoodName, typer.Option(help="The likelihood; regression only.")] = DEFAULT_LIKELIHOOD,
    noise: Annotated[NoiseKind, typer.Option(help="What the noise depends on; regression only.")] = "each",
    prior: Annotated[
        float, typer.Option(help="How much functions of the prior vary, in standard deviations of the targets.")
    ] = DEFAULT_PRIOR,
    sparsity: Annotated[float, typer.Option(help="Fraction of the weights to prune; 0 for none.")] = 0.0,
    optimiser_steps: Annotated[int | None, typer.Option(help="Adam steps before sampling.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate of Adam.")] = None,
    steps: Annotated[int | None, typer.Option(help="The most sampling steps, burn-in included.")] = None,
    burn_in: Annotated[int | None, typer.Option(help="Burn-in steps, discarded.")] = None,
    draws: Annotated[int | None, typer.Option(help="Posterior draws to keep, over all chains.")] = None,
    chains: Annotated[int | None, typer.Option(help="Number of chains; default 4 (2 for large networks).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step; default: all while that is cheap.")] = None,
    step_size: Annotated[
        float | None, typer.Option(help="Step size of the sampler; default: found by warm-up.")
    ] = None,
    r_hat: Annotated[float, typer.Option(help="R-hat of predictions at which sampling ends.")] = 1.1,
    max_time: Annotated[float | None, typer.Option(help="Seconds after which sampling ends.")] = None,
    holdout: Annotated[float | None, typer.Option(help="Fraction of the examples held out for recalibration.")] = None,
    recalibration: Annotated[RecalibrationName, typer.Option(help="How predictions are recalibrated.")] = "auto",
    output_scaling: Annotated[
        OutputScaling, typer.Option(help="Standardise each output by its own standard deviation, or all together.")
    ] = "each",
    class_weight: Annotated[
        Literal["none", "balanced"], typer.Option(help="Weights of the classes; classification only.")
    ] = "none",
    seed: Annotated[int, typer.Option(help="Random seed; the same seed gives the same model.")] = 0,
    checkpoint_every: Annotated[str, typer.Option(help="Steps (500) or time ('2 min') between checkpoints.")] = "2 min",
    overwrite: Overwrite = False,
) -> None:
    """Fit a Bayesian neural network. If interrupted or killed, rerun the same command to resume."""
    from ridgewalk._compilation import use_persistent_cache  # noqa: PLC0415
    from ridgewalk._io import others_files, refuse_existing, remove_own, working_folder  # noqa: PLC0415
    from ridgewalk.neural.io import read_examples, read_labels  # noqa: PLC0415

    with errors_as_messages():
        use_persistent_cache()
        refuse_existing(out, overwrite)
        regression = task == "regression"
        x, y = read_examples(data, [inputs, targets]) if regression else read_labels(data, inputs, targets)
        _check_fit_size(len(x), batch_size, optimiser_steps)
        from ridgewalk.neural.classifier import NeuralClassifier  # noqa: PLC0415  (JAX loads only when needed)
        from ridgewalk.neural.io import refuse_to_replace  # noqa: PLC0415
        from ridgewalk.neural.regressor import NeuralRegressor  # noqa: PLC0415

        refuse_to_replace(out, overwrite)
        growing = working_folder(out)
        common: dict[str, Any] = {
            "network": network,
            "method": method,
            "sampler": sampler,
            "prior": prior,
            "sparsity": sparsity,
            "optimiser_steps": optimiser_steps,
            "learning_rate": learning_rate,
            "steps": steps,
            "burn_in": burn_in,
            "draws": draws,
            "chains": chains,
            "batch_size": "auto" if batch_size is None else batch_size,
            "step_size": "auto" if step_size is None else step_size,
            "r_hat": r_hat,
            "max_time": max_time,
            "recalibration": recalibration,
            "random_state": seed,
            "checkpoint": growing,
            "checkpoint_every": int(checkpoint_every) if checkpoint_every.isdigit() else checkpoint_every,
            "progress": True,
        }
        model: NeuralRegressor | NeuralClassifier
        if regression:
            model = NeuralRegressor(
                **common,
                likelihood=likelihood,
                noise=noise,
                holdout=holdout,
                output_scaling=output_scaling,
            )
        else:
            model = NeuralClassifier(**common, class_weight=None if class_weight == "none" else class_weight)
        try:
            model.fit(_matrix(x), y)
            model.save(out, overwrite=overwrite)
        except RuntimeError:  # the fit failed, and would fail again
            remove_own(growing)
            raise
        except BaseException:
            if not others_files(growing, ()):  # nothing to resume
                remove_own(growing)
            raise
        remove_own(growing)
        diverged = [str(chain) for chain, status in enumerate(model.report_.health) if status.startswith("diverged")]
        if diverged:
            typer.echo(f"warning: chains {', '.join(diverged)} diverged and were excluded; lower --step-size", err=True)
        typer.echo(str(model.report_))
        typer.echo(f"wrote {out}")


def _check_fit_size(examples: int, batch_size: int | None, optimiser_steps: int | None) -> None:
    """Raise for settings that the library takes but from which no useful model comes."""
    if batch_size is not None and batch_size > max(examples, DEFAULT_BATCH_SIZE):
        raise ValueError(f"batch_size = {batch_size}: the data have {examples} examples; use at most that many")
    if optimiser_steps is not None and optimiser_steps < 1:
        raise ValueError(
            f"optimiser_steps = {optimiser_steps}: sampling would start from random weights; give at least 1 (1500 is "
            "the default)"
        )


def predict(
    model: Model,
    *,
    data: Data,
    out: Annotated[
        Path, typer.Option(help="The .npz file to write: mean, std, lower, upper; or label, probability, classes.")
    ],
    inputs: Inputs = "X",
    level: Annotated[float, typer.Option(help="Coverage level of the central intervals.")] = 0.9,
    overwrite: Overwrite = False,
) -> None:
    """Predict with a fitted model: means, standard deviations and intervals."""
    from ridgewalk._compilation import use_persistent_cache  # noqa: PLC0415
    from ridgewalk._io import refuse_existing, write_atomically  # noqa: PLC0415
    from ridgewalk.neural.io import read_examples  # noqa: PLC0415

    with errors_as_messages():
        use_persistent_cache()
        if out.suffix != ".npz":
            raise ValueError(f"out = {out}: predictions are written as .npz; use that extension")
        refuse_existing(out, overwrite)
        if not out.parent.is_dir():
            raise ValueError(f"out = {out}: the folder {out.parent} does not exist; create it first")
        (x,) = read_examples(data, [inputs])
        import numpy as np  # noqa: PLC0415

        from ridgewalk.neural.regressor import NeuralRegressor  # noqa: PLC0415

        known = _load(model)
        x = _matrix(x)
        content = io.BytesIO()
        if isinstance(known, NeuralRegressor):
            mean, std = known.predict(x, return_std=True)
            lower, upper = known.predict_interval(x, level)
            np.savez(content, mean=mean, std=std, lower=lower, upper=upper, level=level)
        else:
            chances = known.predict_proba(x)
            np.savez(content, label=known.classes_[chances.argmax(axis=1)], probability=chances, classes=known.classes_)
        write_atomically(out, content.getvalue())
        typer.echo(f"wrote {len(x)} predictions to {out}")


def evaluate(
    model: Model,
    *,
    data: Data,
    inputs: Inputs = "X",
    targets: Targets = "Y",
    level: Annotated[list[float] | None, typer.Option(help="Coverage levels; default 0.5, 0.8, 0.9, 0.95.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Evaluate a fitted model on targets: errors, scores, coverage and width of intervals."""
    from ridgewalk._compilation import use_persistent_cache  # noqa: PLC0415
    from ridgewalk.neural.io import read_examples, read_labels  # noqa: PLC0415

    with errors_as_messages():
        use_persistent_cache()
        from ridgewalk.neural import assessment  # noqa: PLC0415
        from ridgewalk.neural.regressor import NeuralRegressor  # noqa: PLC0415

        known = _load(model)
        found: assessment.Evaluation | assessment.ClassAssessment
        if isinstance(known, NeuralRegressor):
            x, y = read_examples(data, [inputs, targets])
            found = assessment.evaluate(known, _matrix(x), y, level or assessment.EVALUATION_LEVELS)
        else:
            x, y = read_labels(data, inputs, targets)
            found = known.evaluate(_matrix(x), y)
        if as_json:
            typer.echo(json.dumps(found.to_json(), indent=1))
            return
        from rich.console import Console  # noqa: PLC0415

        Console(width=None if Console().is_terminal else 100).print(found.table())


def _matrix(x: Any) -> Any:
    """Inputs with at least one axis beside that of the examples."""
    return x if x.ndim > 1 else x[:, None]


def _load(path: Path) -> "NeuralRegressor | NeuralClassifier":
    from ridgewalk.neural.io import estimator_of  # noqa: PLC0415

    model: NeuralRegressor | NeuralClassifier = estimator_of(path).load(path)
    return model


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    commands: tuple[Any, ...] = (fit, predict, evaluate)
    for command in commands:
        app.command()(command)
