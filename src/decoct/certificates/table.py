"""The table that a coreset was built from, recognised by its length and its kept rows."""

from __future__ import annotations

from typing import Any

from decoct.coreset import Coreset
from decoct.data.base import Rows
from decoct.data.encoded import EncodedRows, encoded
from decoct.data.tables import counted_rows
from decoct.data.tables import rows as as_rows
from decoct.data.verified_rows import KnownRows, VerifiedRows
from decoct.errors import CoresetFileError
from decoct.passes.potentials import Potentials
from decoct.runtime.progress import ProgressBar, begin


def table_of(coreset: Coreset, rows: Rows | Any, progress: bool | None) -> Rows:
    """Return the raw rows of a table that has as many as the coreset was built from."""
    source = as_rows(rows)
    source = source.raw if isinstance(source, EncodedRows) else source
    with ProgressBar(progress):
        counted_rows(source)
    if source.n_rows != coreset.n_rows:
        raise CoresetFileError(
            f"The coreset was built from {coreset.n_rows} rows and this table has "
            f"{source.n_rows}; give the table it came from."
        )
    return source


def verified(coreset: Coreset, source: Rows, label: str) -> Potentials:
    """Return potentials whose passes refuse a table with other rows where the kept ones were."""
    known = KnownRows.of(coreset.indices, dict(coreset.rows))
    begin(label, source.n_rows)
    return Potentials(coreset.model, encoded(VerifiedRows(source, known), coreset.model))
