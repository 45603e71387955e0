"""One schema for many files, and errors of reading them as sentences."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from decoct.data.arrays import unwrap_type
from decoct.errors import RowsError

_CHANGE = re.compile(
    r"CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?"
    r"CSV conversion error to (?P<type>.+): invalid value '(?P<value>.*)'"
)
_DOUBLE = re.compile(r"Unable to merge: Field (?P<name>.+) has incompatible types")
_PREAMBLE = re.compile(r"^.*Could not open \w+ input source '.*?': (?:\w+: )?", re.DOTALL)


def unwrap_fields(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return [pa.field(field.name, unwrap_type(field.type)) for field in fields]


def check_unique(path: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RowsError(f"{path} has two columns '{name}'; rename one.")


def unify_schemas(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the columns of all files, numbers widened, or say which two files disagree."""
    first, schema = next(iter(schemas.items()))
    common = {field.name: field for field in unwrap_fields(schema)}
    for path, other in schemas.items():
        check_unique(path, other.names)
        for one, two, names in (
            (first, path, set(common) - set(other.names)),
            (path, first, set(other.names) - set(common)),
        ):
            if names:
                raise RowsError(
                    f"The files differ in their columns: '{min(names)}' is in {one} but not in "
                    f"{two}; give every file the same columns."
                )
        for field in unwrap_fields(other):
            common[field.name] = _widen(common[field.name], field, first, path)
    return pa.schema(list(common.values()))


def _widen(one: pa.Field, two: pa.Field, first: str, path: str) -> pa.Field:
    if one.type == two.type:
        return one
    try:
        merged = pa.unify_schemas(
            [pa.schema([one]), pa.schema([two])], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise RowsError(
            f"Column '{one.name}' is {one.type} in {first} but {two.type} in {path}; "
            "write it with one type."
        ) from error
    return merged.field(0)


@contextmanager
def explain_errors(path: str, kind: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Turn a reader's failure into one sentence that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        barred = _explain_barred(path, error)
        raise RowsError(barred or _explain_failure(path, kind, names, str(error))) from error


def _explain_barred(path: str, error: Exception) -> str | None:
    """Return what to say of a file that cannot be opened at all; None if it can."""
    if isinstance(error, PermissionError):
        return f"{path} may not be read (permission denied); ask its owner for the right to."
    if isinstance(error, FileNotFoundError):
        return f"{path} is gone since the table was opened; open it again."
    if isinstance(error, OSError) and error.errno:
        return f"{path} cannot be read ({os.strerror(error.errno)}); fix that and try again."
    return None


def _explain_failure(path: str, kind: str, names: Sequence[str], message: str) -> str:
    if "Empty CSV file" in message:
        return f"The table is empty: {path} has no rows."
    if "duplicate field names" in message:
        return f"{path} has two columns of the same name; rename one."
    double = _DOUBLE.search(message)
    if double:
        return (
            f"Column '{double['name']}' is in the files and in the names of their folders, in two "
            "types; take it out of the files, or name the files themselves."
        )
    change = _CHANGE.search(message)
    if change and int(change["column"]) < len(names):
        line = f" in line {change['row']}" if change["row"] else ""
        return (
            f"Column '{names[int(change['column'])]}' of {path} looked like {change['type']} in "
            f"its first rows but has '{change['value']}'{line}; fix the value, or convert the "
            "file to Parquet with one type."
        )
    reason = (_PREAMBLE.sub("", message).splitlines() or ["no reason given"])[0][:200]
    reason = "".join(c if c.isprintable() and c != "\ufffd" else "?" for c in reason)
    return (
        f"{path} could not be read as {kind} ({reason.rstrip('. ')}); "
        "check that the file is complete and really of that kind."
    )


def find_changed_column(error: BaseException | None, names: Sequence[str]) -> str | None:
    """Return the CSV column whose type changed midway, if that is what went wrong."""
    change = _CHANGE.search(str(error))
    return names[int(change["column"])] if change and int(change["column"]) < len(names) else None
