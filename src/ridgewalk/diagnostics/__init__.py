"""Diagnostics: how well the chains mixed, whether they sample what they should, and what to try where not."""
