"""Checkpoints of a build: an .npz file of arrays and one JSON text. No pickle."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoct.constructions.base import Construction, pack_state, unpack_state
from decoct.errors import RequestError
from decoct.models.fingerprint import TOLERANCE
from decoct.passes.potentials import Counts
from decoct.runtime.file_lock import exclusive_lock
from decoct.runtime.files import remove_parts, require_writable, write_atomically

FORMAT = 3


@contextlib.contextmanager
def reserve(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep a checkpoint for this process alone while the block runs.

    Two builds would otherwise resume from each other's states. Temporary files of a killed build
    are removed.

    Raises
    ------
    RequestError
        Another build is using the checkpoint, the message says which; or it cannot be written.
    """
    require_writable(path, "checkpoint")
    with exclusive_lock(path, "checkpoint"):
        remove_parts(path)
        yield


def write_checkpoint(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write nested dicts of arrays, numbers, strings and lists, completely or not at all.

    Arrays of Python objects may hold strings and numbers.

    Raises
    ------
    RequestError
        There is no room, or no right to write; an older checkpoint is as it was.
    """
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
        The file is missing, damaged, no checkpoint, or of another version of the format.
    """
    if not Path(path).exists():
        raise RequestError(f"There is no checkpoint {path}.")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            packed = json.loads(str(archive["_json"]))
            arrays = {name: archive[name] for name in archive.files if name != "_json"}
        version, content = packed["format"], packed["content"]
        restored = _fill(content, arrays) if version == FORMAT else {}
    except PermissionError as error:
        raise RequestError(
            f"The checkpoint {path} may not be read (permission denied); ask its owner for the "
            "right to, or give another checkpoint."
        ) from error
    except Exception as error:
        raise RequestError(
            f"{path} is not a readable checkpoint ({type(error).__name__}); remove it to start "
            "again."
        ) from error
    if version != FORMAT:
        raise RequestError(
            f"The checkpoint {path} has format {version}, this decoct writes {FORMAT}; finish it "
            "with the version that wrote it, or remove it to start again."
        )
    return restored


def read_build(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the checkpoint of a build; as `read_checkpoint`, and refuse that of something else."""
    saved = read_checkpoint(path)
    if not isinstance(saved.get("request"), dict):
        raise RequestError(
            f"{path} is not the checkpoint of a build (a saved stream has the same form); choose "
            "another path."
        )
    return saved


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one build.

    Attributes
    ----------
    path
        The file.
    key
        What must agree with what is in it (`Request.checkpoint_key`).
    method
        The construction, whose state it holds.
    """

    path: str | os.PathLike[str]
    key: dict[str, Any]
    method: Construction

    def restore(self, counts: Counts) -> tuple[Any, list[dict[str, Any]]] | None:
        """Return state and rounds from the file, if there is one; refuse that of another build.

        The potentials evaluated so far are set in ``counts``.
        """
        if not Path(self.path).exists():
            return None
        saved = read_build(self.path)
        for name, value in self.key.items():
            found = saved["request"].get(name)
            if name == "values":
                if _same_values(found, value):
                    continue
                raise RequestError(
                    f"The checkpoint {self.path} is of another build: the functions of its model "
                    "have other values; remove it to start again."
                )
            if found != value:
                raise RequestError(
                    f"The checkpoint {self.path} is of another build: its {name} is {found!r}, "
                    f"this one's is {value!r}; remove it to start again."
                )
        counts.passes = saved["counts"]["passes"]
        counts.evaluations = saved["counts"]["evaluations"]
        return unpack_state(self.method, saved["state"]), saved["infos"]

    def write(self, state: Any, rounds: list[dict[str, Any]], counts: Counts) -> None:
        """Write what the next round needs, completely or not at all."""
        content = {
            "request": self.key,
            "state": pack_state(self.method, state),
            "infos": rounds,
            "counts": asdict(counts),
        }
        write_checkpoint(self.path, content)


def _same_values(found: Any, value: dict[str, Any]) -> bool:
    """Whether two fingerprints of a model's functions agree."""
    if not isinstance(found, dict) or found.keys() != value.keys():
        return False
    pairs = [(np.asarray(found[name]), np.asarray(value[name])) for name in value]
    return all(
        a.shape == b.shape and np.allclose(a, b, rtol=TOLERANCE, equal_nan=True) for a, b in pairs
    )


def _strip(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    if isinstance(value, dict):
        return {key: _strip(one, arrays, f"{name}/{key}") for key, one in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":  # strings of a table
            return {"__text__": value.tolist()}
        arrays[name] = value
        return {"__array__": name}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _fill(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"__array__"}:
            return arrays[value["__array__"]]
        if set(value) == {"__text__"}:
            return np.array(value["__text__"], dtype=object)
        return {key: _fill(one, arrays) for key, one in value.items()}
    return value
