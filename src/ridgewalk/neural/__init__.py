"""Bayesian neural networks: estimators, posteriors, networks, calibrated predictions.

Here are the names that the estimators and the command line share; this module does not import JAX.
"""

from typing import Literal

MethodName = Literal["sample", "ensemble", "laplace", "swag"]
SamplerName = Literal["auto", "hamcmc", "hasgld_sa", "psgld", "sghmc", "sgld", "sgnht"]
LikelihoodName = Literal["student_t", "gaussian", "relative_l2"]
NoiseKind = Literal["each", "shared", "input"]
RecalibrationName = Literal["auto", "conformal", "temperature", "none"]
ClassRecalibrationName = Literal["auto", "temperature", "none"]
OutputScaling = Literal["each", "together"]

DEFAULT_NETWORK = "mlp"
DEFAULT_LIKELIHOOD: LikelihoodName = "student_t"
DEFAULT_PRIOR = 1.5
"""How much functions of the prior vary over the inputs, in standard deviations of the targets."""
