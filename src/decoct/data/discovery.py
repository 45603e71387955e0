"""Which files a path, a folder or a pattern means."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from decoct.errors import RowsError

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".csv.gz")


def find_files(source: str | Path | Sequence[str | Path]) -> tuple[list[str], str | None]:
    """Return the data files of a path, folder, pattern or list, sorted, and the folder.

    Raises
    ------
    RowsError
        There is no such path, no data file in it, or files of two kinds.
    """
    if isinstance(source, (str, Path)):
        files, base = _expand(str(source))
    else:
        files, base = [file for entry in source for file in _expand(str(entry))[0]], None
        if not files:
            raise RowsError("The list of files is empty; name at least one.")
    files = sorted(files)
    for one, two in pairwise(files):
        if one == two:
            raise RowsError(f"{one} is listed twice: its rows would count double.")
    if len({file.lower().endswith(PARQUET) for file in files}) > 1:
        raise RowsError(f"{source} mixes Parquet and CSV files; name those of one kind.")
    return files, base


def _expand(text: str) -> tuple[list[str], str | None]:
    path = Path(text).expanduser()
    if path.is_dir():
        return _in_folder(path), str(path)
    if path.exists():
        if not _is_data(text):
            raise RowsError(
                f"{text} is neither Parquet ({', '.join(PARQUET)}) nor CSV ({', '.join(CSV)}) by "
                "its name; convert or rename it."
            )
        return [str(path)], None
    if _is_pattern(text):
        return _matching(path)
    if "://" in text:
        raise RowsError(f"{text} is not a local path; pass pyarrow.dataset.dataset({text!r}).")
    raise RowsError(f"There is no file or folder {text} (seen from {Path.cwd()}); check the path.")


def _in_folder(folder: Path) -> list[str]:
    found = [file for file in folder.rglob("*") if _is_data(file.name) and file.is_file()]
    # writers keep their notes in files like _SUCCESS and folders like .tmp
    files = [
        str(file)
        for file in found
        if not any(piece.startswith((".", "_")) for piece in file.relative_to(folder).parts)
    ]
    if not files:
        raise RowsError(f"The folder {folder} has no data files ({', '.join(PARQUET + CSV)}).")
    return files


def _matching(pattern: Path) -> tuple[list[str], str]:
    files: set[str] = set()
    for match in glob.glob(str(pattern), recursive=True):
        if Path(match).is_dir() and "**" not in pattern.parts:
            files.update(_in_folder(Path(match)))
        elif _is_data(match) and Path(match).is_file():
            files.add(match)
    if not files:
        raise RowsError(f"No data file matches {pattern}; check the pattern.")
    return list(files), str(Path(*takewhile(lambda piece: not _is_pattern(piece), pattern.parts)))


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def _is_data(name: str) -> bool:
    return name.lower().endswith(PARQUET + CSV)
