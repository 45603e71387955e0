"""Checkpoints of a build: an .npz file of arrays and one JSON text. No pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from decoct.errors import RequestError
from decoct.files import write_atomically

FORMAT = 1


def write_checkpoint(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write nested dicts of arrays, numbers, strings and lists, completely or not at all."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps({"format": FORMAT, "content": _strip(content, arrays, "")})

    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, _json=np.array(text), **arrays)

    write_atomically(path, write)


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `write_checkpoint` wrote.

    Raises
    ------
    RequestError
        The file is missing, damaged, or no checkpoint.
    """
    if not Path(path).exists():
        raise RequestError(f"There is no checkpoint {path}.")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            packed = json.loads(str(archive["_json"]))
            arrays = {name: archive[name] for name in archive.files if name != "_json"}
    except Exception as error:
        raise RequestError(
            f"{path} is not a readable checkpoint ({type(error).__name__}); remove it to start "
            "afresh."
        ) from error
    if packed.get("format") != FORMAT:
        raise RequestError(f"{path} is a checkpoint of another version; remove it to start afresh.")
    return _fill(packed["content"], arrays)


def _strip(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    if isinstance(value, dict):
        return {key: _strip(one, arrays, f"{name}/{key}") for key, one in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            raise TypeError(f"'{name}' holds Python objects, which a checkpoint cannot keep.")
        arrays[name] = value
        return {"__array__": name}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _fill(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"__array__"}:
            return arrays[value["__array__"]]
        return {key: _fill(one, arrays) for key, one in value.items()}
    return value
