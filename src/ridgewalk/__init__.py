"""Ridgewalk: stochastic-gradient MCMC on posteriors that plain Langevin dynamics cannot mix on."""

from typing import TYPE_CHECKING, Any

from ridgewalk.adaptation import PowerDecay
from ridgewalk.data import Batches
from ridgewalk.diagnostics.likelihood import log_likelihood
from ridgewalk.diagnostics.mixing import autocorrelation_time, effective_sample_size
from ridgewalk.diagnostics.noise_share import gradient_noise_share
from ridgewalk.diagnostics.operators import effective_rank, pair_shares
from ridgewalk.diagnostics.report import CheckReport, Finding
from ridgewalk.diagnostics.stein import stein_discrepancy, stein_discrepancy_of
from ridgewalk.diagnostics.temperature import configurational_temperature, kinetic_temperature
from ridgewalk.dynamics.as_printed import AsPrinted
from ridgewalk.dynamics.delayed import Delayed
from ridgewalk.dynamics.hamiltonian import Hamiltonian
from ridgewalk.dynamics.langevin import Langevin
from ridgewalk.dynamics.thermostat import Thermostat
from ridgewalk.gradients import control_variates, svrg
from ridgewalk.kernel import Info, Kernel, Sampler, State, build_kernel, preconditioner_matrix
from ridgewalk.precondition.base import Preconditioner
from ridgewalk.precondition.dense import Dense
from ridgewalk.precondition.fixed import fixed
from ridgewalk.precondition.gradient_scale import gradient_scale
from ridgewalk.precondition.identity import Identity
from ridgewalk.precondition.lbfgs import LBFGS
from ridgewalk.precondition.limited import Limited
from ridgewalk.precondition.low_rank import LowRank
from ridgewalk.precondition.metric import Metric
from ridgewalk.precondition.rescaled import rescaled
from ridgewalk.precondition.rmsprop import RMSProp
from ridgewalk.priors.base import AdaptivePrior, Residuals
from ridgewalk.priors.by_leaf import prior_by_leaf
from ridgewalk.priors.shared_noise import shared_noise
from ridgewalk.priors.simple import gaussian_prior, laplace_prior, student_t_prior
from ridgewalk.priors.spike_slab import spike_and_slab
from ridgewalk.run.averages import (
    posterior_covariance,
    posterior_expectation,
    posterior_mean,
    posterior_std,
    posterior_variance,
)
from ridgewalk.run.checkpoint import CheckpointError
from ridgewalk.run.health import ChainStatus, DivergenceError
from ridgewalk.run.result import Result
from ridgewalk.run.sample import sample
from ridgewalk.run.step_size import StepSize, find_step_size
from ridgewalk.samplers import hamcmc, hasgld_sa, pruned, psgld, sghmc, sgld, sgnht, sgrld
from ridgewalk.surrogates.compressed import CompressedModel, compress
from ridgewalk.surrogates.model import Model
from ridgewalk.target import Density, Posterior

if TYPE_CHECKING:
    from ridgewalk.surrogates.estimator import SurrogateRegressor

__version__ = "0.1.0"

__all__ = [
    "LBFGS",
    "AdaptivePrior",
    "AsPrinted",
    "Batches",
    "ChainStatus",
    "CheckReport",
    "CheckpointError",
    "CompressedModel",
    "Delayed",
    "Dense",
    "Density",
    "DivergenceError",
    "Finding",
    "Hamiltonian",
    "Identity",
    "Info",
    "Kernel",
    "Langevin",
    "Limited",
    "LowRank",
    "Metric",
    "Model",
    "Posterior",
    "PowerDecay",
    "Preconditioner",
    "RMSProp",
    "Residuals",
    "Result",
    "Sampler",
    "State",
    "StepSize",
    "SurrogateRegressor",
    "Thermostat",
    "autocorrelation_time",
    "build_kernel",
    "compress",
    "configurational_temperature",
    "control_variates",
    "effective_rank",
    "effective_sample_size",
    "find_step_size",
    "fixed",
    "gaussian_prior",
    "gradient_noise_share",
    "gradient_scale",
    "hamcmc",
    "hasgld_sa",
    "kinetic_temperature",
    "laplace_prior",
    "log_likelihood",
    "pair_shares",
    "posterior_covariance",
    "posterior_expectation",
    "posterior_mean",
    "posterior_std",
    "posterior_variance",
    "preconditioner_matrix",
    "prior_by_leaf",
    "pruned",
    "psgld",
    "rescaled",
    "sample",
    "sghmc",
    "sgld",
    "sgnht",
    "sgrld",
    "shared_noise",
    "spike_and_slab",
    "stein_discrepancy",
    "stein_discrepancy_of",
    "student_t_prior",
    "svrg",
]


def __getattr__(name: str) -> Any:
    """The estimator loads when it is asked for: scikit-learn is slow to import."""
    if name == "SurrogateRegressor":
        from ridgewalk.surrogates.estimator import SurrogateRegressor  # noqa: PLC0415

        return SurrogateRegressor
    raise AttributeError(f"module 'ridgewalk' has no attribute {name!r}")
