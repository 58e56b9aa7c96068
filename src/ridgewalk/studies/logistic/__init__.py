"""50-dimensional logistic regression with a condition number of 1.4e5."""
