"""Checkpoints of a build: an .npz file of arrays and one JSON text. No pickle."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from decoct.errors import RequestError
from decoct.models.fingerprint import TOLERANCE
from decoct.runtime.file_lock import exclusive_lock
from decoct.runtime.files import remove_parts, require_writable, write_atomically

FORMAT = 5


@contextlib.contextmanager
def reserve(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep a checkpoint for this process alone, and remove what a killed build left beside it."""
    require_writable(path, "checkpoint")
    with exclusive_lock(path, "checkpoint"):
        remove_parts(path)
        yield


def write_checkpoint(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write nested dicts of arrays, numbers, strings and lists, completely or not at all."""
    arrays: dict[str, np.ndarray] = {}

    def packed(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value.item()
        if value.dtype.kind == "O":  # strings and numbers of a table
            return {"__text__": value.tolist()}
        name = f"array_{len(arrays)}"
        arrays[name] = value
        return {"__array__": name}

    text = json.dumps({"format": FORMAT, "content": content}, default=packed)

    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, _json=np.array(text), **arrays)

    write_atomically(path, write)


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `write_checkpoint` wrote."""
    if not Path(path).exists():
        raise RequestError(f"There is no checkpoint {path}.")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            filled = partial(_fill, archive)
            packed = json.loads(str(archive["_json"]), object_hook=filled)
            version, content = packed["format"], packed["content"]
    except Exception as error:
        raise RequestError(
            f"{path} is not a readable checkpoint ({type(error).__name__}); remove it to start "
            "again, or give another."
        ) from error
    if version != FORMAT:
        raise RequestError(
            f"The checkpoint {path} has format {version} and this decoct writes {FORMAT}; finish "
            "it with the version that wrote it, or remove it to start again."
        )
    return content


def read_build(path: str | os.PathLike[str], asked: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read the checkpoint of the build with this `Request.checkpoint_key`, or of any."""
    saved = read_checkpoint(path)
    if not isinstance(saved.get("request"), dict):
        raise RequestError(
            f"{path} is not the checkpoint of a build (a saved stream has the same form); choose "
            "another path."
        )
    for name, value in (asked or {}).items():
        found = saved["request"].get(name)
        if name == "values":
            same, how = _same_values(found, value), "the functions of its model have other values"
        else:
            same, how = found == value, f"its {name} is {found!r}, this one's is {value!r}"
        if not same:
            raise RequestError(
                f"The checkpoint {path} is of another build: {how}; remove it to start again."
            )
    return saved


def _same_values(found: dict[str, Any], value: dict[str, Any]) -> bool:
    """Return whether two fingerprints of a model's functions agree."""
    return all(
        np.shape(found[name]) == np.shape(one)
        and np.allclose(found[name], one, rtol=TOLERANCE, equal_nan=True)
        for name, one in value.items()
    )


def _fill(archive: Mapping[str, np.ndarray], value: dict[str, Any]) -> Any:
    """Return an array in the place of what stands for it in the JSON text."""
    if set(value) == {"__array__"}:
        return archive[value["__array__"]]
    if set(value) == {"__text__"}:
        return np.array(value["__text__"], dtype=object)
    return value
