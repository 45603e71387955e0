"""Options that several commands share, and checks of paths before any work is done."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from decoct.cli.output import UsageError

if TYPE_CHECKING:
    from decoct.data import Rows

DATA = (".parquet", ".pq", ".csv", ".csv.gz")
"""Names that a folder given as TABLE is searched for."""


def _whole(type_: Any, tokens: Sequence[Any]) -> int:
    """Convert to int; cyclopts would round 1.5."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"'{tokens[0].value}' is not a whole number") from None


Whole = Annotated[int, Parameter(converter=_whole)]
MaybeWhole = Annotated[int | None, Parameter(converter=_whole)]
Flag = Annotated[bool, Parameter(negative=())]
Quiet = Annotated[bool, Parameter(alias="-q", negative=())]
OutputPath = Annotated[Path, Parameter(alias="-o")]


def source(table: Sequence[str]) -> str | list[str]:
    """Return what ``decoct.rows`` takes: one path, folder or pattern, or a list of files."""
    return table[0] if len(table) == 1 else list(table)


@contextmanager
def opened(table: Sequence[str], dask: str | None) -> Iterator[Rows]:
    """Open the table, read here or by the workers of the Dask cluster at this address."""
    import decoct

    rows = decoct.rows(source(table), dask=dask)
    try:
        yield rows
    finally:
        close = getattr(rows, "close", None)
        if close is not None:
            close()


def seed_in_range(seed: int) -> int:
    """Refuse a seed that does not fit the random number generators."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed must be between 0 and {2**32 - 1}, not {seed}.")
    return seed


def require_apart(output: Path, table: Sequence[str], option: str = "--output") -> None:
    """Refuse an output that is one of the table's files, or would be one of them next time."""
    target = output.absolute()
    for one in table:
        path = Path(one)
        if not one:
            clash = False  # refused when the table is opened
        elif path.is_dir():
            inside = path.resolve() in target.resolve().parents
            clash = inside and target.name.lower().endswith(DATA)
        elif path.exists():
            clash = target.exists() and target.samefile(path)
        else:
            clash = glob.has_magic(one) and _matches(str(target), os.path.abspath(one))
        if clash:
            raise UsageError(
                f"{option} {output} would be part of the table {one}; put it elsewhere."
            )


def require_different(output: Path, other: Path, what: str, option: str = "--output") -> None:
    """Refuse an output that is a file the command reads."""
    if output.absolute() == other.absolute() or (
        output.exists() and other.exists() and output.samefile(other)
    ):
        raise UsageError(f"{option} {output} is {what}; give another name.")


def _matches(path: str, pattern: str) -> bool:
    if "**" in pattern:
        return fnmatch(path, pattern.replace("**/", "*"))
    have, want = Path(path).parts, Path(pattern).parts
    return len(have) == len(want) and all(map(fnmatch, have, want))
