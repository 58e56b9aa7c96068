"""Predictive distributions, their scores, and their recalibration."""
