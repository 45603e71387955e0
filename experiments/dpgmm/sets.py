"""The data of Borsos, Bachem & Krause (2017, Section 4 and Supplement 5.5), and stand-ins.

KDD's protein homology set is theirs. Fashion-MNIST, ten principal components with whitening,
stands in for MNIST; US flights for MSYP and CSN. One set is made up of a few large and many rare
components, which is where a coreset should be ahead of uniform rows. Only for MNIST does the paper
say that columns were scaled; here all real columns have mean 0 and variance 1, as W₀ = 10·I treats
all columns alike. KDD is there a second time with its columns as published, which is what the
paper's words say.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from jaxtyping import Float, Int

from experiments import common

DATA_SEED = 20170101
"""Seed of the rows that are made up or sampled here: the same in all runs."""

TEST_SHARE = 0.2
FLIGHTS = 200_000
DELAYS = (-60, 300)
"""Minutes between which flights are kept; beyond are errors of entry and a very long tail."""

RARE_ROWS, RARE_DIM = 50_000, 2
LARGE_GROUPS, RARE_GROUPS, RARE_SHARE = 2, 60, 0.0008
"""Of the set with rare components; the share is that of each of them: 40 rows."""

TITLES = {
    "protein_homology": "Protein homology (KDD)",
    "protein_homology_raw": "KDD, columns as published",
    "fashion_mnist": "Fashion-MNIST, 10 components",
    "flights": "Flights",
    "rare": "Rare components",
}


@cache
def load(name: str) -> Float[np.ndarray, "N D"]:
    """Return the rows of a set by its name in `NAMES`; real ones come from the data folder."""
    return _LOADERS[name]()


def split(
    x: Float[np.ndarray, "N D"], seed: int
) -> tuple[Float[np.ndarray, "n D"], Float[np.ndarray, "m D"]]:
    """Return 80 % of the rows to fit and 20 % to test, at random."""
    order = np.random.default_rng([DATA_SEED, seed]).permutation(len(x))
    held_out = round(TEST_SHARE * len(x))
    return x[order[held_out:]], x[order[:held_out]]


def standardised(x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """Return columns of mean 0 and variance 1."""
    x = np.asarray(x, dtype=np.float64)
    return (x - x.mean(axis=0)) / x.std(axis=0)


def rare_components(rng: np.random.Generator, n: int) -> Float[np.ndarray, "n D"]:
    """Return rows of two large groups near each other and of many small ones far out."""
    far = rng.standard_normal((RARE_GROUPS, RARE_DIM))
    far *= rng.uniform(50.0, 200.0, size=(RARE_GROUPS, 1)) / np.linalg.norm(
        far, axis=1, keepdims=True
    )
    centres = np.concatenate([2.0 * rng.standard_normal((LARGE_GROUPS, RARE_DIM)), far])
    shares = np.full(len(centres), RARE_SHARE)
    shares[:LARGE_GROUPS] = (1.0 - RARE_GROUPS * RARE_SHARE) / LARGE_GROUPS
    groups = rng.choice(len(centres), size=n, p=shares)
    return centres[groups] + rng.standard_normal((n, RARE_DIM))


def chinese_restaurant(
    rng: np.random.Generator, n: int, concentration: float
) -> Int[np.ndarray, " n"]:
    """Return the tables of n guests: an old one ∝ its guests, a new one ∝ the concentration."""
    tables = np.empty(n, dtype=np.int64)
    taken = 0
    newcomers = rng.random(n) * (concentration + np.arange(n)) < concentration
    for guest in range(n):
        if newcomers[guest]:
            tables[guest] = taken
            taken += 1
        else:
            # sitting with a guest at random is choosing a table by its guests
            tables[guest] = tables[rng.integers(guest)]
    return tables


def _protein() -> Float[np.ndarray, "N D"]:
    parts = [common.archive(f"protein_homology_part{i}")["X"] for i in (1, 2)]
    return np.concatenate(parts).astype(np.float64)


def _flights() -> Float[np.ndarray, "N D"]:
    found = common.archive("flights_2001_2m")
    low, high = DELAYS
    usual = np.flatnonzero((found["delay"] >= low) & (found["delay"] < high))
    rows = np.random.default_rng(DATA_SEED).choice(usual, size=FLIGHTS, replace=False)
    rows.sort()
    columns = [found["minute"][rows] % (24 * 60), found["delay"][rows], found["distance"][rows]]
    return standardised(np.stack(columns, axis=1))


_LOADERS: dict[str, Callable[[], Float[np.ndarray, "N D"]]] = {
    "protein_homology": lambda: standardised(_protein()),
    "protein_homology_raw": _protein,
    "fashion_mnist": lambda: standardised(common.archive("fashion_mnist_pca10")["X"]),
    "flights": _flights,
    "rare": lambda: rare_components(np.random.default_rng(DATA_SEED), RARE_ROWS),
}

NAMES = tuple(_LOADERS)
