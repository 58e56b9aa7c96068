"""Tuning of a run before it is made: `find_mode` and `find_step_size`."""
