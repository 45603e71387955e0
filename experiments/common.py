"""What every experiment shares: options, the data folder, where results go."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoct.runtime.progress import ProgressBar


def parser(module_doc: str | None, folder: Path) -> argparse.ArgumentParser:
    """Return the options all figures have; ``folder`` is the experiment's own."""
    first_line = (module_doc or "").strip().splitlines()[0]
    options = argparse.ArgumentParser(description=first_line)
    options.add_argument("--quick", action="store_true", help="few trials and small sizes: seconds")
    options.add_argument("--trials", type=int, help="trials of every method")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--output", type=Path, default=folder / "results", help="for CSV and PNG")
    return options


def data_folder() -> Path:
    """Return the folder of real data sets, or end the program with a sentence."""
    name = os.environ.get("DECOCT_DATA")
    if not name or not Path(name).is_dir():
        sys.exit("Set DECOCT_DATA to the folder with the data sets (see benchmarks/README.md).")
    return Path(name)


def archive(name: str) -> dict[str, np.ndarray]:
    """Return the arrays of one data set."""
    with np.load(data_folder() / f"{name}.npz", allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def write_csv(path: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Write results as a table, numbers to six digits."""
    fields = list(dict.fromkeys(key for one in results for key in one))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _short(value) for key, value in one.items()} for one in results)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table as strings."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(path)


def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the 25, 50 and 75 % points, as the papers' bands show them."""
    low, middle, high = np.quantile(np.asarray(list(values), dtype=float), [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else value


class Picks(ProgressBar):
    """A silent progress bar that hands on the iterations of a solver.

    Parameters
    ----------
    note
        Called with the number of iterations done.
    """

    def __init__(self, note: Callable[[float], None]) -> None:
        super().__init__(False)
        self._note = note

    def advance(self, units: float, unit: str | None = None) -> None:
        if unit == "picks":
            self._note(units)
        super().advance(units, unit)
