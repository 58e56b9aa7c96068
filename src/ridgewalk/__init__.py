"""Ridgewalk: stochastic-gradient MCMC on posteriors that plain Langevin dynamics cannot mix on."""
