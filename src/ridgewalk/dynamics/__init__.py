"""Dynamics: how a chain moves. Each takes any preconditioner."""
