"""Findings about chains: how they ended and how they mixed."""

from collections.abc import Iterator

from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.evidence import Evidence
from ridgewalk.diagnostics.report import Finding

FEWEST_EFFECTIVE = 100
"""Fewer effective draws leave a mean with an error above a tenth of the posterior's standard deviation."""

LARGEST_R_HAT = 1.05


def check_outcome(result: Draws) -> Iterator[Finding]:
    """Chains that diverged, and a run that was cut short."""
    dead = [(i, status) for i, status in enumerate(result.status) if not status.alive]
    if dead:
        told = "; ".join(f"chain {i} {status}" for i, status in dead)
        yield Finding(
            "diverged",
            f"{len(dead)} of {len(result.status)} chains diverged and are left out everywhere: {told}",
            "lower step_size: the chains that are left may only have been lucky",
        )
    if any(status.outcome == "interrupted" for status in result.status):
        yield Finding(
            "interrupted",
            f"the run was stopped after {result.steps:,} steps, before all were made",
            "continue it: the same call with resume=True, if it had a checkpoint folder",
        )


def check_mixing(evidence: Evidence) -> Iterator[Finding]:
    """Too few effective draws, chains in different places, parameters that stand still."""
    if evidence.stuck:
        yield Finding(
            "stuck",
            f"{', '.join(evidence.stuck[:5])}{' and others' if len(evidence.stuck) > 5 else ''} never changed",
            "see that log_prior and log_likelihood depend on it, and that step_size is not lost in rounding "
            "(float32 carries 7 digits)",
        )
    worst = evidence.disagreement
    if worst is not None and worst.value > LARGEST_R_HAT:
        yield Finding(
            "chains_disagree",
            f"R-hat of {worst.label} is {worst.value:.3g}, above {LARGEST_R_HAT}: the chains are in different places",
            "run longer, with a longer burn_in, or with a larger step_size or a preconditioner (hasgld_sa) so that "
            "chains mix; if they stay apart, the posterior has several modes and no chain visits them all",
        )
    fewest = evidence.fewest
    if fewest is not None and fewest.value < FEWEST_EFFECTIVE:
        yield Finding(
            "few_effective_draws",
            f"{fewest.label} has {fewest.value:.0f} effective draws, fewer than {FEWEST_EFFECTIVE}: its mean is "
            f"uncertain by {fewest.value**-0.5:.0%} of its posterior standard deviation",
            "more steps, a larger step_size if it is far below the stable one, or a preconditioner (hasgld_sa)",
        )
