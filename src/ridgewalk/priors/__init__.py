"""Priors: plain ones are functions of the position, adaptive ones learn their hyper-parameters while the chain runs."""
