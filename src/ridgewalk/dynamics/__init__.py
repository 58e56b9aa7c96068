"""Dynamics: how a chain moves. Each composes with any preconditioner."""
