"""Bayesian surrogates: networks, likelihoods, and uncertainty that is checked."""
