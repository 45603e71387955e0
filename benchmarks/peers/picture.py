"""The picture of the comparison: error of means against evaluations, one panel a posterior."""

from __future__ import annotations

from pathlib import Path


def draw(table: Path, path: Path) -> None:
    """Draw the table to a file."""
