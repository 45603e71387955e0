"""One Parquet file: the kept rows, ``_row``, ``_weight``, and JSON metadata. No pickle.

A column of the table that has one of these two names is stored with an underscore more.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from decoct.coreset import Coreset
from decoct.data.base import Columns
from decoct.data.compared import differing_column
from decoct.errors import CoresetFileError, DecoctError, RequestError
from decoct.files import require_writable, write_atomically
from decoct.models.base import OF_FUNCTIONS, AbstractModel
from decoct.models.fitted import FittedModel
from decoct.models.known_values import differing_value, known_values
from decoct.models.registry import from_dict
from decoct.report import Report

FORMAT = 1
KEY = b"decoct"
DIGEST = b"decoct_sha256"
"""Of the JSON and all columns: a coreset that changed on the disk is not taken for one."""

OURS = ("_row", "_weight")
"""Columns of the file that are none of the table's."""

MOST_ROWS, MOST_BYTES = 5_000_000, 4 << 30
"""Rows, and bytes of decoded pages, above which a file is no coreset."""

FITTED = {"dp_gaussian_mixture": ("decoct.mixture.dp_gaussian_mixture", "DPGaussianMixture")}
"""Kinds of `FittedModel`: kind -> module and name of the class."""


def save(coreset: Coreset, path: str | os.PathLike[str]) -> None:
    """Write a coreset; see `Coreset.save`.

    Raises
    ------
    RequestError
        The path cannot be written, or the disk is full; an older file is as it was.
    """
    target = require_writable(path, "The coreset's path")
    shapes = {name: list(np.shape(column)[1:]) for name, column in coreset.rows.items()}
    stored = _stored_names(coreset.rows)
    columns = {stored[name]: _to_arrow(column) for name, column in coreset.rows.items()}
    columns["_row"] = pa.array(coreset.indices, pa.int64())
    columns["_weight"] = pa.array(coreset.weights, pa.float64())
    description = {
        "format": FORMAT,
        "n_rows": coreset.n_rows,
        "model": coreset.model.to_dict(),
        "report": coreset.report.to_dict(),
        "shapes": shapes,
        "dtypes": {name: column.dtype.str for name, column in coreset.rows.items()},
        "stored": {name: where for name, where in stored.items() if name != where},
    }
    if isinstance(coreset.model, FittedModel):
        description["fitted"] = coreset.model.fitted_state()
    elif description["model"].get("kind") in OF_FUNCTIONS:
        description["values"] = known_values(coreset.model, coreset.rows, coreset.indices)
    text = json.dumps(description, default=_plain, allow_nan=True).encode()
    table = pa.table(columns)
    table = table.replace_schema_metadata({KEY: text, DIGEST: _digest(text, table)})
    write_atomically(target, lambda temporary: pq.write_table(table, temporary))


