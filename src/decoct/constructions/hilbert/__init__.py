"""Hilbert coresets (Campbell & Broderick 2019): constructions, weighting distributions."""
