"""The paper's convergence theory, tested numerically."""
