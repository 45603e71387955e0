"""The real data sets of the papers, read from the folder named by DECOCT_DATA."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np


def folder() -> Path:
    """Return the data folder, or end the program with a sentence."""
    name = os.environ.get("DECOCT_DATA")
    if not name or not Path(name).is_dir():
        sys.exit("Set DECOCT_DATA to the folder with the data sets (see benchmarks/README.md).")
    return Path(name)


def whitened(x: np.ndarray) -> np.ndarray:
    """Whiten all columns but the last (the intercept): centre, then Cholesky with n−1."""
    covariates = x[:, :-1] - x[:, :-1].mean(axis=0)
    cov = np.atleast_2d(np.cov(covariates, rowvar=False))
    scaled = np.linalg.solve(np.linalg.cholesky(cov), covariates.T).T
    return np.column_stack([scaled, np.ones(len(x))])


def paper_set(name: str) -> dict[str, np.ndarray]:
    """Return one of the papers' sets as rows {"x", "y"}, covariates whitened."""
    with np.load(folder() / f"{name}.npz", allow_pickle=False) as archive:
        return {"x": whitened(archive["X"].astype(float)), "y": archive["y"].astype(float)}


def phishing_full() -> dict[str, np.ndarray]:
    """Return the 11,055 × 68 phishing table, X/√30 with an intercept."""
    with np.load(folder() / "phishing_full.npz", allow_pickle=False) as archive:
        x = archive["X"].astype(float) / np.sqrt(30.0)
        return {"x": np.column_stack([x, np.ones(len(x))]), "y": archive["y"].astype(float)}


def robust_regression(n: int = 200_000, seed: int = 0) -> dict[str, np.ndarray]:
    """Return synthetic rows with Student-t noise whose log scale is linear in the covariates."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(n, 3)), np.ones(n)])
    scale = np.exp(x @ np.array([0.3, -0.2, 0.1, -0.5]))
    y = x @ np.array([1.0, -0.5, 0.25, 2.0]) + scale * rng.standard_t(4.0, size=n)
    return {"x": x, "y": y}


def logistic(n: int = 200_000, dim: int = 10, seed: int = 0) -> dict[str, np.ndarray]:
    """Return synthetic logistic rows."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim))
    beta = 0.7 * rng.normal(size=dim)
    return {"x": x, "y": (rng.random(n) < 1.0 / (1.0 + np.exp(-x @ beta))).astype(np.int64)}
