"""Sparse variational inference and its relatives (Campbell & Beronov 2019)."""
