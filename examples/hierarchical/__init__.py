"""Hierarchical models on real data: ``python -m examples.hierarchical.NAME``."""
