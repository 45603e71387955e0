"""Errors about a row say in which file the row is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from decoct.data.base import Rows
from decoct.errors import RowError


@contextmanager
def name_files(rows: Rows) -> Iterator[None]:
    """Within this, an error about a row says in which file the row is.

    Parameters
    ----------
    rows
        The table. Errors stay as they are if it is not in several files, or if it has no such row.
    """
    try:
        yield
    except RowError as error:
        find_file = getattr(rows, "find_file", None)
        found = find_file(error.row) if find_file is not None and error.file is None else None
        if found is not None:
            error.at(error.row, *found)
        raise
