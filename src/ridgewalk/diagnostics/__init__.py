"""Diagnostics: how well a chain mixed."""
