"""Small tables of every family, and a runner of the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from decoct.cli import main

N = 600


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout; strict, nothing around it."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def decoct(capsys) -> Callable[..., Outcome]:
    def run(*words: object) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(7)
    temp, origin = rng.normal(20.0, 5.0, N), rng.choice(["EWR", "JFK", "LGA"], N)
    eta = 0.15 * (temp - 20.0) + 0.6 * (origin == "LGA")
    return pd.DataFrame(
        {
            "temp": temp,
            "origin": origin,
            "delay": eta + rng.normal(size=N),
            "wild": eta + rng.standard_t(3, N),
            "late": (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(np.int64),
            "trips": rng.poisson(np.log1p(np.exp(eta + 1.0))),
            "constant": 3.0,
            "half": rng.poisson(2.0, N) + 0.5,
        }
    )


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """A folder with the same table as CSV, as Parquet, and in two Parquet parts."""
    folder, table = tmp_path_factory.mktemp("data"), frame()
    table.to_csv(folder / "flights.csv", index=False)
    table.to_parquet(folder / "flights.parquet")
    (folder / "parts").mkdir()
    table[: N // 3].to_parquet(folder / "parts" / "a.parquet")
    table[N // 3 :].to_parquet(folder / "parts" / "b.parquet")
    return folder


@pytest.fixture(scope="session")
def late(data) -> Path:
    """A coreset of a logistic regression on ``flights.parquet``."""
    path = data / "late.coreset"
    words = ["build", data / "flights.parquet", "--formula", "late ~ temp + C(origin)"]
    words += ["--family", "bernoulli", "--size", 25, "-o", path, "--quiet"]
    assert main([str(word) for word in words]) == 0
    return path