def load(path: str | os.PathLike[str], model: AbstractModel | None = None) -> Coreset:
    """Read a coreset that `Coreset.save` wrote.

    Parameters
    ----------
    path
        The file.
    model
        Needed when the coreset was built for a `decoct.Model` of your own functions, which a
        file cannot hold. That its likelihood is the same is seen from its values on the kept
        rows; the prior may be another one on the same support.

    Raises
    ------
    CoresetFileError
        The file is missing, damaged, not a coreset, from a newer format, or needs ``model``; or
        ``model`` has another likelihood.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise RequestError(f"path must be a path, not {path!r}.")
    table, metadata = _read(Path(path))
    with _naming_damage(path):
        description = _description(metadata, path)
        coreset = _coreset(table, description, model, path)
        _check_sound(coreset, path)
    if model is not None:
        _check_same_model(coreset, description, path)
    return coreset


@contextlib.contextmanager
def _naming_damage(path: object) -> Iterator[None]:
    """Turn whatever goes wrong while the file's content is interpreted into one error.

    The content may be anything: numbers that are none, nested a hundred thousand deep.
    """
    try:
        yield
    except CoresetFileError:
        raise
    except Exception as error:
        raise CoresetFileError(f"{path} is a damaged coreset file ({error!r}).") from error


def _description(metadata: bytes, path: object) -> dict[str, Any]:
    description = json.loads(metadata)
    version = description["format"]
    if not isinstance(version, int):
        raise CoresetFileError(f"{path} has damaged coreset metadata (format {version!r}).")
    if version > FORMAT:
        raise CoresetFileError(
            f"{path} has format {version}; this decoct reads up to {FORMAT}: upgrade decoct."
        )
    return description


def _coreset(
    table: pa.Table, description: dict[str, Any], model: AbstractModel | None, path: object
) -> Coreset:
    spec, fitted = description["model"], None
    if model is None:
        if spec.get("kind") in OF_FUNCTIONS:
            raise CoresetFileError(
                f"{path} was built for a model of your own functions ({spec.get('name')}), which "
                "the file cannot hold; pass it: decoct.load(path, model=...)."
            )
        if "fitted" in description:
            fitted = _fitted(spec, description["fitted"])
        known: Any = from_dict(spec) if fitted is None else fitted
    else:
        known = model
    stored = description.get("stored", {})
    rows = {
        name: _from_arrow(table[stored.get(name, name)], shape, description["dtypes"][name])
        for name, shape in description["shapes"].items()
    }
    numbers, weights = table["_row"], table["_weight"]
    if not (pa.types.is_integer(numbers.type) and pa.types.is_floating(weights.type)):
        raise CoresetFileError(f"{path} has row numbers that are not whole, or weights that are.")
    coreset = Coreset(
        numbers.to_numpy(),
        weights.to_numpy(),
        rows,
        int(description["n_rows"]),
        known,
        Report.from_dict(description["report"]),
    )
    if fitted is not None:
        fitted.coreset_ = coreset
    return coreset


def _stored_names(rows: Iterable[str]) -> dict[str, str]:
    """Return by what name a column is in the file: its own, unless that is one of `OURS`."""
    names: dict[str, str] = {}
    for name in rows:
        stored = name
        while stored in OURS or (stored != name and stored in rows) or stored in names.values():
            stored += "_"
        names[name] = stored
    return names


def _fitted(spec: dict[str, Any], state: dict[str, Any]) -> Any:
    """Return a `FittedModel` with its fit, or None if the kind is none of these."""
    if spec.get("kind") not in FITTED:
        return None
    module, name = FITTED[spec["kind"]]
    return getattr(importlib.import_module(module), name).from_state(spec, state)


def _read(path: Path) -> tuple[pa.Table, bytes]:
    """Return the rows and the JSON of a file, as they were saved."""
    if not path.exists():
        raise CoresetFileError(f"There is no file {path}.")
    try:
        # not read_table: it adds a column for a folder named key=value
        with pq.ParquetFile(path) as file:
            _check_size(file.metadata, path)
            table = file.read()
    except PermissionError as error:
        raise CoresetFileError(
            f"{path} may not be read (permission denied); ask its owner for the right to."
        ) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # of a column's name
        raise CoresetFileError(
            f"{path} is not a readable Parquet file: it is truncated, damaged or of another kind."
        ) from error
    metadata = (table.schema.metadata or {}).get(KEY)
    if metadata is None:
        raise CoresetFileError(
            f"{path} is a Parquet file but no coreset; build one with decoct.build or "
            "'decoct build'."
        )
    found = _digest(metadata, table)
    if (table.schema.metadata or {}).get(DIGEST, found) != found:
        raise CoresetFileError(
            f"{path} is not as it was saved: damaged, or edited by another program; take a copy, "
            "or build it again."
        )
    return table, metadata


def _check_size(footer: pq.FileMetaData, path: object) -> None:
    """Refuse what is too large for a coreset before its columns are read."""
    groups = range(footer.num_row_groups)
    n_bytes = sum(footer.row_group(i).total_byte_size for i in groups)
    if footer.num_rows > MOST_ROWS or n_bytes > MOST_BYTES:
        raise CoresetFileError(
            f"{path} has {footer.num_rows:,} rows and {n_bytes:,} bytes, more than a coreset "
            f"({MOST_ROWS:,} rows, {MOST_BYTES:,} bytes); is it the table itself?"
        )


def _check_sound(coreset: Coreset, path: object) -> None:
    w, n = coreset.weights, coreset.indices
    for name, column in coreset.rows.items():
        if len(column) != len(n):
            raise CoresetFileError(
                f"{path} is damaged: column '{name}' has {len(column)} rows and there are {len(n)}."
            )
    if not (np.isfinite(w).all() and (w > 0).all()):
        raise CoresetFileError(f"{path} has weights that are not positive and finite.")
    if len(n) == 0 or (np.diff(n) <= 0).any() or n[0] < 0 or n[-1] >= coreset.n_rows:
        raise CoresetFileError(f"{path} has row numbers out of order or outside the table.")


def _check_same_model(coreset: Coreset, description: dict[str, Any], path: object) -> None:
    """Refuse a model of functions that has another likelihood than the one before."""
    values = description.get("values")
    if values is None:
        return
    try:
        differs = differing_value(values, coreset.model, coreset.rows, coreset.indices)
    except (DecoctError, KeyError, TypeError, ValueError, IndexError) as error:
        raise CoresetFileError(
            f"The model given cannot be evaluated on the kept rows of {path} "
            f"({type(error).__name__}: {error}); pass the one the coreset was built for."
        ) from error
    if differs is not None:
        raise CoresetFileError(
            f"The model given has not the likelihood that {path} was built for: {differs}. Pass "
            "one with the same functions and constants; the prior may be another on the same "
            "support."
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
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if shape:
        flat = array.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(-1, *shape).astype(dtype, copy=False)
    return array.to_numpy(zero_copy_only=False).astype(dtype, copy=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")


def same_rows(coreset: Coreset, columns: Columns) -> str | None:
    """Return the name of a column in which the table's rows differ from the kept ones, or None."""
    return differing_column(dict(coreset.rows), columns)
