"""What all commands share: exit codes, results on stdout, complaints on stderr, JSON."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from decoct.errors import DecoctError

DONE, SHORT, BAD_INPUT, BROKEN, INTERRUPTED, TERMINATED = 0, 1, 2, 70, 130, 143
"""Exit codes; see `decoct.cli`."""


class UsageError(DecoctError):
    """The words on the command line cannot be used."""


def put(text: str) -> bool:
    """Write lines to stdout; return False if the pipe is closed, as by ``| head``."""
    return _write(text + "\n")


def finish(code: int) -> int:
    """Flush stdout, so that a closed pipe is detected here and not at the interpreter's exit."""
    _write("")
    return code


def _write(text: str) -> bool:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return False
    return True


def put_json(content: Mapping[str, Any]) -> None:
    """Write one JSON object to stdout; what is not finite becomes null."""
    put(json.dumps(_strict(content), indent=2, ensure_ascii=False, allow_nan=False))


def put_table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Write a table to stdout: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(headings, *lines, strict=True)]
    for first, *rest in (headings, *lines):
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        put("  ".join([first.ljust(widths[0]), *cells]))


def travelled(traffic: Mapping[str, int] | None) -> list[str]:
    """Return the line on traffic to and from a cluster; empty for a table that is read here."""
    if traffic is None:
        return []
    sent, received = (f"{traffic[way] / 1e6:.3g} MB" for way in ("sent", "received"))
    moved = f"{traffic['rows_moved']:,} rows moved between workers"
    return [f"Cluster: {sent} sent, {received} received, {moved}"]


LONGEST = 1000
"""Characters of a message; of a longer one, which repeats a long input, the middle is left out."""


def complain(text: str) -> None:
    """Write one line to stderr, in the name of the program."""
    line = " ".join(text.split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
    print(f"decoct: {line}", file=sys.stderr)


def show_warning(message: Warning | str, *_: Any) -> None:
    """Write a warning as one line to stderr, without the place in the code it comes from."""
    complain(f"warning: {message}")


def sentence(error: Exception) -> str:
    """Return what went wrong as one sentence, also where another library's words are in it."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}."
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"[.!?] ([A-Z])(?=[a-z ])", lambda m: f"; {m[1].lower()}", text)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _strict(value: Any) -> Any:
    """Return a copy that strict JSON allows."""
    if isinstance(value, Mapping):
        return {str(key): _strict(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "item"):  # a NumPy number
        return _strict(value.item())
    return value
