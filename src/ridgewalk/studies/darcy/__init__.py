"""The paper's third and fourth examples: neural surrogates for Darcy flow with varying source or permeability."""
