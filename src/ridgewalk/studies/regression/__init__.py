"""The paper's second example: regression with more predictors than samples."""
