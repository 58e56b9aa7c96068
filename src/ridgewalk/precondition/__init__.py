"""Preconditioners: one file each; a new one needs no change anywhere else."""
