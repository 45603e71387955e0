"""Regression of house prices on 301 radial bases over a map (Campbell & Beronov 2019, Section 5.2).

    y_n = Σ_k α_k b_k(x_n) + ε_n,  b_k(x) = exp(−‖x − μ_k‖²/(2σ_k²)),  ε_n ~ N(0, σ²),
    α ~ N(μ₀ 1, σ₀² I)                                                                 (Eq. 22)

x is latitude and longitude, scales are in degrees, y is log10 of a price. 50 centres a scale are
rows drawn without replacement; one last basis of scale 100 is nearly constant. μ₀, σ₀² and σ² are
the mean, second moment and variance of y over the whole table. `LinearRegression` has prior mean 0:
it gets β = α − μ₀ 1 and y − μ₀ Σ_k b_k(x), which leaves every KL as it is.

Nothing is trimmed. The UK prices are those of one month of 2018, with outward-code centroids for
postcodes, so that 10,000 sales share about 2,000 points; the paper had full postcodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from decoct.models import LinearRegression
from experiments import common
from experiments.sparse_vi.gaussian_runs import Trial

SCALES = (0.2, 0.4, 0.8, 1.2, 1.6, 2.0)
"""Of the bases, in degrees."""

CONSTANT_SCALE = 100.0

NEAR = 0.35
"""Degrees from the nearest row up to which a map is coloured."""


class Table(NamedTuple):
    """Prices on a map.

    Attributes
    ----------
    name, title, price
        Of the data set, for people, and what y is.
    places : (n, 2)
        Latitude and longitude, degrees.
    y : (n,)
        log10 of the price.
    """

    name: str
    title: str
    price: str
    places: Float[np.ndarray, "n 2"]
    y: Float[np.ndarray, " n"]


def read(name: str) -> Table:
    """Read one of the two data sets."""
    arrays = common.archive(name)
    if name == "ukprices_2018":
        places = np.column_stack([arrays["lat"], arrays["lon"]]).astype(float)
        y = np.log10(arrays["price"].astype(float))
        return Table(name, "UK house sales, 2018", "log10 of the price in GBP", places, y)
    at = [list(arrays["columns"]).index(column) for column in ("Latitude", "Longitude")]
    places = arrays["X"][:, at].astype(float)
    y = np.log10(1e5 * arrays["y"].astype(float))
    return Table(name, "California housing, 1990", "log10 of the value in USD", places, y)


@dataclass(frozen=True)
class Bases:
    """Radial basis functions."""

    centres: Float[np.ndarray, "K 2"]
    scales: Float[np.ndarray, " K"]

    @classmethod
    def of(cls, places: Float[np.ndarray, "n 2"], each: int, rng: np.random.Generator) -> Bases:
        """Draw ``each`` centres a scale from the rows, and add the nearly constant one."""
        drawn = [places[rng.choice(len(places), each, replace=False)] for _ in SCALES]
        centres = np.concatenate([*drawn, places.mean(axis=0)[None, :]])
        return cls(centres, np.append(np.repeat(SCALES, each), CONSTANT_SCALE))

    def at(self, places: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n K"]:
        """Return b_k(x)."""
        squares = np.square(places[:, 0, None] - self.centres[None, :, 0])
        squares += np.square(places[:, 1, None] - self.centres[None, :, 1])
        return np.exp(-squares / (2.0 * self.scales**2)[None, :])


@dataclass(frozen=True)
class Regression:
    """One trial: some rows of a table, bases, and the model."""

    places: Float[np.ndarray, "n 2"]
    bases: Bases
    mean: float
    trial: Trial

    @classmethod
    def of(cls, data: Table, seed: int, number: int, n: int, each: int) -> Regression:
        rng = np.random.default_rng([seed, number])
        chosen = rng.choice(len(data.y), n, replace=False)
        places = data.places[chosen]
        bases = Bases.of(places, each, rng)
        x, mean = bases.at(places), float(data.y.mean())
        model = LinearRegression(
            noise_scale=data.y.std(), prior_scale=np.sqrt(np.mean(np.square(data.y)))
        )
        rows = {"x": x, "y": data.y[chosen] - mean * x.sum(axis=1)}
        origin = np.full(x.shape[1], mean)
        return cls(places, bases, mean, Trial(model, rows, origin, int(rng.integers(2**31))))

    def surface(
        self, beta: Float[np.ndarray, " K"], places: Float[np.ndarray, "g 2"]
    ) -> Float[np.ndarray, " g"]:
        """Return Σ_k α_k b_k(x) for α = β + μ₀ 1."""
        return self.bases.at(places) @ (beta + self.mean)


class Grid(NamedTuple):
    """Points of a map, and which of them are near rows."""

    lat: Float[np.ndarray, " a"]
    lon: Float[np.ndarray, " o"]
    places: Float[np.ndarray, "g 2"]
    near: np.ndarray

    @classmethod
    def over(cls, places: Float[np.ndarray, "n 2"], step: float) -> Grid:
        """Return points ``step`` degrees apart."""
        low, high = places.min(axis=0) - NEAR, places.max(axis=0) + NEAR
        lat, lon = (np.arange(low[i], high[i] + step, step) for i in range(2))
        points = np.stack(np.meshgrid(lat, lon, indexing="ij"), axis=-1).reshape(-1, 2)
        near = KDTree(places).query(points)[0] <= NEAR
        return cls(lat, lon, points, near)
