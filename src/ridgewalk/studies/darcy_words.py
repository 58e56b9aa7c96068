"""What was done in a Darcy study, for all methods alike, in words."""

from ridgewalk.studies.darcy_look import CURVATURE_EXAMPLES, LEAST, SCALE_GRADIENTS
from ridgewalk.studies.darcy_methods import BASE_GROWTH, FRICTION, PAIR_EVERY
from ridgewalk.studies.darcy_names import ADAM, BEST, DIAGONAL, MEMORIES, PRINTED, PSGLD
from ridgewalk.studies.darcy_settings import Settings
from ridgewalk.studies.schema import Section

PRODUCT = 2.5
"""What a Hessian product costs, in gradients of as many samples."""


def method_section(settings: Settings) -> Section:
    """Budgets, tuning, methods, posterior."""
    return Section(
        "What was compared", (_budget(settings), _tuning(settings), _methods(settings), _posterior(settings))
    )


def _budget(settings: Settings) -> str:
    uncounted = 12 * PRODUCT * CURVATURE_EXAMPLES / settings.batch_size
    return (
        f"Every run starts at the same weights: {settings.optimiser_steps:,} steps of Adam on the posterior's "
        f"potential, one start a seed. Then each method gets {settings.chain_gradients:,} gradients of batches of "
        f"{settings.batch_size}, counting those that curvature pairs and scales cost. Not counted, once a seed: twelve "
        f"Hessian products on {CURVATURE_EXAMPLES} samples that tell λ_max in the weights' own units, for SGLD, and "
        f"twelve in units of their scales, for {_rescaled(settings)} (each worth about {uncounted:.0f} gradients). "
        "Pruning, where there is any, happens in the first two fifths of the chain; draws are kept from its last two "
        f"fifths. {ADAM} goes on with Adam in place of a sampler, with the same pruning and a rate that falls to zero."
    )


def _rescaled(settings: Settings) -> str:
    return "HASGLD-SA and SGHMC" if DIAGONAL in settings.methods else "HASGLD-SA"


def _tuning(settings: Settings) -> str:
    if not settings.tuned:
        return "Step sizes were fixed beforehand, near those that the full study of sources chose; none is tuned here."
    return (
        f"Step sizes: the best of four for every method, by the error on {settings.held} held-out training samples "
        f"after half a run at {100 * settings.tuning_sparsity:.0f} % pruned; the same samples correct the intervals. "
        f"The grids of SGLD, pSGLD and {_rescaled(settings)} were moved after first runs of one seed; friction, base "
        f"growth and the interval of pairs were set by hand. {BEST} is held against the paper's best number, whatever "
        "the others came to."
    )


def _methods(settings: Settings) -> str:
    said = [
        f"HASGLD-SA is the limited form with M pairs, one every {PAIR_EVERY} steps, over a diagonal base (the inverse "
        f"square root of the mean squared gradient, from {SCALE_GRADIENTS} batches at the start, in units of the "
        f"data's curvature, with the prior's added and {100 * LEAST:g} % of its 99 % quantile as the least) that may "
        f"grow {BASE_GROWTH:g} times, with momentum (friction {FRICTION:g})."
    ]
    if PSGLD in settings.methods:
        said.append("pSGLD's second moment starts from the same diagonal.")
    if DIAGONAL in settings.methods:
        said.append(f"“{DIAGONAL}” is the same without pairs, at its own best step size.")
    if any(PRINTED.format(memory) in settings.methods for memory in MEMORIES):
        said.append(
            "“As printed” is the paper's Algorithm 2, which is no posterior sampler; the pairs that it sees anew when "
            "weights are pruned are not counted."
        )
    return " ".join(said)


def _posterior(settings: Settings) -> str:
    return (
        f"Likelihood: Gaussian, σ = {100 * settings.relative_noise:g} % of a flux's root mean square; prior: weights "
        f"N(0, {settings.prior_scale:g}²). All samplers add noise of temperature {settings.temperature:g}. That is not "
        f"the posterior to the power {1 / settings.temperature:,.0f}: in directions that the data determine, the noise "
        "of the batches' gradients is larger. What the spread of the draws is worth, the coverage before "
        "recalibration shows."
    )
