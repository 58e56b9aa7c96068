"""Preconditioners: operators G = S Sᵀ, and the rules that update them."""
