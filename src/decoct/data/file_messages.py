"""Messages for files that cannot be read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_CHANGE = re.compile(
    r"CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?"
    r"CSV conversion error to (?P<type>.+): invalid value '(?P<value>.*)'"
)
_DOUBLE = re.compile(r"Unable to merge: Field (?P<name>.+) has incompatible types")
_PREAMBLE = re.compile(r"^.*Could not open \w+ input source '.*?': (?:\w+: )?", re.DOTALL)


def explain(path: str, kind: str, names: Sequence[str], error: Exception) -> str:
    """Return why a file of some kind, with columns of these names, cannot be read."""
    if isinstance(error, PermissionError):
        return f"{path} cannot be read (permission denied); ask its owner for read permission."
    if isinstance(error, FileNotFoundError):
        return f"{path} was removed after the table was opened; open it again."
    if isinstance(error, OSError) and error.errno:
        return f"{path} cannot be read ({os.strerror(error.errno)}); fix that and try again."
    message = str(error)
    if "Empty CSV file" in message:
        return f"The table is empty: {path} has no rows."
    if "duplicate field names" in message:
        return f"{path} has two columns of the same name; rename one."
    double = _DOUBLE.search(message)
    if double:
        return (
            f"Column '{double['name']}' is both in the files and in the names of their folders, "
            "with different types; remove it from the files, or pass the files, not the folder."
        )
    column, change = find_changed_column(error, names), _CHANGE.search(message)
    if column and change:
        line = f" in line {change['row']}" if change["row"] else ""
        return (
            f"Column '{column}' of {path} was read as {change['type']} from its first rows but has "
            f"'{change['value']}'{line}; fix the value, or convert the file to Parquet with one "
            "type."
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
