"""The paper's first example: a 2D Gaussian."""
