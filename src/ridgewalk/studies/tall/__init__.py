"""Regressions with up to a million rows: the cost of control variates, NUTS, HMCECS and Laplace's approximation."""
