"""`check`: read the diagnostics of a run and say in plain words what is wrong and what to try."""

from ridgewalk.diagnostics.check_chains import check_mixing, check_outcome
from ridgewalk.diagnostics.check_steps import check_preconditioner, check_sampler, check_steps
from ridgewalk.diagnostics.check_temperature import check_temperature
from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.evidence import Evidence, gather
from ridgewalk.diagnostics.report import CheckReport, Finding


def check(result: Draws) -> CheckReport:
    """Look for the known faults of a run: how it ended, how it mixed, its steps, its preconditioner, its temperature.

    Costs a few hundred gradients. A fault that another one explains is not reported twice: a chain that is too hot
    because its steps are too long is told about the steps.
    """
    evidence: Evidence = gather(result)
    findings: list[Finding] = [
        *check_outcome(result),
        *check_sampler(result),
        *check_mixing(evidence),
        *check_preconditioner(result, evidence),
        *check_steps(result, evidence),
        *check_temperature(result, evidence),
    ]
    return CheckReport(tuple(findings), evidence.numbers(), evidence.notes)
