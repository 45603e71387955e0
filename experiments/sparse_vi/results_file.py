"""A CSV of single results that grows by a trial at a time, so that a stopped run can go on."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import common


@dataclass(frozen=True)
class ResultsFile:
    """Results of one seed; a row each, all with the same columns.

    Attributes
    ----------
    path
        The file; it need not be there yet.
    seed
        What the runs are made with, a column of every row.
    """

    path: Path
    seed: int

    def rows(self) -> list[dict[str, str]]:
        """Return what is known; a file of another seed ends the program with a sentence."""
        known = common.read_csv(self.path) if self.path.exists() else []
        for one in known:
            if one["seed"] != str(self.seed):
                sys.exit(
                    f"{self.path} holds runs with seed {one['seed']}, not {self.seed}; give "
                    "another --output, or remove the file to start again."
                )
        return known

    def append(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Write results, numbers to six digits, and close the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{**one, "seed": self.seed} for one in results]
        begin = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            if begin:
                writer.writeheader()
            writer.writerows({k: _short(v) for k, v in one.items()} for one in rows)


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
