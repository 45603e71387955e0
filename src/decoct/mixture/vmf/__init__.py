"""Mixtures of von Mises–Fisher distributions on the sphere."""
