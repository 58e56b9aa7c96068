"""Bayesian neural networks: estimators, posteriors, networks, calibrated predictions.

Here are the names that the estimators and the command line share; this module does not import JAX.
"""

from typing import Literal

NetworkName = Literal["mlp", "permeability", "source"]
SamplerName = Literal["hamcmc", "hasgld_sa", "psgld", "sghmc", "sgld", "sgnht"]
LikelihoodName = Literal["gaussian", "relative_l2"]
RecalibrationName = Literal["conformal", "temperature", "none"]
OutputScaling = Literal["each", "together"]

DEFAULT_PRIOR = 0.6
"""Prior standard deviation of a weight, in units of the root mean square of its array at initialisation."""
