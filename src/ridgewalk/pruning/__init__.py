"""Magnitude pruning inside a chain: which weights go to zero, and when."""
