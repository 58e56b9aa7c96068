"""The report of a fit: phases, diagnostics and calibration, as text and as JSON."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ridgewalk.neural.assessment import Assessment

OF_CLASSES = "temperature of the probabilities"
"""The recalibration of a classifier."""


@dataclass(frozen=True)
class Phase:
    """One part of a fit. Losses are Ũ/(N m w): potential per example, output and `data_weight`."""

    name: str
    steps: int
    seconds: float
    """In the process that finished the fit: what an earlier one did before it was killed is not counted."""
    first_loss: float
    last_loss: float


@dataclass(frozen=True)
class Gain:
    """Mean log predictive density of an example, of the draws and of the modes that sampling started from."""

    draws: float
    modes: float
    how: str
    """How it was estimated."""

    def __str__(self) -> str:
        """In one line."""
        return (
            f"log density of an example: draws {self.draws:.3f}, their modes {self.modes:.3f}; sampling added "
            f"{self.draws - self.modes:.3f} ({self.how})"
        )


@dataclass(frozen=True)
class FitReport:
    """Phases, health and calibration of a fit."""

    network: str
    method: str
    sampler: str
    weights: int
    examples: int
    held_out: int
    outputs: int
    constant_outputs: int
    data_weight: float
    """The power of the likelihood: above 1 where there are more weights than targets."""
    chains: int
    draws: int
    phases: tuple[Phase, ...]
    step_size: float
    noise: float | None
    """Median over draws and outputs of the learnt σ, in units of an output's standard deviation."""
    ess: float
    """Median effective sample size of some predictions."""
    r_hat: float
    """Median over some predictions: far above 1 where chains are in different modes."""
    ending: str
    """Why sampling ended."""
    temperature: float
    """Mean observed temperature of the steps: near the sampler's own where the step size is small enough."""
    health: tuple[str, ...]
    gain: Gain | None
    """What sampling added over its own modes, where it is known."""
    recalibration: str
    calibration_note: str
    """What the decision about recalibration is based on."""
    scale: float
    before: Assessment | None
    after: Assessment | None

    def __str__(self) -> str:
        """A page of plain text."""
        constant = f" ({self.constant_outputs} constant outputs excluded)" if self.constant_outputs else ""
        lines = [
            f"network {self.network}, {self.weights:,} weights; method {self.method}, sampler {self.sampler}, "
            f"{self.chains} chains",
            f"{self.examples} training examples, {self.held_out} held out; {self.outputs} outputs{constant}",
        ]
        if self.data_weight != 1:
            lines.append(f"cold posterior: likelihood to the power {self.data_weight:.3g} (data_weight)")
        for phase in self.phases:
            loss = "" if np.isnan(phase.last_loss) else f", loss {phase.first_loss:.4g} to {phase.last_loss:.4g}"
            lines.append(f"{phase.name}: {phase.steps:,} steps in {phase.seconds:.1f} s{loss}")
        noise = "" if self.noise is None else f"noise {self.noise:.3g} output standard deviations"
        if self.method == "sample":
            lines.append(
                f"step size {self.step_size:.3g}, observed temperature {self.temperature:.3f}"
                + (noise and f", {noise}")
            )
            lines.append(
                f"{self.draws} draws; predictions: effective sample size {self.ess:.1f}, R-hat {self.r_hat:.2f}"
            )
            lines.append(f"sampling ended after {self.ending}")
            lines.extend(f"chain {number}: {status}" for number, status in enumerate(self.health))
        else:
            lines.append(f"{self.draws} draws" + (noise and f", {noise}"))
        if self.gain is not None:
            lines.append(str(self.gain))
        if self.calibration_note:
            lines.append(self._calibration())
        return "\n".join(lines)

    def _calibration(self) -> str:
        text = self.calibration_note
        if self.recalibration in ("none", OF_CLASSES):
            return text
        text = f"recalibration: {self.recalibration}, {text}; standard deviations times {self.scale:.3g}"
        if self.before is None or self.after is None:
            return text
        return f"{text}\n  before {self.before!r}\n  after  {self.after!r}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        record = asdict(self)
        for name in ("before", "after"):
            assessment: Assessment | None = getattr(self, name)
            record[name] = None if assessment is None else assessment_to_json(assessment)
        return _finite(record)


def assessment_to_json(assessment: Assessment) -> dict[str, Any]:
    """Plain values."""
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in assessment._asdict().items()}


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def report_from_json(record: dict[str, Any]) -> FitReport:
    """The report of a saved model."""

    def number(value: float | None) -> float:
        return float("nan") if value is None else value

    def assessment(found: dict[str, Any] | None) -> Assessment | None:
        if found is None:
            return None
        arrays = {name: np.asarray(found[name], float) for name in ("levels", "coverage", "width")}
        return Assessment(**{**found, **arrays})

    def phase(found: dict[str, Any]) -> Phase:
        losses = number(found["first_loss"]), number(found["last_loss"])
        return Phase(found["name"], found["steps"], found["seconds"], *losses)

    gain = record["gain"]
    known = {
        **record,
        "gain": None if gain is None else Gain(**gain),
        "phases": tuple(map(phase, record["phases"])),
        "health": tuple(record["health"]),
        "before": assessment(record["before"]),
        "after": assessment(record["after"]),
    }
    for name in ("ess", "r_hat", "temperature", "step_size"):
        known[name] = number(record[name])
    return FitReport(**known)
