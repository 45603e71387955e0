"""What all commands share: exit codes, results on stdout, complaints on stderr, JSON."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoct.errors import DecoctError, RequestError
from decoct.runtime.files import write_atomically
from decoct.runtime.text import text_table

if TYPE_CHECKING:
    import xarray as xr

DONE, SHORT, BAD_INPUT, BROKEN, INTERRUPTED, TERMINATED = 0, 1, 2, 70, 130, 143
"""Exit codes; see `decoct.cli`."""

ENGINE = "h5netcdf"


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
    put(text_table([headings, *lines], "<" + ">" * (len(headings) - 1)))


def travelled(traffic: Mapping[str, int] | None) -> list[str]:
    """Return the line on traffic to and from a cluster; empty for a table that is read here."""
    if traffic is None:
        return []
    sent, received = (f"{traffic[way] / 1e6:.3g} MB" for way in ("sent", "received"))
    moved = f"{traffic['rows_moved']:,} rows moved between workers"
    return [f"Cluster: {sent} sent, {received} received, {moved}"]


def write_posterior(draws: xr.DataTree, path: Path) -> None:
    """Write the draws, completely or not at all."""
    # in memory first: HDF5 crashes the process when the disk is full
    content: Any = draws.to_netcdf(engine=ENGINE)
    write_atomically(path, lambda temporary: Path(temporary).write_bytes(content))


def read_posterior(path: Path) -> xr.DataTree:
    """Read draws that `write_posterior` wrote."""
    import xarray as xr

    if not path.is_file():
        raise RequestError(f"There is no file {path}; write one with 'decoct sample'.")
    try:
        with xr.open_datatree(path, engine=ENGINE) as opened:
            return opened.load()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(f"{path} is not a readable netCDF file of draws ({reason}).") from error


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
