"""Model files and commands of the regressor."""
