"""Canonical problems: one table and one model of each kind, so that programs are compiled once."""

from functools import cache

import numpy as np

import decoct

N, D = 512, 3
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(N, D))
LOGISTIC = {"x": X, "y": (_RNG.random(N) < 1.0 / (1.0 + np.exp(-X @ [1.0, -0.5, 0.2]))).astype(int)}
LINEAR = {"x": X, "y": X @ [1.0, -1.0, 0.5] + _RNG.normal(size=N)}
MODEL = decoct.models.LogisticRegression()
SIZE = 20


@cache
def coreset():
    """The default coreset of the logistic table."""
    return decoct.build(MODEL, LOGISTIC, size=SIZE)


@cache
def draws():
    """Draws of its posterior."""
    return coreset().sample(draws=300, chains=2, warmup=200, seed=1)
