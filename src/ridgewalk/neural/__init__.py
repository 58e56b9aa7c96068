"""Bayesian neural networks: estimators, posteriors, networks, calibrated predictions."""

DEFAULT_PRIOR = 0.6
"""Prior standard deviation of a weight, in units of the root mean square of its array at initialisation."""
