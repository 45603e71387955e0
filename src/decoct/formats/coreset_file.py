"""One Parquet file: the kept rows, ``_row``, ``_weight``, and JSON metadata. No pickle.

A column of the table that has one of these two names is stored with an underscore more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from decoct.data.base import Columns
from decoct.errors import CoresetFileError
from decoct.runtime.files import require_writable, write_atomically

FORMATS = 1, 3, 4
"""Formats: without a site, with one, and with one that has terms of third order."""

KEY = b"decoct"
DIGEST = b"decoct_sha256"
"""Digest of the JSON and all columns: a coreset that changed on the disk is refused."""

OURS = ("_row", "_weight")
"""Columns of the file that are not columns of the table."""

MOST_ROWS, MOST_BYTES = 5_000_000, 4 << 30
"""Rows, and bytes of decoded pages, above which a file is no coreset."""

MOST_METADATA = 1 << 30
"""Bytes of metadata to read; pyarrow's own limit is 100 MB, a site of 4,300 parameters."""


class StoredCoreset(NamedTuple):
    """Content of a file, before its model is known; see `Coreset` and `Coreset.description`."""

    description: dict[str, Any]
    indices: np.ndarray
    weights: np.ndarray
    rows: Columns


def write_coreset(
    path: str | os.PathLike[str],
    indices: np.ndarray,
    weights: np.ndarray,
    rows: Mapping[str, np.ndarray],
    description: Mapping[str, Any],
) -> None:
    """Write row numbers, weights, kept rows, and a description as JSON; see `Coreset.save`."""
    target = require_writable(path, "The coreset's path")
    stored = _stored_names(rows)
    columns = {stored[name]: _to_arrow(column) for name, column in rows.items()}
    columns["_row"] = pa.array(indices, pa.int64())
    columns["_weight"] = pa.array(weights, pa.float64())
    whole = {
        "format": FORMATS[("site" in description) + ("sizes" in description.get("site", ()))],
        **description,
        "shapes": {name: list(np.shape(column)[1:]) for name, column in rows.items()},
        "dtypes": {name: column.dtype.str for name, column in rows.items()},
        "stored": {name: where for name, where in stored.items() if name != where},
    }
    text = json.dumps(whole, default=_plain, allow_nan=True).encode()
    table = pa.table(columns)
    table = table.replace_schema_metadata({DIGEST: _digest(text, table)})

    def write(temporary: str) -> None:
        # beside Arrow's schema, not in it: what is in the schema is stored twice
        with pq.ParquetWriter(temporary, table.schema) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({KEY: text})

    write_atomically(target, write)


def read_coreset(path: str | os.PathLike[str]) -> StoredCoreset:
    """Read what `write_coreset` wrote."""
    table, metadata = _read(Path(path))
    with naming_damage(path):
        description = json.loads(metadata)
        if description["format"] not in FORMATS:
            raise CoresetFileError(
                f"{path} has format {description['format']}, and this decoct reads 1, 3 and 4; "
                "use the decoct that saved it."
            )
        stored = description.get("stored", {})
        rows = {
            name: _from_arrow(table[stored.get(name, name)], shape, description["dtypes"][name])
            for name, shape in description["shapes"].items()
        }
        numbers, weights = (table[name].to_numpy() for name in OURS)
        found = StoredCoreset(description, numbers, weights, rows)
        if not _is_sound(found):
            raise CoresetFileError(
                f"{path} is a damaged coreset file: its row numbers, weights and columns do not "
                "fit each other."
            )
    return found


@contextlib.contextmanager
def naming_damage(path: object) -> Iterator[None]:
    """Turn whatever goes wrong while the file's content is interpreted into one error.

    The content may be anything: numbers that are none, nested a hundred thousand deep.
    """
    try:
        yield
    except CoresetFileError:
        raise
    except Exception as error:
        raise CoresetFileError(f"{path} is a damaged coreset file ({error!r}).") from error


def _stored_names(rows: Iterable[str]) -> dict[str, str]:
    """Return by what name a column is in the file: its own, unless that is one of `OURS`."""
    names: dict[str, str] = {}
    for name in rows:
        stored = name
        while stored in OURS or (stored != name and stored in rows) or stored in names.values():
            stored += "_"
        names[name] = stored
    return names


def _read(path: Path) -> tuple[pa.Table, bytes]:
    """Return the rows and the JSON of a file, as they were saved."""
    if not path.exists():
        raise CoresetFileError(f"There is no file {path}.")
    try:
        # not read_table: it adds a column for a folder named key=value
        with pq.ParquetFile(path, thrift_string_size_limit=MOST_METADATA) as file:
            _check_size(file.metadata, path)
            table, stored = file.read(), file.metadata.metadata or {}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # of a column's name
        raise CoresetFileError(
            f"{path} is not a readable Parquet file ({type(error).__name__}): it is truncated, "
            "damaged, of another kind, or not yours to read."
        ) from error
    metadata, digest = stored.get(KEY), stored.get(DIGEST)
    if metadata is None and digest is None:
        raise CoresetFileError(
            f"{path} is a Parquet file but not a coreset; build one with decoct.build or "
            "'decoct build'."
        )
    if metadata is None or (digest is not None and digest != _digest(metadata, table)):
        raise CoresetFileError(
            f"{path} is not as it was saved: it is damaged, or another program has changed it. "
            "Restore a copy, or build the coreset again."
        )
    return table, metadata


def _check_size(footer: pq.FileMetaData, path: object) -> None:
    """Refuse what is too large for a coreset before its columns are read."""
    groups = range(footer.num_row_groups)
    n_bytes = sum(footer.row_group(i).total_byte_size for i in groups)
    if footer.num_rows > MOST_ROWS or n_bytes > MOST_BYTES:
        raise CoresetFileError(
            f"{path} has {footer.num_rows:,} rows and {n_bytes:,} bytes, more than a coreset "
            f"may have ({MOST_ROWS:,} rows, {MOST_BYTES:,} bytes); is it the table itself?"
        )


def _is_sound(found: StoredCoreset) -> bool:
    """Return whether the numbers are ascending rows of the table, each with a weight above 0."""
    description, n, w, rows = found
    ends = np.concatenate([[-1], n, [int(description["n_rows"])]])
    return bool(
        (len(n) or "site" in description)
        and all(len(column) == len(n) for column in rows.values())
        and (n.dtype.kind, w.dtype.kind) == ("i", "f")
        and (np.diff(ends) > 0).all()
        and (np.isfinite(w) & (w > 0)).all()
    )


def _digest(text: bytes, table: pa.Table) -> bytes:
    digest = hashlib.sha256(text)
    for name in table.column_names:
        column = table[name].combine_chunks()
        values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        digest.update(repr((name, str(values.type), len(column), len(values))).encode())
        if pa.types.is_primitive(values.type) and not values.null_count:
            digest.update(np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).tobytes())
        else:
            digest.update(repr(values.to_pylist()).encode())
    return digest.hexdigest().encode()


def _to_arrow(column: np.ndarray) -> pa.Array:
    column = np.asarray(column)
    if column.ndim <= 1:
        return pa.array(column, from_pandas=False)
    width = int(np.prod(column.shape[1:]))
    return pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), width)


def _from_arrow(column: pa.ChunkedArray, shape: list[int], dtype: str) -> np.ndarray:
    array = column.combine_chunks()
    flat = (array.flatten() if shape else array).to_numpy(zero_copy_only=False)
    return flat.reshape(-1, *shape).astype(dtype, copy=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")
