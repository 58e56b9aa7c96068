"""1,000 parameters with 20 outlying Hessian eigenvalues."""
