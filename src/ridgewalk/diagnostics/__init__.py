"""Diagnostics of a run: mixing, bias, curvature, and conversion to ArviZ."""
