"""Evaluation of a model on all N rows: predictive accuracy, evidence, prior sensitivity."""
