"""Pruned networks: storage, and sparse products."""
