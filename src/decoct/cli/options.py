"""Options that several commands share, and checks of paths before any work is done."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from decoct.cli.output import UsageError
from decoct.runtime.files import require_writable

if TYPE_CHECKING:
    from decoct.data import Rows

DATA = (".parquet", ".pq", ".csv", ".csv.gz")
"""File names searched for in a folder given as TABLE."""


def _whole(type_: Any, tokens: Sequence[Any]) -> int:
    """Convert to int; cyclopts would round 1.5."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"'{tokens[0].value}' is not a whole number") from None


MaybeWhole = Annotated[int | None, Parameter(converter=_whole)]
Count = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1))]
Seed = Annotated[int, Parameter(converter=_whole, validator=Number(gte=0, lt=2**32))]
Json = Annotated[
    bool, Parameter(negative=(), help="Print one JSON object on stdout instead of text.")
]
OutputPath = Annotated[Path, Parameter(alias="-o")]
CoresetPath = Annotated[Path, Parameter(help="The coreset file that 'decoct build' wrote.")]
Posterior = Annotated[
    Path | None, Parameter(help="Draws that 'decoct sample' wrote for this coreset.")
]
FORMS = "a file, several files, a folder, a quoted pattern, or a URL such as s3://bucket/folder."
Table = Annotated[list[str], Parameter(help=f"Parquet or CSV (Parquet alone by URL): {FORMS}")]
BuiltFrom = Annotated[list[str], Parameter(help=f"The table it was built from: {FORMS}")]
Dask = Annotated[
    str | None,
    Parameter(
        help="Address of a Dask scheduler, such as tcp://host:8786, whose workers read the table "
        "(Parquet) and make the passes over it. Results are the same."
    ),
]
Formula = Annotated[
    str, Parameter(help='Such as "late ~ temp + C(origin)"; columns of text are categories.')
]
Family = Annotated[
    Literal["gaussian", "bernoulli", "poisson", "student"],
    Parameter(help="Distribution of the response; poisson has a log link."),
]
PriorScale = Annotated[float, Parameter(help="Prior standard deviation of every coefficient.")]
Standardize = Annotated[
    bool,
    Parameter(
        help="Shift and scale numeric columns to mean 0 and standard deviation 1, where the prior "
        "applies."
    ),
]


@contextmanager
def opened(table: Sequence[str], dask: str | None) -> Iterator[Rows]:
    """Open the table, read here or by the workers of the Dask cluster at this address."""
    import decoct

    rows = decoct.rows(table[0] if len(table) == 1 else list(table), dask=dask)
    try:
        yield rows
    finally:
        if hasattr(rows, "close"):
            rows.close()  # type: ignore[attr-defined]


@contextmanager
def interruption(what_is_left: str) -> Iterator[None]:
    """Say after a Ctrl-C what was written."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {what_is_left}.") from None


def require_output(output: Path, coreset: Path) -> None:
    """Refuse an output that is the coreset file, or that cannot be written."""
    require_different(output, coreset, "the coreset file")
    require_writable(output, "--output")


def require_folder(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return files in a folder for pictures; refuse what is none, or cannot be written."""
    from decoct.plots.style import figure

    figure()  # is matplotlib there?
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output {folder} is a file; give a folder.")
    files = [folder / name for name in names]
    for path in files if folder.is_dir() else (folder,):
        require_writable(path, "--output")
    return files


def require_apart(output: Path, table: Sequence[str], option: str = "--output") -> None:
    """Refuse an output that is one of the table's files, or would be one of them next time."""
    target = output.absolute()
    for one in table:
        path = Path(one)
        if not one:
            continue  # refused when the table is opened
        if path.is_dir():
            inside = path.resolve() in target.resolve().parents
            clash = inside and target.name.lower().endswith(DATA)
        elif path.exists():
            clash = target.exists() and target.samefile(path)
        else:
            clash = glob.has_magic(one) and _matches(target, os.path.abspath(one))
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


def _matches(path: Path, pattern: str) -> bool:
    if "**" in pattern:
        return fnmatch(str(path), pattern.replace("**/", "*"))
    return path.match(pattern)
