"""Tuning of a run before it is made: `find_step_size`."""
