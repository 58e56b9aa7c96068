"""Choices that the estimator, the command and the optimiser share; without JAX, which a command loads when needed."""

DEFAULT_PRIOR = 0.6
"""Spread of a weight, in units of its layer's at the start."""
